#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Time from process start to the end of the first step of the demo's model. Usage: bench_startup.sh BUILD [RUNS]
# Starts ds_train without checkpoints and takes the time at which its line for step 1 arrives; also the time of a
# whole run of one step, with its end. Prints every run's milliseconds and the medians (target: 200 for the first).
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
runs=${2:-11}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
sed 's/"steps_per_print": *[0-9]*/"steps_per_print": 1/' examples/shakespeare/ds_config.json > "$folder/ds_config.json"

train() { # STEPS
    "$build/ds_train" --model_config examples/shakespeare/model.json --tokenizer bytes \
        --data data/tinyshakespeare.txt --deepspeed_config "$folder/ds_config.json" --steps "$1" 2>&1
}
first_step() { # microseconds until the line of step 1
    local begin=$EPOCHREALTIME end=
    while read -r line; do
        if [[ $line == "step 1/"* ]]; then
            end=$EPOCHREALTIME
        fi
    done < <(train 2)
    [ -n "$end" ] || { echo "ds_train printed no line for step 1" >&2; exit 1; }
    echo $((${end/./} - ${begin/./}))
}
whole_run() {
    local begin=$EPOCHREALTIME
    train 1 > "$folder/log" || { cat "$folder/log" >&2; exit 1; }
    local end=$EPOCHREALTIME
    echo $((${end/./} - ${begin/./}))
}
median() { # NAME VALUE... in microseconds
    local name=$1 sorted
    shift
    sorted=$(printf '%s\n' "$@" | sort -n)
    echo "$name, ms: $(for us in $sorted; do printf '%d ' $((us / 1000)); done)"
    echo "  median $(($(echo "$sorted" | sed -n "$((($# + 1) / 2))p") / 1000)) ms of $# runs"
}
first=()
whole=()
for ((i = -1; i < runs; ++i)); do # the first one warms the file cache
    a=$(first_step)
    b=$(whole_run)
    [ "$i" -lt 0 ] || { first+=("$a") whole+=("$b"); }
done
median "start to end of the first step (target 200)" "${first[@]}"
median "whole run of one step" "${whole[@]}"
