#!/usr/bin/env bash
# States on disk: GPT-2 124M, bf16, with little and with more computation for the same traffic, against what the plan says
# on a profile of this machine, and against computation and disk alone. Usage: bench_offload.sh BUILD FOLDER [PROFILE]
# Step: median of those after the first. Plan: its critical path. Buffered: what of the states may be in memory at a time.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 folder=$2 profile=${3:-}
scratch=$(mktemp -d "$folder/bench_offload.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
if [ -z "$profile" ]; then
    profile=$scratch/profile.json
    "$build/ds_bench" --profile "$profile" --profile_folder "$scratch" > "$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
fi
config() { # ROWS CLIPPING OFFLOAD; without clipping nothing but the check of gradients would make an update wait: it is off then
    check=true; [ "$2" != 0.0 ] || check=false
    printf '{"train_micro_batch_size_per_gpu": %s, "steps_per_print": 1000, "gradient_clipping": %s, "bf16": {"enabled": true,
"check_grad_overflow": %s}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "zero_optimization": {"stage": 2%s}}\n' \
        "$1" "$2" "$check" "$3" > "$scratch/ds.json"
}
group=5000000 buffers=5 # reads ahead and writes behind: as many buffers of a sub-group's fp32 numbers each; and three in use
states=", \"sub_group_size\": $group, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"$scratch\",
\"pipeline_read\": true, \"pipeline_write\": true, \"buffer_count\": $buffers}"
run=(--model_config bench/gpt2_124m.json --seq_length 1024 --deepspeed_config "$scratch/ds.json")
step() { # seconds of a step, median of those after the first
    rm -f "$scratch/metrics"
    "$build/ds_train" "${run[@]}" --tokenizer data/gpt2 --data data/tinyshakespeare.txt --steps 5 --metrics "$scratch/metrics" \
        > "$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
    sed -n 's/.*"tokens_per_s": *\([0-9.e+]*\).*/\1/p' "$scratch/metrics" |
        tail -n +2 | awk -v tokens="$(($1 * 1024))" '{ print tokens / $1 }' | sort -g | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'
}
planned() { # KEY of the timeline's sums
    "$build/ds_plan" "${run[@]}" --device "$profile" --json - | tr -d '\n' | sed -n "s/.*\"timeline\": {[^{]*\"step\": {[^}]*\"$1\": \([0-9.e-]*\).*/\1/p"
}
awk -v group=$group -v buffers=$buffers 'BEGIN { # of GPT-2 124M: master weights and two moments
    printf "buffered: at most %.0f %% of the states\n", 100 * group * (2 * buffers + 3) / (124439808 * 3) }'
echo "rows clipping  compute s    disk s  compute:disk    step s    plan s  step/plan  step/larger"
for row in "3 1.0" "2 0.0" "8 1.0" "6 0.0"; do # near 1:1 and near 3:1; without clipping gradients do not move
    read -r rows clipping <<< "$row"
    config "$rows" "$clipping" ""
    compute=$(step "$rows")
    config "$rows" "$clipping" "$states"
    disk=$(planned moves) plan=$(planned seconds) measured=$(step "$rows")
    awk -v rows="$rows" -v clip="$clipping" -v c="$compute" -v d="$disk" -v p="$plan" -v s="$measured" 'BEGIN {
        printf "%4d %8s %10.3f %9.3f %13.2f %9.3f %9.3f %10.3f %12.3f\n", rows, clip, c, d, c / d, s, p, s / p, s / (c > d ? c : d) }'
done
