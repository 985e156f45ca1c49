#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# The determinism law over a covering matrix: every pair of values of (model, dtype, ranks, stage, overlap, bucket,
# transport, accumulation, threads, resume, recompute, offload, zenflow, early, mics, hpz, optimizer) occurs in some row; rows that differ only in what the law
# names give the same hash of weights and optimizer states. Usage: test_zero_matrix.sh BUILD. DS_MATRIX_ROWS=N: only the first N rows,
# which have most pairs; with DS_MATRIX_PART=N one in N of all.
# DS_MATRIX_WITH: more words of zero_row for all rows, such as tp=2; DS_MATRIX_AGAINST: for what they are compared with. DS_MATRIX_SEED: other
# rows.
set -euo pipefail
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
row="$build/zero_row"
launcher="$build/deepspeed"
transports="sim shm"
if ls "$build"/libdeepspeed_mpi_openmpi.so > /dev/null 2>&1 && command -v mpirun > /dev/null; then
    transports+=" mpi"
fi
if ls "$build"/libdeepspeed_ucx.so > /dev/null 2>&1; then
    transports+=" ucx"
fi

# Greedy pairwise covering: of 60 random rows take the one that covers most new pairs, until none is left.
matrix() {
    awk -v transports="$transports" -v seed="${DS_MATRIX_SEED:-1}" 'BEGIN {
        srand(seed)
        n = split("model dtype ranks stage overlap bucket transport accumulation threads resume recompute offload zenflow early mics hpz optimizer", name)
        split("gpt2 llama mixtral;f32 bf16 f16;2 3 4 6 8;0 1 2 3;0 1;1000 100000 10000000 1000000000;" transports \
              ";1 4;1 2;0 1 2;none selective full full2;none states half params host;0 1 2;0 1;0 1 2 3;0 2 3;adam lamb", values, ";")
        for (f = 1; f <= n; ++f) { size[f] = split(values[f], v, " "); for (i in v) value[f, i] = v[i] }
        for (f = 1; f <= n; ++f) for (g = f + 1; g <= n; ++g) left += size[f] * size[g]
        while (left > 0) {
            best = 0
            for (t = 0; t < 60; ++t) {
                for (f = 1; f <= n; ++f) pick[f] = 1 + int(rand() * size[f])
                new = 0
                for (f = 1; f <= n; ++f) for (g = f + 1; g <= n; ++g) if (!((f, pick[f], g, pick[g]) in seen)) ++new
                if (new > best) { best = new; for (f = 1; f <= n; ++f) row[f] = pick[f] }
            }
            if (best == 0) continue
            line = ""
            for (f = 1; f <= n; ++f) {
                line = line name[f] "=" value[f, row[f]] (f < n ? " " : "\n")
                for (g = f + 1; g <= n; ++g) if (!((f, row[f], g, row[g]) in seen)) { seen[f, row[f], g, row[g]]; --left }
            }
            printf "%s", line
        }
    }'
}

value_of() { # KEY of the row "$2"
    sed -E "s/.*\b$1=([^ ]+).*/\1/" <<< "$2"
}

run() { # ROW: prints the hash line
    local ranks transport
    ranks=$(value_of ranks "$1")
    transport=$(value_of transport "$1")
    rm -rf "$scratch/save"
    # shellcheck disable=SC2086
    case $transport in
    sim) "$row" $1 save="$scratch/save" ;;
    mpi) mpirun --allow-run-as-root --oversubscribe --bind-to none -n "$ranks" "$row" $1 save="$scratch/save" ;;
    *) "$launcher" --num_gpus "$ranks" "$row" $1 save="$scratch/save" ;;
    esac
}

declare -A expected
failed=0
count=0
mapfile -t rows < <(matrix)
for line in "${rows[@]:0:${DS_MATRIX_ROWS:-$((${#rows[@]} / ${DS_MATRIX_PART:-1} + 1))}}"; do
    count=$((count + 1))
    line+=" ${DS_MATRIX_WITH:-}"
    group="${DS_MATRIX_WITH:-} model=$(value_of model "$line") dtype=$(value_of dtype "$line") ranks=$(value_of ranks "$line") accumulation=$(value_of accumulation "$line") zenflow=$(value_of zenflow "$line") early=$(value_of early "$line") optimizer=$(value_of optimizer "$line")"
    if [ -z "${expected[$group]:-}" ]; then
        expected[$group]=$(run "$group transport=sim stage=0 ${DS_MATRIX_AGAINST:-}" < /dev/null | grep -o 'hash [0-9a-f]*')
    fi
    got=$(run "$line" 2> "$scratch/errors" < /dev/null | grep -o 'hash [0-9a-f]*.*' || true)
    verdict=same
    if [ -z "$got" ] || [ "${got:0:21}" != "${expected[$group]}" ]; then
        verdict="DIFFERS from ${expected[$group]}"
        failed=$((failed + 1))
        cat "$scratch/errors"
    fi
    echo "$line: ${got:-no result} $verdict"
done
echo "$count of ${#rows[@]} rows, $failed differ; transports: $transports"
[ "$count" -gt 0 ] && [ "$failed" -eq 0 ]
