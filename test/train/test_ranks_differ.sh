#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Ranks that differ in a flag, key, field, variable, file or a bit of one are named before anything is trained; see
# ranks_differ.py. Usage: test_ranks_differ.sh BUILD [CASES [SEED]] (default 1; the long test takes another each time)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/ranks_differ.py" "$1" "$here/../.." "${2:-48}" "${3:-1}"
