#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What ranks cost: GPT-2 124M, bf16, sequence 1024, 4 rows a step, two cores. One rank with two threads against two
# ranks of one thread at ZeRO-2 and ZeRO-3, in turn. Usage: bench_zero.sh BUILD [ROUNDS [STEPS]]
# Prints each run's median tokens/s (without its first two steps) and the median ratios (targets: 0.90 and 0.85).
# A machine that takes half a minute for three steps gets one round of runs of three.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 rounds=${2:-3} steps=${3:-6}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
config() { # STAGE
    cat << JSON
{"train_batch_size": 4, "gradient_accumulation_steps": 1, "steps_per_print": 1000, "gradient_clipping": 1.0,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "bf16": {"enabled": true},
 "zero_optimization": {"stage": $1${DS_BENCH_ZERO:+, $DS_BENCH_ZERO}}}
JSON
}
run() { # NAME RANKS THREADS STAGE: tokens/s
    config "$4" > "$folder/config.json"
    local train=("$build/ds_train" --model_config bench/gpt2_124m.json --tokenizer data/gpt2 --seq_length 1024
        --data data/tinyshakespeare.txt --deepspeed_config "$folder/config.json" --steps "$steps"
        --threads "$3" --metrics "$folder/metrics.jsonl" --overwrite)
    if [ "$2" -gt 1 ]; then
        train=("$build/deepspeed" --num_gpus "$2" "${train[@]}")
    fi
    "${train[@]}" > "$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
    tail -n +3 "$folder/metrics.jsonl" | sed -E 's/.*"tokens_per_s":([0-9.]+).*/\1/' | sort -n |
        awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}
two=() three=()
wanted=$steps steps=3
one=$(run one 1 2 0)
if ((SECONDS > 30)); then rounds=1; else steps=$wanted one=''; fi
for ((i = 0; i < rounds; ++i)); do
    [ -n "$one" ] || one=$(run one 1 2 0)
    z2=$(run zero2 2 1 2)
    z3=$(run zero3 2 1 3)
    echo "one rank, two threads $one tokens/s; two ranks: ZeRO-2 $z2, ZeRO-3 $z3"
    two+=("$(awk "BEGIN { print $z2 / $one }")")
    three+=("$(awk "BEGIN { print $z3 / $one }")")
    one=''
done
median() { printf '%s\n' "$@" | sort -n | sed -n "$((($# + 1) / 2))p"; }
echo "ZeRO-2 against one rank: $(median "${two[@]}") (target 0.90)"
echo "ZeRO-3 against one rank: $(median "${three[@]}") (target 0.85)"
