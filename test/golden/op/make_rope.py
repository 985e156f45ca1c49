# SPDX-License-Identifier: Apache-2.0
"""Writes rope.txt: cosines and sines of transformers' rotary embeddings. Run: python make_rope.py > rope.txt

Each case: "case NAME head_dim theta scaling factor low high original beta_fast beta_slow attention_factor mscale
mscale_all_dim truncate", then "positions …" and a line "row …" of D numbers for each position (D/2 cosines, D/2 sines).
"""
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

POSITIONS = [0, 1, 2, 17, 63, 100, 511]


def case(name, attrs, head_dim, theta, maximum, parameters):
    config = LlamaConfig(hidden_size=head_dim * 2, num_attention_heads=2, head_dim=head_dim,
                         max_position_embeddings=maximum, rope_parameters=dict(rope_theta=theta, **parameters))
    rope = LlamaRotaryEmbedding(config)
    x = torch.zeros(1)
    cos, sin = rope(x, torch.tensor([POSITIONS]))
    print("case", name, head_dim, theta, *attrs)
    print("positions", *POSITIONS)
    for i in range(len(POSITIONS)):
        half = head_dim // 2
        print("row", *("%.9g" % v for v in torch.cat([cos[0, i, :half], sin[0, i, :half]]).tolist()))


case("plain", [0, 1, 0, 0, 0, 0, 0, -1, 0, 0, 1], 16, 10000.0, 64, dict(rope_type="default"))
case("plain_500k", [0, 1, 0, 0, 0, 0, 0, -1, 0, 0, 1], 64, 500000.0, 64, dict(rope_type="default"))
case("linear", [1, 4, 0, 0, 0, 0, 0, -1, 0, 0, 1], 16, 10000.0, 64, dict(rope_type="linear", factor=4.0))
case("dynamic", [2, 2, 0, 0, 64, 0, 0, -1, 0, 0, 1], 16, 10000.0, 64, dict(rope_type="dynamic", factor=2.0))
case("dynamic_short", [2, 2, 0, 0, 1024, 0, 0, -1, 0, 0, 1], 16, 10000.0, 1024,
     dict(rope_type="dynamic", factor=2.0))
case("yarn", [3, 8, 0, 0, 64, 32, 1, -1, 0, 0, 1], 32, 10000.0, 512,
     dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=64))
case("yarn_mscale", [3, 8, 0, 0, 64, 24, 2, -1, 0.7, 1.2, 0], 32, 10000.0, 512,
     dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=64, mscale=0.7, mscale_all_dim=1.2,
          beta_fast=24, beta_slow=2, truncate=False))
case("yarn_factor", [3, 8, 0, 0, 64, 32, 1, 1.25, 0, 0, 1], 32, 10000.0, 512,
     dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=64, attention_factor=1.25))
case("llama3", [4, 8, 1, 4, 128, 0, 0, -1, 0, 0, 1], 64, 500000.0, 1024,
     dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
          original_max_position_embeddings=128))
