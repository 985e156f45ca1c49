#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random requests of ds_serve against what one answer says of another: serve_scores.py.
# Usage: test_serve_scores.sh BUILD [RUNS [SEED [SECONDS]]] (the long test takes other seeds each time, for so long)
set -u
build=$(realpath "$1")
[ -x "$build/ds_serve" ] || { echo "ds_serve is not built: libmicrohttpd-dev is missing"; exit 77; }
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
source=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=test/common/tiny_llama.sh
. "$source/test/common/tiny_llama.sh" 2 32 2 512
python3 -c "print(('caf\u00e9 \u4e16\u754c \U0001f600 na\u00efve stra\u00dfe, ' * 8 + chr(10)) * 80)" > data.txt # characters of two to four tokens
"$build/ds_train" --model_config llama.json --tokenizer bytes --data data.txt --seq_length 64 --micro_batch 8 --max_steps 40 \
    --learning_rate 1e-2 --output out > log 2>&1 || fail "training"
for ((i = 0; i < ${2:-1} || SECONDS < ${4:-0}; ++i)); do
    python3 "$source/test/tools/serve_scores.py" "$build/ds_serve" out 10 $((${3:-5} + i)) || exit 1
done
