#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Clients of https (MII's in C, the front of replicas, ds_bench --serve) against servers of Python's ssl and of ds_serve: serve_https.py.
set -u
build=$(realpath "$1")
[ -x "$build/ds_serve" ] || { echo "ds_serve is not built: libmicrohttpd-dev is missing"; exit 77; }
[ -e "$build/libdeepspeed_tls.so" ] || { echo "https is not built: libgnutls28-dev is missing"; exit 77; }
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
command -v openssl > /dev/null || { echo "no openssl, which makes the certificates"; exit 77; }
# shellcheck source=test/common/tiny_llama.sh
. "$DS_SOURCE_DIR/test/common/tiny_llama.sh" 2 32 2 512
python3 -c "print('the quick brown fox jumps over the lazy dog. ' * 200)" > data.txt
"$build/ds_train" --model_config llama.json --tokenizer bytes --data data.txt --seq_length 64 --micro_batch 8 --max_steps 20 \
    --learning_rate 1e-2 --output out > log 2>&1 || fail "training"
python3 "$DS_SOURCE_DIR/test/tools/serve_https.py" "$build" out || exit 1
