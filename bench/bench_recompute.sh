#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What recomputation costs: a step of GPT-2 124M (bf16, 2 x 1024 tokens) that keeps all, recomputes selectively, every second layer,
# every layer; in turn, ROUNDS times. Time over the time that keeps all, beside the same ratio of the plan's operations.
# Usage: bench_recompute.sh BUILD [ROUNDS]; no round begins after three minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 rounds=${2:-3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
kinds=(none selective full2 full)
for kind in "${kinds[@]}"; do
    more='' mode=$kind
    if [ "$kind" = full2 ]; then mode=full more=', "interval": 2'; fi
    printf '{"train_micro_batch_size_per_gpu": 2, "steps_per_print": 1000, "bf16": {"enabled": true},
"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "activation_checkpointing": {"recompute": "%s"%s}}\n' "$mode" "$more" > "$scratch/$kind.json"
done
args() { run=(--model_config bench/gpt2_124m.json --seq_length 1024 --deepspeed_config "$scratch/$1.json"); }
for ((round = 0; round < rounds && (round == 0 || SECONDS < 180); ++round)); do
    for kind in "${kinds[@]}"; do
        args "$kind"
        "$build/ds_train" "${run[@]}" --tokenizer data/gpt2 --data data/tinyshakespeare.txt --steps 4 --metrics "$scratch/metrics" > "$scratch/log" 2>&1 ||
            { cat "$scratch/log" >&2; exit 1; }
        sed -n 's/.*"tokens_per_s": *\([0-9.e+]*\).*/\1/p' "$scratch/metrics" | tail -n +2 | sort -g | tail -n 1 | # the least disturbed step
            awk '{ print 2048 / $1 }' >> "$scratch/$kind.times"
        rm "$scratch/metrics"
    done
done
median() { sort -g "$1" | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }
planned() { "$build/ds_plan" "${run[@]}" --json - | tr -d '\n' | sed -n 's/.*"computed": \([0-9.e+]*\).*/\1/p'; }
echo "recompute   step s  times none   operations  times none   time/operations"
for kind in "${kinds[@]}"; do
    args "$kind"
    seconds=$(median "$scratch/$kind.times") flops=$(planned)
    [ "$kind" != none ] || { base_seconds=$seconds base_flops=$flops; }
    awk -v kind="$kind" -v s="$seconds" -v f="$flops" -v s0="$base_seconds" -v f0="$base_flops" 'BEGIN {
        printf "%-10s %7.3f %11.3f %12.4g %11.3f %17.3f\n", kind, s, s / s0, f, f / f0, (s / s0) / (f / f0) }'
done
