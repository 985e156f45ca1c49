#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Losses, gradient norms and weights do not depend on the number of threads: two models, three dtypes, tiles of an odd number of
# tokens, sequences of few tokens (products of few rows). Usage: test_threads.sh BUILD; DS_THREADS_LONG=1: more of both
set -euo pipefail
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
shapes="24:5 3:0"
others=3
if [ -n "${DS_THREADS_LONG:-}" ]; then
    shapes="24:5 23:0 1:0 2:0 3:0 4:0"
    others="2 3 5"
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cat > "$scratch/llama.json" << END
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 48, "intermediate_size": 132,
 "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
 "rope_theta": 10000.0, "tie_word_embeddings": false}
END
cat > "$scratch/gpt2.json" << END
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 64, "n_embd": 40, "n_layer": 2,
 "n_head": 4, "activation_function": "gelu_new", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
END
config() { # DTYPE TILE
    local dtype=
    [ "$1" = fp32 ] || dtype="\"$1\": {\"enabled\": true},"
    echo "{\"train_micro_batch_size_per_gpu\": 1, $dtype \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-2}}, $2
 \"gradient_clipping\": 1.0, \"steps_per_print\": 1}"
}
hash_of() { # MODEL SEQ THREADS: of losses, norms and weights
    rm -rf "$scratch/out" "$scratch/m.jsonl"
    DS_THREADS=$3 "$build/ds_train" --model_config "$scratch/$1.json" --seq_length "$2" --deepspeed_config "$scratch/ds.json" \
        --tokenizer bytes --data "$root/data/tinyshakespeare.txt" --steps 2 --output "$scratch/out" --metrics "$scratch/m.jsonl" \
        > "$scratch/log" 2>&1 || { cat "$scratch/log" >&2; return 1; }
    { grep -oE '"(loss|grad_norm)":[^,}]*' "$scratch/m.jsonl"; find "$scratch/out" -name "*.safetensors" -print0 | sort -z | xargs -0 cat; } | sha256sum
}
failed=0
rows=0
for model in llama gpt2; do
    for dtype in fp32 bf16 fp16; do
        for shape in $shapes; do
            tile=
            [ "${shape#*:}" = 0 ] || tile="\"mlp_tile_tokens\": ${shape#*:},"
            config "$dtype" "$tile" > "$scratch/ds.json"
            first=$(hash_of "$model" "${shape%:*}" 1)
            for threads in $others; do
                rows=$((rows + 1))
                if [ "$(hash_of "$model" "${shape%:*}" "$threads")" != "$first" ]; then
                    echo "$model $dtype seq_length ${shape%:*} tile ${shape#*:}: $threads threads give other bits than 1" >&2
                    failed=1
                fi
            done
        done
    done
done
echo "$rows runs of other numbers of threads"
exit $failed
