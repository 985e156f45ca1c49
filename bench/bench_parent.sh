#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# This build beside an older one of the same machine: a training step, a decoded token, the start, and planning.
# Usage: bench_parent.sh BUILD OLDER_BUILD [ROUNDS]. Both trees need bench_train, bench_decode, ds_train and ds_plan.
# In each round the two builds alternate, and who goes first alternates too; prints, for each measurement, both
# medians and the median of the rounds' ratios new / old with the smallest and the largest (below 1: faster than before).
set -euo pipefail
cd "$(dirname "$0")/.."
new=$(realpath "$1") old=$(realpath "$2") rounds=${3:-7}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/large.json" << 'JSON'
{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}
JSON
cat > "$folder/llama_70b.json" << 'JSON'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000, "hidden_size": 8192, "intermediate_size": 28672,
"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
"hidden_act": "silu", "tie_word_embeddings": false}
JSON
elapsed() { # COMMAND…: seconds
    local begin=$EPOCHREALTIME
    "$@" > "$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
    local end=$EPOCHREALTIME
    awk -v us=$((${end/./} - ${begin/./})) 'BEGIN { printf "%.6f\n", us / 1e6 }'
}
train() { (cd "$folder" && "$1/bench_train" --dtype "$2" --steps 3) | sed -nE 's/^.*; step ([0-9.]+) s .*$/\1/p'; }
decode() { (cd "$folder" && "$1/bench_decode" 32 5) | awk '/^decode: / { print 1000 / $2 }'; }
start() {
    elapsed "$1/ds_train" --model_config examples/shakespeare/model.json --tokenizer bytes --data data/tinyshakespeare.txt \
        --deepspeed_config examples/shakespeare/ds_config.json --steps 1
}
plan() { # "does not fit" ends with status 3
    elapsed sh -c '"$@" || [ $? -eq 3 ]' sh "$1/ds_plan" --model_config "$folder/llama_70b.json" --seq_length 4096 --deepspeed_config "$folder/large.json" --world_size 1024
}
compare() { # NAME ROUNDS COMMAND…
    local name=$1 count=$2 i a b
    shift 2
    : > "$folder/rows"
    for ((i = 0; i < count; ++i)); do
        if ((i % 2)); then b=$("$1" "$old" "${@:2}") a=$("$1" "$new" "${@:2}"); else a=$("$1" "$new" "${@:2}") b=$("$1" "$old" "${@:2}"); fi
        echo "$a $b" >> "$folder/rows"
    done
    awk -v name="$name" '
        function median(v, n, i, j, t) { for (i = 2; i <= n; ++i) { t = v[i]; for (j = i - 1; j && v[j] > t; --j) v[j + 1] = v[j]; v[j + 1] = t }
            return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2 }
        { a[NR] = $1; b[NR] = $2; r[NR] = $1 / $2 }
        END { x = median(a, NR); y = median(b, NR); m = median(r, NR)
            printf "%-28s new %-9.4g old %-9.4g new/old %.3f of %.3f to %.3f, %d rounds\n", name, x, y, m, r[1], r[NR], NR }' "$folder/rows"
}
compare "start and first step, s" $((30 * rounds)) start # it varies by a factor of three
compare "plan of 70B on 1024, s" $((3 * rounds)) plan
compare "training step bf16, s" "$rounds" train bf16
compare "training step fp32, s" "$rounds" train fp32
compare "decoded token bf16, ms" $((2 * rounds)) decode
