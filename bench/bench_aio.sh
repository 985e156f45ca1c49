#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ds_io against fio with the same settings, alternating. Usage: bench_aio.sh BUILD [FOLDER] [MEGABYTES] [ROUNDS]
# Reads and writes of one file past the page cache, through io_uring where the kernel permits it (fio then too),
# for a few pairs of block size and depth. fio runs twice: as it is, and with its buffers on huge pages, as ds_io's
# are. Prints the median rates in GB/s (2^30 bytes), and the ratios of the rounds with their median (target 0.95): the
# rate of a virtual disk changes while one measures.
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
fio_rate() { # read|write BLOCK DEPTH HUGE -> GB/s
    rm -f "$folder/peer"
    fio --name=peer --filename="$folder/peer" --rw=write --bs=4M --iodepth=8 --ioengine=$engine --direct=1 \
        --size="${megabytes}M" > /dev/null
    GLIBC_TUNABLES=glibc.malloc.hugetlb=$4 fio --name=peer --filename="$folder/peer" --rw="$1" --bs="$2" --iodepth="$3" --ioengine=$engine --direct=1 \
        --size="${megabytes}M" --overwrite=1 --output-format=json |
        awk -v side="\"$1\"" '$1 == side {inside = 1} inside && !rate && /"bw_bytes"/ {
            gsub(/[^0-9]/, "", $3); rate = $3 } END {printf "%.3f", rate / 2^30}'
}
our_rate() { # read|write BLOCK DEPTH -> GB/s
    "$build/ds_io" --folder "$folder" --io_size "${megabytes}M" "--$1" --block_size "$2" --queue_depth "$3" \
        --loops 1 --warmup_loops 0 --json | sed 's/.*"bytes_per_second": \([0-9]*\).*/\1/' |
        awk '{printf "%.3f", $1 / 2^30}'
}

ratios() { # OURS... -- PEER...: the rounds' ratios and their median
    local ours=() all=()
    while [ "$1" != -- ]; do ours+=("$1"); shift; done
    shift
    for our in "${ours[@]}"; do
        all+=("$(awk -v o="$our" -v p="$1" 'BEGIN {printf "%.2f", o / p}')")
        shift
    done
    echo "$(median "${all[@]}") (${all[*]})"
}

for setting in "1M 8" "128K 32" "8M 8"; do
    read -r block depth <<< "$setting"
    for way in read write; do
        ours=() plain=() huge=()
        for ((i = 0; i < rounds; ++i)); do
            plain+=("$(fio_rate $way "$block" "$depth" 0)")
            ours+=("$(our_rate $way "$block" "$depth")")
            huge+=("$(fio_rate $way "$block" "$depth" 1)")
        done
        printf '%-5s block %-4s depth %-2s  ds_io %s  fio %s ratio %s  fio huge %s ratio %s\n' $way "$block" "$depth" \
            "$(median "${ours[@]}")" "$(median "${plain[@]}")" "$(ratios "${ours[@]}" -- "${plain[@]}")" \
            "$(median "${huge[@]}")" "$(ratios "${ours[@]}" -- "${huge[@]}")"
    done
done
