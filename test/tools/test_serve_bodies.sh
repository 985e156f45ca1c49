#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random bodies of every path of ds_serve: serve_bodies.py.
# Usage: test_serve_bodies.sh BUILD [BODIES [SEED [SECONDS]]] (the long test takes other seeds, for so long)
set -u
build=$(realpath "$1")
[ -x "$build/ds_serve" ] || { echo "ds_serve is not built: libmicrohttpd-dev is missing"; exit 77; }
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
source=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=test/common/tiny_llama.sh
. "$source/test/common/tiny_llama.sh" 2 32 2 512
head -c 20000 "$source/data/tinyshakespeare.txt" > data.txt
"$build/ds_train" --model_config llama.json --tokenizer bytes --data data.txt --seq_length 64 --micro_batch 8 --max_steps 20 \
    --learning_rate 1e-2 --output out > log 2>&1 || fail "training"
python3 -c "print(('zigzag goes up and down, ' * 30 + chr(10)) * 20)" > lora.txt
"$build/ds_train" --model out --lora 4 --tokenizer bytes --data lora.txt --seq_length 64 --micro_batch 4 --max_steps 8 \
    --learning_rate 2e-2 --output lora > log 2>&1 || fail "training an adapter"
seed=${3:-7}
while python3 "$source/test/tools/serve_bodies.py" "$build/ds_serve" out lora "${2:-300}" "$seed"; do
    [ "$SECONDS" -lt "${4:-0}" ] || exit 0
    seed=$((seed + 1))
done
exit 1
