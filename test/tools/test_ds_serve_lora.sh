#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Adapters of requests over HTTP, against the models that ds_checkpoint merges: serve_http.py, which needs Python's own library alone.
set -u
build=$1
[ -x "$build/ds_serve" ] || { echo "ds_serve is not built: libmicrohttpd-dev is missing"; exit 77; }
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
# shellcheck source=test/common/tiny_llama.sh
. "$DS_SOURCE_DIR/test/common/tiny_llama.sh" 2 32 2 2048
python3 -c "print('the quick brown fox jumps over the lazy dog. ' * 200)" > data.txt
"$build/ds_train" --model_config llama.json --tokenizer bytes --data data.txt --seq_length 64 --micro_batch 8 --max_steps 200 \
    --learning_rate 1e-2 --output out > log 2>&1 || fail "training"
# two adapters, and the models that they make
for n in 1 2; do
    python3 -c "print(('zigzag $n goes up and down, ' * 30 + chr(10)) * 20)" > "lora$n.txt"
    "$build/ds_train" --model out --lora 4 --tokenizer bytes --data "lora$n.txt" --seq_length 64 --micro_batch 4 --max_steps 20 \
        --learning_rate 2e-2 --output "lora$n" > log 2>&1 || fail "training an adapter"
    "$build/ds_checkpoint" merge out "lora$n" "merged$n" --dtype fp32 > log 2>&1 || fail "merging an adapter"
done
python3 "$DS_SOURCE_DIR/test/tools/serve_http.py" "$build/ds_serve" out loras || exit 1
