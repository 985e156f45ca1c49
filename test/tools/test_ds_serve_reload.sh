#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# ds_serve takes other weights without an end: serve_reload.py, which needs Python's own library alone.
set -u
build=$1
[ -x "$build/ds_serve" ] || { echo "ds_serve is not built: libmicrohttpd-dev is missing"; exit 77; }
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
# shellcheck source=test/common/tiny_llama.sh
. "$DS_SOURCE_DIR/test/common/tiny_llama.sh" 2 32 2 2048
train() { "$build/ds_train" --tokenizer bytes --seq_length 64 --micro_batch 8 --learning_rate 1e-2 "$@" > log 2>&1 || fail "training"; }
python3 -c "print('the quick brown fox jumps over the lazy dog. ' * 200)" > a.txt
python3 -c "print('zigzag goes up and down, and then left. ' * 200)" > b.txt
train --model_config llama.json --data a.txt --max_steps 60 --output a
train --model_config llama.json --data b.txt --max_steps 60 --output b
train --model a --lora 4 --data b.txt --max_steps 20 --output lora1
# shellcheck source=test/tools/bert_folder.sh
. "$DS_SOURCE_DIR/test/tools/bert_folder.sh"
bert_folder words.bert a.txt
mlm() { "$build/ds_train" --model_config words.bert/config.json --tokenizer words.bert --data a.txt --seq_length 32 --micro_batch 8 --objective mlm \
    --steps 2 "$@" > log 2>&1 || fail "training an encoder"; }
mlm --seed 1 --output bert
mlm --seed 2 --output bert2
python3 "$DS_SOURCE_DIR/test/tools/serve_reload.py" "$build/ds_serve" || exit 1
