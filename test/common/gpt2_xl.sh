# SPDX-License-Identifier: Apache-2.0
# GPT-2 XL with states and parameters on disk, for 6 GiB of memory. For long tests and benchmarks; sourced by bash.

gpt2_xl_files() { # FOLDER LAYERS: writes FOLDER/gpt2_xl.json and FOLDER/ds.json, which swaps to FOLDER
    cat > "$1/gpt2_xl.json" << END
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50257, "n_positions": 1024, "n_embd": 1600,
 "n_layer": $2, "n_head": 25, "activation_function": "gelu_new", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
END
    cat > "$1/ds.json" << END
{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "gradient_clipping": 1.0, "steps_per_print": 1,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "weight_decay": 0.1}},
 "activation_checkpointing": {"recompute": "full"},
 "zero_optimization": {"stage": 3, "sub_group_size": 20000000, "stage3_prefetch_bucket_size": 40000000,
  "stage3_max_live_parameters": 40000000, "stage3_max_reuse_distance": 40000000,
  "offload_optimizer": {"device": "nvme", "nvme_path": "$1"},
  "offload_param": {"device": "nvme", "nvme_path": "$1", "max_in_cpu": 0}},
 "aio": {"queue_depth": 16}}
END
}
