#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random JSON schemas, three texts each that guides make of them, and the package jsonschema as the judge: 500 at a time, other ones each
# time, for TEST_SECONDS (default 600); then the same schemas by requests of ds_serve, for as long (serve_schemas.py).
# Usage: guide_schemas.sh BUILD. Needs DS_SCHEMA_PYTHON or DS_ORACLE_PYTHON (a Python with jsonschema; with rfc3339-validator it looks at
# dates, too); without it it is skipped (77).
set -euo pipefail
python=${DS_SCHEMA_PYTHON:-${DS_ORACLE_PYTHON:-}}
[ -n "$python" ] && "$python" -c "import jsonschema" 2> /dev/null || { echo "skipped: no Python with jsonschema"; exit 77; }
build=$(realpath "$1")
source=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=test/common/tiny_llama.sh
. "$source/test/common/tiny_llama.sh" 2 32 2 2048
first=${SEED:-0} # the first time the same as ever
until [ "$SECONDS" -ge "${TEST_SECONDS:-600}" ] && [ -s texts ]; do
    "$build/guide_random" 500 3 "$first" > texts
    "$python" "$source/test/long/guide_schemas.py" texts
    first=$((first + 500))
done
[ -x "$build/ds_serve" ] || { echo "ds_serve is not built: libmicrohttpd-dev is missing"; exit 0; }
head -c 20000 "$source/data/tinyshakespeare.txt" > data.txt
"$build/ds_train" --model_config llama.json --tokenizer bytes --data data.txt --seq_length 64 --micro_batch 8 --max_steps 20 \
    --learning_rate 1e-2 --output out > log 2>&1 || fail "training"
"$python" "$source/test/long/serve_schemas.py" "$build" out "$first" "${TEST_SECONDS:-600}"
