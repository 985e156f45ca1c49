#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# QLoRA by ds_train: the same bits in every ZeRO stage, with offload, recomputation, other threads, and saved and resumed on
# another stage; ds_generate, ds_plan, and what is refused. Ranks along tp: test_packed_ranks.sh.
# Usage: test_packed_matrix.sh BUILD
set -euo pipefail
build=$1
golden=$DS_SOURCE_DIR/test/golden/adapter
scratch=$(mktemp -d)
[ -n "${KEEP:-}" ] || trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
fail() { echo "FAIL: $*" >&2; exit 1; }
mkdir disk

run() { # name, ranks, keys of the configuration, flags …
    local name=$1 ranks=$2 keys=$3
    shift 3
    echo "{\"train_micro_batch_size_per_gpu\":2, \"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":1e-2}} $keys}" > "$name.json"
    "$build/deepspeed" --num_gpus "$ranks" "$build/ds_train" --model "$golden/models/$model" --tokenizer bytes \
        --data "$golden/rows.jsonl" --seq_length 48 --deepspeed_config "$name.json" --lr_scheduler_type none "$@" > "$name.log" 2>&1 ||
        { cat "$name.log"; fail "$name"; }
}
bits() { sha256sum < "$1/adapter_model.safetensors"; }
same() { [ "$(bits "$1")" = "$want" ] || fail "$1 gives other weights than stage 0"; }
shard='"stage3_param_persistence_threshold":0,"reduce_bucket_size":500'
half='"bf16":{"enabled":true},'

for model in llama gpt2; do
    flags=(--lora 4 --load_in_4bit)
    [ $model = llama ] || flags+=(--bnb_4bit_use_double_quant)
    for stage in 0 1 2 3; do
        run "z$stage" 2 ",$half \"zero_optimization\":{\"stage\":$stage,$shard}" --steps 4 --output "$model.z$stage" "${flags[@]}" \
            --threads $((stage % 2 + 1))
    done
    want=$(bits $model.z0)
    for stage in 1 2 3; do
        same $model.z$stage
    done
    run recompute 2 ",$half \"activation_checkpointing\":{\"recompute\":\"full\"},\"zero_optimization\":{\"stage\":3,$shard}" \
        --steps 4 --output $model.recompute "${flags[@]}"
    same $model.recompute
    run offload 2 ",$half \"zero_optimization\":{\"stage\":3,$shard,\"offload_param\":{\"device\":\"nvme\",\"nvme_path\":\"$scratch/disk\"},
        \"offload_optimizer\":{\"device\":\"cpu\"}}" --steps 4 --output $model.offload "${flags[@]}"
    same $model.offload
    run resumed 2 ",$half \"zero_optimization\":{\"stage\":3,$shard}" --steps 4 --save_interval 2 --output $model.resumed "${flags[@]}"
    rm -rf $model.resumed/global_step4 $model.resumed/adapter_*
    echo -n global_step2 > $model.resumed/latest
    run resumed 2 ",$half \"zero_optimization\":{\"stage\":1,$shard}" --steps 4 --output $model.resumed "${flags[@]}" --resume
    same $model.resumed
done

# DoRA beside it: the lengths of rows that no rank has whole.
model=llama
for stage in 0 3; do
    run "d$stage" 2 ",$half \"zero_optimization\":{\"stage\":$stage,$shard}" --steps 4 --output "dora.z$stage" --lora 2 --lora_method dora \
        --lora_dropout 0.1 --load_in_4bit
done
want=$(bits dora.z0)
same dora.z3

# The base makes a difference, in generation too, and takes less memory.
model=llama
text() { "$build/ds_generate" --model "$golden/models/llama" --adapter llama.z0 --tokenizer bytes --prompt "one two " --max_new_tokens 24 "$@" 2> /dev/null; }
text > plain.txt
text --load_in_4bit > four.txt
if cmp -s plain.txt four.txt; then fail "4 bits change no text"; fi
sed -E 's/"hidden_size": [0-9]+/"hidden_size": 512/; s/"intermediate_size": [0-9]+/"intermediate_size": 1024/; s/"head_dim": [0-9]+/"head_dim": 64/' \
    "$golden/models/llama/config.json" > large.json
plan() { "$build/ds_plan" --model_config large.json --deepspeed_config z0.json --seq_length 48 --lora 4 "$@" | sed -nE 's/^  parameters +([0-9.]+)$/\1/p'; }
cat <<EOF | awk '{ bad = bad || !($1 < $2 && $2 < $3 && $3 == $4 && $4 < $5) } END { exit bad }' || fail "memory by the plan"
$(plan --load_in_4bit --bnb_4bit_use_double_quant) $(plan --load_in_4bit) $(plan --load_in_8bit) $(plan --load_in_fp8) $(plan)
EOF

# What contradicts or is not there.
refuses() { # words, flags …
    local words=$1
    shift
    if "$build/ds_train" --model "$golden/models/llama" --tokenizer bytes --data "$golden/rows.jsonl" --seq_length 48 --steps 1 \
        --deepspeed_config z0.json "$@" > refused.log 2>&1; then fail "accepted: $*"; fi
    grep -q -- "$words" refused.log || fail "$*: $(cat refused.log)"
}
refuses 'beside an adapter' --load_in_4bit
refuses 'exclude each other' --lora 2 --load_in_4bit --load_in_8bit
refuses 'goes with --load_in_4bit' --lora 2 --load_in_8bit --bnb_4bit_use_double_quant
refuses 'cannot be trained' --lora 2 --load_in_4bit --lora_targets q_proj --modules_to_save o_proj
echo "all right"
