#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ids and loss masks of chats against transformers' return_assistant_tokens_mask: every template with {% generation %} of the repository
# and of the folder DS_CHAT_TEMPLATES, with a byte-level and a SentencePiece tokenizer. Needs DS_ORACLE_PYTHON, an interpreter with
# transformers. Usage: chat_masks.sh BUILD
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
golden=$here/../golden/data
if [ -z "${DS_ORACLE_PYTHON:-}" ]; then
    echo "chat_masks: not run: DS_ORACLE_PYTHON is not set"
    exit 77
fi
exec "$DS_ORACLE_PYTHON" -W ignore "$here/chat_masks.py" "$1/chat_masks" "$golden/masks/tokenizer-tekken.json" \
    "$golden/tokenizer-llama2.json" -- "$golden/templates" ${DS_CHAT_TEMPLATES:+"$DS_CHAT_TEMPLATES"}
