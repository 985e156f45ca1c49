#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make check-long: all parts, one after the other, also behind one that failed; a table of seconds and verdicts at the end.
#   check     make check, in the release build with every row
#   fuzz      every fuzzer, FUZZ_SECONDS each (default 600), FUZZ_JOBS at a time (default: as many as there are cores).
#             FUZZ_BUILD_ONLY=1 ends when they are built: scripts/fuzz_run.sh runs them, here or on another machine
#   comm_sim  SIM_SCHEDULES random schedules of the simulated communicator (default 20000)
#   NAME      test/long/NAME.sh, each of them; what it needs and its own variables stand at its top
#   demo_1 …  the demo with the seeds 1, 2 and 3
# LONG_ONLY='fuzz data_rows' runs these parts only, LONG_SKIP leaves out those it names. LONG_RESUME=1 passes over parts that passed
# before with the sources as they are (build/long/NAME.passed has the commit). Output: build/long/NAME.log.
# A part that lacks something (a Python, a device) ends with 77 and counts as not run, which is no failure.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$(nproc)
logs=build/long
heed=(env --default-signal=INT,QUIT,HUP) # what runs in the background has them ignored, and tests send them

fuzz() {
    local out=build-fuzz clang checks="address,undefined,float-cast-overflow -fno-sanitize-recover=all"
    scripts/setup.sh long
    clang=${CLANG:-$(command -v clang-14 || command -v clang || true)}
    [ -n "$clang" ] || { echo "the fuzzers need clang (package clang-14)" >&2; return 1; }
    cmake -S . -B "$out" -G Ninja -DCMAKE_C_COMPILER="$clang" -DDS_FUZZ=ON -DDS_WERROR=OFF -DCMAKE_BUILD_TYPE=None \
        -DCMAKE_C_FLAGS="-O1 -g1 -gz -ffunction-sections -fdata-sections -fsanitize=fuzzer-no-link,$checks" \
        -DCMAKE_EXE_LINKER_FLAGS="-fsanitize=address,undefined" > "$out.log" 2>&1 || { cat "$out.log"; return 1; }
    cmake --build "$out" -j "$jobs" --target fuzzers >> "$out.log" 2>&1 || { tail -n 60 "$out.log"; return 1; }
    rm -f "$out.log"
    [ "${FUZZ_BUILD_ONLY:-0}" != 0 ] || scripts/fuzz_run.sh "$out" "${FUZZ_SECONDS:-600}" "${FUZZ_JOBS:-$jobs}"
}

comm_sim() {
    DS_SIM_SCHEDULES=${SIM_SCHEDULES:-20000} build/test_comm_sim > "$logs/comm_sim.all" 2>&1 || { tail -n 30 "$logs/comm_sim.all"; return 1; }
    echo "${SIM_SCHEDULES:-20000} schedules, no difference"
}

demo() { # SEED
    local loss
    scripts/demo.sh build --seed "$1" > "$logs/demo_$1.all" 2>&1 || { tail -n 20 "$logs/demo_$1.all"; return 1; }
    loss=$(grep -oiE 'validation loss:? *[0-9.]+' "$logs/demo_$1.all" | tail -n 1 | grep -oE '[0-9.]+$' || true)
    awk -v loss="${loss:-none}" -v seed="$1" 'BEGIN {
        print "seed " seed ": validation loss " loss ", expected at most 1.75"
        exit !(loss + 0 > 0 && loss + 0 <= 1.75) }'
}

part() { # NAME
    case $1 in
    check) DS_MATRIX_PART=1 "${heed[@]}" scripts/check.sh ;;
    fuzz | comm_sim) "$1" ;;
    demo_*) demo "${1#demo_}" ;;
    *) "${heed[@]}" bash "test/long/$1.sh" "$PWD/build" ;;
    esac
}

parts=(check fuzz comm_sim)
for script in test/long/*.sh; do
    script=${script##*/}
    parts+=("${script%.sh}")
done
parts+=(demo_1 demo_2 demo_3)
for name in ${LONG_ONLY:-} ${LONG_SKIP:-}; do
    [[ " ${parts[*]} " = *" $name "* ]] || { echo "check-long: no part is named \"$name\". The parts: ${parts[*]}" >&2; exit 2; }
done
chosen=()
for name in "${parts[@]}"; do
    [[ -z "${LONG_ONLY:-}" || " $LONG_ONLY " = *" $name "* ]] || continue
    [[ " ${LONG_SKIP:-} " = *" $name "* ]] || chosen+=("$name")
done
[ ${#chosen[@]} -gt 0 ] || { echo "check-long: no part is left" >&2; exit 2; }

make -s build
mkdir -p "$logs"
sources=$(git describe --always --abbrev=40 --dirty 2>/dev/null || echo not-in-git-dirty)
table=() failed=() not_run=()
report() {
    trap - EXIT
    printf '\n%-20s %8s  %s\n' part seconds verdict
    [ ${#table[@]} = 0 ] || printf '%s\n' "${table[@]}"
    [ ${#table[@]} = ${#chosen[@]} ] || { echo "check-long: ended after ${#table[@]} of ${#chosen[@]} parts"; exit 1; }
    [ ${#failed[@]} = 0 ] || { echo "check-long: FAILED: ${failed[*]}"; exit 1; }
    echo "check-long: passed${not_run[*]:+, but not run: ${not_run[*]}}"
}
trap report EXIT
for name in "${chosen[@]}"; do
    passed=$logs/$name.passed
    if [ "${LONG_RESUME:-0}" != 0 ] && [[ "$sources" != *-dirty ]] && [ "$(cat "$passed" 2>/dev/null)" = "$sources" ]; then
        table+=("$(printf '%-20s %8s  %s' "$name" - 'passed before')")
        continue
    fi
    rm -f "$passed"
    echo "== $name"
    begin=$SECONDS
    set +e
    (set -e; part "$name") 2>&1 | tee "$logs/$name.log"
    code=${PIPESTATUS[0]}
    set -e
    case $code in
    0) verdict=passed; echo "$sources" > "$passed" ;;
    77) verdict='not run'; not_run+=("$name") ;;
    *) verdict="FAILED ($code)"; failed+=("$name") ;;
    esac
    table+=("$(printf '%-20s %8d  %s' "$name" $((SECONDS - begin)) "$verdict")")
done
