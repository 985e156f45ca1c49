#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random rows of every schema (messages, turns, ShareGPT, Alpaca, pairs, preferences, text): ids and loss mask as ours and as
# datasets and TRL's preparation give them; and chats by each of TRL's own templates. Usage: data_schemas.sh BUILD. Needs DS_ORACLE_PYTHON: a Python with datasets,
# transformers and TRL. ROWS: how many of each schema and tokenizer (500).
set -euo pipefail
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${DS_ORACLE_PYTHON:-}" ]; then
    echo "not run: DS_ORACLE_PYTHON names no Python with TRL"
    exit 77
fi
exec "$DS_ORACLE_PYTHON" "$here/data_schemas.py" "$build/schema_rows" "${ROWS:-500}" "${SEED:-$RANDOM}"
