#!/usr/bin/env bash
# wall_clock_breakdown and dump_state of a configuration, as ds_train shows them; without the keys
# nothing is said. An epoch's steps are those of the configuration, else those of the data.
set -eu
bin=$1/ds_train
root=$DS_SOURCE_DIR
work=$(mktemp -d "$1/train_says.XXXXXX")
trap 'rm -rf "$work"' EXIT

head -c 8000 "$root/README.md" > "$work/text.txt" 2> /dev/null || head -c 8000 "$0" > "$work/text.txt"
common='"train_batch_size": 2, "steps_per_print": 2, "optimizer": {"type": "AdamW"}'
echo "{$common, \"wall_clock_breakdown\": true, \"dump_state\": true}" > "$work/loud.json"
echo "{$common}" > "$work/quiet.json"

run() {
    "$bin" --model_config "$root/test/common/gpt2.json" --tokenizer bytes \
        --data "$work/text.txt" --seq_length 32 --steps 4 --deepspeed_config "$1" 2>&1
}

loud=$(run "$work/loud.json")
quiet=$(run "$work/quiet.json")
[ "$(grep -c 'time (ms) of a step, mean of 2 | forward: .* | backward: .* | step: ' <<< "$loud")" = 2 ]
grep -q '"train_batch_size": 2' <<< "$loud"
! grep -q 'time (ms)\|"train_batch_size"' <<< "$quiet"

zenflow() { # KEYS
    echo "{$common, \"zero_optimization\": {\"stage\": 2, \"zenflow\": {$1}, \"offload_optimizer\": {
        \"device\": \"nvme\", \"nvme_path\": \"$work\"}}}" > "$work/zenflow.json"
    run "$work/zenflow.json"
}
grep -q 'chosen every 3 steps' <<< "$(zenflow '"steps_per_epoch": 3')"
grep -q 'chosen every 1[0-9][0-9] steps' <<< "$(zenflow '"topk_ratio": 0.5')"
