#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ds_serve among 10,000 requests and rough clients: serve_soak.py. Usage: serve_soak.sh BUILD. SOAK_REQUESTS: another number.
set -euo pipefail
build=$(realpath "$1")
here=$(realpath "$(dirname "$0")")
[ -x "$build/ds_serve" ] || { echo "skipped: ds_serve is not built"; exit 77; }
. "$here/../common/tiny_llama.sh" 2 128 2 2048
seq -f 'line %.0f of a text that is short' 2000 > data.txt
"$build/ds_train" --model_config llama.json --tokenizer bytes --data data.txt --seq_length 64 --micro_batch 8 --max_steps 20 \
    --learning_rate 1e-2 --output out > log 2>&1 || fail "training"
python3 "$here/serve_soak.py" "$build" out "${SOAK_REQUESTS:-10000}" || { tail -5 serve.log; exit 1; }
