#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make check: every test in the release build, of the longest tables of runs a part (DS_MATRIX_PART=N: about one in N); those that are
# not labelled slow again under address and undefined-behaviour sanitizers (but its checks of alignment, null and pointers' sums), and most of those with threads under the thread sanitizer, of
# long tables one row in eight. Closes with CTest's summary.
# CHECK_WHOLE=1 (make check-long): under the sanitizers too every test, every row and every check (of alignment and of pointers' sums,
# too), and nothing in the release build.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -gt 0 ]; then
    sed -n '3,8s/^# //p' scripts/check.sh
    [ "$1" = --help ] && exit 0
    echo "check.sh takes no arguments" >&2
    exit 2
fi
scripts/setup.sh check
jobs=$(nproc)

launcher=""
if command -v ccache > /dev/null; then
    launcher="-DCMAKE_C_COMPILER_LAUNCHER=ccache"
fi

# Sanitizers make gcc see paths that are not there: warnings are errors in the release build only. nvcc's images are not theirs.
build() { # folder, sanitizer, what of it (default: all)
    local flags=""
    [ -z "$2" ] || flags="-DDS_WERROR=OFF -DDS_NVCC=OFF -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS=-O1\ -g1"
    [[ "$2" != address* ]] || flags+=" -DDS_SANITIZE_WITHOUT=$without -DDS_SLOW_TESTS=$whole"
    eval cmake -S . -B "$1" -G Ninja -DDS_SANITIZE="$2" "$flags" "$launcher" > "$1.log" 2>&1 ||
        { cat "$1.log"; exit 1; }
    cmake --build "$1" -j "$jobs" --target "${3:-all}" > "$1.log" 2>&1 || { tail -n 60 "$1.log"; exit 1; }
    rm -f "$1.log"
}

whole=${CHECK_WHOLE:-0}
brief=(DS_TEST_BRIEF=8)
leave="slow|tree"
leave_threads=long
leaks=1
without=alignment,null,object-size,pointer-overflow # half of the compiler's time; most of what null and object-size find, address finds too
never='^$'
if [ "$whole" != 0 ]; then
    brief=(DS_TEST_BRIEF=1)
    leave=tree
    leave_threads='^$'
    without=
    leaks=0 # Open MPI and PMIx have their own; ours are looked for in the quick tests
    # one counts what it reaches in a time, two set limits of memory, one has Open MPI's leaks on hosts that do not get these options
    never='^test_(place_random|launch_local|autotune|train_hosts)$'
fi

echo "== address and undefined-behaviour sanitizers"
build build-asan address,undefined
env "${brief[@]}" UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 ASAN_OPTIONS=detect_leaks=$leaks \
    ctest --test-dir build-asan -j "$jobs" -LE "$leave" -E "$never" --output-on-failure --progress > build-asan.log 2>&1 ||
    { tail -n 80 build-asan.log; exit 1; }
tail -n 4 build-asan.log

echo "== thread sanitizer"
build build-tsan thread threads_tests
env "${brief[@]}" TSAN_OPTIONS=halt_on_error=1:die_after_fork=0 \
    ctest --test-dir build-tsan -j "$jobs" -L threads -LE "$leave_threads" --output-on-failure --progress > build-tsan.log 2>&1 ||
    { tail -n 80 build-tsan.log; exit 1; }
tail -n 4 build-tsan.log

[ "$whole" = 0 ] || exit 0
echo "== release"
build build ""
export DS_MATRIX_PART=${DS_MATRIX_PART:-4}
# What mostly waits (for hosts, signals, what does not answer) runs beside the rest.
ctest --test-dir build -L waits --output-on-failure > build-waits.log 2>&1 &
waiting=$!
trap 'kill $waiting 2> /dev/null || true' EXIT
failed=0
# Ranks wait for each other: half as many more than there are cores.
ctest --test-dir build -j $((jobs + (jobs + 1) / 2)) -LE waits --output-on-failure | tee build-rest.log || failed=1
wait $waiting || { tail -n 80 build-waits.log; failed=1; }
grep 'tests passed' build-waits.log
sed -n '/tests passed/,$p' build-rest.log
exit $failed
