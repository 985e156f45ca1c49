#!/usr/bin/env bash
# GPT-2 XL (1.5 billion parameters, 23 GiB of states) trains in 6 GiB of memory, page cache included: states, gradients
# and parameters on disk, layers recomputed, random weights made slice by slice. Usage: offload_xl.sh BUILD.
# DS_OFFLOAD_DIR: a folder with 30 GB free (default: BUILD). The limit is a memory control group where one can be made (root);
# else only the peak of the process is checked.
set -euo pipefail
build=$(cd "$1" && pwd)
dir=${DS_OFFLOAD_DIR:-$build}
root=$(cd "$(dirname "$0")/../.." && pwd)
limit=$((6 << 30))
scratch=$(mktemp -d "$dir/offload_xl.XXXXXX")
# shellcheck source=test/common/memory_group.sh
. "$root/test/common/memory_group.sh"
trap 'group_remove; rm -rf "$scratch"' EXIT
free=$(df --output=avail -B1 "$scratch" | tail -n 1)
[ "$free" -gt 30000000000 ] || { echo "offload_xl: $dir has $((free >> 30)) GiB free, 28 are needed" >&2; exit 1; }

cat > "$scratch/gpt2_xl.json" << END
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50257, "n_positions": 1024, "n_embd": 1600,
 "n_layer": 48, "n_head": 25, "activation_function": "gelu_new", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
END
cat > "$scratch/ds.json" << END
{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "gradient_clipping": 1.0, "steps_per_print": 1,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "weight_decay": 0.1}},
 "activation_checkpointing": {"recompute": "full"},
 "zero_optimization": {"stage": 3, "sub_group_size": 20000000, "stage3_prefetch_bucket_size": 40000000,
  "stage3_max_live_parameters": 40000000, "stage3_max_reuse_distance": 40000000,
  "offload_optimizer": {"device": "nvme", "nvme_path": "$scratch"},
  "offload_param": {"device": "nvme", "nvme_path": "$scratch", "max_in_cpu": 0}},
 "aio": {"queue_depth": 16}}
END
group_make "$limit"
group_run "$build/ds_train" --model_config "$scratch/gpt2_xl.json" --tokenizer bytes --data "$root/data/tinyshakespeare.txt" \
    --seq_length 1024 --steps 5 --deepspeed_config "$scratch/ds.json" --metrics "$scratch/metrics.jsonl"
cat "$scratch/metrics.jsonl"
losses=$(sed -E 's/.*"loss":([0-9.]+).*/\1/' "$scratch/metrics.jsonl" | tr '\n' ' ')
own=$(sed -E 's/.*"peak_bytes":([0-9]+).*/\1/' "$scratch/metrics.jsonl" | sort -n | tail -n 1)
whole=$(group_most "$own")
awk -v losses="$losses" -v own="$own" -v whole="$whole" -v limit="$limit" 'BEGIN {
    n = split(losses, loss, " ")
    printf "losses %s; the process at most %.2f GiB, with the page cache %.2f GiB, limit %.0f GiB\n", losses, own / 2^30, whole / 2^30, limit / 2^30
    exit !(n == 5 && loss[5] < loss[1] && whole <= limit) }'
