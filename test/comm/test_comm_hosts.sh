#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Communicators between two hosts: two sets of namespaces (network, host name, IPC, mounts, their own
# /dev/shm) that share only a cable. Ranks 0 and 1 on the first, 2 and 3 on the second: conformance, a
# killed rank, a wrong secret over UCX with our rendezvous; conformance under Open MPI across both.
set -u
program="$1/test_comm_net"
a=dsnet-a-$$
b=dsnet-b-$$
address_a=10.213.77.1
address_b=10.213.77.2
work=$(mktemp -d)
failed=0

skip() { echo "skipped: $1"; exit 77; }

clean() {
    ip netns del "$a" 2> /dev/null
    ip netns del "$b" 2> /dev/null
    rm -rf "$work"
}
trap clean EXIT

[ "$(id -u)" = 0 ] || skip "network namespaces need root"
command -v ip > /dev/null && command -v unshare > /dev/null || skip "ip (iproute2) or unshare is not installed"
ip netns add "$a" 2> "$work/why" && ip netns add "$b" 2> "$work/why" || skip "no network namespaces: $(cat "$work/why")"
ip link add "ds0_$$" netns "$a" type veth peer name "ds1_$$" netns "$b" 2> "$work/why" || skip "no veth: $(cat "$work/why")"
ip -n "$a" addr add $address_a/24 dev "ds0_$$"
ip -n "$b" addr add $address_b/24 dev "ds1_$$"
for ns in "$a" "$b"; do ip -n "$ns" link set lo up; done
ip -n "$a" link set "ds0_$$" up
ip -n "$b" link set "ds1_$$" up
for _ in $(seq 50); do # until the cable is plugged in at both ends
    ip -n "$a" -br link show "ds0_$$" | grep -q " UP " && ip -n "$b" -br link show "ds1_$$" | grep -q " UP " && break
    sleep 0.1
done

# on NAMESPACE COMMAND...: on that host.
cat > "$work/on" <<'SCRIPT'
#!/bin/sh
ns=$1
shift
exec ip netns exec "$ns" unshare --uts --ipc --mount sh -c \
    'hostname "$0"; mount -t tmpfs tmpfs /dev/shm; exec "$@"' "$ns" "$@"
SCRIPT
chmod +x "$work/on"
"$work/on" "$a" true 2> "$work/why" || skip "no namespaces of host name and mounts: $(cat "$work/why")"

export DS_JOB_SECRET="of the two hosts" MASTER_ADDR=$address_a MASTER_PORT=29517 WORLD_SIZE=4
export LOCAL_WORLD_SIZE=2 CROSS_SIZE=2 UCX_TLS=tcp UCX_WARN_UNUSED_ENV_VARS=n

# ucx SCENARIO: the four ranks; their exit codes in the array codes, their words in $work/out.R.
ucx() {
    local r ns pids=()
    codes=()
    for r in 0 1 2 3; do
        ns=$a
        if [ "${DEALT:-0}" = 1 ]; then # in turn, while the numbers say otherwise
            [ $((r % 2)) = 0 ] || ns=$b
        elif [ $r -ge 2 ]; then
            ns=$b
        fi
        RANK=$r LOCAL_RANK=$((r % 2)) CROSS_RANK=$((r / 2)) timeout 60 "$work/on" "$ns" \
            "$program" rank "$1" > "$work/out.$r" 2>&1 &
        pids+=($!)
    done
    for r in 0 1 2 3; do
        wait "${pids[$r]}" 2> /dev/null
        codes+=($?)
    done
    MASTER_PORT=$((MASTER_PORT + 1))
}

check() { # check "CODES" SCENARIO
    if [ "${codes[*]}" != "$1" ]; then
        echo "$2: exit codes ${codes[*]}, expected $1"
        head -c 1500 "$work"/out.*
        failed=1
    else
        echo "$2: as expected"
    fi
}

if [ -e "$1/libdeepspeed_ucx.so" ]; then
    for transport in ucx ""; do
        if [ -n "$transport" ]; then export TEST_TRANSPORT=$transport; else unset TEST_TRANSPORT; fi
        ucx conform
        check "0 0 0 0" "conformance over ${transport:-shared memory and ucx}"
        ucx killed
        check "0 137 0 0" "a killed rank over ${transport:-shared memory and ucx}"
        grep -q "rank 1" "$work/out.3" || { echo "the other host does not name rank 1"; failed=1; }
    done
    DEALT=1 ucx conform
    check "0 0 0 0" "ranks that take another host for theirs"
    export TEST_TRANSPORT=ucx
    DS_JOB_SECRET="" ucx conform
    check "3 3 3 3" "no secret between hosts"
    grep -q DS_JOB_SECRET "$work/out.3" || { echo "the message does not name DS_JOB_SECRET"; failed=1; }
else
    echo "ucx: the module is not built"
fi

if [ -e "$1/libdeepspeed_mpi_openmpi.so" ] && command -v mpirun.openmpi > /dev/null; then
    # Starts Open MPI's daemon on the other host, as ssh would.
    printf '#!/bin/sh\nshift\nexec %s %s sh -c "$*"\n' "$work/on" "$b" > "$work/agent"
    chmod +x "$work/agent"
    unset DS_JOB_SECRET MASTER_ADDR MASTER_PORT WORLD_SIZE LOCAL_WORLD_SIZE CROSS_SIZE
    for transport in mpi shm+mpi; do
        timeout 100 "$work/on" "$a" env TEST_TRANSPORT=$transport TEST_PER_NODE=2 \
            OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun.openmpi \
            --mca plm_rsh_agent "$work/agent" --mca btl tcp,self --mca pml ob1 --mca oob_tcp_if_include 10.213.77.0/24 \
            --mca btl_tcp_if_include 10.213.77.0/24 -H $address_a:2,$address_b:2 -n 4 \
            -x TEST_TRANSPORT -x TEST_PER_NODE "$program" rank conform > "$work/out.mpi" 2>&1
        code=$?
        if [ $code != 0 ]; then
            echo "Open MPI, $transport: exit code $code"
            head -c 3000 "$work/out.mpi"
            failed=1
        else
            echo "conformance over $transport by Open MPI: as expected"
        fi
    done
else
    echo "mpi: module or mpirun is not installed"
fi
exit $failed
