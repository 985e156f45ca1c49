#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Random flags and files that say where ds_serve's weights are: serve_offload.py.
# Usage: test_serve_offload.sh BUILD [CASES [SEED [SECONDS]]] (the long test takes other seeds, for so long)
set -u
build=$(realpath "$1")
[ -x "$build/ds_serve" ] || { echo "ds_serve is not built: libmicrohttpd-dev is missing"; exit 77; }
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
source=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=test/common/tiny_llama.sh
. "$source/test/common/tiny_llama.sh" 3 384 4 256
for ((i = 0; i < 40; ++i)); do echo "the ship sails over the quiet sea."; done > text.txt
train() { "$build/ds_train" --tokenizer bytes --data text.txt --seq_length 32 --learning_rate 1e-2 --steps 3 "$@" > log 2>&1 || fail "training"; }
train --model_config llama.json --output tuned
train --model tuned --lora 4 --output lora
seed=${3:-42}
while python3 "$source/test/tools/serve_offload.py" "$build/ds_serve" tuned lora "${2:-5}" "$seed"; do
    [ "$SECONDS" -lt "${4:-0}" ] || exit 0
    seed=$((seed + 1))
done
exit 1
