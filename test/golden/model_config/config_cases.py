# SPDX-License-Identifier: Apache-2.0
"""Tiny models of the families and random mutations of their config.json, for make_config.py and
test/long/model_config.py. Needs torch and transformers."""
import copy
import json
import logging
import os
import pathlib
import random
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import transformers  # noqa: E402

logging.disable(logging.CRITICAL)
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)

VOCAB = 37
SHORT, LONG = 6, 40
IDS = [(11 * i + 5 * (i // 7) + 3) % VOCAB for i in range(LONG)]

ROPE = dict(rope_type="default", rope_theta=50.0)  # a small base: every scaling bends several of the few frequencies
LAYER_ROPES = dict(full_attention=dict(rope_type="linear", factor=4.0, rope_theta=80.0),
                   sliding_attention=dict(rope_type="default", rope_theta=20.0))
LLAMA = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=1, max_position_embeddings=64, rms_norm_eps=1e-5, initializer_range=0.2,
             bos_token_id=None, eos_token_id=None, rope_parameters=ROPE)
GPT2 = dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.2,
            bos_token_id=None, eos_token_id=None)
STARCODER2 = dict({k: v for k, v in LLAMA.items() if k != "rms_norm_eps"}, norm_epsilon=1e-4)
LAYER_NORM = dict({k: v for k, v in LLAMA.items() if k != "rms_norm_eps"}, layer_norm_eps=1e-4)
BARE = {k: v for k, v in LLAMA.items() if k != "rms_norm_eps"}
NO_IDS = dict(bos_token_id=None, eos_token_id=None)
GPTJ = dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.2, **NO_IDS)
OPT = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, ffn_dim=24, num_attention_heads=4, init_std=0.2,
           max_position_embeddings=64, pad_token_id=None, **NO_IDS)
FALCON = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_hidden_size=24,
              max_position_embeddings=64, initializer_range=0.2, rope_parameters=ROPE, **NO_IDS)
BLOOM = dict(vocab_size=VOCAB, hidden_size=32, n_layer=2, initializer_range=0.2, **NO_IDS)
MPT = dict(vocab_size=VOCAB, d_model=32, n_heads=4, n_layers=2, max_seq_len=64, initializer_range=0.2, **NO_IDS)
BERT = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
            max_position_embeddings=64, initializer_range=0.2)
MODERNBERT = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
                  max_position_embeddings=64, initializer_range=0.2, local_attention=9, pad_token_id=3, bos_token_id=None,
                  eos_token_id=None, cls_token_id=None, sep_token_id=None, rope_parameters=dict(
                      full_attention=dict(ROPE, rope_theta=80.0), sliding_attention=dict(ROPE, rope_theta=20.0)))
WINDOW = dict(use_sliding_window=True, sliding_window=7, max_window_layers=1)
EXPERTS = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=16)
GROUPED = dict(n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=2, moe_intermediate_size=16,
               n_shared_experts=1, first_k_dense_replace=1)
DELTA = dict(shared_expert_intermediate_size=24, linear_conv_kernel_dim=3, linear_key_head_dim=8, linear_value_head_dim=6,
             linear_num_key_heads=2, linear_num_value_heads=2, layer_types=["linear_attention", "full_attention"])
LATENT = dict(LLAMA, num_key_value_heads=2, q_lora_rank=20, kv_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=6,
              v_head_dim=10)
