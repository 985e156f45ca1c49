#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The accelerator sim in many random schedules, as test_sim_accel does: SIM_ACCEL_SCHEDULES of one rank (default 20000), in as many processes
# as there are cores; then MATRIX_ROWS rows (default 400) of the determinism matrix with several ranks. Usage: sim_accel.sh BUILD
set -euo pipefail
build=$1
jobs=$(nproc)
each=$(((${SIM_ACCEL_SCHEDULES:-20000} + jobs - 1) / jobs))
pids=()
for ((j = 0; j < jobs; ++j)); do
    TMPDIR=/dev/shm "$build/sim_schedules" "$each" $((1 + j * each)) &
    pids+=($!)
done
for pid in "${pids[@]}"; do
    wait "$pid"
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
pick() {
    local words=("$@")
    echo "${words[RANDOM % ${#words[@]}]}"
}
RANDOM=7
for ((i = 1; i <= ${MATRIX_ROWS:-400}; ++i)); do
    row="model=$(pick gpt2 llama) dtype=$(pick f32 bf16 f16) ranks=$(pick 1 2 3 4) stage=$(pick 0 1 2 3) overlap=$(pick 0 1)"
    row+=" bucket=$(pick 1000 100000 1000000000) accumulation=$(pick 1 2) resume=$(pick 0 1 2) recompute=$(pick none selective full)"
    row+=" offload=$(pick none states half params host)"
    case $(pick none zenflow early mics hpz) in
    zenflow) row+=" zenflow=$(pick 1 2)" ;;
    early) row=${row/accumulation=2/accumulation=1}" early=1" ;;
    mics) row+=" mics=2" ;;
    hpz) row+=" hpz=2" ;;
    *) ;;
    esac
    rm -rf "$scratch/save"
    # shellcheck disable=SC2086
    expected=$("$build/zero_row" $row save="$scratch/save" 2> "$scratch/refused") || { echo "refused: $row: $(cat "$scratch/refused")"; continue; }
    rm -rf "$scratch/save"
    # shellcheck disable=SC2086
    got=$("$build/zero_row" $row save="$scratch/save" accel=sim:seed=$i)
    [[ $expected == hash* && $got == "$expected" ]] || { echo "$row: sim gives $got, cpu $expected" >&2; exit 1; }
done
echo "${MATRIX_ROWS:-400} rows of the matrix, no difference"
