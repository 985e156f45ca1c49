#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# How long a plan takes: a Llama of 70 billion parameters on 1024 ranks, where it fits, where some changes would make it fit,
# where none does (the search for what would is part of it). Seconds of processor, the median of N runs.
# Usage: bench_planning.sh BUILD [N]     BUILD may be several folders with commas between them: they alternate
set -euo pipefail
IFS=, read -ra builds <<< "$1"
n=${2:-5}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cat > "$scratch/config.json" <<'END'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000, "hidden_size": 8192,
 "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
 "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false, "rope_theta": 10000.0}
END
printf '%-7s %-8s' stage memory
printf ' %12s' "${builds[@]##*/}"
echo
for stage in 0 1 2 3; do
    printf '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {"stage": %s}, "gradient_clipping": 1.0}' $stage > "$scratch/ds.json"
    for memory in 2TB 80GB 1GB; do
        for ((i = 0; i < n; ++i)); do
            for b in "${!builds[@]}"; do
                (TIMEFORMAT=%U; time "${builds[b]}/ds_plan" --model_config "$scratch/config.json" --deepspeed_config "$scratch/ds.json" \
                    --world_size 1024 --nodes 128 --seq_length 4096 --device h100-sxm --memory $memory > /dev/null || [ $? = 3 ]) 2>> "$scratch/$stage.$memory.$b"
            done
        done
        printf '%-7s %-8s' $stage $memory
        for b in "${!builds[@]}"; do
            sort -n "$scratch/$stage.$memory.$b" | awk '{v[NR] = $1} END {printf " %10.2f s", v[int((NR + 1) / 2)]}'
        done
        echo
    done
done
