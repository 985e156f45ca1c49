#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llama_k.gguf: a tiny Llama without tokenizer whose matrices are of many types, as those of a Q4_K_M file are, the embedding (tied to the
output) among them. K types and Q8_0 are random blocks, which no quantizer gives. Needs gguf. Run here."""
import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

WIDTH, INNER, HEADS, KEYS, HEAD, VOCAB = 256, 64, 2, 1, 32, 48
rng = np.random.default_rng(9)


def half(n, low, high):
    return rng.uniform(low, high, (n, 1)).astype(np.float16).view(np.uint8)


def blocks(kind, rows, columns):
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    n = rows * columns // elements
    b = rng.integers(0, 256, (n, size)).astype(np.uint8)
    if kind in (T.Q4_K, T.Q5_K):  # d·scale·q - dmin·minimum, around 0
        top = 15 if kind == T.Q4_K else 31
        b[:, 0:2] = half(n, 0.02, 0.03) if kind == T.Q4_K else half(n, 0.01, 0.015)
        b[:, 0:2] = (b[:, 0:2].copy().view(np.float16) / 48).view(np.uint8)
        b[:, 2:4] = (b[:, 0:2].copy().view(np.float16) * (top / 2)).astype(np.float16).view(np.uint8)
    elif kind == T.Q6_K:
        b[:, 208:210] = half(n, 2e-5, 3e-5)
    else:
        b[:, 0:2] = half(n, 5e-4, 1e-3)
    return b.reshape(rows, -1)


w = gguf.GGUFWriter("llama_k.gguf", "llama")
w.add_block_count(1)
w.add_context_length(64)
w.add_embedding_length(WIDTH)
w.add_feed_forward_length(INNER)
w.add_head_count(HEADS)
w.add_head_count_kv(KEYS)
w.add_key_length(HEAD)
w.add_value_length(HEAD)
w.add_rope_dimension_count(HEAD)
w.add_layer_norm_rms_eps(1e-5)
w.add_rope_freq_base(10000.0)
for name, kind, rows, columns in (
        ("token_embd", T.Q6_K, VOCAB, WIDTH), ("blk.0.attn_q", T.Q4_K, HEADS * HEAD, WIDTH), ("blk.0.attn_k", T.Q5_K, KEYS * HEAD, WIDTH),
        ("blk.0.attn_v", T.Q6_K, KEYS * HEAD, WIDTH), ("blk.0.attn_output", T.Q5_0, WIDTH, HEADS * HEAD), ("blk.0.ffn_gate", T.Q4_K, INNER, WIDTH),
        ("blk.0.ffn_up", T.F16, INNER, WIDTH), ("blk.0.ffn_down", T.Q8_0, WIDTH, INNER)):
    if kind == T.F16:
        w.add_tensor(name + ".weight", (rng.standard_normal((rows, columns)) * 0.05).astype(np.float16))
    else:
        w.add_tensor(name + ".weight", blocks(kind, rows, columns), raw_dtype=kind)
for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
    w.add_tensor(name + ".weight", rng.uniform(0.5, 1.5, WIDTH).astype(np.float32))
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
