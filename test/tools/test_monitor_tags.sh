#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# The tags of the monitors: with wall_clock_breakdown DeepSpeed's five elapsed_time_ms_*, without it none;
# x is the number of samples, times are milliseconds that fit the run.
set -euo pipefail
bin=$1/ds_train
root=$DS_SOURCE_DIR
work=$(mktemp -d "$1/monitor_tags.XXXXXX")
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAILED: $*"
    exit 1
}
head -c 8000 "$root/data/tinyshakespeare.txt" > "$work/text.txt"

run() { # name, more keys: 3 steps of 2 micro-batches of 2 rows
    cat > "$work/$1.json" << END
{
  "train_batch_size": 4, "gradient_accumulation_steps": 2, "optimizer": {"type": "AdamW"}, $2
  "csv_monitor": {"enabled": true, "output_path": "$work/$1", "job_name": "csv"},
  "tensorboard": {"enabled": true, "output_path": "$work/$1", "job_name": "tb"}
}
END
    "$bin" --model_config "$root/test/common/gpt2.json" --tokenizer bytes --data "$work/text.txt" \
        --seq_length 32 --steps 3 --deepspeed_config "$work/$1.json" > "$work/$1.log" 2>&1 ||
        fail "$1: $(cat "$work/$1.log")"
}
tags_of_csv() { (cd "$work/$1/csv" && ls | sed 's/\.csv$//' | sort | tr '\n' ' '); }
tags_of_tensorboard() {
    grep -aoE 'Train/Samples/[a-z_]+' "$work/$1"/tb/events.* | tr / _ | sort -u | tr '\n' ' '
}

start=$(date +%s%N)
run timed '"wall_clock_breakdown": true, "fp16": {"enabled": true},'
took=$((($(date +%s%N) - start) / 1000000))
run plain ''

t=Train_Samples_elapsed_time_ms
timed="${t}_backward ${t}_backward_allreduce ${t}_backward_inner ${t}_forward ${t}_step"
timed="$timed Train_Samples_loss_scale Train_Samples_lr Train_Samples_train_loss "
plain="Train_Samples_lr Train_Samples_train_loss "
[ "$(tags_of_csv timed)" = "$timed" ] || fail "tags: $(tags_of_csv timed)"
[ "$(tags_of_tensorboard timed)" = "$timed" ] || fail "tags: $(tags_of_tensorboard timed)"
[ "$(tags_of_csv plain)" = "$plain" ] || fail "tags: $(tags_of_csv plain)"
[ "$(tags_of_tensorboard plain)" = "$plain" ] || fail "tags: $(tags_of_tensorboard plain)"

cd "$work/timed/csv"
[ "$(cut -d, -f1 "${t}_forward.csv" | tr '\n' ' ')" = "step 4 8 12 " ] || fail "$(cat "${t}_forward.csv")"
[ "$(head -n 1 "${t}_step.csv")" = step,elapsed_time_ms_step ] || fail "$(cat "${t}_step.csv")"
# Each is positive where something runs; inner and allreduce make up backward; all fit the run.
paste -d, "${t}_forward.csv" "${t}_backward.csv" "${t}_backward_inner.csv" "${t}_backward_allreduce.csv" \
    "${t}_step.csv" | awk -F, -v took="$took" 'NR > 1 {
    all += $2 + $4 + $10; d = $6 + $8 - $4
    if ($2 <= 0 || $4 <= 0 || $8 != 0 || $10 <= 0 || d > 1e-3 || d < -1e-3) { print; exit 1 } }
    END { if (NR != 4 || all > took || all < 0.5) { print "sum " all " of " took " ms"; exit 1 } }' ||
    fail "the times do not fit"
