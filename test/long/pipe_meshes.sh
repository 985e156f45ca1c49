#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random meshes with a pipeline, and random options of all that goes with it (about 4 s each): weights and states have the bits of the same
# samples on one stage. DS_PIPE_MESHES=N: 60 by default; DS_PIPE_SEED. Run by `make check-long`. Usage: pipe_meshes.sh BUILD.
set -euo pipefail
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
RANDOM=${DS_PIPE_SEED:-1}
failed=0
count=0
one_of() { # WORD…
    local words=("$@")
    echo "${words[RANDOM % $#]}"
}
hash_of() { # KEY=VALUE…
    rm -rf "$scratch/save"
    timeout 120 "$build/zero_row" "$@" steps=3 save="$scratch/save" 2> "$scratch/errors" | grep -o 'hash [0-9a-f]*' || true
}
while [ "$count" -lt "${DS_PIPE_MESHES:-60}" ]; do
    pp=$(one_of 2 2 3) tp=$(one_of 1 1 2) sp=$(one_of 1 1 2) dp=$(one_of 1 2 3) model=$(one_of gpt2 llama mixtral)
    [ "$model" != mixtral ] || tp=1 sp=1
    [ "$model$tp" != gpt22 ] || sp=1 # packed q, k and v do not go with both
    ranks=$((pp * tp * sp * dp))
    [ "$ranks" -le 12 ] || continue
    count=$((count + 1))
    run=("model=$model" "ranks=$ranks" "pp=$pp" "tp=$tp" "sp=$sp" "dtype=$(one_of f32 bf16 f16)" "accumulation=$(one_of 1 2 3 5)" "optimizer=$(one_of adam lamb)")
    how=("stage=$(one_of 0 1 2 3)" "overlap=$(one_of 0 1)" "bucket=$(one_of 1000 100000 1000000000)" "recompute=$(one_of none selective full full2)"
        "resume=$(one_of 0 0 1 2)" "offload=$(one_of none none states params half host)" "hpz=$(one_of 0 2)")
    want=$(hash_of "${run[@]}" flat=1)
    got=$(hash_of "${run[@]}" "${how[@]}")
    if [ -z "$got" ] || [ "$got" != "$want" ]; then
        failed=$((failed + 1))
        echo "${run[*]} ${how[*]}: ${got:-no result}, one stage $want"
        tail -n 1 "$scratch/errors"
    fi
done
echo "$count meshes, $failed differ"
[ "$failed" -eq 0 ]
