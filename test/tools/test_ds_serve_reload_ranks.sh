#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Reloads of ds_serve over ranks that share the layers: serve_reload_ranks.py, on small models of bytes.
set -u
build=$(realpath "$1")
[ -x "$build/ds_serve" ] || { echo "ds_serve is not built: libmicrohttpd-dev is missing"; exit 77; }
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
# shellcheck source=test/common/tiny_llama.sh
. "$DS_SOURCE_DIR/test/common/tiny_llama.sh" 2 32 2 1024
train() { "$build/ds_train" --tokenizer bytes --seq_length 64 --micro_batch 8 --learning_rate 1e-2 "$@" > log 2>&1 || fail "training"; }
python3 -c "print('the quick brown fox jumps over the lazy dog. ' * 200)" > a.txt
python3 -c "print('zigzag goes up and down, and then left. ' * 200)" > b.txt
train --model_config llama.json --data a.txt --max_steps 60 --output a
train --model_config llama.json --data b.txt --max_steps 60 --output b
python3 -c "print(('zigzag the fox, ' * 30 + chr(10)) * 20)" > lora.txt
train --model a --lora 4 --data lora.txt --max_steps 12 --output lora
cp -r a other
echo '{"eos_token_id": [5, 6]}' > other/generation_config.json
python3 "$DS_SOURCE_DIR/test/tools/serve_reload_ranks.py" "$build" a b other lora
