#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Names and texts from files reach the terminal without what it would obey: hostile strings in every kind of input,
# each tool run on a terminal of its own. DS_HOSTILE_CASES (60) and DS_HOSTILE_SEED (1) choose how many and which.
set -u
bin=$(realpath "$1")
export root=$DS_SOURCE_DIR bin
work=$(mktemp -d "$1/hostile.XXXXXX")
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work" || exit 1
head -c 3000 "$root/data/tinyshakespeare.txt" > text.txt
echo '{"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}' > ds.json
"$bin/ds_train" --model_config "$root/test/common/gpt2.json" --tokenizer bytes --seq_length 16 --threads 1 --data text.txt \
    --deepspeed_config ds.json --steps 1 --output saved > setup.txt 2>&1 || { cat setup.txt; exit 1; }
python3 "$root/test/tools/hostile_names.py"
