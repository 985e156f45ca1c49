#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# ds_config as a user runs it: each command, its output, its exit code; docs/config.md is up to date.
set -u
bin=$1/ds_config
root=$DS_SOURCE_DIR
work=$(mktemp -d "$1/ds_config.XXXXXX")
trap 'rm -rf "$work"' EXIT
failed=0

fail() {
    echo "FAILED: $*"
    failed=1
}

# expect CODE TEXT COMMAND…: runs it; its output (both streams) must contain TEXT.
expect() {
    local want=$1 text=$2 out code
    shift 2
    out=$("$@" 2>&1)
    code=$?
    [ "$code" = "$want" ] || fail "$*: exit $code, expected $want: $out"
    case $out in
    *"$text"*) ;;
    *) fail "$*: expected '$text' in: $out" ;;
    esac
}

cat > "$work/right.json" <<'EOF'
{
  # HJSON
  "train_micro_batch_size_per_gpu": "auto",
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_type": "linear"}},
  "sparse_gradients": true
}
EOF
cat > "$work/wrong.json" <<'EOF'
{"train_batch_size": 8, "gradient_acumulation_steps": 2, "zero_optimization": {"stage": 5}}
EOF

expect 0 "right.json: right for 1 rank, 2 notices" "$bin" check "$work/right.json"
expect 0 "the Trainer's defaults: --micro_batch 8" "$bin" check "$work/right.json" --world_size 2
expect 1 "wrong.json: 2 errors" "$bin" check "$work/wrong.json"
expect 1 "wrong.json:1:25: gradient_acumulation_steps: unknown key; did you mean" \
    "$bin" check "$work/wrong.json"
expect 1 "1 error" "$bin" check "$work/wrong.json" --allow_unknown_keys
expect 3 "nothing.json" "$bin" check "$work/nothing.json"
expect 0 '"train_batch_size": {"value": 6, "origin": "rule"' \
    "$bin" resolve "$work/right.json" --world_size 2 --micro_batch 3
expect 0 '"lr": 0.01' "$bin" resolve "$work/right.json" --micro_batch 3 --values
# a flag holds where the file leaves its key out
expect 0 '"gradient_clipping": 0.25' "$bin" resolve "$work/right.json" --micro_batch 3 --max_grad_norm 0.25 --values
expect 0 '"optimizer.params.eps": {"value": 1e-06, "origin": "auto", "detail": "--adam_epsilon"' \
    "$bin" resolve "$work/right.json" --adam_epsilon 1e-6
expect 1 "warmup_num_steps: the file and the flag --warmup_steps disagree" \
    "$bin" check "$work/right.json" --warmup_steps 5
expect 1 "zero_optimization.stage: expected" "$bin" resolve "$work/wrong.json"
expect 0 "stage3_prefetch_bucket_size" "$bin" explain prefetch_bucket_size
expect 1 'did you mean "stage"' "$bin" explain stge
expect 0 'keys have "Bucket" in their names' "$bin" explain Bucket
expect 0 "zero_optimization.allgather_bucket_size
    Elements" "$bin" explain bucket
expect 0 "  meaning  " "$bin" explain untested # part of one key: all of it
expect 2 "did you mean --world_size" "$bin" check "$work/right.json" --wrold_size 2
expect 0 '"train_micro_batch_size_per_gpu": 3' \
    "$bin" resolve "$work/right.json" --per_device_train_batch_size 3 --values
expect 2 "--logging_steps is not a flag here" "$bin" check "$work/right.json" --logging_steps 5
expect 0 "right.json: right for 1 rank" "$bin" check "$work/right.json" --num_train_epochs 5
expect 2 "--help explains them" "$bin" chekc "$work/right.json"
expect 2 "usage: ds_config" "$bin"
expect 0 "Exit codes" "$bin" --help
expect 0 "learning rate by update" "$bin" lr "$work/right.json" --steps 8 --plot --micro_batch 1
expect 0 '"$schema":"https://json-schema.org/draft/2020-12/schema"' "$bin" schema

# what ds_train would take: the ranks of the batch sizes, the model's plan
echo '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}' > "$work/eight.json"
expect 0 "eight.json: right for 8 ranks" "$bin" check "$work/eight.json" --optim sgd
expect 1 "zero_optimization.stage: expected" "$bin" check <(echo '{"zero_optimization": {"stage": 9}}')
expect 1 "world size = 4" "$bin" check "$work/eight.json" --world_size 4
expect 2 "found --deepspeed_config too" "$bin" check "$work/eight.json" --deepspeed_config "$work/eight.json"
# what has no effect is said; what cannot be is refused by its key
expect 0 "sequence_parallel.attention: no effect with sequence_parallel_size 1" "$bin" check <(echo '{"train_batch_size": 2, "sequence_parallel": {"attention": "ring"}}')
expect 0 "sequence_parallel.load_balance: no effect without sequence_parallel_size of 2" \
    "$bin" check <(echo '{"train_batch_size": 2, "sequence_parallel_size": 2, "sequence_parallel": {"load_balance": false}}') --world_size 4
