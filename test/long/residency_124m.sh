#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Residence and recomputation change no bit: GPT-2 124M in bf16 on 1 and 2 ranks, each ZeRO stage, with states, half of them or
# everything on disk or in host memory, each beside another kind of recomputation in every stage, against the run that keeps
# all in memory. Dropout and clipping are active. Run by `make check-long`. Usage: residency_124m.sh BUILD
set -euo pipefail
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
# shellcheck source=test/common/zero_row.sh
. "$(dirname "$0")/../common/zero_row.sh"
homes=(states half params host)
kinds=(none selective full full2)

for ranks in 1 2; do
    base=$(run transport=shm "ranks=$ranks" dtype=bf16 stage=0)
    echo "ranks=$ranks in memory: $base"
    [ -n "$base" ] || exit 1
    for stage in 0 1 2 3; do
        for i in 0 1 2 3; do
            change="stage=$stage offload=${homes[i]} recompute=${kinds[(i + stage) % 4]} threads=$((3 - ranks))"
            # shellcheck disable=SC2086
            got=$(run transport=shm "ranks=$ranks" dtype=bf16 $change)
            verdict=same
            [ "${got:0:21}" = "${base:0:21}" ] || { verdict=DIFFERS; failed=1; }
            echo "ranks=$ranks $change: $got $verdict"
        done
    done
done
exit "$failed"
