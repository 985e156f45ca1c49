#!/usr/bin/env bash
# make check-long: make check; every fuzzer, FUZZ_SECONDS each (default 600), as many at a time as there
# are cores; the demo with three other seeds. LONG_CHECK=0 and LONG_DEMO=0 leave out the first and the last.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-600}
jobs=$(nproc)
clang=${CLANG:-$(command -v clang-14 || command -v clang || true)}
out=build-fuzz

[ "${LONG_CHECK:-1}" = 0 ] || scripts/check.sh
[ -n "$clang" ] || { echo "check-long: the fuzzers need clang (package clang-14)" >&2; exit 1; }

echo "== fuzzers: $seconds s each, $jobs at a time"
cmake -S . -B "$out" -G Ninja -DCMAKE_C_COMPILER="$clang" -DDS_WERROR=OFF -DCMAKE_BUILD_TYPE=None \
    -DCMAKE_C_FLAGS="-O1 -g1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all" \
    -DCMAKE_EXE_LINKER_FLAGS="-fsanitize=address,undefined" > "$out.log" 2>&1 || { cat "$out.log"; exit 1; }
cmake --build "$out" -j "$jobs" --target deepspeed_static >> "$out.log" 2>&1 || { tail -n 60 "$out.log"; exit 1; }
names=()
for source in test/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    "$clang" -std=gnu11 -O1 -g1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
        -Iinclude -Isrc -Itest "$source" -o "$out/$name" "$out/libdeepspeed.a" \
        $(pkg-config --libs jansson libpcre2-8 libxxhash libutf8proc nettle) -pthread -lm
    names+=("$name")
done

# One fuzzer; its corpus is kept in the build folder and grows from run to run. Seeds: the golden files
# of the kind that it reads.
fuzz() {
    local name=$1 out=$2 seconds=$3 corpus=$2/corpus/$1 seeds=()
    mkdir -p "$corpus" "$out/findings"
    case $name in
    fuzz_config) seeds=(test/golden/config) ;;
    fuzz_graph_text) seeds=(test/golden/ir) ;;
    esac
    if "$out/$name" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
        -artifact_prefix="$out/findings/$name-" "$corpus" "${seeds[@]}" > "$out/$name.log" 2>&1; then
        echo "$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$out/$name.log") inputs, no finding"
    else
        echo "$name: FINDING"
        tail -n 40 "$out/$name.log"
        return 1
    fi
}
export -f fuzz
printf '%s\n' "${names[@]}" | xargs -P "$jobs" -I{} bash -c 'fuzz {} '"$out $seconds"

if [ "${LONG_DEMO:-1}" != 0 ]; then
    [ -x build/ds_train ] || make build
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
