#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fine-tuning a model folder beside PyTorch (transformers, PEFT), whose steps and ours alternate on the same cores.
# Usage: bench_adapter.sh BUILD FOLDER PYTHON [RANK [ROUNDS [BATCH [LENGTH]]]]. RANK 0 trains the whole model. PYTHON: one with torch,
# transformers and peft. A round is a run of ds_train of four steps, the first of which does not count, and two steps of the peer,
# which stays in memory; both in bf16 with clipping and AdamW. Prints each round, the medians of seconds a step, tokens a second, and the
# median of the rounds' ratios peer / ours with its range (above 1: ours is faster).
set -euo pipefail
here=$(realpath "$(dirname "$0")") build=$(realpath "$1") model=$(realpath "$2") python=$3
rank=${4:-16} rounds=${5:-5} batch=${6:-4} length=${7:-256} threads=${THREADS:-2}
folder=$(mktemp -d)
peer=
# shellcheck disable=SC2064
trap 'exec 3>&- 2> /dev/null || true; [ -z "$peer" ] || kill "$peer" 2> /dev/null || true; rm -rf "$folder"' EXIT
awk -v n=$((batch * length * 5)) 'BEGIN { srand(3); for (i = 0; i < n; ++i) printf "%s ", substr("abcdefghijklmnopqrstuvwxyz", 1 + int(rand() * 20), 2) }' > "$folder/text.txt"
cat > "$folder/config.json" << JSON
{"train_micro_batch_size_per_gpu": $batch, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0, "bf16": {"enabled": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0}}}
JSON
mkfifo "$folder/ask" "$folder/say"
(cd "$here" && exec "$python" peer_adapter_torch.py "$model" "$rank" "$batch" "$length" "$threads") < "$folder/ask" > "$folder/say" 2> "$folder/peer.log" &
peer=$!
exec 3> "$folder/ask" 4< "$folder/say"
read -r line <&4 || { tail -n 20 "$folder/peer.log" >&2; exit 1; }
echo "peer $line; $batch rows of $length tokens, rank $rank, $threads threads"
median() { sort -g | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }
adapter=()
[ "$rank" = 0 ] || adapter=(--lora "$rank")
for ((i = 1; i <= rounds; ++i)); do
    rm -rf "$folder/out"
    "$build/ds_train" --model "$model" --data "$folder/text.txt" --deepspeed_config "$folder/config.json" --seq_length "$length" --steps 4 \
        --threads "$threads" --output "$folder/out" "${adapter[@]}" > "$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
    ours=$(sed -nE 's/^\{"step":[2-4],.*"seconds":([0-9.]+).*/\1/p' "$folder/out/history.jsonl" | median)
    theirs=$(for _ in 1 2; do
        echo >&3
        read -r line <&4
        echo "$line"
    done | median)
    echo "round $i: ours $ours s, peer $theirs s"
    echo "$ours $theirs" >> "$folder/rows"
done
a=$(awk '{ print $1 }' "$folder/rows" | median) b=$(awk '{ print $2 }' "$folder/rows" | median)
ratio=$(awk '{ print $2 / $1 }' "$folder/rows" | median)
range=$(awk '{ print $2 / $1 }' "$folder/rows" | sort -g | sed -n '1p;$p' | paste -sd ' ')
awk -v a="$a" -v b="$b" -v n=$((batch * length)) -v r="$ratio" -v range="$range" 'BEGIN {
    printf "ours %.3f s a step, %.0f tokens/s; peer %.3f s, %.0f tokens/s; ratio %.2f (%s)\n", a, n / a, b, n / b, r, range }'
