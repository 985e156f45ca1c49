#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checkpoint writing against fio on the same disk. Usage: bench_checkpoint.sh BUILD [FOLDER] [MEGABYTES] [RUNS]
# For 1 and 2 ranks, alternating: a save of so many megabytes with every sync, and fio writing as many bytes with as
# many jobs, through the page cache with a sync at the end, and directly. Prints all rates, the medians, and the
# median over the rounds of ours against the better of fio's two in the same round (target 0.80): the rate of a
# virtual disk changes while one measures.
set -euo pipefail
build=$1
folder=$(mktemp -d "${2:-.}/bench_checkpoint.XXXXXX")
megabytes=${3:-1000}
runs=${4:-5}
trap 'rm -rf "$folder"' EXIT
command -v fio > /dev/null || { echo "bench_checkpoint: fio is not installed" >&2; exit 77; }

median() { printf '%s\n' "$@" | sort -g | sed -n "$((($# + 1) / 2))p"; }

fio_rate() { # RANKS DIRECT -> MB/s
    fio --name=peer --rw=write --bs=4M --ioengine=psync --direct="$2" --end_fsync=1 --numjobs="$1" --group_reporting \
        --size="$((megabytes / $1))000000" --refill_buffers --directory="$folder" --output-format=json |
        sed -n '/"write" *:/,/"bw" *:/s/.*"bw" *: *\([0-9]*\).*/\1/p' | head -1 | awk '{printf "%.1f", $1 * 1024 / 1e6}'
    rm -f "$folder"/peer*
}
our_rate() { # RANKS
    "$build/bench_checkpoint" "$folder/save" "$megabytes" "$1" | awk '{print $2}'
    rm -rf "$folder/save"
}

for ranks in 1 2; do
    ours=() buffered=() direct=() ratios=()
    for ((i = 0; i < runs; ++i)); do
        ours+=("$(our_rate "$ranks")")
        direct+=("$(fio_rate "$ranks" 1)")
        buffered+=("$(fio_rate "$ranks" 0)")
        ratios+=("$(awk -v o="${ours[-1]}" -v b="${buffered[-1]}" -v d="${direct[-1]}" 'BEGIN {
            printf "%.2f", o / (b > d ? b : d) }')")
    done
    echo "$ranks ranks, $megabytes MB, MB/s: ours ${ours[*]}; fio buffered ${buffered[*]}; fio direct ${direct[*]}"
    printf '  medians: ours %.0f, fio buffered %.0f, direct %.0f; ratios %s: median %s\n' "$(median "${ours[@]}")" \
        "$(median "${buffered[@]}")" "$(median "${direct[@]}")" "${ratios[*]}" "$(median "${ratios[@]}")"
done
"$build/bench_checkpoint" "$folder/save" "$megabytes" 2 behind |
    awk '{printf "2 ranks behind training: %s s to write, training stood still %s s\n", $1, $4}'
