#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# wall_clock_breakdown and dump_state of a configuration, as ds_train shows them; without the keys
# nothing is said. Offload that moves nothing names the key that keeps all of it. An epoch's steps are those of the configuration, else those of the data.
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
[ "$(grep -c 'accelerator: cpu (auto)$' <<< "$quiet")" = 1 ]
! grep -q 'time (ms)\|"train_batch_size"' <<< "$quiet"

zenflow() { # KEYS
    echo "{$common, \"zero_optimization\": {\"stage\": 2, \"zenflow\": {$1}, \"offload_optimizer\": {
        \"device\": \"nvme\", \"nvme_path\": \"$work\"}}}" > "$work/zenflow.json"
    run "$work/zenflow.json"
}
grep -q 'chosen every 3 steps' <<< "$(zenflow '"steps_per_epoch": 3')"
grep -q 'chosen every 1[0-9][0-9] steps' <<< "$(zenflow '"topk_ratio": 0.5')"

idle() { # TOOL, keys of offload_param, of offload_optimizer, of zero_optimization: what is said of it
    echo "{\"train_batch_size\": 2, \"optimizer\": {\"type\": \"AdamW\"}, \"device_memory\": 1000000000,
        \"zero_optimization\": {\"stage\": 3, \"offload_param\": {$2, \"nvme_path\": \"$work\"},
        \"offload_optimizer\": {$3, \"nvme_path\": \"$work\"}${4:+, $4}}}" > "$work/idle.json"
    if [ "$1" = train ]; then
        run "$work/idle.json" | grep 'moves nothing' || true
    else
        "$1/ds_plan" --model_config "$root/test/common/gpt2.json" --deepspeed_config "$work/idle.json" |
            grep 'moves nothing' || true
    fi
}
build=$1
small='"stage3_param_persistence_threshold": 1'
for tool in train "$build"; do
    said=$(idle "$tool" '"device": "nvme"' '"device": "none"' "$small")
    grep -q 'zero_optimization.offload_param moves nothing: .* have [0-9]* elements, max_in_cpu keeps 1000000000$' <<< "$said"
    [ "$(wc -l <<< "$said")" = 1 ]
    said=$(idle "$tool" '"device": "cpu"' '"device": "cpu"' '"stage3_param_persistence_threshold": 1000000')
    grep -q 'offload_param moves nothing: the largest .* param_persistence_threshold keeps those below 1000000$' <<< "$said"
    grep -q 'offload_optimizer moves nothing: the largest .* below 1000000$' <<< "$said"
    grep -q 'offload_optimizer moves nothing: its ratio is 0$' <<< "$(idle "$tool" '"device": "none"' \
        '"device": "nvme", "ratio": 0' "$small")"
    [ -z "$(idle "$tool" '"device": "nvme", "max_in_cpu": 0' '"device": "nvme"' "$small")" ]
    [ -z "$(idle "$tool" '"device": "none"' '"device": "none"')" ]
done

# A save that fails after the last step names that step and no next one, and each rank once. The peak is told with what it is.
cat > "$work/two.json" << END
{$common, "zero_optimization": {"stage": 1}}
END

# A folder takes the place of latest once the run has looked there: until then a pipe that nobody reads holds it.
mkfifo "$work/metrics"
(
    for _ in $(seq 600); do [ -e "$work/full/.ds_begun" ] && break; sleep 0.05; done
    mkdir -p "$work/full/latest/in_the_way"
    cat "$work/metrics" > "$work/metrics.jsonl"
) &
"$build/deepspeed" --num_gpus 2 "$bin" --model_config "$root/test/common/gpt2.json" \
    --tokenizer bytes --data "$work/text.txt" --seq_length 32 --steps 4 --deepspeed_config "$work/two.json" --output "$work/full" \
    --metrics "$work/metrics" > "$work/said" 2>&1 && { echo "a save whose file latest is a folder is no error"; exit 1; }
grep -qE 'ds_train: after step 4: rank [01] on [^ ]+: ' "$work/said" || { cat "$work/said"; exit 1; }
if grep -qE 'in training step 5|rank [01] on [^ ]+: rank [01] on' "$work/said"; then cat "$work/said"; exit 1; fi
grep -qE '^peak: [0-9.]+ TFLOP/s a rank in (fp32|f32|float32), ' "$work/said" || { cat "$work/said"; exit 1; }
if grep -E '% of peak' "$work/said" | grep -vqE ' (100|[0-9]{2}|[0-9]\.[0-9]|0\.[0-9]{2})% of peak'; then cat "$work/said"; exit 1; fi
for how in "--resume none" "--resume global_step4"; do
    # shellcheck disable=SC2086
    "$build/deepspeed" --num_gpus 2 "$bin" --model_config "$root/test/common/gpt2.json" --tokenizer bytes --data "$work/text.txt" \
        --seq_length 32 --steps 4 --deepspeed_config "$work/two.json" --output "$work/full" $how > "$work/said" 2>&1 && exit 1
    if grep -E 'rank [01] on [^ ]+: .*rank [01] on' "$work/said"; then exit 1; fi
done
