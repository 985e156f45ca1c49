#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# ds_serve over ranks that share the layers: serve_ranks.py, on a small model of bytes; shared memory, and MPI where it is.
set -u
build=$(realpath "$1")
[ -x "$build/ds_serve" ] || { echo "ds_serve is not built: libmicrohttpd-dev is missing"; exit 77; }
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
# shellcheck source=test/common/tiny_llama.sh
. "$DS_SOURCE_DIR/test/common/tiny_llama.sh" 2 64 2 1024
python3 -c "print('the quick brown fox jumps over the lazy dog. ' * 200)" > data.txt
"$build/ds_train" --model_config llama.json --tokenizer bytes --data data.txt --seq_length 64 --micro_batch 8 --max_steps 200 \
    --learning_rate 1e-2 --output out > log 2>&1 || fail "training"
python3 "$DS_SOURCE_DIR/test/tools/serve_ranks.py" "$build" out
