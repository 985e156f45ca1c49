#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# States on disk: GPT-2 124M, bf16, with as much computation as traffic and with three times as much, against what the plan
# says on a profile of this machine, and against computation and disk alone.
# Usage: bench_offload.sh BUILD FOLDER [PROFILE ["RATIO CLIPPING"...]]
# Tokens of a step are found by trying: until computation is RATIO times the disk's time. Then these take turns, ROUNDS times (default 5), and medians are printed:
#   compute  the step in memory
#   disk     the step with 16 tokens: its bytes move as they do in the step, reads and writes at once, and nothing else takes time
#   apart    what ds_io needs for the same bytes, reads and writes each alone: most disks are slower at both than that
#   step     and its ratio to the larger of compute and disk (and the range over the rounds), or of compute and apart
# A run's steps: median of those after the first. Plan: its critical path. Buffered: what of the states may be in memory at a time.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 folder=$2 profile=${3:-}
shift $(($# < 3 ? $# : 3))
[ $# -gt 0 ] || set -- "1 1.0" "1 0.0" "3 1.0" "3 0.0"
scratch=$(mktemp -d "$folder/bench_offload.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
if [ -z "$profile" ]; then
    profile=$scratch/profile.json
    "$build/ds_bench" --profile "$profile" --profile_folder "$scratch" > "$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
fi
group=2500000 buffers=17 rounds=${ROUNDS:-5} depth=32 # reads ahead and writes behind: as many buffers of a sub-group's fp32 numbers each; and three in use
states=", \"sub_group_size\": $group, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"$scratch\",
\"pipeline_read\": true, \"pipeline_write\": true, \"buffer_count\": $buffers}"
config() { # CLIPPING OFFLOAD; without clipping nothing but the check of gradients would make an update wait: it is off then
    local check=true
    [ "$1" != 0.0 ] || check=false
    printf '{"aio": {"queue_depth": '$depth'}, "train_micro_batch_size_per_gpu": %s, "steps_per_print": 1000, "gradient_clipping": %s, "bf16": {"enabled": true,
"check_grad_overflow": %s}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "zero_optimization": {"stage": 2%s}}\n' \
        "$rows" "$1" "$check" "$2" > "$scratch/ds.json"
    run=(--model_config bench/gpt2_124m.json --seq_length "$length" --deepspeed_config "$scratch/ds.json")
}
divide() { # TOKENS: into rows of at most 1024
    rows=$((($1 + 1023) / 1024))
    length=$((($1 / rows + 15) / 16 * 16))
}
step() { # STEPS: seconds of a step, median of those after the first
    rm -f "$scratch/metrics"
    "$build/ds_train" "${run[@]}" --tokenizer data/gpt2 --data data/tinyshakespeare.txt --steps "$1" --metrics "$scratch/metrics" \
        > "$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
    sed -n 's/.*"tokens_per_s": *\([0-9.e+]*\).*/\1/p' "$scratch/metrics" |
        tail -n +2 | awk -v tokens="$((rows * length))" '{ print tokens / $1 }' | median
}
planned() { # KEY of the timeline's sums
    "$build/ds_plan" "${run[@]}" --device "$profile" --json - | tr -d '\n' | sed -n "s/.*\"timeline\": {[^{]*\"step\": {[^}]*\"$1\": \([0-9.e-]*\).*/\1/p"
}
moved() { # WAY: bytes of a step
    "$build/ds_plan" "${run[@]}" --device "$profile" --json - | awk -v way="\"disk $1\"" 'index($0, "{\"name\": " way) {
        sub(/.*"bytes": /, ""); sum += $0 + 0 } END { printf "%.0f\n", sum }'
}
apart() { # seconds of the step's bytes, by ds_io
    local read write gb
    gb=$("$build/ds_io" --folder "$scratch" --io_size 1G --read --queue_depth "$depth" | sed -n 's/E2E Read Speed = *\([0-9.]*\).*/\1/p')
    read=$(moved read)
    write=$("$build/ds_io" --folder "$scratch" --io_size 1G --write --queue_depth "$depth" | sed -n 's/E2E Write Speed = *\([0-9.]*\).*/\1/p')
    awk -v r="$read" -v w="$(moved write)" -v read="$gb" -v write="$write" 'BEGIN { print (r / read + w / write) / 1024 / 1024 / 1024 }'
}
median() { sort -g | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }
disk() { # CLIPPING: seconds of the step with 16 tokens
    local rows=1 length=16
    config "$1" "$states"
    step 5
}
find_tokens() { # RATIO CLIPPING: sets rows and length
    local tokens=256 wanted seconds
    for _ in 1 2 3 4 5; do
        wanted=$(awk -v r="$1" -v d="$(disk "$2")" 'BEGIN { print r * d }')
        divide "$tokens"
        config "$2" ""
        seconds=$(step 4)
        tokens=$(awk -v s="$seconds" -v w="$wanted" -v now="$((rows * length))" 'BEGIN {
            wanted = int(now * w / s)
            print (s > 0.95 * w && s < 1.1 * w ? 0 : wanted < 16 ? 16 : wanted > 16384 ? 16384 : wanted) }')
        [ "$tokens" != 0 ] || return 0
    done
    divide "$tokens"
}
awk -v group=$group -v buffers=$buffers 'BEGIN { # of GPT-2 124M: master weights and two moments
    printf "buffered: at most %.0f %% of the states\n", 100 * group * (2 * buffers + 3) / (124439808 * 3) }'
echo "rows tokens clipping  compute s   disk s  apart s  compute:disk   step s   plan s  step/plan  step/larger with disk  with apart"
for case in "$@"; do # without clipping gradients do not move
    read -r ratio clipping <<< "$case"
    find_tokens "$ratio" "$clipping"
    rm -f "$scratch/rounds"
    for ((round = 0; round < rounds; ++round)); do
        config "$clipping" ""
        compute=$(step 5)
        alone=$(disk "$clipping")
        config "$clipping" "$states"
        echo "$compute $alone $(apart) $(step 6)" >> "$scratch/rounds"
    done
    plan=$(planned seconds)
    column() { awk -v n="$1" '{ print $n }' "$scratch/rounds"; }
    larger() { awk -v n="$1" '{ print $4 / ($1 > $n ? $1 : $n) }' "$scratch/rounds" | sort -g; }
    awk -v rows="$rows" -v length_="$length" -v clip="$clipping" -v c="$(column 1 | median)" -v d="$(column 2 | median)" -v a="$(column 3 | median)" \
        -v s="$(column 4 | median)" -v p="$plan" -v l="$(larger 2 | median)" -v least="$(larger 2 | head -n 1)" -v most="$(larger 2 | tail -n 1)" \
        -v la="$(larger 3 | median)" 'BEGIN {
        printf "%4d %6d %8s %10.3f %8.3f %8.3f %13.2f %8.3f %8.3f %10.3f %7.3f (%.3f to %.3f) %11.3f\n",
            rows, length_, clip, c, d, a, c / d, s, p, s / p, l, least, most, la }'
done
