# SPDX-License-Identifier: Apache-2.0
"""A folder of GPTQ with experts, of drawn words. Usage: gptq_experts.py FOLDER."""
import json
import os
import random
import struct
import sys

WIDTH, EXPERTS, VOCAB, HEAD = 64, 4, 256, 16
random.seed(1)
tensors = {}


def half(name, *shape):
    n = shape[0] * (shape[1] if len(shape) > 1 else 1)
    tensors[name + ".weight"] = ("F16", shape, struct.pack(f"<{n}e", *(random.gauss(0, 0.05) if len(shape) > 1 else 1 for _ in range(n))))


def packed(name):
    groups = WIDTH // 32
    tensors[name + ".qweight"] = ("I32", (WIDTH // 8, WIDTH), random.randbytes(WIDTH // 8 * WIDTH * 4))
    tensors[name + ".qzeros"] = ("I32", (groups, WIDTH // 8), b"\x77" * (groups * WIDTH // 2))
    tensors[name + ".scales"] = ("F16", (groups, WIDTH), struct.pack("<e", 0.01) * (groups * WIDTH))
    tensors[name + ".g_idx"] = ("I32", (WIDTH,), struct.pack(f"<{WIDTH}i", *(k // 32 for k in range(WIDTH))))


LAYER = "model.layers.0."
for matrix in ("model.embed_tokens", "lm_head"):
    half(matrix, VOCAB, WIDTH)
for norm in ("model.norm", LAYER + "input_layernorm", LAYER + "post_attention_layernorm"):
    half(norm, WIDTH)
for norm in "qk":
    half(f"{LAYER}self_attn.{norm}_norm", HEAD)
for matrix in "qkvo":
    packed(f"{LAYER}self_attn.{matrix}_proj")
half(LAYER + "mlp.gate", EXPERTS, WIDTH)
for e in range(EXPERTS):
    for matrix in ("gate", "up", "down"):
        packed(f"{LAYER}mlp.experts.{e}.{matrix}_proj")
header, data = {}, b""
for key, (dtype, shape, words) in tensors.items():
    header[key] = dict(dtype=dtype, shape=shape, data_offsets=[len(data), len(data) + len(words)])
    data += words
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
os.makedirs(sys.argv[1])
with open(sys.argv[1] + "/model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + data)
with open(sys.argv[1] + "/config.json", "w", encoding="utf8") as file:
    json.dump(dict(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_size=WIDTH, intermediate_size=WIDTH, moe_intermediate_size=WIDTH,
                   num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4, head_dim=HEAD, num_experts=EXPERTS, num_experts_per_tok=2,
                   norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], vocab_size=VOCAB, max_position_embeddings=128, rms_norm_eps=1e-6,
                   rope_theta=10000.0, tie_word_embeddings=False, torch_dtype="float16", hidden_act="silu", attention_bias=False,
                   quantization_config=dict(quant_method="gptq", bits=4, group_size=32, desc_act=False, sym=True, checkpoint_format="gptq")), file)
