#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The model folder that ds_train writes keeps what it does not write itself of --model's, and no old weights.
set -euo pipefail
bin=$(realpath "$1")
root=$DS_SOURCE_DIR
work=$(mktemp -d "$1/folder_kept.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*"; exit 1; }
head -c 3000 "$root/data/tinyshakespeare.txt" > text.txt
echo '{"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}' > ds.json
run=(--seq_length 16 --threads 1 --data text.txt --deepspeed_config ds.json --steps 1)
train() { "$bin/ds_train" "$@" "${run[@]}" > log.txt 2>&1 || fail "$* $(tail -n 2 log.txt)"; }
train --model_config "$root/test/common/gpt2.json" --tokenizer bytes --output model
rm -r model/global_step1 model/latest
mkdir bytes && cp model/tokenizer* bytes/
echo '{"temperature": 0.6, "eos_token_id": [1, 2]}' > model/generation_config.json
echo '{}' > model/special_tokens_map.json
echo '{{ messages[0].content }}' > model/chat_template.jinja
echo old > model/pytorch_model.bin
echo '{"weight_map": {}}' > model/pytorch_model.bin.index.json
for file in generation_config.json special_tokens_map.json chat_template.jinja; do
    kept+=("$file")
done
train --model model --output tuned
for file in "${kept[@]}"; do
    cmp "model/$file" "tuned/$file" || fail "$file is lost"
done
ls tuned | grep -q pytorch_model && fail "old weights: $(ls tuned)"
train --model model --tokenizer bytes --output other
cmp model/generation_config.json other/generation_config.json || fail "generation_config.json is lost"
[ ! -e other/chat_template.jinja ] || fail "a template of another tokenizer"
