#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Random requests of ds_serve alone and in a crowd, vectors, beams and adapters among them: serve_random.py.
# Usage: test_serve_random.sh BUILD [RUNS [SEED [SECONDS]]] (the long test takes other seeds each time, for so long)
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
for n in 1 2; do
    python3 -c "print(('zigzag $n goes up and down, ' * 30 + chr(10)) * 20)" > "lora$n.txt"
    "$build/ds_train" --model out --lora 4 --tokenizer bytes --data "lora$n.txt" --seq_length 64 --micro_batch 4 --max_steps 8 \
        --learning_rate 2e-2 --output "lora$n" > log 2>&1 || fail "training an adapter"
done
for ((i = 0; i < ${2:-1} || SECONDS < ${4:-0}; ++i)); do
    python3 "$source/test/tools/serve_random.py" "$build/ds_serve" out lora1 lora2 40 $((${3:-32} + i)) || exit 1
done
