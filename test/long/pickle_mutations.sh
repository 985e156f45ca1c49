#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A million pickles of DeepSpeed and torch, changed opcode by opcode, under address and undefined-behaviour sanitizers: eight runs
# of test_pickle_mutations with other seeds. Prints how many were accepted. Usage: pickle_mutations.sh BUILD
# PICKLE_MUTATIONS=N: so many in all. PICKLE_PROGRAM=FILE: this program instead of one that is built here
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
cd "$source"
all=${PICKLE_MUTATIONS:-1000000}
program=${PICKLE_PROGRAM:-}
if [ -z "$program" ]; then
    cmake -S . -B build-asan -G Ninja -DDS_SANITIZE=address,undefined -DDS_WERROR=OFF -DCMAKE_BUILD_TYPE=None "-DCMAKE_C_FLAGS=-O1 -g1" > build-asan.log 2>&1
    cmake --build build-asan --target test_pickle_mutations >> build-asan.log 2>&1 || { tail -n 40 build-asan.log; exit 1; }
    program=build-asan/test_pickle_mutations
fi
begin=$(date +%s)
for seed in 1 2 3 4 5 6 7 8; do
    env DS_PICKLE_MUTATIONS=$((all / 8)) DS_PICKLE_SEED=$((seed * 1000003)) UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
        "$program" > pickle_mutations.log 2>&1 || { tail -n 60 pickle_mutations.log; exit 1; }
    grep 'changed pickles' pickle_mutations.log
done
rm -f pickle_mutations.log
echo "$all changed pickles under sanitizers, no finding, $(($(date +%s) - begin)) s"
