# SPDX-License-Identifier: Apache-2.0
"""A GGUF file that ds_quantize made of a folder against the folder's plain numbers, read by PyPI's gguf. Matrices of a Llama of one layer.
Usage: gguf_of_folder.py FILE PLAIN [FILE PLAIN …]. Needs gguf, numpy, safetensors, torch."""
import json
import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import quantize
from safetensors.torch import load_file

NAMES = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate", "up_proj": "ffn_up",
         "down_proj": "ffn_down"}


def check(file, plain):
    w = load_file(plain + "/model.safetensors")
    c = json.load(open(plain + "/config.json", encoding="utf8"))
    n = 0
    r = {t.name: t for t in GGUFReader(file).tensors}
    for k, v in w.items():
        part = k.split(".")[-2]
        if part not in NAMES:
            continue
        t = r[f"blk.0.{NAMES[part]}.weight"]
        x = v.float().numpy()
        if part in ("q_proj", "k_proj"):
            h = c["num_attention_heads"] if part == "q_proj" else c["num_key_value_heads"]
            x = x.reshape(h, 2, x.shape[0] // h // 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        want = x.astype(np.float32) if t.tensor_type == GGMLQuantizationType.F32 else quantize(x, t.tensor_type)
        assert (np.asarray(t.data).reshape(-1) == want.reshape(-1)).all(), f"{file}: {k}"
        n += 1
    assert n == 7


for at in range(1, len(sys.argv), 2):
    check(sys.argv[at], sys.argv[at + 1])
