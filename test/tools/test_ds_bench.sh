#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ds_bench: DeepSpeed's table, the arithmetic of its figures, JSON, the ways to start it, exit codes; MPI's column
# where Open MPI is installed. Usage: test_ds_bench.sh BUILD
set -euo pipefail
build=$1
fail() {
    echo "FAILED: $1"
    exit 1
}
quick="--trials 2 --warmups 1 --step 4"
# Sizes step from --min_size to --max_size; a rank more than the size divides over raises it; figures become N.
deepspeed=("$build/deepspeed" --num_gpus 3)
figures() { sed -E 's/[0-9]+\.[0-9]{3}( us| ms)? */N | /g; s/ +$//'; }
diff -u - <("${deepspeed[@]}" "$build/ds_bench" --all-reduce --reduce-scatter --min_size 1K --max_size 4K $quick 2> /dev/null | figures) << 'TABLE' ||

---- Performance of all_reduce on 3 devices --------------------------------------------------------
Size (Bytes)         Description               Duration             Throughput (Gbps)    BusBW (Gbps)
----------------------------------------------------------------------------------------------------
1.0 KB               256x4                     N | N | N |
4.0 KB               1024x4                    N | N | N |

---- Performance of reduce_scatter on 3 devices ----------------------------------------------------
Size (Bytes)         Description               Duration             Throughput (Gbps)    BusBW (Gbps)
----------------------------------------------------------------------------------------------------
1.01 KB              258x4                     N | N | N |
4.01 KB              1026x4                    N | N | N |
TABLE
    fail "the table has changed"

# The bandwidths of --json follow from bytes and seconds. It starts its ranks itself here.
json=$("$build/ds_bench" --num_gpus 2 --json --bound --bw_unit GBps --dtype bf16 --max_size 64K --step 64 --trials 2 2> /dev/null)
grep -qE '^\{"ranks": 2, "transport": "shm", "dtype": "bf16", "trials": 2, "warmups": 5, "operands": "symmetric"' <<< "$json" ||
    fail "the JSON's head: $json"
[ "$(grep -c '"op"' <<< "$json")" = 18 ] || fail "not three sizes of six operations: $json"
sed -nE 's/.*"op": "([a-z_0-9]+)", "bytes": ([0-9]+), "count": ([0-9]+), "seconds": ([^,]+), "throughput_bytes_per_s": ([^,]+), "busbw_bytes_per_s": ([^,]+), "bound_seconds": ([^}]+).*/\1 \2 \3 \4 \5 \6 \7/p' <<< "$json" |
    awk 'function near(a, b) { return a > 0 && (a - b) ^ 2 < (1e-6 * b) ^ 2 }
        BEGIN { t["all_reduce"] = 2; t["reduce_scatter"] = 1; t["all_gather"] = 2; t["all_to_all"] = 1; t["broadcast"] = 1; t["pt2pt"] = 1
                s["all_reduce"] = 1; s["reduce_scatter"] = 0.5; s["all_gather"] = 1; s["all_to_all"] = 0.5; s["broadcast"] = 1; s["pt2pt"] = 1 }
        $2 != 2 * $3 || !near($5, t[$1] * $2 / $4) || !near($6, s[$1] * $2 / $4) || !($7 > 0) { print "FAILED: " $0; bad = 1 }
        END { if (NR != 18) { print "FAILED: " NR " rows"; bad = 1 } exit bad }' || exit 1

[ "$(RANK=0 WORLD_SIZE=1 "$build/ds_bench" --raw --all_gather --pt2pt --max_size 64 $quick | grep -c '^[0-9]')" = 2 ] ||
    fail "one rank: expected 8 and 32 bytes of all_gather, no pt2pt"
for flags in "--max_size 3x" "--dtype bool" "--min_size 1M --max_size 1K" "--maxsize 4 --max_size 1K" "--no_such_flag" "word"; do
    code=0
    "$build/ds_bench" $flags > /dev/null 2>&1 || code=$?
    [ "$code" = 2 ] || fail "ds_bench $flags gives exit code $code"
done
if ! [ -e "$build/libdeepspeed_mpi_openmpi.so" ] || ! command -v mpirun.openmpi > /dev/null; then
    echo "Open MPI's module or mpirun is not installed: no comparison was tried"
    exit 0
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# (what Open MPI itself leaves allocated is not ours to find)
mpi=$(ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" timeout 120 mpirun.openmpi --oversubscribe -n 2 "$build/ds_bench" --json --max_size 4K $quick --dtype fp16)
grep -q '"mpi": "Open MPI' <<< "$mpi" || fail "the comparison does not name Open MPI: $mpi"
grep '"op": "broadcast"' <<< "$mpi" | grep -q '"mpi_seconds"' || fail "no time of MPI's broadcast: $mpi"
if grep '"op": "all_reduce"' <<< "$mpi" | grep -q '"mpi_seconds"'; then fail "MPI has no sums of fp16"; fi
