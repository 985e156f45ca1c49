#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The chat page of ds_serve in Chromium (Debian's package chromium): streams, stop, system prompt, settings, errors, keys, a front.
# Usage: serve_page.sh BUILD
set -u
build=$(realpath "$1")
DS_SOURCE_DIR=$(realpath "$(dirname "$0")/../..")
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || { echo "skip: no chromium"; exit 77; }
# shellcheck source=test/common/tiny_llama.sh
. "$DS_SOURCE_DIR/test/common/tiny_llama.sh" 2 32 2 2048
python3 -c "print('the quick brown fox jumps over the lazy dog. ' * 200)" > data.txt
"$build/ds_train" --model_config llama.json --tokenizer bytes --data data.txt --seq_length 64 --micro_batch 8 --max_steps 200 \
    --learning_rate 1e-2 --output out > log 2>&1 || fail "training"
python3 "$DS_SOURCE_DIR/test/long/serve_page.py" "$build/ds_serve" out "$browser" || exit 1
