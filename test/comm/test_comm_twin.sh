#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: threads slow long
# Two threads of each rank over UCX and Open MPI, in the sanitizers' builds too: exchanges over a communicator and its
# twin, and checkpoints written behind training. Usage: test_comm_twin.sh BUILD
set -euo pipefail
build=$(realpath "$1")
work=$(mktemp -d "$build/comm_twin.XXXXXX")
trap 'rm -rf "$work"' EXIT
export UCX_TLS=tcp,self UCX_NET_DEVICES=lo UCX_WARN_UNUSED_ENV_VARS=n
export UCX_MEM_EVENTS=n # its hooks replace functions that the thread sanitizer has replaced
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self
# Locks inside of Open MPI's TCP are taken in both orders.
export TSAN_OPTIONS="${TSAN_OPTIONS:+$TSAN_OPTIONS:}detect_deadlocks=0:exitcode=66:die_after_fork=0"
export LSAN_OPTIONS="${LSAN_OPTIONS:+$LSAN_OPTIONS:}detect_leaks=0" # Open MPI's own
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
tried=0
fail() {
    echo "FAILED: $*"
    tail -n 60 "$work/log"
    exit 1
}
check() { # NAME COMMAND…
    local code=0
    timeout 200 "${@:2}" > "$work/log" 2>&1 || code=$?
    [ $code = 0 ] || fail "$1: exit code $code"
    tried=$((tried + 1))
}
row=(dtype=f32 ranks=3 steps=4 stage=2 bucket=10000)
hash() { grep -o 'hash [0-9a-f]*' "$work/log"; }

check "simulated ranks" "$build/zero_row" "${row[@]}" transport=sim
want=$(hash)
if [ -e "$build/libdeepspeed_ucx.so" ]; then
    run=("$build/deepspeed" --num_gpus 3)
    TEST_TRANSPORT=ucx check "twins over UCX" "${run[@]}" "$build/test_comm_net" rank twin
    check "saves over UCX" "${run[@]}" "$build/zero_row" "${row[@]}" transport=ucx resume=2 save="$work/ucx"
    [ "$(hash)" = "$want" ] || fail "over UCX: $(hash), expected $want"
fi
if [ -e "$build/libdeepspeed_mpi_openmpi.so" ] && command -v mpirun.openmpi > /dev/null; then
    run=(mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none -n 3)
    TEST_TRANSPORT=mpi check "twins over MPI" "${run[@]}" "$build/test_comm_net" rank twin
    check "saves over MPI" "${run[@]}" "$build/zero_row" "${row[@]}" transport=mpi resume=2 save="$work/mpi"
    [ "$(hash)" = "$want" ] || fail "over MPI: $(hash), expected $want"
fi
if [ $tried = 1 ]; then
    echo "neither UCX nor Open MPI is installed"
    exit 77
fi