for key in mics_shard_size zero_hpz_partition_size; do
    expect 0 "zero_optimization.$key: there are 4 ranks: groups are of all of them" \
        "$bin" check <(echo '{"train_batch_size": 4, "zero_optimization": {"stage": 3, "'$key'": 16}}') --world_size 4
done
expect 1 "expert_parallel.autoep_size: expected 1 with optimizer.type OneBitAdam, found 2" "$bin" check --world_size 2 \
    <(echo '{"train_batch_size": 2, "optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3}}, "expert_parallel": {"enabled": true, "autoep_size": 2}}')
model="$root/test/common/gpt2.json"
echo '{"train_batch_size": 2, "device_memory": 1000000}' > "$work/small.json"
expect 0 "small.json: right" "$bin" check "$work/small.json"
expect 1 "device_memory: the plan needs" "$bin" check "$work/small.json" --model_config "$model"
expect 2 "exclude each other" "$bin" check "$work/small.json" --fp16 --bf16
# a configuration for this machine: taken as it is, by check and by ds_train
expect 0 '"stage": 0' "$bin" init
expect 0 '"stage": 2' "$bin" init --world_size 4
expect 0 '"train_micro_batch_size_per_gpu": 4,' "$bin" init --seq_length 1024
expect 0 "for 1 rank and rows of 128 tokens" "$bin" init --model_config "$model"
expect 0 "" "$bin" init --model_config "$model" --output "$work/made.json"
expect 2 "made.json is there already" "$bin" init --model_config "$model" --output "$work/made.json"
expect 0 "" "$bin" init --model_config "$model" --output "$work/made.json" --overwrite
expect 0 "made.json: right for 1 rank, 1 notice" "$bin" check "$work/made.json" --steps 1
printf '%.0s0123456789' {1..100} > "$work/text.txt"
train=("$1/ds_train" --model_config "$model" --tokenizer bytes --data "$work/text.txt" --threads 1)
expect 0 "ZeRO stage 0 for 1 rank" "${train[@]}" --seq_length 32 --steps 1
expect 0 "3 epochs, as the Trainer" "${train[@]}" --seq_length 128 --micro_batch 4
with=$("${train[@]}" --steps 2 --deepspeed_config "$work/made.json" 2>&1 | grep -o 'loss [0-9.]*' | tail -n 1)
without=$("${train[@]}" --steps 2 2>&1 | grep -o 'loss [0-9.]*' | tail -n 1)
[ -n "$with" ] && [ "$with" = "$without" ] || fail "init's file is another run: '$with', '$without'"

echo '{"dtype": "half", "tp": {"tp_size": 1}, "moe": true, "max_tokens": 64}' > "$work/inference.json"
echo '{"state_manager": {"max_ragged_sequence_count": 1000}}' > "$work/ragged.json"
expect 0 "inference.json: right, 0 notices" "$bin" check "$work/inference.json" --kind inference
expect 1 "max_tokens: unknown key; it belongs in" "$bin" check "$work/inference.json"
echo '{"train_batch_size": 8, "_comment": "mine"}' > "$work/comment.json"
expect 0 "_comment: unknown key, not read" "$bin" check "$work/comment.json"
expect 1 "_comment: unknown key; no key is near it" "$bin" check "$work/comment.json" --strict
expect 2 "exclude each other" "$bin" check "$work/comment.json" --strict --allow_unknown_keys
expect 1 "max_ragged_batch_size = 768, found 1000" "$bin" check "$work/ragged.json" --kind inference_v2
expect 2 "expected one of training|inference|inference_v2" "$bin" check "$work/ragged.json" --kind x

want="step,lr
1,0
2,0
3,0.0025
4,0.005
5,0.0075
6,0.01"
out=$("$bin" lr "$work/right.json" --steps 6 --micro_batch 1)
[ "$out" = "$want" ] || fail "lr: $out"

sed 's/"warmup_num_steps"/"warmup_max_lr": [0.01, 0.02], &/' "$work/right.json" > "$work/groups.json"
expect 0 "step,lr,lr_no_decay
1,0,0
2,0,0
3,0.0025,0.005" "$bin" lr "$work/groups.json" --steps 3 --micro_batch 1

"$bin" docs | cmp - "$root/docs/config.md" ||
    fail "docs/config.md is out of date: ds_config docs > docs/config.md"

exit $failed
