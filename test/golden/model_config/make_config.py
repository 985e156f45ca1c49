#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes this folder's models and cases.json: mutated config.json and what transformers makes of them.

    python make_config.py

A case: "base", "set" and "remove" (the mutation of the base's config.json), and "length" of the longer sequence with
"logits", some of the last logits of SHORT and of `length` ids; or "refused", why transformers refuses it. KNOWN are
mistakes that were made once, the others random.
"""
import json
import pathlib
import tempfile
import traceback

import config_cases as cc
import torch

here = pathlib.Path(__file__).resolve().parent
N_RANDOM, SEED, DIGITS = 300, 27, 6
SHOWN = [0, 7, 19, cc.VOCAB - 1]  # logits of a case
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 50.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "rope_theta": 50.0}
FULL = ["full_attention", "full_attention"]

# (base, keys to set; ... removes one)
KNOWN = [
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_parameters": dict(YARN)}),
    ("llama", {"rope_scaling": {}, "rope_parameters": dict(YARN, original_max_position_embeddings=16)}),
    ("llama", {"rope_scaling": {"type": "su", "factor": 4.0}}),
    ("llama", {"rope_scaling": "x"}),
    ("llama", {"rope_parameters": dict(YARN, original_max_position_embeddings=32),
               "original_max_position_embeddings": 16}),
    ("qwen3", {"rope_parameters": dict(LLAMA3), "original_max_position_embeddings": 16}),
    ("llama", {"rope_parameters": dict(YARN, factor=None, original_max_position_embeddings=16)}),
    ("llama", {"rope_parameters": dict(YARN, truncate=None, original_max_position_embeddings=16)}),
    ("llama", {"rope_parameters": dict(YARN, beta_fast=0, original_max_position_embeddings=16)}),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 32},
               "max_position_embeddings": 16}),
    ("mistral_wide", {"rope_parameters": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 24}),
    ("llama", {"rope_parameters": {"rope_type": "linear"}}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 0.5}}),
    ("llama", {"rope_parameters": {"rope_type": None, "factor": 2.0}}),
    ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}}),
    ("llama", {"rope_parameters": dict(LLAMA3, low_freq_factor=4.0, high_freq_factor=1.0)}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}}),
    ("llama", {"partial_rotary_factor": 0.5}),
    ("llama", {"rope_theta": 100.0}),
    ("llama", {"rope_theta": 100.0, "rope_parameters": ...}),
    ("llama", {"rope_theta": None, "rope_parameters": ...}),
    ("qwen2", {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}}),
    ("qwen2", {"sliding_window": ..., "layer_types": ...}),
    ("qwen2", {"sliding_window": None}),
    ("qwen2", {"use_sliding_window": False}),
    ("qwen2", {"use_sliding_window": False, "layer_types": ...}),
    ("qwen3", {"layer_types": ["sliding_attention", "attention"]}),
    ("qwen3", {"layer_types": ["full_attention"]}),
    ("qwen3", {"max_window_layers": -1, "layer_types": None}),
    ("qwen3_bias", {"head_dim": None}),
    ("mistral", {"use_sliding_window": False}),
    ("mistral", {"layer_types": FULL}),
    ("mistral_wide", {"layer_types": FULL}),
    ("mistral", {"attention_bias": True}),
    ("mistral", {"num_key_value_heads": None}),
    ("llama", {"layer_types": FULL}),
    ("llama", {"layer_types": FULL + FULL}),
    ("llama", {"tie_word_embeddings": True}),
    ("gpt2_untied", {"tie_word_embeddings": ...}),
    ("llama", {"is_causal": False}),
    ("llama", {"hidden_size": None}),
    ("llama", {"num_hidden_layers": 2.0}),
    ("llama", {"rms_norm_eps": 1}),
    ("llama", {"hidden_act": "gelu_fast"}),
    ("llama", {"quantization_config": {"quant_method": "hqq", "bits": 4}}),
    ("llama", {"pad_token_id": cc.VOCAB}),
    ("gpt2", {"attn_pdrop": -0.1}),
    ("gpt2", {"num_attention_heads": 2}),
    ("gpt2", {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True}),
    ("gpt2", {"dtype": "x"}),
    ("olmo2", {"pad_token_id": ..., "rms_norm_eps": ...}),
    ("olmo2", {"pad_token_id": cc.VOCAB}),
    ("olmo2", {"head_dim": None}),
    ("olmo2", {"num_key_value_heads": None}),
    ("olmo2", {"mlp_bias": True}),
    ("olmo2", {"rope_parameters": ..., "rope_theta": 20.0}),
    ("olmo2_bias", {"sliding_window": 7}),
    ("granite", {"attention_multiplier": ...}),
    ("granite", {"attention_multiplier": 0}),
    ("granite", {"attention_multiplier": 0.0}),
    ("granite", {"attention_multiplier": -1.0}),
    ("granite", {"attention_multiplier": None}),
    ("granite", {"attention_multiplier": 2}),
    ("granite", {"embedding_multiplier": ..., "residual_multiplier": -1, "logits_scaling": -4.0}),
    ("granite", {"embedding_multiplier": 0}),
    ("granite", {"residual_multiplier": 0.0}),
    ("granite", {"logits_scaling": 0}),
    ("granite", {"logits_scaling": "8"}),
    ("granite_bias", {"layer_types": FULL}),
    ("granite_bias", {"head_dim": None}),
    ("smollm3", {"rope_parameters": ...}),
    ("smollm3", {"pad_token_id": ...}),
    ("smollm3", {"no_rope_layers": ..., "layer_types": ...}),
    ("smollm3", {"no_rope_layers": ..., "layer_types": ..., "no_rope_layer_interval": ...}),
    ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 0}),
    ("smollm3", {"no_rope_layer_interval": 0}),
    ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": -2}),
    ("smollm3", {"no_rope_layers": [1]}),
    ("smollm3", {"no_rope_layers": []}),
    ("smollm3", {"no_rope_layers": [0, 0, 1], "layer_types": ...}),
    ("smollm3", {"no_rope_layers": [3, -1], "layer_types": ...}),
    ("smollm3", {"no_rope_layers": [True, False]}),
    ("smollm3", {"no_rope_layers": [1.0, 0.0]}),
    ("smollm3", {"use_sliding_window": False}),
    ("smollm3", {"use_sliding_window": False, "layer_types": ...}),
    ("smollm3", {"sliding_window": None}),
    ("smollm3", {"sliding_window": None, "layer_types": None}),
    ("smollm3", {"sliding_window": 0}),
    ("smollm3", {"sliding_window": 0, "layer_types": FULL}),
    ("smollm3_bias", {"layer_types": ["sliding_attention", "attention"], "sliding_window": 5}),
    ("smollm3_bias", {"attention_chunk_size": 4}),
    ("gpt_neox", {"rope_parameters": ..., "rope_theta": 50.0}),
    ("gpt_neox", {"rope_parameters": ..., "partial_rotary_factor": 1.0}),
    ("gpt_neox", {"rope_parameters": ..., "rotary_emb_base": 50.0, "rotary_pct": 1.0}),
    ("gpt_neox", {"rotary_pct": 1.0}),
    ("gpt_neox", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    ("gpt_neox", {"head_dim": 16}),
    ("gpt_neox", {"head_dim": []}),
    ("stablelm", {"rope_parameters": ..., "partial_rotary_factor": 1.0}),
    ("stablelm", {"rope_parameters": ..., "partial_rotary_factor": None}),
    ("stablelm", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.5},
                  "max_position_embeddings": 16}),
    ("stablelm", {"rope_parameters": dict(YARN, partial_rotary_factor=0.5)}),
    ("stablelm", {"qk_layernorm": True}),
    ("phi3", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
    ("phi3", {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
                                  "partial_rotary_factor": 0.5}, "original_max_position_embeddings": 16}),
    ("phi3", {"rope_parameters": ..., "partial_rotary_factor": None}),
    ("phi3", {"sliding_window": None}),
    ("phi3", {"layer_types": FULL}),
    ("glm", {"rope_parameters": ..., "partial_rotary_factor": None}),
    ("glm", {"rope_scaling": {"rope_type": "proportional"}}),
    ("glm4", {"rope_parameters": dict(LLAMA3, partial_rotary_factor=0.5)}),
    ("cohere", {"rope_parameters": ...}),
    ("cohere", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
    ("cohere", {"logit_scale": ...}),
    ("cohere", {"logit_scale": None}),
    ("cohere", {"use_qk_norm": True}),
    ("starcoder2", {"norm_epsilon": ..., "sliding_window": ...}),
    ("gemma", {"hidden_act": "gelu"}),
    ("gemma", {"hidden_act": ..., "rms_norm_eps": ...}),
    ("gemma", {"use_bidirectional_attention": True}),
    ("gemma2", {"attn_logit_softcapping": ..., "final_logit_softcapping": ..., "query_pre_attn_scalar": ...}),
    ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": -2.0}),
    ("gemma2", {"attn_logit_softcapping": 0.0}),
    ("gemma2", {"query_pre_attn_scalar": 0}),
    ("gemma2", {"layer_types": ...}),
    ("gemma2", {"layer_types": FULL, "sliding_window": None}),
    ("gemma2", {"attn_implementation": "sdpa"}),
    ("gemma3", {"attn_logit_softcapping": 2.0}),
    ("gemma3", {"layer_types": ..., "sliding_window_pattern": 2}),
    ("gemma3", {"layer_types": ..., "sliding_window_pattern": 0}),
    ("gemma3", {"rope_parameters": ..., "rope_theta": 30.0, "rope_local_base_freq": 15.0}),
    ("gemma3", {"rope_parameters": ..., "rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    ("gemma3", {"rope_parameters": ..., "rope_scaling": {"type": "linear", "factor": 4.0}}),
    ("gemma3", {"rope_parameters": {"full_attention": None}, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    ("gemma3", {"rope_parameters": {"sliding_attention": dict(YARN, truncate=False)}}),
    ("gemma3", {"rope_parameters": {"full_attention": dict(YARN)}, "original_max_position_embeddings": 16}),
    ("gemma3", {"rope_parameters": dict(LLAMA3)}),
    ("gemma3", {"rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 2.0}},
                "max_position_embeddings": 16}),
    ("olmo", {"clip_qkv": None}),
    ("olmo", {"clip_qkv": 1}),
    ("olmo", {"rms_norm_eps": 0.5, "layer_norm_eps": 0.5}),
    ("gptj", {"rotary_dim": 8, "hidden_size": 32}),
    ("gptj", {"rotary_dim": None}),
    ("gptj", {"rotary_dim": 7}),
    ("gptj", {"num_attention_heads": 2}),
    ("gptj", {"activation_function": "relu"}),
    ("gptj", {"n_inner": None}),
    ("opt", {"do_layer_norm_before": False}),
    ("opt", {"word_embed_proj_dim": 16}),
    ("opt", {"word_embed_proj_dim": None, "activation_function": ...}),
    ("opt", {"hidden_act": "silu"}),
    ("opt", {"layerdrop": 0.1, "dropout": ...}),
    ("opt_behind", {"dropout": ...}),
    ("opt_behind", {"do_layer_norm_before": True}),
    ("opt_behind", {"_remove_final_layer_norm": True}),
    ("opt_behind", {"word_embed_proj_dim": None}),
    ("opt_projected", {"layer_norm_elementwise_affine": False}),
    ("stablelm_norms", {"layer_norm_eps": 0.1}),
    ("stablelm_norms_parallel", {"qk_layernorm": None}),
    ("opt_bare", {"enable_bias": True}),
    ("falcon", {"alibi": True}),
    ("falcon", {"head_dim": 8}),
    ("falcon", {"output_attentions": True}),
    ("falcon", {"num_kv_heads": 2}),
    ("falcon", {"num_ln_in_parallel_attn": 2}),
    ("falcon", {"parallel_attn": None}),
    ("falcon", {"rope_parameters": dict(YARN, original_max_position_embeddings=16)}),
    ("falcon", {"activation": "silu"}),
    ("falcon_groups", {"multi_query": False}),
    ("falcon_groups", {"parallel_attn": False}),
    ("falcon_groups", {"num_ln_in_parallel_attn": 1}),
    ("falcon_heads", {"num_kv_heads": 2}),
    ("bloom", {"slow_but_exact": True, "pretraining_tp": 4}),
    ("bloom", {"n_embed": 32, "num_attention_heads": 4}),
    ("bloom", {"hidden_act": "silu", "seq_length": 8}),
    ("bloom_after", {"attention_softmax_in_fp32": False, "offset_alibi": 100}),
    ("bloom", {"attn_implementation": "sdpa"}),
    ("mpt", {"attn_config": None}),
    ("mpt", {"attn_config": {"clip_qkv": 0.0}}),
    ("mpt", {"attn_config": {"softmax_scale": 0.5, "alibi": True, "alibi_bias_max": 8}}),
    ("mpt", {"attn_config": {"attn_pdrop": 0.1}}),
    ("mpt", {"attn_config": {"alibi_bias_max": 4}}),
    ("mpt", {"attn_config": {"qk_ln": True}}),
    ("mpt", {"attn_config": {"attn_type": "x"}}),
    ("mpt", {"expansion_ratio": 2, "no_bias": False, "logit_scale": 0.5, "learned_pos_emb": False}),
    ("mpt_scaled", {"max_seq_len": 20}),
    ("cohere_norms", {"use_qk_norm": False}),
    ("cohere2", {"layer_types": ..., "sliding_window_pattern": 2}),
    ("cohere2", {"layer_types": ["full_attention", "sliding_attention"]}),
    ("cohere2", {"layer_types": FULL, "sliding_window": None}),
    ("cohere2", {"rope_parameters": ...}),
    ("cohere2", {"head_dim": 12}),
    ("starcoder2", {"sliding_window": None}),
    ("starcoder2", {"sliding_window": 0}),
    ("starcoder2", {"sliding_window": 4096}),
    ("starcoder2", {"layer_types": FULL}),
    ("starcoder2", {"layer_types": ["full_attention", "sliding_attention"]}),
    ("starcoder2", {"attention_chunk_size": 4}),
    ("starcoder2_plain", {"attention_chunk_size": 4}),
    ("starcoder2_plain", {"attention_chunk_size": 4, "layer_types": FULL}),
    ("starcoder2", {"use_bias": None}),
    ("starcoder2", {"num_key_value_heads": None}),
    ("starcoder2", {"head_dim": None}),
    ("starcoder2", {"hidden_act": ...}),
    ("starcoder2", {"hidden_act": "gelu"}),
    ("starcoder2", {"residual_dropout": 0.1, "embedding_dropout": 0.2, "attention_dropout": 0}),
    ("starcoder2", {"residual_dropout": 1.5}),
    ("starcoder2_plain", {"use_bias": ...}),
    ("starcoder2_plain", {"layer_types": ["sliding_attention", "sliding_attention"]}),
    ("starcoder2_plain", {"tie_word_embeddings": ...}),
    ("mixtral", {"num_experts_per_tok": ...}),
    ("mixtral", {"num_experts_per_tok": 1}),
    ("mixtral", {"num_experts_per_tok": 6}),
    ("mixtral", {"num_experts": 5, "num_local_experts": 7}),
    ("mixtral", {"num_experts": None}),
    ("mixtral", {"num_local_experts": 6}),
    ("mixtral", {"router_jitter_noise": 0.1}),
    ("mixtral", {"rope_parameters": dict(YARN)}),
    ("mixtral", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}),
    ("mixtral", {"rope_parameters": ...}),
    ("mixtral_window", {"rope_parameters": dict(YARN)}),
    ("mixtral_window", {"layer_types": FULL}),
    ("mixtral_window", {"sliding_window": None}),
    ("mixtral", {"output_router_logits": True, "router_aux_loss_coef": 0.5}),
    ("qwen2_moe", {"norm_topk_prob": True}),
    ("qwen2_moe", {"max_window_layers": 0, "layer_types": ...}),
    ("qwen2_moe", {"layer_types": ["full_attention", "sliding_attention"]}),
    ("qwen2_moe", {"use_sliding_window": False}),
    ("qwen2_moe", {"num_local_experts": 3}),
    ("qwen2_moe", {"decoder_sparse_step": 0}),
    ("qwen2_moe_dense", {"mlp_only_layers": [1, 7, -3]}),
    ("qwen2_moe_dense", {"mlp_only_layers": []}),
    ("qwen2_moe_dense", {"decoder_sparse_step": 2}),
    ("qwen3_moe", {"norm_topk_prob": False}),
    ("qwen3_moe", {"norm_topk_prob": ...}),
    ("qwen3_moe", {"use_sliding_window": False}),
    ("qwen3_moe", {"sliding_window": 0}),
    ("qwen3_moe", {"layer_types": FULL}),
    ("qwen3_moe", {"num_experts": 5, "num_local_experts": ...}),
    ("qwen3_moe_step", {"decoder_sparse_step": -2}),
    ("qwen3_moe_step", {"mlp_only_layers": [0]}),
    ("qwen3_moe_step", {"mlp_only_layers": ["0"]}),
    ("olmoe", {"clip_qkv": None}),
    ("olmoe", {"clip_qkv": 0.25}),
    ("olmoe", {"clip_qkv": 2}),
    ("olmoe", {"norm_topk_prob": True}),
    ("olmoe", {"head_dim": 8}),
    ("olmoe", {"num_local_experts": 5}),
    ("granitemoe", {"attention_multiplier": ...}),
    ("granitemoe", {"num_experts_per_tok": 5}),
    ("granitemoe", {"num_experts_per_tok": None}),
    ("granitemoe", {"num_experts": 3}),
    ("glm4_moe", {"n_group": 3}),
    ("glm4_moe", {"n_group": 8}),
    ("glm4_moe", {"n_group": 1, "topk_group": 1}),
    ("glm4_moe", {"topk_group": 5}),
    ("glm4_moe", {"topk_group": 1, "num_experts_per_tok": 3}),
    ("glm4_moe", {"norm_topk_prob": False, "routed_scaling_factor": 2.5}),
    ("glm4_moe", {"routed_scaling_factor": 2}),
    ("glm4_moe", {"n_routed_experts": ..., "num_local_experts": 8}),
    ("glm4_moe", {"use_qk_norm": True}),
    ("glm4_moe", {"rope_parameters": ..., "partial_rotary_factor": None}),
    ("glm4_moe", {"first_k_dense_replace": -1}),
    ("glm4_moe_norms", {"output_router_logits": True, "num_nextn_predict_layers": True}),
    ("glm4_moe_norms", {"first_k_dense_replace": ..., "head_dim": ...}),
    ("deepseek_v2", {"num_experts_per_tok": None}),
    ("deepseek_v2", {"topk_method": "noaux_tc"}),
    ("deepseek_v2", {"topk_method": "group_limited_greedy"}),
    ("deepseek_v2", {"norm_topk_prob": True, "head_dim": 32}),
    ("deepseek_v2", {"num_key_value_heads": 1}),
    ("deepseek_v2", {"num_key_value_heads": None, "attention_dropout": 0}),
    ("deepseek_v2", {"mlp_bias": True}),
    ("deepseek_v2", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "mscale_all_dim": 0.5}}),
    ("deepseek_v2_groups", {"n_group": 8, "topk_group": 3}),
    ("deepseek_v2_groups", {"rope_parameters": dict(YARN, mscale=0.7, mscale_all_dim=0.7)}),
    ("deepseek_v2_groups", {"rope_parameters": dict(YARN, factor=None, mscale_all_dim=0.7)}),
    ("deepseek_v3", {"rope_interleave": None}),
    ("deepseek_v3", {"head_dim": 32}),
    ("deepseek_v3", {"rope_parameters": dict(YARN, mscale_all_dim=0.7)}),
    ("deepseek_v3", {"rope_parameters": ..., "rope_scaling": dict(YARN, mscale=1.0, mscale_all_dim=1.0)}),
    ("deepseek_v3", {"v_head_dim": None}),
    ("deepseek_v3", {"num_key_value_heads": None}),
    ("deepseek_v3", {"n_group": None}),
    ("deepseek_v3_halves", {"norm_topk_prob": None, "rms_norm_eps": 0.1}),
    ("deepseek_v3_halves", {"q_lora_rank": 20}),
    ("gpt_oss", {"sliding_window": None}),
    ("gpt_oss", {"hidden_act": "gelu", "swiglu_alpha": 1.0}),
    ("gpt_oss", {"layer_types": FULL}),
    ("gpt_oss", {"layer_types": ..., "sliding_window": 3}),
    ("gpt_oss", {"rope_parameters": ..., "max_position_embeddings": 200}),
    ("gpt_oss", {"rope_parameters": {}}),
    ("gpt_oss", {"attn_implementation": "sdpa"}),
    ("gpt_oss_plain", {"rope_theta": 50.0}),
    ("gpt_oss_plain", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    ("gpt_oss_plain", {"quantization_config": {"quant_method": "mxfp4"}}),
    ("deepseek_v3_halves", {"quantization_config": {"quant_method": "fp8"}}),
    ("bert", {"is_causal": True}),
    ("bert", {"is_causal": False}),
    ("bert", {"is_decoder": True}),
    ("bert", {"hidden_act": "gelu_new"}),
    ("bert", {"hidden_act": ..., "layer_norm_eps": ..., "type_vocab_size": ...}),
    ("bert", {"layer_norm_eps": 1e-3}),
    ("bert", {"num_attention_heads": 3}),
    ("bert", {"position_embedding_type": "relative_key"}),
    ("bert", {"chunk_size_feed_forward": 4}),
    ("bert", {"pad_token_id": None}),
    ("bert", {"return_dict": False}),
    ("roberta", {"pad_token_id": 0}),
    ("roberta", {"pad_token_id": None}),
    ("roberta", {"hidden_act": "relu"}),
    ("roberta_untied", {"layer_norm_eps": ...}),
    ("modernbert", {"local_attention": 1}),
    ("modernbert", {"local_attention": ...}),
    ("modernbert", {"layer_types": None, "global_attn_every_n_layers": 1}),
    ("modernbert", {"layer_types": None, "global_attn_every_n_layers": 0}),
    ("modernbert", {"layer_types": ["sliding_attention", "sliding_attention"]}),
    ("modernbert", {"rope_parameters": ..., "global_rope_theta": 50.0, "local_rope_theta": 30.0}),
    ("modernbert", {"rope_parameters": ...}),
    ("modernbert", {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0}}}),
    ("modernbert", {"hidden_activation": "silu", "classifier_activation": "relu"}),
    ("modernbert", {"sliding_window": 3}),
    ("modernbert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    ("modernbert_bias", {"norm_bias": False}),
]

def expected(folder, length):
    try:
        logits, made_up = cc.oracle_logits(folder, length)
    except Exception as error:  # whatever stops it: a refusal
        frames = traceback.extract_tb(error.__traceback__)
        if any(frame.filename.endswith("generation/configuration_utils.py") for frame in frames):
            return None  # a default of generate(), which is no part of the model
        return {"refused": f"{type(error).__name__}: {error}".split("\n")[0][:60]}
    if made_up or not torch.isfinite(logits).all():
        return None
    return {"length": length, "logits": [[float(f"{v:.{DIGITS}g}") for v in row[SHOWN].tolist()] for row in logits]}


def reach(config):
    """Positions that this project gives a model: longer sequences are not run."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    positions = config.get("max_position_embeddings", config.get("n_positions"))
    dynamic = isinstance(rope, dict) and rope.get("rope_type", rope.get("type")) == "dynamic"
    factor = rope.get("factor") if dynamic else 1
    right = isinstance(positions, int) and isinstance(factor, (int, float)) and positions > 0
    return min(cc.LONG, int(positions * max(factor, 1))) if right else cc.LONG


def known_config(base, keys):
    config = json.loads((here / base / "config.json").read_text())
    for key, value in keys.items():
        if value is ...:
            del config[key]
        else:
            config[key] = value
    return config


def write_case(base, config):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "model.safetensors").symlink_to(here / base / "model.safetensors")
        outcome = expected(folder, reach(config))
    original = json.loads((here / base / "config.json").read_text())
    changed = {k: v for k, v in config.items() if json.dumps(original.get(k, ...), default=str) != json.dumps(v)}
    return outcome and {"base": base, "set": changed, "remove": sorted(set(original) - set(config)), **outcome}


def main():
    cc.make_bases(here)
    found = [write_case(base, known_config(base, keys)) for base, keys in KNOWN]
    found += [write_case(base, config) for base, config, _ in cc.cases(SEED, N_RANDOM, here)]
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in found if case)
    (here / "cases.json").write_text(f"[\n{lines}\n]\n")


main()
