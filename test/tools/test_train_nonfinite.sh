#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# A run whose gradients are not finite ends in an error, and its last good checkpoint stays the newest; a dynamic
# loss scale that starts too high is no such run. A validation loss that is not finite is said; a model
# that computes no finite logits generates nothing.
set -euo pipefail
bin=$(realpath "$1")
root=$DS_SOURCE_DIR
work=$(mktemp -d "$1/nonfinite.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() {
    echo "FAILED: $*"
    exit 1
}
head -c 3000 "$root/data/tinyshakespeare.txt" > text.txt
config() { # file, rest of the configuration
    echo "{\"train_batch_size\": 2, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": ${3:-1e-3}}}$2}" > "$1"
}
config ds.json ''
train() { # code, text, flags
    local want=$1 text=$2 code=0
    shift 2
    "$bin/ds_train" --tokenizer bytes --seq_length 16 --threads 1 --data text.txt "$@" > log.txt 2>&1 || code=$?
    [ $code = "$want" ] || fail "exit $code, expected $want: $* $(tail -n 5 log.txt)"
    grep -qF -- "$text" log.txt || fail "expected '$text' with $*: $(tail -n 5 log.txt)"
}
fresh=(--model_config "$root/test/common/gpt2.json" --deepspeed_config)
# The last element of the last tensor of a folder's weights.
spoil() { # folder, 4 bytes
    local size
    size=$(stat -c %s "$1/model.safetensors")
    printf "$2" | dd of="$1/model.safetensors" bs=1 seek=$((size - 4)) conv=notrunc status=none
}

train 0 'model folder' "${fresh[@]}" ds.json --steps 2 --output good
for kind in nan inf; do
    mkdir $kind && cp good/config.json good/model.safetensors $kind
done
spoil nan '\x00\x00\xc0\x7f'
spoil inf '\x00\x00\x80\x7f'

# Every step is skipped: an error after 10, or as many as the flag says; or when the run ends before.
train 1 'the gradients of 10 steps in a row' --model nan --deepspeed_config ds.json --steps 50 --output from_nan
grep -q 'steps 1 to 10' log.txt || fail "which steps: $(cat log.txt)"
grep -qE 'the first that is not finite is (the parameter|the gradient of) [a-z]' log.txt || fail "which: $(cat log.txt)"
[ ! -e from_nan/latest ] && [ ! -e from_nan/model.safetensors ] || fail "a spoiled run was saved"
train 1 'the gradients of 3 steps in a row' --model inf --deepspeed_config ds.json --steps 50 --max_skipped_steps 3
train 1 'the gradients of 4 steps in a row' --model nan --deepspeed_config ds.json --steps 4 --output short --save_interval 1
[ ! -e short/latest ] || fail "skipped steps were saved"
train 1 'the gradients of 20 steps in a row' --model nan --deepspeed_config ds.json --steps 20 --max_skipped_steps 0

# The weights run away after a step: what was saved before stays the newest.
config away.json '' 1e30
train 1 'steps 2 to 6' "${fresh[@]}" away.json --steps 50 --save_interval 1 --max_skipped_steps 5 --output away
[ "$(cat away/latest)" = global_step1 ] || fail "latest is $(cat away/latest)"
[ "$(ls -d away/global_step*)" = away/global_step1 ] || fail "checkpoints: $(ls away)"
grep -q 'step 2 is not saved' log.txt || fail "a save that was left out is not said: $(cat log.txt)"

# Gradients that are applied though they are not finite spoil the weights: nothing is saved after.
config applied.json ', "bf16": {"enabled": true, "check_grad_overflow": false}' 1e30
train 1 'in a row' "${fresh[@]}" applied.json --steps 4 --output applied
[ ! -e applied/latest ] || fail "spoiled weights were saved"

# Overflows that a dynamic loss scale answers do not count; a static one changes nothing.
config fp16.json ', "fp16": {"enabled": true, "initial_scale_power": 32, "hysteresis": 1}'
train 0 'skipped' "${fresh[@]}" fp16.json --steps 30 --max_skipped_steps 2 --output half
config static.json ', "fp16": {"enabled": true, "loss_scale": 1e9}'
train 1 'the gradients of 2 steps in a row' "${fresh[@]}" static.json --steps 30 --max_skipped_steps 2

# Two ranks of stage 3 end alike, and at once.
config ranks.json ', "zero_optimization": {"stage": 3}'
code=0
"$bin/deepspeed" --num_gpus 2 "$bin/ds_train" --tokenizer bytes --seq_length 16 --threads 1 --data text.txt --model nan \
    --deepspeed_config ranks.json --steps 50 --max_skipped_steps 3 --output ranks > log.txt 2>&1 || code=$?
[ $code = 1 ] && grep -q 'the gradients of 3 steps in a row' log.txt && [ ! -e ranks/latest ] ||
    fail "two ranks: exit $code: $(cat log.txt)"

# Evaluation, and generation.
config still.json '' 0
train 1 'validation loss' --model nan --deepspeed_config still.json --steps 50 --eval_fraction 0.2 --eval_interval 1
grep -q 'step 1: the validation loss is not finite' log.txt || fail "evaluation: $(cat log.txt)"
for kind in nan inf; do
    for how in '--temperature 0' '--temperature 1' '--temperature 1 --top_k 5' '--temperature 1 --top_p 0.5'; do
        code=0
        # shellcheck disable=SC2086
        "$bin/ds_generate" --model $kind --tokenizer bytes --prompt abc --max_new_tokens 4 $how > out.txt 2> err.txt || code=$?
        [ $code = 1 ] || fail "ds_generate of $kind: exit $code, $(cat out.txt err.txt)"
        grep -q 'not finite' err.txt || fail "ds_generate of $kind: $(cat err.txt)"
    done
done
