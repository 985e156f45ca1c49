#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains a small GPT of Llama's kind on Shakespeare from scratch and lets it speak. Usage: demo.sh BUILD [ds_train flags]
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
out=out/shakespeare
rm -rf "$out"
exec "$build/ds_train" \
    --model_config examples/shakespeare/model.json --tokenizer bytes \
    --data data/tinyshakespeare.txt --eval_fraction 0.1 --eval_interval 500 \
    --deepspeed_config examples/shakespeare/ds_config.json --steps 2000 \
    --output "$out" --sample "ROMEO:" "$@"
