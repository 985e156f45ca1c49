#!/usr/bin/env bash
# The determinism law on GPT-2 124M: 2 ranks, bf16 and fp16, one factor changed at a time, 20 steps each. Run by
# `make check-long`. Usage: zero_124m.sh BUILD
set -euo pipefail
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
run() { # TRANSPORT ARGUMENTS…
    local transport=$1
    shift
    rm -rf "$scratch/save"
    set -- "$build/zero_row" model=gpt2_124m ranks=2 steps=20 "transport=$transport" "save=$scratch/save" "$@"
    if [ "$transport" != sim ]; then
        set -- "$build/deepspeed" --num_gpus 2 "$@"
    fi
    "$@" | grep -o 'hash.*'
}
for dtype in bf16 f16; do
    base=$(run shm "dtype=$dtype" stage=0)
    echo "$dtype stage=0: $base"
    for change in stage=1 stage=2 stage=3 "stage=2 overlap=1" "stage=3 overlap=1" "stage=2 bucket=1000000" \
        "stage=3 bucket=1000000" "stage=0 threads=2" "stage=3 resume=1" "stage=0 transport=sim"; do
        transport=shm
        [ "${change%sim}" = "$change" ] || transport=sim
        # shellcheck disable=SC2086
        got=$(run "$transport" "dtype=$dtype" ${change% transport=*})
        verdict=same
        [ "${got:0:21}" = "${base:0:21}" ] || { verdict=DIFFERS; failed=1; }
        echo "$dtype $change: $got $verdict"
    done
done
exit "$failed"
