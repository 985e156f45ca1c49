#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Chat templates against transformers' renderer: the templates of the repository and those of the folder DS_CHAT_TEMPLATES, whole and
# with random edits of one token (CHAT_EDITS, default 10000; CHAT_SEED). Needs DS_ORACLE_PYTHON, an interpreter with transformers.
# Usage: chat_templates.sh BUILD
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$1
if [ -z "${DS_ORACLE_PYTHON:-}" ]; then
    echo "chat_templates: not run: DS_ORACLE_PYTHON is not set"
    exit 77
fi
"$DS_ORACLE_PYTHON" "$here/chat_templates.py" "$build/test_jinja" --edits "${CHAT_EDITS:-10000}" --seed "${CHAT_SEED:-1}" \
    "$here/../golden/data/templates" ${DS_CHAT_TEMPLATES:+"$DS_CHAT_TEMPLATES"}