BASES = {
    "gpt2": ("gpt2", GPT2),
    "gpt2_untied": ("gpt2", dict(GPT2, tie_word_embeddings=False, n_inner=24)),
    "llama": ("llama", LLAMA),
    "llama_bias": ("llama", dict(LLAMA, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "mistral": ("mistral", dict(LLAMA, sliding_window=7)),
    "mistral_wide": ("mistral", dict(LLAMA, sliding_window=None, head_dim=12)),
    "qwen2": ("qwen2", dict(LLAMA, **WINDOW)),
    "qwen2_tied": ("qwen2", dict(LLAMA, tie_word_embeddings=True)),
    "qwen3": ("qwen3", dict(LLAMA, head_dim=32, **WINDOW)),
    "qwen3_bias": ("qwen3", dict(LLAMA, head_dim=12, attention_bias=True)),
    "olmo2": ("olmo2", dict(LLAMA, pad_token_id=1)),
    "olmo2_bias": ("olmo2", dict(LLAMA, head_dim=12, attention_bias=True, tie_word_embeddings=True)),
    "granite": ("granite", dict(LLAMA, embedding_multiplier=5.0, residual_multiplier=0.4, attention_multiplier=0.2,
                                logits_scaling=3.0)),
    "granite_bias": ("granite", dict(LLAMA, head_dim=12, attention_bias=True, mlp_bias=True,
                                     tie_word_embeddings=True)),
    "smollm3": ("smollm3", dict(LLAMA, pad_token_id=None, tie_word_embeddings=False, no_rope_layer_interval=2,
                                use_sliding_window=True, sliding_window=7)),
    "smollm3_bias": ("smollm3", dict(LLAMA, pad_token_id=3, head_dim=12, no_rope_layers=[0, 1], attention_bias=True,
                                     mlp_bias=True)),
    "starcoder2": ("starcoder2", dict(STARCODER2, sliding_window=7)),
    "starcoder2_plain": ("starcoder2", dict(STARCODER2, use_bias=False, tie_word_embeddings=False)),
    "mixtral": ("mixtral", dict(LLAMA, num_local_experts=5, num_experts_per_tok=2)),
    "mixtral_window": ("mixtral", dict(LLAMA, num_local_experts=4, num_experts_per_tok=1, sliding_window=7, head_dim=12,
                                       tie_word_embeddings=True)),
    "qwen2_moe": ("qwen2_moe", dict(LLAMA, **EXPERTS, shared_expert_intermediate_size=24, **WINDOW)),
    "qwen2_moe_dense": ("qwen2_moe", dict(LLAMA, **EXPERTS, shared_expert_intermediate_size=16, qkv_bias=False,
                                          mlp_only_layers=[1], norm_topk_prob=True)),
    "qwen3_moe": ("qwen3_moe", dict(LLAMA, **EXPERTS, head_dim=12, norm_topk_prob=True, use_sliding_window=True,
                                    sliding_window=7)),
    "qwen3_moe_step": ("qwen3_moe", dict(LLAMA, **EXPERTS, decoder_sparse_step=2, attention_bias=True)),
    "olmoe": ("olmoe", dict(LLAMA, num_experts=5, num_experts_per_tok=3, clip_qkv=2.0, pad_token_id=None)),
    "granitemoe": ("granitemoe", dict(LLAMA, num_local_experts=5, num_experts_per_tok=2, embedding_multiplier=5.0,
                                      residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=3.0)),
    "stablelm": ("stablelm", dict(LAYER_NORM, rope_parameters=dict(ROPE, partial_rotary_factor=0.5))),
    "stablelm_parallel": ("stablelm", dict(LAYER_NORM, use_parallel_residual=True, use_qkv_bias=True,
                                           tie_word_embeddings=True,
                                           rope_parameters=dict(ROPE, partial_rotary_factor=0.25))),
    "gpt_neox": ("gpt_neox", dict(LAYER_NORM, rope_parameters=dict(ROPE, partial_rotary_factor=0.5))),
    "gpt_neox_plain": ("gpt_neox", dict(LAYER_NORM, use_parallel_residual=False, attention_bias=False,
                                        rope_parameters=dict(ROPE, partial_rotary_factor=0.25))),
    "phi3": ("phi3", dict(LLAMA, pad_token_id=None, sliding_window=7, original_max_position_embeddings=64,
                          rope_parameters=dict(ROPE, partial_rotary_factor=0.5))),
    "phi3_long": ("phi3", dict(LLAMA, pad_token_id=None, original_max_position_embeddings=48, rope_parameters=dict(
        rope_type="longrope", rope_theta=50.0, short_factor=[1.2, 2.0, 1.5, 3.0], long_factor=[2.0, 3.0, 4.0, 5.0],
        partial_rotary_factor=0.5))),
    "phi3_tied": ("phi3", dict(LLAMA, pad_token_id=3, tie_word_embeddings=True, num_key_value_heads=2)),
    "glm": ("glm", dict(LLAMA, pad_token_id=None, head_dim=12, rope_parameters=dict(ROPE, partial_rotary_factor=0.5))),
    "glm4": ("glm4", dict(LLAMA, pad_token_id=None, head_dim=16, attention_bias=False,
                          rope_parameters=dict(ROPE, partial_rotary_factor=0.5))),
    "cohere": ("cohere", dict(LAYER_NORM, pad_token_id=None, logit_scale=0.5)),
    "cohere_bias": ("cohere", dict(LAYER_NORM, pad_token_id=3, head_dim=12, attention_bias=True,
                                   tie_word_embeddings=False)),
    "gemma": ("gemma", dict(LLAMA, pad_token_id=None, head_dim=24)),
    "gemma_bias": ("gemma", dict(LLAMA, pad_token_id=3, head_dim=12, attention_bias=True, tie_word_embeddings=False)),
    "gemma2": ("gemma2", dict(LLAMA, pad_token_id=None, head_dim=24, query_pre_attn_scalar=5, sliding_window=7,
                              attn_logit_softcapping=2.0, final_logit_softcapping=3.0)),
    "gemma2_plain": ("gemma2", dict(LLAMA, pad_token_id=3, head_dim=12, sliding_window=5, attention_bias=True,
                                    attn_logit_softcapping=None, final_logit_softcapping=None)),
    "gemma3": ("gemma3_text", dict(LLAMA, pad_token_id=None, head_dim=24, query_pre_attn_scalar=5, sliding_window=7,
                                   final_logit_softcapping=3.0, layer_types=["sliding_attention", "full_attention"],
                                   rope_parameters=LAYER_ROPES)),
    "gemma3_plain": ("gemma3_text", dict(LLAMA, pad_token_id=3, head_dim=12, sliding_window=5, attention_bias=True,
                                         tie_word_embeddings=False, rope_parameters=None)),
    "olmo": ("olmo", dict(BARE, pad_token_id=None, clip_qkv=0.4)),
    "olmo_bias": ("olmo", dict(BARE, pad_token_id=3, head_dim=12, attention_bias=True, tie_word_embeddings=True)),
    "gptj": ("gptj", dict(GPTJ, n_inner=24, rotary_dim=6)),
    "gptj_tied": ("gptj", dict(GPTJ, rotary_dim=8, tie_word_embeddings=True)),
    "opt": ("opt", dict(OPT, word_embed_proj_dim=32)),
    "opt_bare": ("opt", dict(OPT, enable_bias=False, layer_norm_elementwise_affine=False, tie_word_embeddings=False,
                             _remove_final_layer_norm=True)),
    "falcon": ("falcon", dict(FALCON)),
    "falcon_groups": ("falcon", dict(FALCON, new_decoder_architecture=True, num_kv_heads=2, bias=True,
                                     tie_word_embeddings=False)),
    "falcon_one_norm": ("falcon", dict(FALCON, new_decoder_architecture=True, num_kv_heads=4,
                                       num_ln_in_parallel_attn=1)),
    "falcon_heads": ("falcon", dict(FALCON, multi_query=False, parallel_attn=False, bias=True)),
    "bloom": ("bloom", dict(BLOOM, n_head=8)),
    "bloom_after": ("bloom", dict(BLOOM, n_head=6, hidden_size=30, apply_residual_connection_post_layernorm=True,
                                  tie_word_embeddings=False)),
    "mpt": ("mpt", dict(MPT, attn_config=dict(clip_qkv=1.0))),
    "mpt_scaled": ("mpt", dict(MPT, n_heads=6, d_model=30, attn_config=dict(softmax_scale=0.3),
                               tie_word_embeddings=False)),
    "cohere_norms": ("cohere", dict(LAYER_NORM, pad_token_id=None, head_dim=12, logit_scale=0.5, use_qk_norm=True)),
    "cohere2": ("cohere2", dict(LAYER_NORM, pad_token_id=None, logit_scale=0.5, sliding_window=7,
                                layer_types=["sliding_attention", "full_attention"])),
    "cohere2_bias": ("cohere2", dict(LAYER_NORM, pad_token_id=3, sliding_window=5, attention_bias=True,
                                     tie_word_embeddings=False)),
    "opt_behind": ("opt", dict(OPT, word_embed_proj_dim=20, do_layer_norm_before=False)),
    "opt_projected": ("opt", dict(OPT, word_embed_proj_dim=44, tie_word_embeddings=False)),
    "stablelm_norms": ("stablelm", dict(LAYER_NORM, qk_layernorm=True, num_key_value_heads=2,
                                        rope_parameters=dict(ROPE, partial_rotary_factor=0.5))),
    "stablelm_norms_parallel": ("stablelm", dict(LAYER_NORM, qk_layernorm=True, use_parallel_residual=True,
                                                 rope_parameters=dict(ROPE, partial_rotary_factor=0.25))),
    "glm4_moe": ("glm4_moe", dict(LLAMA, **GROUPED, head_dim=12, rope_parameters=dict(ROPE, partial_rotary_factor=0.5))),
    "glm4_moe_norms": ("glm4_moe", dict(LLAMA, **dict(GROUPED, n_group=1, topk_group=1, first_k_dense_replace=0),
                                        head_dim=16, attention_bias=True, use_qk_norm=True, norm_topk_prob=False,
                                        rope_parameters=dict(ROPE, partial_rotary_factor=0.5))),
    "deepseek_v2": ("deepseek_v2", dict(LATENT, **dict(GROUPED, n_group=None, topk_group=None), q_lora_rank=None)),
    "deepseek_v2_groups": ("deepseek_v2", dict(LATENT, **dict(GROUPED, n_shared_experts=2), attention_bias=True,
                                               topk_method="group_limited_greedy", tie_word_embeddings=True)),
    "deepseek_v3": ("deepseek_v3", dict(LATENT, **GROUPED)),
    "deepseek_v3_halves": ("deepseek_v3", dict(LATENT, **dict(GROUPED, first_k_dense_replace=0, n_group=2),
                                               q_lora_rank=None, v_head_dim=16, rope_interleave=False,
                                               attention_bias=True)),
    "gpt_oss": ("gpt_oss", dict(LLAMA, head_dim=16, num_local_experts=5, num_experts_per_tok=2, sliding_window=7,
                                swiglu_limit=1.5)),
    "gpt_oss_plain": ("gpt_oss", dict(LLAMA, head_dim=12, num_local_experts=4, num_experts_per_tok=1, sliding_window=5,
                                      attention_bias=False, tie_word_embeddings=True, rope_parameters=None,
                                      layer_types=["full_attention", "sliding_attention"])),
    "qwen3_next": ("qwen3_next", dict(LLAMA, **EXPERTS, **DELTA)),
    "qwen3_next_dense": ("qwen3_next", dict(LLAMA, **EXPERTS, **dict(DELTA, linear_num_key_heads=1, layer_types=None,
                                                                     full_attention_interval=2), head_dim=16,
                                            attention_bias=True, mlp_only_layers=[1], tie_word_embeddings=True,
                                            rope_parameters=dict(ROPE, partial_rotary_factor=0.5))),
    "bert": ("bert", dict(BERT, pad_token_id=3)),
    "bert_untied": ("bert", dict(BERT, type_vocab_size=3, hidden_act="relu", tie_word_embeddings=False)),
    "roberta": ("roberta", dict(BERT, pad_token_id=1, type_vocab_size=1, layer_norm_eps=1e-5)),
    "roberta_untied": ("roberta", dict(BERT, pad_token_id=5, tie_word_embeddings=False)),
    "falcon_rw": ("falcon", dict(FALCON, multi_query=False, parallel_attn=False, bias=True, alibi=True,
                                 num_attention_heads=16)),
}
BASES |= {
    "modernbert": ("modernbert", MODERNBERT),
    "modernbert_bias": ("modernbert", dict(MODERNBERT, norm_bias=True, attention_bias=True, mlp_bias=True, decoder_bias=False,
                                           classifier_bias=True, tie_word_embeddings=False, local_attention=4)),
}
T5 = dict(vocab_size=VOCAB, d_model=32, d_kv=6, d_ff=24, num_layers=2, num_decoder_layers=2, num_heads=4, relative_attention_num_buckets=8,
          relative_attention_max_distance=12, dropout_rate=0.0, decoder_start_token_id=1)
PAIRS = ("t5",)
TARGET = [5, 11, 2]  # of model_logits.c and test_config_cases.c, too
BASES |= {
    "t5": ("t5", T5),
    "t5_untied": ("t5", dict(T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
}
ENCODERS = ("bert", "roberta", "modernbert")
NO_WINDOW = ("gpt2", "llama", "olmo2", "granite", "olmoe", "granitemoe", "stablelm", "gpt_neox", "glm", "glm4", "cohere",
             "gemma", "olmo", "gptj", "opt", "falcon", "bloom", "mpt", "glm4_moe", "deepseek_v2", "deepseek_v3", "qwen3_next", "bert", "roberta")
ONE_WINDOW = ("mixtral", "qwen3_moe")  # their masks do not go by layer_types


def auto_of(family):
    if family in PAIRS:
        return transformers.AutoModelForSeq2SeqLM
    return transformers.AutoModelForMaskedLM if family in ENCODERS else transformers.AutoModelForCausalLM


def make_bases(folder, families=()):
    """One folder a base, of these families or of all: config.json and model.safetensors as transformers saves them."""
    for seed, (name, (family, values)) in enumerate(BASES.items()):
        if families and family not in families:
            continue
        torch.manual_seed(seed)
        config = transformers.AutoConfig.for_model(family, **values)
        model = auto_of(family).from_config(config)
        if not getattr(config, "scale_decoder_outputs", True):  # transformers ties it at first
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight))
        with torch.no_grad():
            for key, p in model.named_parameters():
                if p.dim() == 1 and "norm" in key and family.startswith("gemma"):  # 0 is added to 1
                    p.copy_(torch.randn_like(p) * 0.3)
                elif p.dim() == 1:  # norms away from 1, biases away from 0
                    p.copy_(torch.randn_like(p) * 0.3 + (0.0 if key.endswith("bias") else 1.0))
            for key, b in model.named_buffers():
                if key.endswith("e_score_correction_bias"):
                    b.copy_(torch.randn_like(b) * 0.2)
        for key, p in model.named_parameters():  # sharp attention, so that positions show
            if key.endswith(("q_proj.weight", "q_b_proj.weight", "qkv_proj.weight", "query_key_value.weight", "query.weight",
                              "Wqkv.weight")):
                p.data *= 2.0
        model.to(torch.bfloat16).save_pretrained(pathlib.Path(folder) / name)
        for extra in (pathlib.Path(folder) / name).glob("generation_config.json"):
            extra.unlink()


def oracle_logits(folder, length, shake=None):
    """transformers' last logits of SHORT and of `length` ids, of pairs those behind TARGET (all of it at once, as in training), and the names of
    weights that it made up; raises where it refuses. shake: the seed of a change of each weight by up to one part in 2^23, fp32's last bit."""
    config = transformers.AutoConfig.from_pretrained(folder)  # as the file says, dtype included
    model, info = auto_of(config.model_type).from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    model.eval()
    rows = []
    with torch.no_grad():
        if shake is not None:
            torch.manual_seed(shake)
            for weight in model.parameters():
                weight.mul_(1.0 + torch.randint(-1, 2, weight.shape) * 2.0**-23)
        for n in (SHORT, length):
            more = {}
            if config.model_type == "roberta":  # by place, tokens that are the padding's too
                more = dict(position_ids=torch.arange(n)[None] + config.pad_token_id + 1)
            if config.model_type in PAIRS:  # the last label stands behind the last logits
                more = dict(labels=torch.tensor([TARGET + [0]]))
            out = model(torch.tensor([IDS[:n]]), **more)
            logits = out.logits if not isinstance(out, tuple) else out[1 if config.model_type in PAIRS else 0]
            rows.append(logits[0, -1].float().clone())
    return torch.stack(rows), sorted(info["missing_keys"])


# ---- mutations ---------------------------------------------------------------------------------------------------

WRONG = [None, "x", "", True, False, 0, 1, -1, 2.5, 1.0, [], {}, [1], {"a": 1}, "32", 10**9]


SLOW = {"num_labels", "num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers"}  # transformers makes as many objects as they say


def wrong_value(rng, key=None):
    value = copy.deepcopy(rng.choice(WRONG))
    return -2 if value == 10**9 and key in SLOW else value


def choose(rng, right, wrong=0.25):
    return wrong_value(rng) if rng.random() < wrong else copy.deepcopy(rng.choice(right))


def rope_object(rng, own=()):
    kinds = ["default", "linear", "dynamic", "yarn", "llama3"]
    rare = ["longrope", "proportional", "su", "mrope", None, "axial", 3]
    kind = rng.choice(kinds) if rng.random() < 0.9 else rng.choice(rare)
    rope = {}
    if rng.random() < 0.95:
        rope["type" if rng.random() < 0.25 else "rope_type"] = kind
    if rng.random() < 0.05:
        rope["type"] = rng.choice(kinds + rare)
    need = {"linear": ["factor"], "dynamic": ["factor"], "yarn": ["factor"],
            "llama3": ["factor", "low_freq_factor", "high_freq_factor"]}.get(kind, [])
    may = {"yarn": ["original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
                    "mscale_all_dim", "truncate"], "llama3": ["original_max_position_embeddings"],
           "dynamic": ["original_max_position_embeddings"]}.get(kind, [])
    values = {
        "factor": [2.0, 4, 1.5, 8.0, 1, 1.0, 0.5],
        "low_freq_factor": [1.0, 1, 2.0, 0.5],
        "high_freq_factor": [4.0, 4, 8.0, 3],
        "original_max_position_embeddings": [16, 32, 8, 64],
        "attention_factor": [1.0, 0.8, 1.2, 2, None],
        "beta_fast": [32.0, 16, 4.0, None, 0],
        "beta_slow": [1.0, 2, 0.5, None],
        "mscale": [1.0, 0.707, 2, None, 0],
        "mscale_all_dim": [1.0, 0.5, None, 0.0],
        "truncate": [True, False, None],
        "rope_theta": [50.0, 100, 20.0, 10000.0, 500000],
        "partial_rotary_factor": [1.0, 1, 0.5, None],
    }
    for key in need:
        if rng.random() < 0.94:
            rope[key] = choose(rng, values[key], 0.06)
    for key in may:
        if rng.random() < 0.45:
            rope[key] = choose(rng, values[key], 0.06)
    if rng.random() < 0.75:
        rope["rope_theta"] = choose(rng, values["rope_theta"], 0.05)
    if rng.random() < 0.05:
        rope["partial_rotary_factor"] = rng.choice(values["partial_rotary_factor"])
    for key in rng.sample(sorted(values), 1) if rng.random() < 0.15 else []:
        rope[key] = choose(rng, values[key], 0.1)
    if rng.random() < 0.02:
        rope = {rng.choice(["full_attention", "sliding_attention"]): rope}
    if rng.random() < 0.05:
        rope[rng.choice(["foo", "mrope_section", "finetuned", "short_factor"])] = choose(rng, [[1], 2])
    return rope


def long_scaling(rng, rope):
    """Of Phi-3."""
    rope["rope_type"] = rng.choice(["longrope", "longrope", "su", "yarn", "default"])
    n = rng.choice([4, 4, 8, 2, 5])
    if rng.random() < 0.8:
        rope["partial_rotary_factor"] = n / 8
    for key in ("short_factor", "long_factor"):
        if rng.random() < 0.95:
            rope[key] = [choose(rng, [1.0, 1, 1.5, 2.25, 4.0], 0.01) for _ in range(n)]
    if rng.random() < 0.3:
        rope["attention_factor"] = choose(rng, [1.0, 0.8, 1.3, 2, None], 0.05)


def rope_by_layers(rng):
    """Of Gemma 3: an object for each type of layer, some without one, seldom flat."""
    if rng.random() < 0.05:
        return rope_object(rng)
    found = {}
    for name in ("full_attention", "sliding_attention"):
        if rng.random() < 0.9:
            found[name] = rope_object(rng) if rng.random() < 0.9 else rng.choice([None, {}])
    return found


def rope_or_none(rng):  # for gpt2, which has no use for it
    return rope_object(rng) if rng.random() < 0.3 else copy.deepcopy(rng.choice([None, {}]))


def layer_types(rng):
    names = ["full_attention", "sliding_attention"]
    if rng.random() < 0.1:
        names += ["attention", "linear_attention", "chunked_attention", "x", "mamba"]
    return [rng.choice(names) for _ in range(2 if rng.random() < 0.85 else rng.choice([0, 1, 3]))]


ACTS = ["silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python",
        "gelu_python_tanh"]
ACTS_RARE = ["relu", "quick_gelu", "tanh", "SiLU", "mish", ""]

# key: (right values or a function of the random state, share of wrong ones)
COMMON = {
    "tie_word_embeddings": ([True, False], 0.2),
    "use_cache": ([True, False], 0.3),
    "pad_token_id": ([None, 0, 3, VOCAB - 1], 0.3),
    "bos_token_id": ([None, 0, 1], 0.3),
    "eos_token_id": ([None, 2, [1, 2], []], 0.3),
    "initializer_range": ([0.02, 0.1, 0.5], 0.25),
    "dtype": (["float32", "bfloat16", "float16", None], 0.1),
    "torch_dtype": (["float32", "bfloat16", "float16", None, "float"], 0.2),
    "architectures": ([None, ["LlamaForCausalLM"], ["LlamaModel"], []], 0.2),
    "transformers_version": (["4.30.0", "5.0.0", None], 0.2),
    "is_causal": ([True, 1], 0.15),
    "attn_implementation": (["eager", "sdpa", None], 0.1),
    "_attn_implementation": (["eager", "sdpa", None], 0.1),
    "output_attentions": ([True, False], 0.1),
    "output_hidden_states": ([True, False], 0.1),
    "return_dict": ([True, False], 0.1),
    "chunk_size_feed_forward": ([0, 4], 0.1),
    "is_encoder_decoder": ([False], 0.1),
    "is_decoder": ([True, False], 0.1),
    "id2label": ([None, {"0": "a", "1": "b"}], 0.15),
    "label2id": ([None, {"a": 0, "b": 1}], 0.15),
    "num_labels": ([1, 2, 5], 0.1),
    "problem_type": ([None, "regression"], 0.1),
    "quantization_config": ([None, None, {}, {"quant_method": "hqq", "bits": 4},
                             {"quant_method": "bitsandbytes", "load_in_4bit": True}], 0.1),
    "per_layer_config": ([None, {}, None, {"1": {"intermediate_size": 24}}], 0.1),
    "text_config": ([None, {}], 0.1),
    "attention_chunk_size": ([None, None, None, 8], 0.1),
    "temperature": ([0.7, 1.0], 0.1), "top_p": ([0.9], 0.1), "do_sample": ([True, False], 0.1),
    "max_length": ([20, 100], 0.1), "repetition_penalty": ([1.1], 0.1), "suppress_tokens": ([None, [1]], 0.1),
    "cache_implementation": ([None], 0.1),
    "gradient_checkpointing": ([True, False], 0.1),
    "pruned_heads": ([{}], 0.1), "torchscript": ([True, False], 0.1), "auto_map": ([{}], 0.1),
    "_name_or_path": (["foo"], 0.1), "name_or_path": (["foo"], 0.1), "task_specific_params": ([None, {"a": {}}], 0.1),
    "tokenizer_class": (["X"], 0.1), "prefix": (["p", None], 0.1), "sep_token_id": ([3, None], 0.1),
    "foo": ([1, "a", None, {"b": [1]}], 0.1), "unsloth_version": (["2024"], 0.1), "ignore_index": ([-100], 0.1),
    "original_max_position_embeddings": ([16, 32], 0.15),
}
LLAMAS = {
    **COMMON,
    "hidden_size": ([32], 0.7), "intermediate_size": ([24], 0.7), "num_hidden_layers": ([2], 0.7),
    "vocab_size": ([VOCAB], 0.7),
    "num_attention_heads": ([2, 1, 4], 0.6), "num_key_value_heads": ([1, None, 2], 0.5),
    "head_dim": ([16, None, 12, 32], 0.3),
    "hidden_act": (lambda rng: rng.choice(ACTS) if rng.random() < 0.93 else rng.choice(ACTS_RARE), 0.08),
    "max_position_embeddings": ([16, 24, 32, 64, 128, 40], 0.15),
    "rms_norm_eps": ([1e-6, 1e-5, 0.1, 0.0], 0.25),
    "rope_theta": ([10000.0, 20, 100.0, 1000000], 0.2),
    "rope_scaling": (rope_object, 0.12), "rope_parameters": (rope_object, 0.12),
    "partial_rotary_factor": ([1.0, 0.5, 1, None], 0.1),
    "attention_bias": ([True, False], 0.2), "mlp_bias": ([True, False], 0.2),
    "attention_dropout": ([0.0, 0.1, 0, 0.5], 0.25),
    "sliding_window": ([None, 7, 3, 12, 4096], 0.12), "use_sliding_window": ([True, False], 0.15),
    "max_window_layers": ([0, 1, 2, 28], 0.15), "layer_types": (layer_types, 0.12),
    "pretraining_tp": ([1, 2, None], 0.2), "n_embd": ([16], 0.1), "embd_pdrop": ([0.1], 0.1),
}
ROPE_KEYS = ["rope_scaling", "rope_parameters", "rope_theta", "max_position_embeddings",
             "original_max_position_embeddings"]
WINDOW_KEYS = ["sliding_window", "use_sliding_window", "max_window_layers", "layer_types"]
DROPS = ([0.0, 0.1, 0, 0.5], 0.25)
GPT2S = {
    **COMMON,
    "n_embd": ([32], 0.7), "n_inner": ([24, None, 128], 0.4), "n_layer": ([2], 0.7), "n_head": ([4, 2, 8], 0.5),
    "n_positions": ([64], 0.7), "vocab_size": ([VOCAB], 0.7), "hidden_size": ([32], 0.4),
    "num_attention_heads": ([4, 2, 8], 0.4), "num_hidden_layers": ([2], 0.5), "max_position_embeddings": ([64], 0.5),
    "activation_function": LLAMAS["hidden_act"],
    "resid_pdrop": DROPS, "embd_pdrop": DROPS, "attn_pdrop": DROPS,
    "layer_norm_epsilon": ([1e-5, 1e-3, 0.1], 0.25),
    "scale_attn_weights": ([True, False], 0.2), "scale_attn_by_inverse_layer_idx": ([True, False], 0.2),
    "reorder_and_upcast_attn": ([True, False], 0.2), "add_cross_attention": ([False], 0.2),
    "summary_type": (["cls_index", "mean"], 0.2), "summary_use_proj": ([True, False], 0.2),
    "summary_activation": ([None, "tanh"], 0.2), "summary_proj_to_labels": ([True, False], 0.2),
    "summary_first_dropout": ([0.1, 0], 0.2), "n_ctx": ([64, 16], 0.2), "gradient_checkpointing": ([True, False], 0.1),
    "rope_theta": ([10000.0], 0.2), "rope_scaling": (rope_or_none, 0.1), "rope_parameters": (rope_or_none, 0.1),
    "hidden_act": (["silu"], 0.2), "sliding_window": ([None, 7], 0.1), "layer_types": (layer_types, 0.1),
    "head_dim": ([8], 0.1),
}
NORM_EPS = ([1e-6, 1e-5, 0.1, 0.0], 0.25)
MULTIPLIER = ([1.0, 2, 0.5, 3.0, 0.25, 12], 0.2)
MULTIPLIERS = {"embedding_multiplier": MULTIPLIER, "residual_multiplier": MULTIPLIER,
               "attention_multiplier": MULTIPLIER, "logits_scaling": MULTIPLIER}
ROUTER = {"num_experts_per_tok": ([1, 2, 3, 4], 0.2), "output_router_logits": ([True, False], 0.2),
          "router_aux_loss_coef": ([0.001, 0.1, 0.0], 0.2)}
QWEN_MOE = {**ROUTER, "moe_intermediate_size": ([16], 0.5), "num_experts": ([5], 0.5), "norm_topk_prob": ([True, False], 0.15),
            "decoder_sparse_step": ([1, 2, -1], 0.2), "mlp_only_layers": ([None, [], [1], [0], [1, 5], [-1]], 0.2)}
FAMILY_KEYS = {
    "mixtral": {**ROUTER, "num_local_experts": ([5, 4], 0.5), "num_experts": ([5, 4], 0.5),
                "router_jitter_noise": ([0.0, 0.0, 0.0, 0.1], 0.15)},
    "qwen2_moe": {**QWEN_MOE, "shared_expert_intermediate_size": ([24, 16], 0.5), "qkv_bias": ([True, False], 0.2)},
    "qwen3_moe": {**QWEN_MOE, "num_local_experts": ([5], 0.5)},
    "olmoe": {**ROUTER, "num_experts": ([5], 0.5), "num_local_experts": ([5], 0.5), "norm_topk_prob": ([True, False], 0.15),
              "clip_qkv": ([None, 2.0, 0.5, 100.0], 0.15)},
    "granitemoe": {**ROUTER, **MULTIPLIERS, "num_local_experts": ([5], 0.5)},
    "granite": MULTIPLIERS,
    "smollm3": {"no_rope_layers": ([None, [0, 1], [1, 0], [1, 1], [0, 0], [1], [1, 0, 1], [2, -1]], 0.12),
                "no_rope_layer_interval": ([1, 2, 3, 4, -1, -2], 0.15)},
    "starcoder2": {"norm_epsilon": ([1e-6, 1e-5, 0.1, 0.0], 0.25), "residual_dropout": DROPS,
                   "embedding_dropout": DROPS, "use_bias": ([True, False], 0.2)},
    "stablelm": {"layer_norm_eps": NORM_EPS, "hidden_dropout": DROPS, "use_qkv_bias": ([True, False], 0.2),
                 "use_parallel_residual": ([True, False], 0.2), "qk_layernorm": ([True, False], 0.2)},
    "gpt_neox": {"layer_norm_eps": NORM_EPS, "hidden_dropout": DROPS, "use_parallel_residual": ([True, False], 0.2),
                 "rotary_pct": ([0.25, 0.5, 1.0], 0.15), "rotary_emb_base": ([50.0, 100, 10000], 0.15),
                 "classifier_dropout": DROPS},
    "phi3": {"resid_pdrop": DROPS},
    "cohere": {"layer_norm_eps": NORM_EPS, "logit_scale": ([0.0625, 1.0, 0.3], 0.2), "use_qk_norm": ([True, False, None], 0.2)},
}
PARTIAL = ("stablelm", "gpt_neox", "phi3", "glm", "glm4", "glm4_moe", "qwen3_next")
GEMMA_ACT = (lambda rng: rng.choice(ACTS) if rng.random() < 0.93 else rng.choice(ACTS_RARE), 0.08)
GEMMA2 = {"hidden_activation": GEMMA_ACT, "query_pre_attn_scalar": ([5, 24, 1], 0.2),
          "final_logit_softcapping": ([None, 3.0, 1.5, 30.0, -2.0], 0.15),
          "attn_logit_softcapping": ([None, 2.0, 0.7, 50.0], 0.15), "use_bidirectional_attention": ([None, False], 0.05)}
FAMILY_KEYS["gemma"] = {"use_bidirectional_attention": ([None, False], 0.05)}
FAMILY_KEYS["gemma2"] = GEMMA2
FAMILY_KEYS["gemma3_text"] = {**GEMMA2, "rope_local_base_freq": ([20.0, 100, 10000.0], 0.15),
                              "sliding_window_pattern": ([1, 2, 3, 6], 0.15)}
FAMILY_KEYS["olmo"] = {"clip_qkv": ([None, 0.4, 2.0, 100.0], 0.15)}
FAMILY_KEYS["cohere2"] = {"layer_norm_eps": NORM_EPS, "logit_scale": ([0.0625, 1.0, 0.3], 0.2),
                          "sliding_window_pattern": ([1, 2, 3, 4], 0.15)}
FAMILY_KEYS["falcon"] = {
    "layer_norm_epsilon": NORM_EPS, "hidden_dropout": DROPS, "num_kv_heads": ([4, None, 1, 2], 0.5),
    "num_ln_in_parallel_attn": ([None, 1, 2], 0.4), "alibi": ([False, None, True], 0.02),
    "new_decoder_architecture": ([True, False, None], 0.1), "multi_query": ([True, False], 0.1),
    "parallel_attn": ([True, False], 0.1), "bias": ([True, False], 0.1), "n_embed": ([32], 0.5),
    "ffn_hidden_size": ([24, None], 0.5), "activation": LLAMAS["hidden_act"]}
FAMILY_KEYS["gpt_oss"] = {**ROUTER, "num_local_experts": ([5], 0.5), "num_experts": ([5], 0.5),
                          "swiglu_limit": ([7.0, 0.5, 1.5], 0.15), "swiglu_alpha": ([1.702, 1.0, -1.0], 0.15)}
FAMILY_KEYS["qwen3_next"] = {
    **QWEN_MOE, "shared_expert_intermediate_size": ([24, 16], 0.5),
    "full_attention_interval": ([1, 2, 3, 4, -2, 0], 0.2), "linear_conv_kernel_dim": ([3], 0.3),
    "linear_num_key_heads": ([1, 2], 0.1), "linear_num_value_heads": ([2], 0.1), "linear_key_head_dim": ([8], 0.3),
    "linear_value_head_dim": ([6], 0.3)}
GROUPED_KEYS = {
    "n_routed_experts": ([8], 0.5), "n_group": ([1, 2, 4, 8], 0.2), "topk_group": ([1, 2, 4], 0.2),
    "num_experts_per_tok": ([1, 2, 3, 4], 0.2), "moe_intermediate_size": ([16], 0.5), "n_shared_experts": ([1], 0.5),
    "first_k_dense_replace": ([1, 0, 2, -1], 0.3), "routed_scaling_factor": ([1.0, 2.5, 0.5, -1.0], 0.2),
    "norm_topk_prob": ([True, False], 0.15), "output_router_logits": ([True, False], 0.2),
    "num_local_experts": ([8], 0.5), "num_experts": ([8], 0.5), "num_nextn_predict_layers": ([0, 1, 2], 0.2),
    "num_mtp_layers": ([0, 1], 0.2)}
LATENT_KEYS = {"q_lora_rank": ([20, None], 0.3), "kv_lora_rank": ([12], 0.5), "qk_nope_head_dim": ([8], 0.5),
               "qk_rope_head_dim": ([6], 0.5), "v_head_dim": ([10], 0.5)}
FAMILY_KEYS["glm4_moe"] = {**GROUPED_KEYS, "use_qk_norm": ([True, False], 0.2)}
FAMILY_KEYS["deepseek_v2"] = {**GROUPED_KEYS, **LATENT_KEYS, "topk_method": (["greedy", "group_limited_greedy"], 0.15)}
FAMILY_KEYS["deepseek_v3"] = {**GROUPED_KEYS, **LATENT_KEYS, "rope_interleave": ([True, False, None], 0.15),
                              "topk_method": (["noaux_tc"], 0.15), "scoring_func": (["sigmoid"], 0.15)}
for keys in FAMILY_KEYS.values():
    assert not keys.keys() & LLAMAS.keys()
OWN = {  # tables of families whose keys are not Llama's
    "gptj": {k: v for k, v in GPT2S.items() if not k.startswith(("summary", "scale_attn", "reorder"))}
    | {"rotary_dim": ([2, 4, 6, 8], 0.2)},
    "opt": {**COMMON, "hidden_size": ([32], 0.7), "num_hidden_layers": ([2], 0.7), "ffn_dim": ([24], 0.7),
            "max_position_embeddings": ([64], 0.7), "num_attention_heads": ([4, 2, 8], 0.4), "dropout": DROPS,
            "attention_dropout": DROPS, "activation_function": (LLAMAS["hidden_act"][0], 0.08),
            "word_embed_proj_dim": ([32, None, 20], 0.3), "do_layer_norm_before": ([True, False], 0.2),
            "layerdrop": DROPS, "init_std": ([0.02, 0.1], 0.25), "enable_bias": ([True, False], 0.1),
            "layer_norm_elementwise_affine": ([True, False], 0.1), "_remove_final_layer_norm": ([True, False], 0.1)},
    "bloom": {**COMMON, "hidden_size": ([32], 0.7), "n_embed": ([32], 0.7), "n_layer": ([2], 0.7), "n_head": ([8, 4, 2], 0.3),
              "num_attention_heads": ([4, 2], 0.4), "num_hidden_layers": ([2], 0.7), "layer_norm_epsilon": NORM_EPS,
              "apply_residual_connection_post_layernorm": ([True, False], 0.1), "hidden_dropout": DROPS,
              "attention_dropout": DROPS, "pretraining_tp": ([1, 2, 4], 0.2), "slow_but_exact": ([True, False], 0.2),
              "seq_length": ([16, 2048], 0.2), "offset_alibi": ([100], 0.2), "masked_softmax_fusion": ([True], 0.2)},
    "mpt": {**COMMON, "d_model": ([32], 0.7), "n_heads": ([4, 2, 8], 0.3), "n_layers": ([2], 0.7),
            "hidden_size": ([32], 0.7), "num_attention_heads": ([4, 2], 0.4), "max_seq_len": ([64, 40, 2048], 0.3),
            "layer_norm_epsilon": NORM_EPS, "resid_pdrop": DROPS, "emb_pdrop": DROPS,
            "expansion_ratio": ([4, 2], 0.2), "learned_pos_emb": ([True, False], 0.2), "logit_scale": ([None, 0.5, "inv"], 0.2),
            "no_bias": ([True, False], 0.2), "embedding_fraction": ([1.0, 0.5], 0.2), "norm_type": (["x"], 0.2),
            "init_device": (["cpu", "meta"], 0.2), "attn_config": (lambda rng: attn_config(rng), 0.1)},
}
OWN["bert"] = OWN["roberta"] = {
    **COMMON, "hidden_size": ([32], 0.7), "num_hidden_layers": ([2], 0.7), "intermediate_size": ([24], 0.7),
    "num_attention_heads": ([4, 2, 8], 0.4), "max_position_embeddings": ([64], 0.7), "type_vocab_size": ([2], 0.7),
    "hidden_act": LLAMAS["hidden_act"], "hidden_dropout_prob": DROPS, "attention_probs_dropout_prob": DROPS,
    "layer_norm_eps": ([1e-6, 1e-5, 0.1, 1e-12], 0.25), "classifier_dropout": ([None, 0.0, 0.1], 0.25),
    "add_cross_attention": ([False], 0.05), "is_decoder": ([False], 0.05), "is_causal": ([False, None], 0.1), "vocab_size": ([VOCAB], 0.7),
    "position_embedding_type": (["absolute"], 0.0), "chunk_size_feed_forward": ([0, 0, 1, 4], 0.05)}
OWN["modernbert"] = {
    **COMMON, "hidden_size": ([32], 0.7), "num_hidden_layers": ([2], 0.7), "intermediate_size": ([24], 0.7),
    "num_attention_heads": ([4, 2, 8], 0.4), "max_position_embeddings": ([64], 0.5), "vocab_size": ([VOCAB], 0.7),
    "hidden_activation": LLAMAS["hidden_act"], "classifier_activation": LLAMAS["hidden_act"], "norm_eps": NORM_EPS,
    "attention_dropout": DROPS, "embedding_dropout": DROPS, "mlp_dropout": DROPS, "classifier_dropout": DROPS,
    "local_attention": ([4, 9, 1, 40, 128], 0.2), "global_attn_every_n_layers": ([1, 2, 3], 0.2), "layer_types": (layer_types, 0.1),
    "rope_parameters": (lambda rng: rope_by_layers(rng), 0.1), "global_rope_theta": ([50.0, 100, 160000.0], 0.15),
    "local_rope_theta": ([50.0, 100, 10000.0], 0.15), "classifier_pooling": (["cls", "mean"], 0.2),
    "norm_bias": ([True, False], 0.2), "attention_bias": ([True, False], 0.2), "mlp_bias": ([True, False], 0.2),
    "decoder_bias": ([True, False], 0.2), "classifier_bias": ([True, False], 0.2), "is_causal": ([False, None], 0.1),
    "sparse_prediction": ([True, False], 0.2), "deterministic_flash_attn": ([True, False], 0.2), "cls_token_id": ([None, 1], 0.2),
    "initializer_cutoff_factor": ([2.0, 3.0], 0.25), "head_dim": ([8, None], 0.2)}
OWN["t5"] = {
    **COMMON, "d_model": ([32], 0.7), "hidden_size": ([32], 0.7), "d_kv": ([6], 0.7), "head_dim": ([6], 0.7), "d_ff": ([24], 0.7),
    "num_layers": ([2], 0.6), "num_hidden_layers": ([2], 0.7), "num_decoder_layers": ([2, None], 0.3), "num_heads": ([4], 0.5),
    "num_attention_heads": ([4], 0.6), "relative_attention_num_buckets": ([8], 0.4), "vocab_size": ([VOCAB], 0.7),
    "relative_attention_max_distance": ([12, 20, 128, 5, 4, 3], 0.2), "dropout_rate": DROPS, "layer_norm_epsilon": NORM_EPS,
    "initializer_factor": ([1.0, 0.5, 0.0], 0.25), "feed_forward_proj": (["relu", "gated-gelu", "gelu", "gated-silu", "silu", "gated-relu", "relu-x",
                                                                         "gated-x", "a-b-c", "gelu_new", "gated"], 0.1),
    "is_gated_act": ([True, False], 0.1), "dense_act_fn": (["relu", "gelu_new", "silu"], 0.1), "decoder_start_token_id": ([0, 1, 5, None], 0.2),
    "scale_decoder_outputs": ([True, False], 0.1), "classifier_dropout": DROPS, "is_encoder_decoder": ([True], 0.1),
    "is_causal": ([None], 0.1), "num_buckets": ([4], 0.3), "n_positions": ([512], 0.3)}
STORED = ("feed_forward_proj", "is_gated_act", "scale_decoder_outputs", "norm_bias", "decoder_bias", "classifier_bias", "attention_bias", "mlp_bias", "use_bias", "qkv_bias", "use_qkv_bias", "use_parallel_residual", "qk_layernorm",
          "use_qk_norm", "tie_word_embeddings", "new_decoder_architecture", "multi_query", "parallel_attn", "bias",
          "num_ln_in_parallel_attn", "enable_bias", "layer_norm_elementwise_affine", "_remove_final_layer_norm", "q_lora_rank", "first_k_dense_replace")  # which weights there are


def attn_config(rng):
    """Of MPT."""
    table = {"clip_qkv": ([None, 1.0, 0.3, 0.0], 0.1), "softmax_scale": ([None, 0.3, 1.0], 0.1), "attn_pdrop": ([0], 0.1),
             "attn_impl": (["torch", "triton"], 0.1), "attn_type": (["multihead_attention"], 0.1),
             "prefix_lm": ([False], 0.03), "qk_ln": ([False], 0.03), "alibi": ([True, True, True, False], 0.03),
             "alibi_bias_max": ([8, 8, 8, 4], 0.03), "attn_uses_sequence_id": ([False], 0.03)}
    return {k: choose(rng, *table[k]) for k in rng.sample(sorted(table), rng.choice([0, 1, 2, 3]))}


def table_of(family):
    return GPT2S if family == "gpt2" else OWN[family] if family in OWN else {**LLAMAS, **FAMILY_KEYS.get(family, {})}


def mutate(rng, base, config):
    """A mutated copy of a base's config.json, and what was changed."""
    config = copy.deepcopy(config)
    family = BASES[base][0]
    table = table_of(family)
    own = sorted(FAMILY_KEYS.get(family, {}))
    if family == "smollm3":
        own += WINDOW_KEYS
    if family in PARTIAL and family != "gpt_neox":
        own += ["partial_rotary_factor"]
    windows = 0 if family in NO_WINDOW else 2
    keys = rng.choices([None, ROPE_KEYS, WINDOW_KEYS, own], [5, 3, windows, 4 if own else 0])[0]
    if keys is None or family == "gpt2" or family in OWN:
        keys = rng.sample(sorted(table), rng.choice([1, 1, 2, 3]))
    else:
        keys = rng.sample(keys, min(len(keys), rng.choice([1, 2, 3]))) + (rng.sample(sorted(table), 1) if rng.random() < 0.3 else [])
    changes = {}
    for key in keys:
        if rng.random() < (0.01 if key in STORED else 0.08) and key in config:
            del config[key]
            changes[key] = "absent"
            continue
        right, wrong = table[key]
        if family == "gemma3_text" and key == "rope_parameters":
            right = rope_by_layers
        value = wrong_value(rng, key) if rng.random() < wrong else (
            right(rng) if callable(right) else copy.deepcopy(rng.choice(right)))
        if family in PARTIAL and isinstance(value, dict) and key.startswith("rope_") and rng.random() < 0.5:
            value["partial_rotary_factor"] = rng.choice([0.5, 0.25, 1.0, 1, 0.75, 0.5, 0.3, 2.0, None])
        if family == "phi3" and isinstance(value, dict) and key.startswith("rope_") and rng.random() < 0.7:
            long_scaling(rng, value)
        if key in STORED and key in config and isinstance(value, (bool, int)) and rng.random() < 0.9:
            value = config[key]  # the other one does not go with the stored weights
        if key == "layer_types" and family in ("starcoder2", "phi3") and rng.random() < 0.7:
            value = None  # no field of it, and its masks do not go by it
        if key == "layer_types" and family == "qwen3_next" and isinstance(value, list) and rng.random() < 0.8:
            value = [rng.choice(["linear_attention", "full_attention"]) for _ in value]
        if key == "layer_types" and family in ONE_WINDOW and rng.random() < 0.7:
            value = None
        if key in ("sliding_window", "attention_chunk_size") and family in NO_WINDOW and rng.random() < 0.85:
            value = None  # they have no window, and every other value is refused
        config[key] = changes[key] = value
    if family != "gpt2" and family not in OWN and rng.random() < 0.15:  # the layout of transformers 4
        rope = config.pop("rope_parameters", None)
        if isinstance(rope, dict) and "rope_theta" in rope:
            config.setdefault("rope_theta", rope["rope_theta"])
    return config, changes


def cases(seed, n, bases_folder, families=()):
    """n (base, config, changes), the same for the same seed; of these families, or of all."""
    rng = random.Random(seed)
    names = sorted(b for b in BASES if not families or BASES[b][0] in families)
    configs = {b: json.loads((pathlib.Path(bases_folder) / b / "config.json").read_text()) for b in names}
    for _ in range(n):
        base = rng.choice(names)
        yield base, *mutate(rng, base, configs[base])
