#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# ds_train with checkpoints written behind training, on one rank and on two: the model is that of a run that saves at
# once, byte for byte; a run ended by SIGINT, and one whose rank is killed with kill -9 between and in its saves, leave
# a whole checkpoint and go on from it to the same model.
set -euo pipefail
bin=$1
root=$DS_SOURCE_DIR
work=$(mktemp -d "$1/train_behind.XXXXXX")
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAILED: $*"
    exit 1
}
cat > "$work/gpt.json" << END
{"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 256}
END
config() { # name, keys
    cat > "$work/$1.json" << END
{"train_batch_size": 4, "gradient_accumulation_steps": 1, "bf16": {"enabled": true}, "steps_per_print": 1000,
 "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {"stage": 2}$2}
END
}
config now ''
config behind ', "datastates_ckpt": {"host_cache_size": 0.5},
    "csv_monitor": {"enabled": true, "output_path": "'"$work"'/csv", "job_name": "job"}'
config decoupled ', "checkpoint": {"writer": {"decoupled": true}}'
config small ', "datastates_ckpt": {"host_cache_size": 0.0001}'
head -c 20000 "$root/data/tinyshakespeare.txt" > "$work/text.txt"
steps=24

command_of() { # ranks, config, output
    command=("$bin/ds_train" --model_config "$work/gpt.json" --tokenizer bytes --data "$work/text.txt" --seq_length 64
        --deepspeed_config "$work/$2.json" --steps $steps --threads 1 --output "$work/$3" --save_interval 1
        --keep_last 3 --metrics "$work/$3.jsonl")
    if [ "$1" -gt 1 ]; then
        command=("$bin/deepspeed" --num_gpus "$1" "${command[@]}")
    fi
}
run() { # ranks, config, output, flags
    command_of "$1" "$2" "$3"
    "${command[@]}" "${@:4}" > "$work/$3.log" 2>&1 || fail "$3: $(cat "$work/$3.log")"
}
same() { cmp "$work/$1/model.safetensors" "$work/$2/model.safetensors" || fail "$2 is not the model of $1"; }
tags() { (cd "$work/$1" && ls -d global_step* | sort -V | tr '\n' ' '); }
begin() { # ranks, output: starts it and waits for its third step
    command_of "$1" behind "$2"
    "${command[@]}" > "$work/$2.log" 2>&1 &
    pid=$!
    for _ in $(seq 1500); do
        [ "$(grep -c '"loss":' "$work/$2.jsonl" 2> /dev/null || true)" -ge 3 ] 2> /dev/null && return
        sleep 0.01
    done
    fail "$2 does not start: $(cat "$work/$2.log")"
}
check() { "$bin/ds_checkpoint" verify "$work/$1" > "$work/verify.log" 2>&1 || fail "$1: $(cat "$work/verify.log")"; }

for ranks in 1 2; do
    run $ranks now "now$ranks"
    run $ranks behind "behind$ranks"
    same "now$ranks" "behind$ranks"
    [ "$(tags "behind$ranks")" = "$(tags "now$ranks")" ] || fail "checkpoints kept: $(tags "behind$ranks")"
    [ "$(cat "$work/behind$ranks/latest")" = global_step$steps ] || fail "latest"
    [ "$(ls -A "$work/behind$ranks" | grep -c '^\.' || true)" = 0 ] || fail "left over: $(ls -A "$work/behind$ranks")"
    [ "$(grep -c 'behind training in .* steps stood still for' "$work/behind$ranks.log")" = $steps ] ||
        fail "the log does not tell of each save: $(cat "$work/behind$ranks.log")"
    [ "$(grep -c '"save_stall_s":' "$work/behind$ranks.jsonl")" = $steps ] || fail "the metrics do not"
    check "behind$ranks"

    begin $ranks "int$ranks"
    kill -INT $pid
    code=0
    wait $pid || code=$?
    [ $code = 130 ] || fail "interrupted: exit $code: $(cat "$work/int$ranks.log")"
    check "int$ranks"
    [ "$(cat "$work/int$ranks/latest")" = "$(sed -nE 's/.*interrupted after step ([0-9]+);.*/global_step\1/p' \
        "$work/int$ranks.log")" ] || fail "interrupted: latest is $(cat "$work/int$ranks/latest")"
    run $ranks behind "int$ranks" --resume
    same "now$ranks" "int$ranks"

    begin $ranks "kill$ranks"
    victim=$pid
    [ $ranks = 1 ] || victim=$(pgrep -P $pid | tail -1)
    kill -9 "$victim"
    wait $pid && fail "a killed rank went unnoticed"
    check "kill$ranks"
    run $ranks behind "kill$ranks" --resume
    same "now$ranks" "kill$ranks"
done
[ -n "$(find "$work/csv/job" -name '*checkpoint_stall*' -size +0)" ] || fail "monitor: $(ls "$work/csv/job")"

run 1 decoupled decoupled
same now1 decoupled
grep -q 'behind training in' "$work/decoupled.log" || fail "checkpoint.writer.decoupled is not in force"
command_of 1 small small
"${command[@]}" > "$work/small.log" 2>&1 && fail "a copy larger than host_cache_size is not refused"
grep -q 'the copy of a checkpoint takes .* are allowed' "$work/small.log" || fail "small: $(cat "$work/small.log")"
