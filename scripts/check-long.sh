#!/usr/bin/env bash
# make check-long: make check; every fuzzer, FUZZ_SECONDS each (default 600), FUZZ_JOBS at a time (default: as many as there
# are cores); random schedules of the simulated communicator (SIM_SCHEDULES, default 20000); the long tests of test/long; the
# demo with three other seeds. LONG_CHECK=0 and LONG_DEMO=0 leave out the first and the last.
# FUZZ_BUILD_ONLY=1 ends when the fuzzers are built: scripts/fuzz_run.sh runs them, here or on another machine.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-600}
jobs=$(nproc)
fuzz_jobs=${FUZZ_JOBS:-$jobs}
clang=${CLANG:-$(command -v clang-14 || command -v clang || true)}
out=build-fuzz
checks="address,undefined,float-cast-overflow -fno-sanitize-recover=all"

[ "${LONG_CHECK:-1}" = 0 ] || scripts/check.sh
[ -n "$clang" ] || { echo "check-long: the fuzzers need clang (package clang-14)" >&2; exit 1; }

echo "== fuzzers: $seconds s each, $fuzz_jobs at a time"
cmake -S . -B "$out" -G Ninja -DCMAKE_C_COMPILER="$clang" -DDS_FUZZ=ON -DDS_WERROR=OFF -DCMAKE_BUILD_TYPE=None \
    -DCMAKE_C_FLAGS="-O1 -g1 -gz -ffunction-sections -fdata-sections -fsanitize=fuzzer-no-link,$checks" \
    -DCMAKE_EXE_LINKER_FLAGS="-fsanitize=address,undefined" > "$out.log" 2>&1 || { cat "$out.log"; exit 1; }
cmake --build "$out" -j "$jobs" --target fuzzers >> "$out.log" 2>&1 || { tail -n 60 "$out.log"; exit 1; }
[ "${FUZZ_BUILD_ONLY:-0}" = 0 ] || exit 0
scripts/fuzz_run.sh "$out" "$seconds" "$fuzz_jobs"

[ -x build/ds_train ] || make build
echo "== communicators: ${SIM_SCHEDULES:=20000} random schedules with delays"
DS_SIM_SCHEDULES=$SIM_SCHEDULES build/test_comm_sim > build/test_comm_sim.log 2>&1 || { tail -n 30 build/test_comm_sim.log; exit 1; }
for script in test/long/*.sh; do
    echo "== $script"
    bash "$script" "$PWD/build"
done

if [ "${LONG_DEMO:-1}" != 0 ]; then
    for seed in 1 2 3; do
        echo "== demo, seed $seed"
        scripts/demo.sh build --seed "$seed" > "build/demo_$seed.log" 2>&1 || { tail -n 20 "build/demo_$seed.log"; exit 1; }
        loss=$(grep -oiE 'validation loss:? *[0-9.]+' "build/demo_$seed.log" | tail -n 1 | grep -oE '[0-9.]+$' || true)
        awk -v loss="${loss:-none}" -v seed="$seed" 'BEGIN {
            if (loss + 0 > 0 && loss + 0 <= 1.75) { print "seed " seed ": validation loss " loss; exit 0 }
            print "seed " seed ": validation loss " loss ", expected at most 1.75"; exit 1 }'
    done
fi
rm -f "$out.log"
echo "check-long: passed"
