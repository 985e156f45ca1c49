#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Random reloads of ds_serve under load: serve_reloads.py.
# Usage: test_serve_reloads.sh BUILD [RELOADS [SEED [SECONDS]]] (the long test takes other seeds, for so long)
set -u
build=$(realpath "$1")
[ -x "$build/ds_serve" ] || { echo "ds_serve is not built: libmicrohttpd-dev is missing"; exit 77; }
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
source=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=test/common/tiny_llama.sh
. "$source/test/common/tiny_llama.sh" 2 32 2 2048
train() { "$build/ds_train" --tokenizer bytes --seq_length 64 --micro_batch 8 --learning_rate 1e-2 "$@" > log 2>&1 || fail "training"; }
python3 -c "print('the quick brown fox jumps over the lazy dog. ' * 200)" > a.txt
python3 -c "print('zigzag goes up and down, and then left. ' * 200)" > b.txt
train --model_config llama.json --data a.txt --max_steps 30 --output a
train --model_config llama.json --data b.txt --max_steps 30 --output b
train --model a --lora 4 --data b.txt --max_steps 20 --output lora1
seed=${3:-5}
while python3 "$source/test/tools/serve_reloads.py" "$build/ds_serve" "${2:-12}" "$seed"; do
    [ "$SECONDS" -lt "${4:-0}" ] || exit 0
    seed=$((seed + 1))
    rm -rf made*
done
exit 1
