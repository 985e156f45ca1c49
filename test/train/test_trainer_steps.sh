#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# The same 20 steps as Hugging Face's Trainer's (test/golden/trainer), with a configuration as fine-tuning frameworks ship
# them: everything "auto", no optimizer, no scheduler. Losses within 1e-5 in fp32 and 1e-2 in bf16, rates, norms. A
# warm-up of a ratio, a cosine, decay, clipping, uneven targets over accumulation; and the defaults alone.
set -euo pipefail
build=$1
golden=$DS_SOURCE_DIR/test/golden/trainer
work=$(mktemp -d "$build/trainer_steps.XXXXXX")
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAILED: $*"
    exit 1
}

train() { # NAME FLAGS…
    rm -f "$work/$1.jsonl"
    "$build/ds_train" --model "$golden/model" --tokenizer bytes --data "$golden/rows.jsonl" --seq_length 48 --steps 20 \
        --deepspeed_config "$golden/zero2.json" --micro_batch 2 --gradient_accumulation_steps 3 --loss_average targets \
        --metrics "$work/$1.jsonl" "${@:2}" > "$work/$1.log" 2>&1 || fail "$1: $(cat "$work/$1.log")"
}
column() { sed -nE "s/.*\"$2\":([^,}]*).*/\1/p" "$work/$1.jsonl"; }
# same NAME LOSS NORM: losses to LOSS, rates to 1e-9, norms to the part NORM
same() {
    grep "^\"$1\"" "$golden/steps.json" | sed 's/.*: \[\[//; s/\]\],*$//; s/\], \[/\n/g' | tr -d ' ' | tr ',' ' ' > "$work/want"
    paste -d ' ' <(column "$1" loss) <(column "$1" lr) <(column "$1" grad_norm) "$work/want" | awk -v l="$2" -v n="$3" '
        function off(a, b, by) { return a - b > by || b - a > by }
        { bad = bad || NF != 6 || off($1, $4, l) || off($2, $5, 1e-9) || off($3, $6, n * $6) }
        END { exit bad || NR != 20 }' || fail "$1: ours beside the Trainer's: $(paste "$work/$1.jsonl" "$work/want")"
}

cosine=(--learning_rate 1e-2 --lr_scheduler_type cosine --warmup_steps 0.13 --weight_decay 0.1 --max_grad_norm 0.5
    --adam_beta2 0.95)
train cosine_fp32 "${cosine[@]}"
same cosine_fp32 1e-5 1e-4
train cosine_bf16 "${cosine[@]}" --bf16
same cosine_bf16 1e-2 0.1
train adafactor_fp32 --optim adafactor --learning_rate 5e-3 --weight_decay 0.1
same adafactor_fp32 1e-5 1e-4
eight=(--learning_rate 5e-3 --weight_decay 0.1 --adam_beta2 0.95)
sed 's/"stage": *2/"stage": 0/' "$golden/zero2.json" > "$work/zero0.json"
train adamw_8bit_fp32 --optim adamw_bnb_8bit "${eight[@]}" --deepspeed_config "$work/zero0.json"
same adamw_8bit_fp32 1e-5 1e-4
train adamw_8bit_fp32 --optim adamw_bnb_8bit "${eight[@]}" # of stage 2, where states are cut
same adamw_8bit_fp32 1e-5 1e-4
train ademamix_fp32 --optim ademamix "${eight[@]}"
same ademamix_fp32 1e-5 1e-4
train default_fp32 --learning_rate 5e-3
same default_fp32 1e-5 1e-4
train default_bf16 --learning_rate 5e-3 --bf16
same default_bf16 1e-2 0.1
grep -q 'optimizer: AdamW, rate 0.005, weight decay 0; schedule: linear, warm-up of 0 in 20 steps' "$work/default_fp32.log" ||
    fail "what is used: $(cat "$work/default_fp32.log")"
grep -q "the Trainer's defaults: --optim adamw_torch, --lr_scheduler_type linear, --max_grad_norm 1" "$work/default_fp32.log" ||
    fail "what was not given: $(cat "$work/default_fp32.log")"

# Rows for two samples, one in each: as without packing; packed it is another run.
train default_fp32 --learning_rate 5e-3 --seq_length 100 --packing false
same default_fp32 1e-5 1e-4
train default_fp32 --learning_rate 5e-3 --seq_length 100
if (same default_fp32 1e-5 1e-4) > /dev/null; then
    fail "--packing changes nothing"
fi

# Another optimizer, schedule or warm-up is another run: the comparison can fail.
for other in '--optim sgd' '--lr_scheduler_type cosine' '--warmup_steps 1' '--weight_decay 0.3' '--max_grad_norm 5'; do
    # shellcheck disable=SC2086
    train default_fp32 --learning_rate 5e-3 $other
    if (same default_fp32 1e-5 1e-4) > /dev/null; then
        fail "$other changes nothing"
    fi
done
