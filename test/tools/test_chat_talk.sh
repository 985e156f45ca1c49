#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# ds_generate --chat converses, by lines of a pipe and on a terminal (chat_talk.py). Usage: test_chat_talk.sh BUILD
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
exec python3 "$here/chat_talk.py" "$(cd "$1" && pwd)"
