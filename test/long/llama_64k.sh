#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# 65,536 tokens a row: three optimizer steps of a Llama of 8 layers, width 512, 8 heads and 32,000 tokens in bf16 inside 4 GiB
# of memory, page cache included; peak against the plan, and operations a second against those of rows of 1024 tokens. At 4096
# tokens tiles give the loss of the first step bit for bit, and its gradient norm but for the order in which gradients add.
# Usage: llama_64k.sh BUILD. Some ten minutes on two cores with AMX that do nothing else.
set -euo pipefail
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
limit=$((4 << 30))
scratch=$(mktemp -d "$build/llama_64k.XXXXXX")
# shellcheck source=test/common/memory_group.sh
. "$root/test/common/memory_group.sh"
trap 'group_remove; rm -rf "$scratch"' EXIT

cat > "$scratch/llama.json" << END
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000, "hidden_size": 512, "intermediate_size": 1376,
 "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 65536,
 "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": false}
END
cat > "$scratch/ds.json" << END
{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
 "mlp_tile_tokens": 4096, "gradient_clipping": 1.0, "steps_per_print": 1, "activation_checkpointing": {"recompute": "full"}}
END
sed 's/"train_micro_batch_size_per_gpu": 1/"train_micro_batch_size_per_gpu": 4/' "$scratch/ds.json" > "$scratch/short.json"
sed 's/"mlp_tile_tokens": 4096, //' "$scratch/ds.json" > "$scratch/untiled.json"
sed 's/"mlp_tile_tokens": 4096/"mlp_tile_tokens": 512/' "$scratch/ds.json" > "$scratch/tiled.json"

args() { # TOKENS CONFIG
    run=(--model_config "$scratch/llama.json" --seq_length "$1" --deepspeed_config "$scratch/$2.json")
}
planned() { # KEY, a number of ds_plan's report
    "$build/ds_plan" "${run[@]}" --memory 1TB --json - | tr -d '\n' | sed -n "s/.*\"$1\": \([0-9.e+]*\).*/\1/p"
}
field() { sed -E "s/.*\"$1\":([0-9.e+-]+).*/\1/" "$scratch/$2.jsonl"; }
train() { # NAME STEPS: metrics in NAME.jsonl
    "${3:-env}" "$build/ds_train" "${run[@]}" --tokenizer bytes --data "$root/data/tinyshakespeare.txt" --steps "$2" \
        --metrics "$scratch/$1.jsonl"
}
args 1024 short
short_flops=$(planned computed)
train short 6
short_rate=$(field tokens_per_s short | sort -g | awk -v flops="$short_flops" '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] * flops / 4096 }')
args 4096 untiled
train untiled 1
args 4096 tiled
train tiled 1
awk -v whole="$(field loss untiled)" -v tiled="$(field loss tiled)" -v whole_norm="$(field grad_norm untiled)" \
    -v tiled_norm="$(field grad_norm tiled)" 'BEGIN {
    printf "4096 tokens: loss %s, tiled %s; gradient norm %s, tiled %s\n", whole, tiled, whole_norm, tiled_norm
    off = tiled_norm / whole_norm - 1
    exit !(whole != "" && whole == tiled && off < 1e-3 && off > -1e-3) }' || { echo "tiles differ" >&2; exit 1; }
args 65536 ds
long_flops=$(planned computed) need=$(planned need)
group_make "$limit"
train long 3 group_run
cat "$scratch/long.jsonl"
own=$(field peak_bytes long | sort -n | tail -n 1)
long_rate=$(field tokens_per_s long | sort -g | awk -v flops="$long_flops" '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] * flops / 65536 }')
awk -v own="$own" -v need="$need" -v whole="$(group_most "$own")" -v limit="$limit" -v long="$long_rate" -v short="$short_rate" \
    -v says="$group_says" -v losses="$(field loss long | tr '\n' ' ')" 'BEGIN {
    printf "losses %s; the process at most %.3f GiB, planned %.3f GiB (%.4f), with the page cache %.2f GiB, limit %.0f GiB, %s\n",
        losses, own / 2^30, need / 2^30, own / need, whole / 2^30, limit / 2^30, says
    printf "%.3f TFLOP/s at 65,536 tokens, %.3f at 1024: %.2f\n", long / 1e12, short / 1e12, long / short
    exit !(whole <= limit && own < 1.03 * need && own > 0.97 * need) }'
