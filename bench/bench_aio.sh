#!/usr/bin/env bash
# ds_io against fio with the same settings, alternating. Usage: bench_aio.sh BUILD [FOLDER] [MEGABYTES] [ROUNDS]
# Reads and writes of one file past the page cache, through io_uring where the kernel permits it (fio then too),
# for a few pairs of block size and depth. Prints both rates of every round in GB/s (2^30 bytes), the medians, and the
# median of the rounds' ratios (target 0.95): the rate of a virtual disk changes while one measures.
set -euo pipefail
build=$1
folder=$(mktemp -d "${2:-.}/bench_aio.XXXXXX")
megabytes=${3:-512}
rounds=${4:-5}
trap 'rm -rf "$folder"' EXIT
command -v fio > /dev/null || { echo "bench_aio: fio is not installed" >&2; exit 77; }

median() { printf '%s\n' "$@" | sort -g | sed -n "$((($# + 1) / 2))p"; }

engine=io_uring
if ! "$build/ds_io" --folder "$folder" --io_size 1M --backend io_uring > /dev/null 2>&1; then
    engine=libaio
    echo "io_uring is not permitted here: fio uses libaio, ds_io threads"
fi

# Both write their file right before they are timed: a virtual disk remembers what was asked of it lately.
fio_rate() { # read|write BLOCK DEPTH -> GB/s
    rm -f "$folder/peer"
    fio --name=peer --filename="$folder/peer" --rw=write --bs=4M --iodepth=8 --ioengine=$engine --direct=1 \
        --size="${megabytes}M" > /dev/null
    fio --name=peer --filename="$folder/peer" --rw="$1" --bs="$2" --iodepth="$3" --ioengine=$engine --direct=1 \
        --size="${megabytes}M" --overwrite=1 --output-format=json |
        awk -v side="\"$1\"" '$1 == side {inside = 1} inside && !rate && /"bw_bytes"/ {
            gsub(/[^0-9]/, "", $3); rate = $3 } END {printf "%.3f", rate / 2^30}'
}
our_rate() { # read|write BLOCK DEPTH -> GB/s
    "$build/ds_io" --folder "$folder" --io_size "${megabytes}M" "--$1" --block_size "$2" --queue_depth "$3" \
        --loops 1 --warmup_loops 0 --json | sed 's/.*"bytes_per_second": \([0-9]*\).*/\1/' |
        awk '{printf "%.3f", $1 / 2^30}'
}

for setting in "1M 8" "1M 32" "128K 32" "8M 8"; do
    read -r block depth <<< "$setting"
    for way in read write; do
        ours=() peer=() ratios=()
        for ((i = 0; i < rounds; ++i)); do
            if ((i % 2)); then
                ours+=("$(our_rate $way "$block" "$depth")")
                peer+=("$(fio_rate $way "$block" "$depth")")
            else
                peer+=("$(fio_rate $way "$block" "$depth")")
                ours+=("$(our_rate $way "$block" "$depth")")
            fi
            ratios+=("$(awk -v o="${ours[-1]}" -v p="${peer[-1]}" 'BEGIN {printf "%.2f", o / p}')")
        done
        printf '%-5s block %-4s depth %-2s  ds_io %s  fio %s  ratio %s  (rounds: %s)\n' $way "$block" "$depth" \
            "$(median "${ours[@]}")" "$(median "${peer[@]}")" "$(median "${ratios[@]}")" "${ratios[*]}"
    done
done
