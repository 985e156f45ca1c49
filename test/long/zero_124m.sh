#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The determinism law on GPT-2 124M: 2 ranks, bf16 and fp16, 20 steps each, dropout 0.1 and clipping active in every
# run, the first step overflows in fp16. One factor changes at a time; accumulation 4 is compared with itself. Run by
# `make check-long`. Usage: zero_124m.sh BUILD. ZERO_STEPS: steps a run (default 20; an even number of at least 4).
set -euo pipefail
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
# shellcheck source=test/common/zero_row.sh
. "$(dirname "$0")/../common/zero_row.sh"
transports="sim"
[ ! -e "$build/libdeepspeed_ucx.so" ] || transports+=" ucx"
if [ -e "$build/libdeepspeed_mpi_openmpi.so" ] && command -v mpirun.openmpi > /dev/null; then transports+=" mpi"; fi

# Norm before clipping above the limit of 0.1; in fp16 a step was skipped, in bf16 none.
is_active() { # DTYPE LINE
    awk -v dtype="$1" '{ for (i = 1; i < NF; ++i) v[$i] = $(i + 1) }
        END { exit !(v["norm"] > 0.1 && (dtype == "f16" ? v["skipped"] >= 1 : v["skipped"] == 0)) }' <<< "$2"
}

compare() { # DTYPE BASE CHANGE: the changed run has the base's hash
    local dtype=$1 base=$2 change=$3 got verdict=same
    # shellcheck disable=SC2086
    got=$(run transport=shm ranks=2 "steps=${ZERO_STEPS:-20}" "dtype=$dtype" $change)
    [ "${got:0:21}" = "${base:0:21}" ] || { verdict=DIFFERS; failed=1; }
    echo "$dtype $change: $got $verdict"
}

for dtype in bf16 f16; do
    for accumulation in 1 4; do
        base=$(run transport=shm ranks=2 "steps=${ZERO_STEPS:-20}" "dtype=$dtype" stage=0 "accumulation=$accumulation")
        echo "$dtype stage=0 accumulation=$accumulation: $base"
        is_active "$dtype" "$base" || { echo "$dtype: clipping or the overflow is not active"; failed=1; }
        if [ "$accumulation" = 4 ]; then
            compare "$dtype" "$base" "stage=2 accumulation=4"
            continue
        fi
        for change in stage=1 stage=2 stage=3 "stage=2 overlap=1" "stage=3 overlap=1" "stage=2 bucket=1000000" \
            "stage=3 bucket=1000000" "stage=0 threads=2" "stage=3 resume=1"; do
            compare "$dtype" "$base" "$change"
        done
        for transport in $transports; do
            compare "$dtype" "$base" "stage=0 transport=$transport"
        done
    done
done
exit "$failed"
