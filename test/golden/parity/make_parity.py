#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the parity goldens: small random models of each family, run by transformers.

For every variant a folder with
  config.json, model.safetensors   the model as transformers saves it
  golden.safetensors               tokens, targets (aligned with the logits, -100 not counted), positions and
                                   first (lowest visible position of each query), logits in f32, bf16 and f16
  grads.safetensors                gradient of the loss by parameter name (of some layers for rope_*)
  golden.json                      losses in the three types, twenty AdamW steps' losses, greedy tokens

Needs torch, transformers, safetensors. Deterministic. Run: make_parity.py [OUTPUT_FOLDER [VARIANT ...]];
"losses" before the variants remakes the losses of the steps alone, of models and batches that are there.
"""
import json
import math
import os
import re
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, BloomConfig, Cohere2Config, CohereConfig, DeepseekV2Config,
                          DeepseekV3Config, FalconConfig, Gemma2Config,
                          Gemma3TextConfig, GemmaConfig, Glm4Config, Glm4MoeConfig, GlmConfig, GPT2Config, GPTJConfig, GPTNeoXConfig, GptOssConfig,
                          GraniteConfig, GraniteMoeConfig, LlamaConfig, MistralConfig, MixtralConfig, MptConfig,
                          Olmo2Config, OlmoConfig, OlmoeConfig, OPTConfig, Phi3Config, Qwen2Config, Qwen2MoeConfig,
                          Qwen3Config, Qwen3MoeConfig, Qwen3NextConfig, SmolLM3Config, StableLmConfig, Starcoder2Config)

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
torch.backends.mkldnn.enabled = False  # plain kernels; oneDNN's f16 ones fault on some virtual machines
V, B, T = 131, 2, 24
NO_IDS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
LLAMA = dict(vocab_size=V, hidden_size=32, intermediate_size=40, num_hidden_layers=4,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
             rms_norm_eps=1e-5, initializer_range=0.2, attention_dropout=0.0, **NO_IDS)
LLAMA3_ROPE = dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0,
                   high_freq_factor=8.0, original_max_position_embeddings=64)

EXPERTS = dict(hidden_size=24, num_hidden_layers=2, output_router_logits=True, router_aux_loss_coef=0.3,
               tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=10000.0))


def rope(kind, theta=10000.0, **more):
    return dict(rope_type=kind, rope_theta=theta, **more)


SMALL = {**LLAMA, "hidden_size": 48, "num_hidden_layers": 2}  # of heads of 12
LAYER_NORM = {k: v for k, v in SMALL.items() if k != "rms_norm_eps"}

GROUPED = dict(n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3, moe_intermediate_size=16,
               first_k_dense_replace=1, routed_scaling_factor=1.5)
LATENT = dict(SMALL, num_key_value_heads=4, q_lora_rank=20, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4,
              v_head_dim=10)

FALCON = dict(vocab_size=V, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, ffn_hidden_size=40,
              layer_norm_epsilon=1e-4, max_position_embeddings=256, initializer_range=0.2,
              rope_parameters=rope("default"), **NO_IDS)


def llama(**more):
    return LlamaConfig(**{**LLAMA, **more})


VARIANTS = {
    "gpt2": GPT2Config(vocab_size=V, n_positions=80, n_embd=24, n_layer=4, n_head=3, resid_pdrop=0.0,
                       embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.2, **NO_IDS),
    "llama2": llama(num_key_value_heads=4, tie_word_embeddings=False, rope_parameters=rope("default")),
    "llama3": llama(tie_word_embeddings=False, rope_parameters=LLAMA3_ROPE),
    "llama3_tied": llama(tie_word_embeddings=True, rope_parameters=LLAMA3_ROPE),
    "mistral": MistralConfig(**{**LLAMA, "sliding_window": 7, "tie_word_embeddings": False,
                                "rope_parameters": rope("default")}),
    "qwen2": Qwen2Config(**{**LLAMA, "tie_word_embeddings": True, "sliding_window": 7,
                            "use_sliding_window": False, "max_window_layers": 2,
                            "rope_parameters": rope("default")}),
    # head_dim is not hidden_size / heads, and layers 2 and 3 use the window
    "qwen3": Qwen3Config(**{**LLAMA, "hidden_size": 24, "head_dim": 8, "tie_word_embeddings": True,
                            "sliding_window": 7, "use_sliding_window": True, "max_window_layers": 2,
                            "rope_parameters": rope("default")}),
    "rope_linear": llama(tie_word_embeddings=True, rope_parameters=rope("linear", factor=3.0)),
    "rope_dynamic": llama(tie_word_embeddings=True, max_position_embeddings=16,
                          rope_parameters=rope("dynamic", factor=2.0)),
    "rope_yarn": llama(tie_word_embeddings=True,
                       rope_parameters=rope("yarn", theta=100.0, factor=4.0,
                                            original_max_position_embeddings=64)),
    "olmo2": Olmo2Config(**{**LLAMA, "hidden_size": 24, "num_hidden_layers": 2, "head_dim": 8,
                            "rope_parameters": rope("default")}),
    "granite": GraniteConfig(**{**LLAMA, "hidden_size": 24, "num_hidden_layers": 2, "head_dim": 8,
                                "tie_word_embeddings": True, "attention_bias": True, "embedding_multiplier": 6.0,
                                "residual_multiplier": 0.3, "attention_multiplier": 0.2, "logits_scaling": 3.0,
                                "rope_parameters": rope("default")}),
    # layers 1 and 3 have no rotary positions, and the window
    "smollm3": SmolLM3Config(**{**LLAMA, "hidden_size": 24, "head_dim": 8, "no_rope_layer_interval": 2,
                                "use_sliding_window": True, "sliding_window": 7, "rope_parameters": rope("default")}),
    "starcoder2": Starcoder2Config(**{**{k: v for k, v in LLAMA.items() if k != "rms_norm_eps"}, "hidden_size": 24,
                                      "num_hidden_layers": 2, "head_dim": 8, "norm_epsilon": 1e-4,
                                      "sliding_window": 7, "tie_word_embeddings": False,
                                      "rope_parameters": rope("default")}),
    # the loss that balances the routers is a large part of the whole, so that its gradient shows
    "mixtral": MixtralConfig(**{**LLAMA, **EXPERTS, "head_dim": 8, "num_local_experts": 5, "num_experts_per_tok": 2}),
    # layer 0 has an MLP by the step, layer 3 by the list
    "qwen3_moe": Qwen3MoeConfig(**{**LLAMA, **EXPERTS, "num_hidden_layers": 4, "head_dim": 8, "num_experts": 6,
                                   "num_experts_per_tok": 3, "moe_intermediate_size": 16, "norm_topk_prob": True,
                                   "decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    # the window in layer 0 alone
    "qwen2_moe": Qwen2MoeConfig(**{**LLAMA, **EXPERTS, "head_dim": 8, "num_experts": 6, "num_experts_per_tok": 3,
                                   "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24,
                                   "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}),
    "olmoe": OlmoeConfig(**{**LLAMA, **EXPERTS, "hidden_size": 32, "intermediate_size": 16, "num_experts": 7,
                            "num_experts_per_tok": 3, "clip_qkv": 1.5}),
    "granitemoe": GraniteMoeConfig(**{**LLAMA, **EXPERTS, "head_dim": 8, "num_local_experts": 5,
                                      "num_experts_per_tok": 2, "embedding_multiplier": 6.0,
                                      "residual_multiplier": 0.3, "attention_multiplier": 0.2,
                                      "logits_scaling": 3.0}),
    # 6 of 12 dims are rotated
    "stablelm": StableLmConfig(**{**LAYER_NORM, "layer_norm_eps": 1e-4, "use_qkv_bias": True,
                                  "rope_parameters": rope("default", partial_rotary_factor=0.5)}),
    "stablelm_parallel": StableLmConfig(**{**LAYER_NORM, "layer_norm_eps": 1e-4, "use_parallel_residual": True,
                                           "rope_parameters": rope("default", partial_rotary_factor=0.5)}),
    "gpt_neox": GPTNeoXConfig(**{**LAYER_NORM, "layer_norm_eps": 1e-4, "hidden_dropout": 0.0,
                                 "rope_parameters": rope("default", partial_rotary_factor=0.5)}),
    # q, k, v and gate, up packed; a window
    "phi3": Phi3Config(**{**SMALL, "sliding_window": 7, "original_max_position_embeddings": 256,
                          "rope_parameters": rope("default", partial_rotary_factor=0.5)}),
    # 4 frequencies, each with a divisor of its own; the batch is no longer than the original positions
    "phi3_longrope": Phi3Config(**{**SMALL, "num_key_value_heads": 4, "original_max_position_embeddings": 64,
                                   "rope_parameters": rope("longrope", theta=100.0, partial_rotary_factor=0.67,
                                                           short_factor=[1.1, 1.4, 2.0, 3.5],
                                                           long_factor=[2.0, 4.0, 8.0, 9.0])}),
    "phi3_heads": Phi3Config(**{**SMALL, "num_key_value_heads": 4, "original_max_position_embeddings": 256,
                                "rope_parameters": rope("default")}),
    # neighbours of a part of each head turn
    "glm": GlmConfig(**{**SMALL, "hidden_size": 24, "head_dim": 8,
                        "rope_parameters": rope("default", partial_rotary_factor=0.5)}),
    "glm4": Glm4Config(**{**SMALL, "hidden_size": 24, "head_dim": 8,
                          "rope_parameters": rope("default", partial_rotary_factor=0.5)}),
    "cohere": CohereConfig(**{**LAYER_NORM, "layer_norm_eps": 1e-4, "logit_scale": 0.3, "tie_word_embeddings": True,
                              "rope_parameters": rope("default")}),
    "gemma": GemmaConfig(**{**SMALL, "hidden_size": 24, "head_dim": 16, "rope_parameters": rope("default")}),
    # the window in layer 0, heads of 10, soft caps that bend
    "gemma2": Gemma2Config(**{**SMALL, "hidden_size": 24, "head_dim": 10, "query_pre_attn_scalar": 5,
                              "sliding_window": 7, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0,
                              "rope_parameters": rope("default")}),
    # a window and rotary positions of its own in layer 0
    "gemma3": Gemma3TextConfig(**{**SMALL, "hidden_size": 24, "head_dim": 16, "query_pre_attn_scalar": 12,
                                  "sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"],
                                  "rope_parameters": {"full_attention": rope("linear", theta=1000.0, factor=4.0),
                                                      "sliding_attention": rope("default", theta=100.0)}}),
    "olmo": OlmoConfig(**{**LAYER_NORM, "clip_qkv": 1.5, "rope_parameters": rope("default")}),
    # 6 of 12 dims turn
    "gptj": GPTJConfig(vocab_size=V, n_positions=80, n_embd=48, n_layer=2, n_head=4, n_inner=40, rotary_dim=6,
                       layer_norm_epsilon=1e-4, initializer_range=0.2, **NO_IDS),
    "opt": OPTConfig(vocab_size=V, hidden_size=48, num_hidden_layers=2, ffn_dim=40, max_position_embeddings=80,
                     num_attention_heads=4, word_embed_proj_dim=48, dropout=0.0, init_std=0.2,
                     **NO_IDS),
    # one head of keys; groups of two queries with their keys, and two norms; one behind the other
    "falcon": FalconConfig(**{**FALCON, "multi_query": True}),
    "falcon_groups": FalconConfig(**{**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon_heads": FalconConfig(**{**FALCON, "multi_query": False, "parallel_attn": False}),
    # heads of 9, and slopes between those of 4
    "bloom": BloomConfig(vocab_size=V, hidden_size=54, n_layer=2, n_head=6, layer_norm_epsilon=1e-4,
                         initializer_range=0.2, **NO_IDS),
    "mpt": MptConfig(vocab_size=V, d_model=48, n_layers=2, n_heads=4, max_seq_len=96, initializer_range=0.2,
                     attn_config=dict(clip_qkv=1.5, softmax_scale=0.4), **NO_IDS),
    "cohere_norms": CohereConfig(**{**LAYER_NORM, "layer_norm_eps": 1e-4, "logit_scale": 0.3, "use_qk_norm": True,
                                    "tie_word_embeddings": True, "rope_parameters": rope("default")}),
    # layer 0 has the window and rotary positions
    "cohere2": Cohere2Config(**{**LAYER_NORM, "layer_norm_eps": 1e-4, "logit_scale": 0.3, "sliding_window": 7,
                                "layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": True,
                                "rope_parameters": rope("default")}),
    # norms of the sums behind attention and MLP, embeddings of another width
    "opt_behind": OPTConfig(vocab_size=V, hidden_size=48, num_hidden_layers=2, ffn_dim=40, max_position_embeddings=80,
                            num_attention_heads=4, word_embed_proj_dim=20, do_layer_norm_before=False, dropout=0.0,
                            init_std=0.2, **NO_IDS),
    "stablelm_norms": StableLmConfig(**{**LAYER_NORM, "layer_norm_eps": 1e-4, "qk_layernorm": True,
                                        "rope_parameters": rope("default", partial_rotary_factor=0.5)}),
    # two of four groups of experts; layer 0 has an MLP
    "glm4_moe": Glm4MoeConfig(**{**SMALL, **GROUPED, "hidden_size": 24, "head_dim": 8, "num_hidden_layers": 3,
                                 "attention_bias": True, "use_qk_norm": True, "n_shared_experts": 2,
                                 "rope_parameters": rope("default", partial_rotary_factor=0.5)}),
    # heads of values of 10 dims, of keys of 12; layer 0 has an MLP
    "deepseek_v3": DeepseekV3Config(**{**LATENT, **GROUPED, "num_hidden_layers": 3, "attention_bias": True,
                                       "rope_parameters": rope("yarn", theta=100.0, factor=4.0, mscale=1.0,
                                                               mscale_all_dim=0.7,
                                                               original_max_position_embeddings=64)}),
    # values wider than keys, queries at once, halves turn; all layers have experts
    "deepseek_v3_halves": DeepseekV3Config(**{**LATENT, **GROUPED, "q_lora_rank": None, "v_head_dim": 16,
                                              "rope_interleave": False, "first_k_dense_replace": 0,
                                              "norm_topk_prob": False, "rope_parameters": rope("default")}),
    "deepseek_v2": DeepseekV2Config(**{**LATENT, **GROUPED, "q_lora_rank": None, "n_group": None, "topk_group": None,
                                       "n_routed_experts": 7, "n_shared_experts": 2,
                                       "rope_parameters": rope("default")}),
    "deepseek_v2_groups": DeepseekV2Config(**{**LATENT, **GROUPED, "topk_method": "group_limited_greedy",
                                              "first_k_dense_replace": 0,
                                              "rope_parameters": rope("yarn", theta=100.0, factor=4.0, mscale=0.7,
                                                                      mscale_all_dim=0.7,
                                                                      original_max_position_embeddings=64)}),
    # the window in layer 0; bounds of the gate that many meet
    "gpt_oss": GptOssConfig(**{**LLAMA, **EXPERTS, "head_dim": 8, "intermediate_size": 16, "num_local_experts": 5,
                               "num_experts_per_tok": 2, "sliding_window": 7, "swiglu_limit": 1.5,
                               "rope_parameters": rope("yarn", theta=100.0, factor=4.0, truncate=False,
                                                       original_max_position_embeddings=64)}),
}
# linear attention in layers 0 and 2, its heads of values two to one of keys; 4 of 8 dims turn; layer 2 has an MLP;
# eps is so large that the norm of a first position, of which the state is one product, does not blow roundings up
VARIANTS["qwen3_next"] = Qwen3NextConfig(**{**LLAMA, "num_hidden_layers": 3, "head_dim": 8, "rms_norm_eps": 0.01,
                                            "attention_bias": True, "num_experts": 4, "num_experts_per_tok": 2,
                                            "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24,
                                            "mlp_only_layers": [2],
                                            "linear_conv_kernel_dim": 3, "linear_key_head_dim": 10,
                                            "linear_value_head_dim": 6, "linear_num_key_heads": 2,
                                            "linear_num_value_heads": 4, "full_attention_interval": 2,
                                            "rope_parameters": rope("default", partial_rotary_factor=0.5)})
VARIANTS["gpt_oss_mxfp4"] = GptOssConfig(**{**VARIANTS["gpt_oss"].to_dict(), "hidden_size": 32, "intermediate_size": 32,
                                            "num_local_experts": 3})
# slopes and their products with positions that bf16 rounds
VARIANTS["falcon_rw"] = FalconConfig(**{**FALCON, "multi_query": False, "parallel_attn": False, "bias": True,
                                        "alibi": True, "num_attention_heads": 12})
WEIGHTS_OF = {"rope_linear": "llama3_tied", "rope_dynamic": "llama3_tied", "rope_yarn": "llama3_tied"}
PACKED = {"gpt2": "packed_gpt2", "llama3_tied": "packed_llama", "qwen3_next": "packed_qwen3_next"}
GREEDY = ("gpt2", "llama3_tied", "mixtral", "qwen3_moe", "stablelm", "gpt_neox", "phi3", "glm4", "cohere", "gemma2", "gemma3", "olmo",
          "gptj", "opt", "falcon", "falcon_groups", "falcon_rw", "bloom", "mpt", "cohere2", "opt_behind", "stablelm_norms",
          "glm4_moe", "deepseek_v2", "deepseek_v3", "deepseek_v3_halves", "gpt_oss", "qwen3_next")
STORED_AS = {("gpt_neox", "lm_head.weight"): "embed_out.weight"}


def perturb(model):
    """Norm weights away from 1 and biases away from 0, so that forgetting one shows; matrices large
    enough that the layers, not the embeddings, decide the next token."""
    std = 0.5 if model.config.model_type == "gpt2" else 0.3
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1:
                plus = model.config.model_type.startswith("gemma") or (  # weights are added to 1
                    model.config.model_type == "qwen3_next" and "linear_attn" not in name)
                base = 0.0 if name.endswith("bias") or plus else -1.5 if name.endswith("A_log") else 1.0
                p.copy_(base + 0.2 * torch.randn_like(p))
            elif p.ndim >= 2 and not name.endswith(("embed_tokens.weight", "lm_head.weight", "wte.weight",
                                                    "wpe.weight", "embed_in.weight", "embed_out.weight",
                                                    "word_embeddings.weight", "embed_positions.weight")):
                p.copy_(std * torch.randn_like(p))
        for name, b in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # 0 before training
                b.copy_(0.2 * torch.randn_like(b))


def load(folder, dtype):
    kind = "sdpa" if os.path.basename(folder) == "falcon_rw" else "eager"  # whose eager adds its biases twice
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=kind)
    return model.eval()  # dropout is 0 anyhow


def loss_of(logits, targets):
    return F.cross_entropy(logits.float().reshape(-1, V), targets.reshape(-1), ignore_index=-100)


def balance_loss(out, config):
    """What transformers adds to the loss where it has output_router_logits."""
    return config.router_aux_loss_coef * out.aux_loss if getattr(config, "output_router_logits", False) else 0.0


def visible_mask(first, window=None):
    """Additive (B,1,T,T): query i sees keys first[i] <= j <= i."""
    t = first.shape[1]
    i = torch.arange(t)[None, :, None]
    j = torch.arange(t)[None, None, :]
    see = (j <= i) & (j >= first[:, :, None])
    return torch.zeros(see.shape).masked_fill(~see, torch.finfo(torch.float32).min)[:, None]


def documents_of(batch):
    """(row, from, to) of each document."""
    for b, first in enumerate(batch["first"].tolist()):
        starts = sorted(set(first))
        yield from ((b, start, end) for start, end in zip(starts, starts[1:] + [T]))


def apart(batch):
    """Documents as rows, for states that no mask stops; what fills a row up is behind its document."""
    rows = [batch["tokens"][b, i:j] for b, i, j in documents_of(batch)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def run(model, batch):
    """Logits, and what is added to the loss of them."""
    if batch["first"].any() and model.config.model_type == "qwen3_next":
        logits = model(input_ids=apart(batch)).logits
        rows = [logits[n, :j - i] for n, (b, i, j) in enumerate(documents_of(batch))]
        return torch.cat(rows).reshape(B, T, V), 0.0
    if batch["first"].any():
        return model(input_ids=batch["tokens"], position_ids=batch["positions"],
                     attention_mask=visible_mask(batch["first"]).to(model.dtype)).logits, 0.0
    out = model(input_ids=batch["tokens"])
    return out.logits, balance_loss(out, model.config)


def forward(model, batch):
    return run(model, batch)[0]


def whole_loss(model, batch):
    logits, extra = run(model, batch)
    return loss_of(logits, batch["targets"]) + extra


def make_batch(seed, documents=False):
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, V, (B, T), generator=g)
    targets = torch.full((B, T), -100)
    targets[:, :-1] = tokens[:, 1:]
    targets[torch.rand((B, T), generator=g) < 0.1] = -100
    positions = torch.arange(T).expand(B, T).clone()
    first = torch.zeros((B, T), dtype=torch.long)
    if documents:
        for b, starts in enumerate(((0, 5, 6, 17), (0, 11))):
            for start in starts:
                first[b, start:] = start
                if start > 0:
                    targets[b, start - 1] = -100
        positions = positions - first
    return dict(tokens=tokens, targets=targets, positions=positions, first=first)


def check_documents(model, batch, logits):
    """A document alone gives the logits that it has in the pack."""
    b, start = 0, 6
    alone = model(input_ids=batch["tokens"][b:b + 1, start:17]).logits
    assert torch.allclose(alone[0], logits[b, start:17], atol=1e-4), "packing differs"


def kept_gradients(name, grads):
    if name not in WEIGHTS_OF:
        return grads
    return {k: g for k, g in grads.items() if "layers.0.self_attn" in k or "layers.3.self_attn" in k}


def stored_gradients(model):
    """By the names that weights are stored under; of experts, which are stored one by one, with a * for their
    number and all of them in one tensor."""
    grads = {}
    for name, p in model.named_parameters():
        kind = model.config.model_type
        if name.endswith("experts.gate_up_proj") and kind not in ("granitemoe", "gpt_oss"):
            gate, up = p.grad.chunk(2, dim=1)
            of = name.removesuffix("gate_up_proj").replace("mlp", "block_sparse_moe" if kind == "mixtral" else "mlp")
            names = ("w1", "w3") if kind == "mixtral" else ("gate_proj", "up_proj")
            grads |= {f"{of}*.{names[0]}.weight": gate, f"{of}*.{names[1]}.weight": up}
        elif name.endswith("experts.down_proj") and kind not in ("granitemoe", "gpt_oss"):
            of = name.removesuffix("down_proj").replace("mlp", "block_sparse_moe" if kind == "mixtral" else "mlp")
            grads[f"{of}*.{'w2' if kind == 'mixtral' else 'down_proj'}.weight"] = p.grad
        elif kind == "mixtral" and name.endswith("mlp.gate.weight"):
            grads[name.replace("mlp", "block_sparse_moe")] = p.grad
        elif kind == "granitemoe" and "block_sparse_moe" in name:
            for a, b in (("experts.gate_up_proj", "input_linear.weight"), ("experts.down_proj", "output_linear.weight"),
                         ("router.weight", "router.layer.weight")):
                name = name.replace(a, b)
            grads[name] = p.grad
        elif "_layernorm.norms." in name:  # of stablelm, heads in their order
            grads.setdefault(re.sub(r"norms\.\d+", "norms.*", name), []).append(p.grad)
        else:
            grads[name] = p.grad
    return {k: torch.stack(g) if isinstance(g, list) else g for k, g in grads.items()}


def adamw_losses(folder, batch, noise=0, steps=20):
    model = load(folder, torch.float32)
    if noise:
        g = torch.Generator().manual_seed(noise)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 + 3e-7 * torch.randn(p.shape, generator=g))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8,
                                  weight_decay=0.01, foreach=False, fused=False)
    losses = []
    for _ in range(steps):
        loss = whole_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def well_conditioned(folder, batch):
    """Adam divides by the gradient's size, so an element whose gradient is all rounding moves by the
    whole rate in either direction. A batch serves as golden when weights changed by a few roundings
    give the same ten losses."""
    want = torch.tensor(adamw_losses(folder, batch, steps=10))
    return all(((torch.tensor(adamw_losses(folder, batch, noise, 10)) - want) / want).abs().max() < 2e-6
               for noise in range(1, 7))


def grouped_clearly(gate, logits):
    """The same where experts are in groups, and their scores are sigmoids with a bias or a softmax: no change of
    logits by 0.015 chooses others."""
    bias = getattr(gate, "e_score_correction_bias", None)

    def scores(change):
        return logits.softmax(-1) * math.exp(change) if bias is None else (logits + change).sigmoid() + bias

    def ahead(middle, low, high, k):
        chosen = torch.zeros_like(middle, dtype=torch.bool).scatter(-1, middle.topk(k).indices, True)
        return chosen, bool((low.masked_fill(~chosen, math.inf).amin(-1) >
                             high.masked_fill(chosen, -math.inf).amax(-1)).all())

    found, clear = [scores(change) for change in (0, -0.015, 0.015)], True
    if (gate.num_group or 1) > 1:
        groups = [s.unflatten(-1, (gate.num_group, -1)).topk(1 if bias is None else 2).values.sum(-1) for s in found]
        kept, clear = ahead(*groups, gate.topk_group)
        kept = kept.repeat_interleave(logits.shape[-1] // gate.num_group, -1)
        found = [s.masked_fill(~kept, -math.inf) for s in found]
    return clear and ahead(*found, gate.top_k)[1]


def chosen_clearly(model, batch):
    """Each token's last chosen expert is well ahead of the next, so that rounding to 16 bits chooses no other:
    tokens that go to other experts would be all that the distance to fp32 shows."""
    config = model.config
    if not hasattr(config, "num_experts_per_tok"):
        return True
    with torch.no_grad():
        tokens = apart(batch) if batch["first"].any() else batch["tokens"]
        logits = model(input_ids=tokens, output_router_logits=True).router_logits
    gates = [m for m in model.modules() if hasattr(m, "num_group")]
    if gates:
        return all(grouped_clearly(*pair) for pair in zip(gates, logits, strict=True))
    logits = torch.cat(logits)
    top = logits.topk(config.num_experts_per_tok + 1).values
    return bool((top[:, -2] - top[:, -1]).min() > 0.03)


def clear_batch(folder, seed, documents=False):
    model = load(folder, torch.float32)
    for attempt in range(4000):
        batch = make_batch(seed + 1000 * attempt, documents)
        if chosen_clearly(model, batch) and well_conditioned(folder, batch):
            return batch
    raise SystemExit(f"{folder}: no well-conditioned batch")


def greedy(model):
    """64 tokens after a prompt whose every choice is clear: no near ties."""
    for seed in range(400):
        prompt = torch.randint(0, V, (1, 8), generator=torch.Generator().manual_seed(seed))
        out = model.generate(prompt, max_new_tokens=64, do_sample=False, eos_token_id=None,
                             pad_token_id=0, attention_mask=torch.ones_like(prompt))
        top = model(input_ids=out).logits[0, 7:-1].topk(2).values
        if len(out[0, 8:].unique()) > 10 and (top[:, 0] - top[:, 1]).min() > 0.005:
            return dict(prompt=prompt[0].tolist(), greedy=out[0, 8:].tolist())
    raise SystemExit("no prompt without near ties")


def write(folder, name, batch, extra):
    model = load(folder, torch.float32)
    logits, extra_loss = run(model, batch)
    if batch["first"].any():
        check_documents(model, batch, logits)
    loss = loss_of(logits, batch["targets"]) + extra_loss
    loss.backward()
    grads = {STORED_AS.get((model.config.model_type, k), k): g for k, g in stored_gradients(model).items()}
    golden = {k: v.to(torch.int32) for k, v in batch.items()}
    golden["logits"] = logits.detach()
    scalars = dict(loss=loss.item(), adamw_losses=adamw_losses(folder, batch), **extra)
    for text, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
        with torch.no_grad():
            narrow, extra_loss = run(load(folder, dtype), batch)
        golden["logits_" + text] = narrow
        scalars["loss_" + text] = (loss_of(narrow, batch["targets"]) + extra_loss).item()
    save_file({k: v.contiguous() for k, v in golden.items()}, f"{folder}/golden.safetensors")
    save_file({k: v.contiguous() for k, v in kept_gradients(name, grads).items()},
              f"{folder}/grads.safetensors")
    with open(f"{folder}/golden.json", "w") as f:
        json.dump(scalars, f, indent=1)
        f.write("\n")
    print(name, {k: v for k, v in scalars.items() if k.startswith("loss")})


def rewrite_losses(names):
    """The losses alone, of the models and batches that are there."""
    for name in names or sorted(os.listdir(".")):
        if not os.path.exists(f"{name}/golden.json"):
            continue
        stored = load_file(f"{name}/golden.safetensors")
        batch = {k: v.long() for k, v in stored.items() if not k.startswith("logits")}
        with open(f"{name}/golden.json") as f:
            scalars = json.load(f)
        before, scalars["adamw_losses"] = scalars["adamw_losses"], adamw_losses(name, batch)
        print(name, max(abs(a - b) / b for a, b in zip(scalars["adamw_losses"], before)))
        with open(f"{name}/golden.json", "w") as f:
            json.dump(scalars, f, indent=1)
            f.write("\n")


def save_model(folder, config, seed):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    perturb(model)
    model.save_pretrained(folder)
    if os.path.exists(f"{folder}/generation_config.json"):
        os.remove(f"{folder}/generation_config.json")


def pack_experts(folder, seed):
    """Experts' matrices in MXFP4, of random bytes: blocks of 32 elements, two a byte, and their exponents plus 127."""
    g, stored = torch.Generator().manual_seed(seed), {}
    for name, w in load_file(f"{folder}/model.safetensors").items():
        if name.endswith("_proj") and ".experts." in name:
            e, k, o = w.shape
            stored[name + "_blocks"] = torch.randint(0, 256, (e, o, k // 32, 16), generator=g, dtype=torch.uint8)
            stored[name + "_scales"] = torch.randint(123, 127, (e, o, k // 32), generator=g, dtype=torch.uint8)
        else:
            stored[name] = w
    save_file(stored, f"{folder}/model.safetensors", metadata={"format": "pt"})
    with open(f"{folder}/config.json") as f:
        config = json.load(f)
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    with open(f"{folder}/config.json", "w") as f:
        json.dump(config, f, indent=2)


def share_weights(folder, of):
    path = f"{folder}/model.safetensors"
    if os.path.lexists(path):
        os.remove(path)
    os.symlink(f"../{of}/model.safetensors", path)


def main():
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__)))
    if sys.argv[2:3] == ["losses"]:
        return rewrite_losses(sys.argv[3:])
    for seed, (name, config) in enumerate(VARIANTS.items()):
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        save_model(name, config, seed)
        if name == "gpt_oss_mxfp4":
            pack_experts(name, seed)
        if name in WEIGHTS_OF:
            share_weights(name, WEIGHTS_OF[name])
        extra = greedy(load(name, torch.float32)) if name in GREEDY else {}
        write(name, name, clear_batch(name, 100 + seed), extra)
        if name in PACKED:
            packed = PACKED[name]
            os.makedirs(packed, exist_ok=True)
            with open(f"{name}/config.json") as source, open(f"{packed}/config.json", "w") as copy:
                copy.write(source.read())
            share_weights(packed, name)
            write(packed, packed, clear_batch(packed, 200 + seed, documents=True), {})


if __name__ == "__main__":
    main()
