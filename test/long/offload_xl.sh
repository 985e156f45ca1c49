#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# GPT-2 XL (1.5 billion parameters, 23 GiB of states) trains in 6 GiB of memory, page cache included: states, gradients
# and parameters on disk, layers recomputed, random weights made slice by slice. Usage: offload_xl.sh BUILD.
# DS_OFFLOAD_DIR: a folder with 30 GB free (default: BUILD). The limit is a memory control group where one holds (root), which is
# tried first; else only the peak of the process is checked, and the last line says "NOT in force".
set -euo pipefail
build=$(cd "$1" && pwd)
dir=${DS_OFFLOAD_DIR:-$build}
root=$(cd "$(dirname "$0")/../.." && pwd)
limit=$((6 << 30))
scratch=$(mktemp -d "$dir/offload_xl.XXXXXX")
# shellcheck source=test/common/memory_group.sh
. "$root/test/common/memory_group.sh"
# shellcheck source=test/common/gpt2_xl.sh
. "$root/test/common/gpt2_xl.sh"
trap 'group_remove; rm -rf "$scratch"' EXIT
free=$(df --output=avail -B1 "$scratch" | tail -n 1)
[ "$free" -gt 30000000000 ] || { echo "offload_xl: $dir has $((free >> 30)) GiB free, 28 are needed" >&2; exit 1; }

gpt2_xl_files "$scratch" 48
group_make "$limit"
group_run "$build/ds_train" --model_config "$scratch/gpt2_xl.json" --tokenizer bytes --data "$root/data/tinyshakespeare.txt" \
    --seq_length 1024 --steps 5 --deepspeed_config "$scratch/ds.json" --metrics "$scratch/metrics.jsonl"
cat "$scratch/metrics.jsonl"
losses=$(sed -E 's/.*"loss":([0-9.]+).*/\1/' "$scratch/metrics.jsonl" | tr '\n' ' ')
own=$(sed -E 's/.*"peak_bytes":([0-9]+).*/\1/' "$scratch/metrics.jsonl" | sort -n | tail -n 1)
whole=$(group_most "$own")
awk -v losses="$losses" -v own="$own" -v whole="$whole" -v limit="$limit" -v says="$group_says" 'BEGIN {
    n = split(losses, loss, " ")
    printf "losses %s; the process at most %.2f GiB, with the page cache %.2f GiB, limit %.0f GiB, %s\n", losses, own / 2^30, whole / 2^30, limit / 2^30, says
    exit !(n == 5 && loss[5] < loss[1] && whole <= limit) }'
