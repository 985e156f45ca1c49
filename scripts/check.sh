#!/usr/bin/env bash
# make check: every test in the release build, all again under address and undefined-behaviour
# sanitizers, and those with threads under the thread sanitizer. Closes with CTest's summary.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh check
jobs=$(nproc)

build() { # folder, sanitizer, build type
    cmake -S . -B "$1" -G Ninja -DDS_SANITIZE="$2" -DCMAKE_BUILD_TYPE="$3" > "$1.log" 2>&1 ||
        { cat "$1.log"; exit 1; }
    cmake --build "$1" -j "$jobs" > "$1.log" 2>&1 || { tail -n 60 "$1.log"; exit 1; }
    rm -f "$1.log"
}

echo "== address and undefined-behaviour sanitizers"
build build-asan address,undefined RelWithDebInfo
UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 ASAN_OPTIONS=detect_leaks=1 \
    ctest --test-dir build-asan -j "$jobs" -LE 'slow|tree' --output-on-failure --progress > build-asan.log 2>&1 ||
    { tail -n 80 build-asan.log; exit 1; }
tail -n 4 build-asan.log

echo "== thread sanitizer"
build build-tsan thread RelWithDebInfo
TSAN_OPTIONS=halt_on_error=1 ctest --test-dir build-tsan -L threads --output-on-failure --progress > build-tsan.log 2>&1 ||
    { tail -n 80 build-tsan.log; exit 1; }
tail -n 4 build-tsan.log

echo "== release"
build build "" Release
ctest --test-dir build -j "$jobs" --output-on-failure
