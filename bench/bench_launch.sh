#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the launcher adds: two ranks of ds_train for one step, started by `deepspeed --num_gpus 2` and by hand (the same
# environment, both processes at once), in turn. Wall time of the whole run, so the launcher's end counts as well.
# Usage: bench_launch.sh BUILD [ROUNDS]
set -euo pipefail
build=$(realpath "$1")
rounds=${2:-15}
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
echo '{"train_batch_size": 2, "steps_per_print": 1000, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2},
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}' > ds.json
head -c 20000 "$root/data/tinyshakespeare.txt" > text.txt
train=("$build/ds_train" --model_config "$root/examples/shakespeare/model.json" --tokenizer bytes --data text.txt
    --seq_length 64 --deepspeed_config ds.json --steps 1)
export DS_THREADS=1 OMP_NUM_THREADS=1
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE

launched() { "$build/deepspeed" --num_gpus 2 "${train[@]}"; }
by_hand() {
    local rank pids=()
    DS_JOB_SECRET=$(printf '%08x%08x%08x%08x' $RANDOM $RANDOM $RANDOM $RANDOM)
    export DS_JOB_SECRET
    for rank in 0 1; do
        RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=2 CROSS_RANK=0 CROSS_SIZE=1 MASTER_ADDR=127.0.0.1 \
            MASTER_PORT=29500 "${train[@]}" &
        pids+=($!)
    done
    wait "${pids[@]}"
    unset DS_JOB_SECRET
}
timed() { # NAME
    local begin=${EPOCHREALTIME/./}
    "$1" > out.log 2>&1 || { cat out.log; exit 1; }
    echo $((${EPOCHREALTIME/./} - begin)) >> "$1"
}
for ((i = 0; i <= rounds; ++i)); do # the first round warms up
    timed launched
    timed by_hand
    [ $i != 0 ] || rm launched by_hand
done
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { printf "%.3f", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2e6 }'; }
awk -v l="$(median launched)" -v h="$(median by_hand)" -v n="$rounds" 'BEGIN {
    printf "two ranks, one step, median of %d: by hand %.3f s, by deepspeed %.3f s, added %.3f s (at most 0.3)\n", n, h, l, l - h
    exit !(l - h <= 0.3) }'
