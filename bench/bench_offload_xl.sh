#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# GPT-2 XL in 6 GiB, states and parameters on disk: what of a step the disk decides, against fio with the same access.
# Usage: bench_offload_xl.sh BUILD FOLDER [LAYERS] [ROUNDS]; 48 layers are GPT-2 XL (40 GB of disk, some 4 minutes), 8 take a
# fifth of that. Decided by the disk are the update (reads of gradients and states beside writes of states and parameters)
# and the norm (reads of gradients). Each round: fio, then a run of two steps whose second is traced; fio ends the last.
# fio has the run's block size, depth and mix, past the page cache, on a file that was written before; its buffers lie on
# huge pages, as the run's do, and for comparison on plain ones. Prints GB/s (2^30) and the ratios (target 0.8).
set -euo pipefail
build=$(cd "$1" && pwd)
folder=$2 layers=${3:-48} rounds=${4:-2}
root=$(cd "$(dirname "$0")/.." && pwd)
command -v fio > /dev/null || { echo "bench_offload_xl: fio is not installed" >&2; exit 77; }
scratch=$(mktemp -d "$folder/bench_offload_xl.XXXXXX")
# shellcheck source=test/common/memory_group.sh
. "$root/test/common/memory_group.sh"
# shellcheck source=test/common/gpt2_xl.sh
. "$root/test/common/gpt2_xl.sh"
trap 'group_remove; rm -rf "$scratch"' EXIT
peer_size=$((1 + layers / 4)) # GiB of fio's file: less than five seconds of fio's go around in
needed=$((3 + layers / 2 + peer_size)) # half a GiB a layer, and the embedding
free=$(df --output=avail -BG "$scratch" | tail -n 1 | tr -dc 0-9)
[ "$free" -ge "$needed" ] || { echo "bench_offload_xl: $folder has $free GiB free, $needed are needed" >&2; exit 1; }

engine=io_uring
"$build/ds_io" --folder "$scratch" --io_size 1M --backend io_uring > /dev/null 2>&1 || engine=libaio
peer() { # GLIBC_HUGE FLAGS...: fio's line
    local huge=$1
    shift
    GLIBC_TUNABLES=glibc.malloc.hugetlb=$huge fio --name=peer --filename="$scratch/peer" --ioengine=$engine --direct=1 --size="${peer_size}G" \
        --overwrite=1 --output-format=terse --terse-version=3 "$@"
}
rate() { # GLIBC_HUGE rw|read -> GB/s, both directions together
    peer "$1" --rw="$2" --bs=1M --iodepth=16 --time_based --runtime=5 | awk -F';' '{ printf "%.3f", ($7 + $48) / 2^20 }'
}
traced() { # PHASE -> "GiB seconds": the transfers that began in it, and its time
    awk -v name="\"name\":\"$1\"" '
        function value(key) { return match($0, "\"" key "\":[0-9.]+") ? substr($0, RSTART + length(key) + 3) + 0 : 0 }
        !/"ph":"X"/ { next }
        NR == FNR { if (value("tid") == 1 && index($0, name)) { begin = value("ts"); end = begin + value("dur") } next }
        value("tid") >= 7 && value("tid") <= 8 && value("ts") >= begin && value("ts") < end { bytes += value("bytes") }
        END { printf "%.3f %.3f\n", bytes / 2^30, (end - begin) / 1e6 }' "$scratch/trace.json" "$scratch/trace.json"
}

gpt2_xl_files "$scratch" "$layers"
group_make $((6 << 30))
peer 0 --rw=write --bs=4M --iodepth=8 > /dev/null
printf '%-24s %8s %8s %8s %8s %10s\n' "" GiB seconds GB/s "step s" "loss"
plain_mixed=() plain_read=() mixed=() reads=() updates=() norms=()
for ((i = 0; i <= rounds; ++i)); do
    plain_mixed+=("$(rate 0 rw)") plain_read+=("$(rate 0 read)") mixed+=("$(rate 1 rw)") reads+=("$(rate 1 read)")
    printf 'fio read+write %s, read %s; plain pages %s, %s\n' "${mixed[i]}" "${reads[i]}" "${plain_mixed[i]}" "${plain_read[i]}"
    [ "$i" -lt "$rounds" ] || break
    group_run "$build/ds_train" --model_config "$scratch/gpt2_xl.json" --tokenizer bytes --data "$root/data/tinyshakespeare.txt" \
        --seq_length 1024 --steps 2 --deepspeed_config "$scratch/ds.json" --metrics "$scratch/metrics.jsonl" --overwrite \
        --trace "$scratch/trace.json" --trace_steps 2:2 > "$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
    last=$(tail -n 1 "$scratch/metrics.jsonl")
    step=$(sed -E 's/.*"tokens_per_s":([0-9.e+]+).*/\1/' <<< "$last" | awk '{ printf "%.1f", 1024 / $1 }')
    for phase in update norm; do
        read -r bytes seconds <<< "$(traced $phase)"
        gained=$(awk -v b="$bytes" -v s="$seconds" 'BEGIN { printf "%.3f", b / s }')
        printf '%-24s %8s %8s %8s %8s %10s\n' "run: $phase" "$bytes" "$seconds" "$gained" "$step" "$(sed -E 's/.*"loss":([0-9.]+).*/\1/' <<< "$last")"
        if [ $phase = update ]; then updates+=("$gained"); else norms+=("$gained"); fi
    done
done
against() { # WHAT OURS... -- PEER...: each round against the mean of the fio before and after it
    local what=$1 ours=()
    shift
    while [ "$1" != -- ]; do ours+=("$1"); shift; done
    shift
    awk -v what="$what" -v ours="${ours[*]}" -v peers="$*" 'BEGIN {
        n = split(ours, o, " "); split(peers, p, " ")
        for (i = 1; i <= n; ++i) { ratio = 2 * o[i] / (p[i] + p[i + 1]); sum += ratio; all = all sprintf(" %.2f", ratio) }
        printf "%-44s %.2f (%s )\n", what, sum / n, all }'
}
against "update against fio, huge pages" "${updates[@]}" -- "${mixed[@]}"
against "update against fio, plain pages" "${updates[@]}" -- "${plain_mixed[@]}"
against "norm against fio, huge pages" "${norms[@]}" -- "${reads[@]}"
against "norm against fio, plain pages" "${norms[@]}" -- "${plain_read[@]}"
[ -n "$group_peak" ] || echo "the limit of 6 GiB is $group_says"
[ -z "$group_peak" ] || printf 'most memory of the group: %.2f GiB of 6\n' "$(awk -v b="$(group_most 0)" 'BEGIN { print b / 2^30 }')"
