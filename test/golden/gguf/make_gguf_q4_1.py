#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llama_q4_1.gguf: a tiny Llama without tokenizer whose matrices are random blocks of Q4_1 that no quantizer gives: numbers from 2 to 12, so
that rounding their values again moves scales. Needs torch, transformers, gguf. Run here."""
import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import make_gguf_models as made

config = LlamaConfig(vocab_size=48, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
                     max_position_embeddings=64, tie_word_embeddings=False)
rng = np.random.default_rng(5)
w = gguf.GGUFWriter("llama_q4_1.gguf", "llama")
made.add_decoder(w, "llama", config)
table = made.names("llama", config)
for k, v in AutoModelForCausalLM.from_config(config).state_dict().items():
    module, kind = k.rsplit(".", 1)
    n = v.numel() // 32
    if v.ndim == 1 or "embed" in k:
        w.add_tensor(f"{table[module]}.{kind}", rng.standard_normal(v.shape).astype(np.float32))
        continue
    scale = (rng.random((n, 1)) * 0.02 + 0.005).astype(np.float16)
    low = (-7 * scale).astype(np.float16)
    halves = (rng.integers(2, 13, (n, 16)) | rng.integers(2, 13, (n, 16)) << 4).astype(np.uint8)
    blocks = np.concatenate([scale.view(np.uint8), low.view(np.uint8), halves], axis=1)
    w.add_tensor(f"{table[module]}.{kind}", blocks.reshape(v.shape[0], -1), raw_dtype=gguf.GGMLQuantizationType.Q4_1)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
