#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Training on the accelerator sim gives cpu's bits: random configurations of one rank (sim_schedules), and ranks with collectives, groups,
# offload, ZenFlow and resumes (zero_row). DS_SIM_SCHEDULES=N: schedules of the first, default 24. Usage: test_sim_accel.sh BUILD
set -euo pipefail
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
TMPDIR=/dev/shm "$build/sim_schedules" "${DS_SIM_SCHEDULES:-24}"
seed=0
while read -r row; do
    rm -rf "$scratch/save"
    # shellcheck disable=SC2086
    expected=$("$build/zero_row" $row save="$scratch/save")
    seed=$((seed + 1))
    rm -rf "$scratch/save"
    # shellcheck disable=SC2086
    got=$("$build/zero_row" $row save="$scratch/save" accel=sim:seed=$seed)
    rm -rf "$scratch/save"
    # shellcheck disable=SC2086
    plain=$("$build/zero_row" $row save="$scratch/save" accel=sim:graphs=0,seed=$seed)
    [[ $plain == "$got" ]] || { echo "$row: without graphs sim gives $plain, with them $got" >&2; exit 1; }
    [[ $expected == hash* && $got == "$expected" ]] || { echo "$row: sim gives $got, cpu $expected" >&2; exit 1; }
done << 'ROWS'
ranks=2 stage=2 overlap=1 bucket=1000
ranks=3 stage=3 overlap=1 bucket=1000 offload=host
ranks=2 stage=3 overlap=1 bucket=10000 offload=params dtype=bf16 accumulation=2 resume=1
ranks=2 stage=1 zenflow=2 overlap=1 offload=host
ranks=4 stage=3 early=1 overlap=1 offload=host bucket=1000 recompute=full
ranks=4 stage=3 hpz=2 bucket=1000 overlap=1 model=llama
ranks=2 stage=3 offload=half dtype=f16 resume=2 overlap=1
ROWS
echo "$seed rows of several ranks, no difference"
