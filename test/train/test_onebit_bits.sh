#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: threads
# 1-bit Adam over the step at which signs begin to be exchanged: the same weights and states whatever the transport, threads, overlap, bucket,
# recomputation, and when a run is saved (before and behind that step) and resumed. Usage: test_onebit_bits.sh BUILD
set -euo pipefail
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE DS_RESTART_COUNT
fail() { echo "FAILED: $*"; exit 1; }

run() { # WORDS: prints the hash line
    local launcher=()
    case "$*" in *transport=shm*) launcher=("$build/deepspeed" --num_gpus "$(sed -E 's/.*ranks=([0-9]+).*/\1/' <<< "$*")") ;; esac
    rm -rf "$scratch/save"
    # shellcheck disable=SC2086
    "${launcher[@]}" "$build/zero_row" optimizer=onebit steps=6 $* save="$scratch/save" < /dev/null | grep -o 'hash [0-9a-f]*'
}

n=0
while read -r group; do
    want=$(run "$group")
    [ -n "$want" ] || fail "$group: no result"
    for change in threads=4 overlap=1 bucket=1000 transport=shm recompute=full resume=1 resume=2 \
        "transport=shm threads=2 overlap=1 bucket=20000 resume=1" "steps=8 resume=1"; do
        base=$want
        case $change in steps=8*) base=$(run "$group steps=8") ;; esac
        got=$(run "$group $change") || fail "$group $change: no result"
        [ "$got" = "$base" ] || fail "$group $change: $got, expected $base"
        n=$((n + 1))
    done
done << 'END'
model=gpt2 dtype=f32 ranks=2
model=llama dtype=bf16 ranks=3
model=gpt2 dtype=f16 ranks=4 accumulation=2
END
[ "$(run model=gpt2 dtype=f32 ranks=2)" != "$("$build/zero_row" model=gpt2 steps=6 | grep -o 'hash [0-9a-f]*')" ] || fail "1-bit Adam is Adam"
echo "$n runs, the same bits in each group"
