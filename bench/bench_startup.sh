#!/usr/bin/env bash
# Time from process start to the end of the first step of the demo's model. Usage: bench_startup.sh BUILD [RUNS]
# Runs `ds_train --steps 1` without checkpoints; prints every run's milliseconds and the median (target: 200).
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
runs=${2:-11}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
times=()
for ((i = -1; i < runs; ++i)); do # the first one warms the file cache
    begin=$(date +%s%N)
    "$build/ds_train" --model_config examples/shakespeare/gpt.json --tokenizer bytes \
        --data data/tinyshakespeare.txt --deepspeed_config examples/shakespeare/ds_config.json \
        --steps 1 --metrics "$folder/metrics.jsonl" > "$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
    end=$(date +%s%N)
    [ "$i" -lt 0 ] || times+=($(((end - begin) / 1000000)))
done
sorted=$(printf '%s\n' "${times[@]}" | sort -n)
median=$(echo "$sorted" | sed -n "$(((runs + 1) / 2))p")
echo "start to end of a one-step run, ms: $(echo $sorted)"
echo "median $median ms of $runs runs (target 200)"
