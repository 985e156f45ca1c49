#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: waits
# The end of ds_serve, alone and as a front: serve_drain.py, which needs Python's own library alone.
set -u
build=$1
[ -x "$build/ds_serve" ] || { echo "ds_serve is not built: libmicrohttpd-dev is missing"; exit 77; }
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
# shellcheck source=test/common/tiny_llama.sh
. "$DS_SOURCE_DIR/test/common/tiny_llama.sh" 1 16 1 512
python3 -c "print('the quick brown fox jumps over the lazy dog. ' * 200)" > data.txt
"$build/ds_train" --model_config llama.json --tokenizer bytes --data data.txt --seq_length 64 --micro_batch 8 --max_steps 3 \
    --output out > log 2>&1 || fail "training"
python3 "$DS_SOURCE_DIR/test/tools/serve_drain.py" "$build/ds_serve" out 5 || exit 1
python3 "$DS_SOURCE_DIR/test/tools/serve_drain.py" "$build/ds_serve" out 3 --replicas 1 || exit 1
