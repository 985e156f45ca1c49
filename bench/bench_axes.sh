#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the axes cost: two ranks of one thread against one rank of two threads, in turn; bf16, GPT-2 124M
# (experts: a Mixtral of 8 experts like it), sequences of DS_BENCH_LENGTH tokens (default 1024).
# Usage: bench_axes.sh BUILD [ROUNDS [STEPS [AXIS…]]], axes tp, sp, pp (stages cut by predicted times), ep.
# Prints each run's median tokens/s (without its first two steps) and the median ratios beside their targets; a
# pipeline's target is 0.90 of what its bubble leaves, 8 micro-batches of 9 turns.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 rounds=${2:-3} steps=${3:-5}
axes=("${@:4}")
[ ${#axes[@]} -gt 0 ] || axes=(tp sp pp ep)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/mixtral.json" << 'JSON'
{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 50257, "hidden_size": 768,
 "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 12, "num_key_value_heads": 4,
 "max_position_embeddings": 1024, "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": true,
 "bos_token_id": 50256, "eos_token_id": 50256}
JSON
config() { # MICRO_BATCHES SECTIONS
    cat << JSON
{"train_batch_size": $((4 * $1 / ($1 > 1 ? 4 : 1))), "gradient_accumulation_steps": $1, "steps_per_print": 1000,
 "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "bf16": {"enabled": true},
 "zero_optimization": {"stage": 0}$2}
JSON
}
run() { # MODEL RANKS THREADS MICRO_BATCHES SECTIONS: tokens/s
    config "$4" "$5" > "$folder/config.json"
    local train=("$build/ds_train" --model_config "$1" --tokenizer data/gpt2 --seq_length "${DS_BENCH_LENGTH:-1024}"
        --data data/tinyshakespeare.txt --deepspeed_config "$folder/config.json" --steps "$steps"
        --threads "$3" --metrics "$folder/metrics.jsonl" --overwrite)
    if [ "$2" -gt 1 ]; then
        train=("$build/deepspeed" --num_gpus "$2" "${train[@]}")
    fi
    "${train[@]}" > "$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
    tail -n +3 "$folder/metrics.jsonl" | sed -E 's/.*"tokens_per_s":([0-9.]+).*/\1/' | sort -n |
        awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}
median() { printf '%s\n' "$@" | sort -n | sed -n "$((($# + 1) / 2))p"; }
for axis in "${axes[@]}"; do
    model=bench/gpt2_124m.json micro=1
    case $axis in
        tp) target=0.85 sections=', "tensor_parallel": {"autotp_size": 2}' ;;
        sp) target=0.90 sections=', "sequence_parallel_size": 2' ;;
        pp) target=0.80 micro=8 sections=', "pipeline": {"stages": 2, "partition": "profile"}' ;;
        ep) target=0.85 model=$folder/mixtral.json sections=', "expert_parallel": {"autoep_size": 2}' ;;
        *) echo "bench_axes.sh: no axis $axis" >&2; exit 2 ;;
    esac
    ratios=()
    for ((i = 0; i < rounds; ++i)); do
        one=$(run "$model" 1 2 "$micro" '')
        two=$(run "$model" 2 1 "$micro" "$sections")
        echo "$axis: one rank of two threads $one tokens/s, two ranks of one $two"
        ratios+=("$(awk "BEGIN { print $two / $one }")")
    done
    echo "$axis: two ranks against one $(median "${ratios[@]}") (target $target)"
done
