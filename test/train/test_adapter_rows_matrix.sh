#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Several adapters in one run of ds_train (--adapters): the same bits in every ZeRO stage, with offload, recomputation, resume, and in a
# pipeline; the same losses to a tolerance under tensor and sequence parallelism and in chunks of positions; what is refused.
# Usage: test_adapter_rows_matrix.sh BUILD
set -euo pipefail
build=$1
golden=$DS_SOURCE_DIR/test/golden/adapter
scratch=$(mktemp -d)
[ -n "${KEEP:-}" ] || trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
fail() { echo "FAIL: $*" >&2; exit 1; }
for i in 0 1 2 3 4 5; do
    printf '{"prompt": "one %s two", "completion": " three %s"}\n' $i $i >> a.jsonl
    printf '{"prompt": "six %s", "completion": " seven eight %s nine"}\n' $i $i >> b.jsonl
done

lora=(--lora 4 --lora_dropout 0.1 --adapters first second)
run() { # name, ranks, keys of the configuration, flags …
    local name=$1 ranks=$2 keys=$3
    shift 3
    echo "{\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":1e-2}} $keys}" > "$name.json"
    "$build/deepspeed" --num_gpus "$ranks" "$build/ds_train" --model "$golden/models/${model:-llama}" --tokenizer bytes \
        --data a.jsonl b.jsonl --seq_length 48 --deepspeed_config "$name.json" --lr_scheduler_type none --output "$name" \
        --metrics "$name.jsonl" "$@" > "$name.log" 2>&1 || { cat "$name.log"; fail "$name"; }
}
bits() { cat "$1"/{first,second}/adapter_model.safetensors | sha256sum; }
same() { [ "$(bits "$1")" = "$want" ] || fail "$1 gives other weights"; }
shard='"stage3_param_persistence_threshold":0,"reduce_bucket_size":500'
half='"train_micro_batch_size_per_gpu":2,"bf16":{"enabled":true},'

for stage in 0 1 2 3; do
    run "z$stage" 2 ",$half \"zero_optimization\":{\"stage\":$stage,$shard}" --steps 4 "${lora[@]}" --threads $((stage % 2 + 1))
done
want=$(bits z0)
same z1
same z2
same z3
run other 2 ",$half \"zero_optimization\":{\"stage\":3,$shard,\"offload_optimizer\":{\"device\":\"cpu\"}},
    \"activation_checkpointing\":{\"recompute\":\"full\"}" --steps 4 "${lora[@]}" --save_interval 2
same other
rm -rf other/global_step4 other/first other/second
echo -n global_step2 > other/latest
run other 2 ",$half \"zero_optimization\":{\"stage\":1,$shard}" --steps 4 "${lora[@]}" --resume
same other
cmp -s z0/first/adapter_model.safetensors z0/second/adapter_model.safetensors && fail "both adapters are one"
grep -q '"peft_type": "LORA"' z0/second/adapter_config.json || fail "no configuration of PEFT's"

# Ranks that share layers, sequences, or the depth.
loss() { sed -nE 's/.*"loss":([^,]*).*/\1/p' "$1.jsonl"; }
alike() {
    paste <(loss one) <(loss "$1") | awk '{ d = $1 - $2; bad = bad || d > 1e-5 || d < -1e-5 } END { exit bad || NR != 3 }' ||
        fail "$1 learns another: $(paste <(loss one) <(loss "$1"))"
}
rows=',"train_micro_batch_size_per_gpu":4'
run one 1 "$rows" --steps 3 --lora 4 --adapters first second
run tensor 2 "$rows,\"tensor_parallel\":{\"autotp_size\":2}" --steps 3 --lora 4 --adapters first second
alike tensor
run sequence 2 "$rows,\"sequence_parallel_size\":2" --steps 3 --lora 4 --adapters first second
alike sequence
run chunks 1 "$rows,\"sequence_parallel\":{\"chunk_size\":16}" --steps 3 --lora 4 --adapters first second
alike chunks
parts=',"train_micro_batch_size_per_gpu":2,"gradient_accumulation_steps":2'
run parts 1 "$parts" --steps 3 --lora 4 --adapters first second
run stages 2 "$parts,\"pipeline\":{\"stages\":2}" --steps 3 --lora 4 --adapters first second
want=$(bits parts)
same stages
run packed 1 "$rows" --steps 1 --lora 4 --adapters first second --load_in_4bit --eval_fraction 0.3 --eval_interval 1
grep -q '"eval_loss"' packed.jsonl || fail "no evaluation: $(cat packed.jsonl)"

# Going on from the folders; text of one of them; the planner.
run again 1 "$rows" --steps 1 --adapter one --adapters first second
"$build/ds_generate" --model "$golden/models/llama" --adapter one/second --tokenizer bytes --prompt "six 1" --max_new_tokens 4 \
    > /dev/null 2> text.log || fail "no text: $(cat text.log)"
trained() { "$build/ds_plan" --model "$golden/models/llama" --deepspeed_config one.json --seq_length 48 --json plan.json "$@" > /dev/null
    sed -nE 's/.*"trainable": ([0-9]+).*/\1/p' plan.json | head -1; }
[ "$(trained --lora 4 --adapters a b c)" = $((3 * $(trained --lora 4))) ] || fail "trainable: $(trained --lora 4 --adapters a b c)"

refuses() { # words, flags …
    local words=$1
    shift
    [[ $* == *--deepspeed_config* ]] || set -- --deepspeed_config one.json "$@"
    if "$build/ds_train" --model "$golden/models/llama" --tokenizer bytes --data a.jsonl b.jsonl --seq_length 48 --steps 1 \
        "$@" > refused.log 2>&1; then fail "accepted: $*"; fi
    grep -q -- "$words" refused.log || fail "$*: $(cat refused.log)"
}
refuses '--adapters goes with --lora RANK or --adapter DIR' --adapters a b
refuses 'expected two names or more' --lora 2 --adapters a
refuses '3 names for the 2 paths of --data' --lora 2 --adapters a b c
refuses 'does not say which adapter' --lora 2 --adapters a b --eval_data a.jsonl
refuses 'the name "a" is there twice' --lora 2 --adapters a a
refuses 'the name "global_step1"' --lora 2 --adapters a global_step1 --output new
refuses '"use_dora"' --lora 2 --adapters a b --lora_method dora
refuses '"init_lora_weights"' --lora 2 --adapters a b --lora_method pissa
refuses '"modules_to_save"' --lora 2 --adapters a b --modules_to_save norm
refuses 'frozen beside several' --lora 2 --adapters a b --frozen_adapters "$golden/lora/start"
sed 's/{/{"mlp_tile_tokens":16,/' one.json > tiles.json
refuses 'is read in parts of the batch' --lora 2 --adapters a b --lora_targets gate_proj --deepspeed_config tiles.json
refuses 'the same --frozen_adapters and --adapters' --lora 4 --adapters first other --output one --resume
echo "all right"
