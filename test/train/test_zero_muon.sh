#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: threads slow long
# Muon: the same bits in every ZeRO stage, with buckets, accumulation, offload, recomputation, threads, resume, groups of ranks, and over
# tensor- and sequence-parallel meshes what stage 0 has there. Usage: test_zero_muon.sh BUILD.
set -euo pipefail
row="$1/zero_row"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
base="model=llama steps=4 overlap=1 transport=sim threads=1 resume=0 recompute=none offload=none zenflow=0 early=0 mics=0 hpz=0 bucket=1000 optimizer=muon"

hash_of() { # WORDS: later ones win
    rm -rf "$scratch/save"
    # shellcheck disable=SC2086
    "$row" $base "$@" save="$scratch/save" | grep -o 'hash [0-9a-f]*'
}

failed=0
same() { # EXPECTED WORDS
    local want=$1 got
    shift
    got=$(hash_of "$@") || got="no result"
    [ "$got" = "$want" ] || { echo "FAILED: $*: $got, not $want"; failed=1; }
}

dtypes="f32 bf16"
meshes="tp=2 sp=2"
[ "${DS_TEST_BRIEF:-1}${DS_MATRIX_PART:-1}" = 11 ] || { dtypes=bf16; meshes=tp=2; }
for dtype in $dtypes; do
    want=$(hash_of dtype=$dtype ranks=3 stage=0 accumulation=1)
    for stage in 1 2 3; do
        same "$want" dtype=$dtype ranks=3 stage=$stage accumulation=1 bucket=1000000 overlap=0
    done
    same "$want" dtype=$dtype ranks=3 stage=3 accumulation=1 threads=2 recompute=full offload=host
    same "$want" dtype=$dtype ranks=3 stage=2 accumulation=1 offload=states resume=1
    same "$want" dtype=$dtype ranks=3 stage=3 accumulation=1 offload=params resume=2
done
want=$(hash_of dtype=f16 ranks=4 stage=0 accumulation=4)
same "$want" dtype=f16 ranks=4 stage=1 accumulation=4
same "$want" dtype=f16 ranks=4 stage=3 accumulation=4 mics=2
same "$want" dtype=f16 ranks=4 stage=3 accumulation=4 hpz=2 offload=half
for mesh in $meshes; do
    want=$(hash_of dtype=f32 ranks=4 stage=0 accumulation=1 $mesh)
    for stage in 1 3; do
        same "$want" dtype=f32 ranks=4 stage=$stage accumulation=1 $mesh
    done
done
exit "$failed"
