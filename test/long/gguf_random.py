#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random models as GGUF files: ds_quantize's folder has the tensors that transformers reads from the same file, bit for bit, and
config.json the constants that the model was made of. Usage: gguf_random.py BUILD SCRATCH [N [SEED]]. Needs torch, transformers, gguf.
What ds_quantize refuses is counted by its message."""
import collections
import os
import random
import re
import shutil
import subprocess
import sys

import gguf
import numpy as np
import torch
from gguf import quants
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/gguf"))
import make_gguf_models as made  # noqa: E402

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


def draw(rng):
    arch = rng.choice(["llama", "qwen2", "qwen3", "gpt2"])
    heads = rng.choice([1, 2, 3, 4, 6])
    width = rng.choice([8, 16, 32])
    layers = rng.randint(1, 3)
    hidden = heads * width
    if arch == "gpt2":
        return arch, GPT2Config(vocab_size=rng.randint(3, 90), n_positions=rng.randint(8, 64), n_embd=hidden, n_layer=layers,
                                n_head=heads, layer_norm_epsilon=rng.choice([1e-5, 1e-6, 3e-4]))
    kv = rng.choice([k for k in (1, 2, 3, 4, 6) if heads % k == 0])
    common = dict(vocab_size=rng.randint(3, 90), hidden_size=hidden, intermediate_size=rng.choice([24, 32, 64, 96]), num_hidden_layers=layers,
                  num_attention_heads=heads, num_key_value_heads=kv, max_position_embeddings=rng.randint(16, 4096),
                  rms_norm_eps=rng.choice([1e-5, 1e-6, 2e-3]), rope_theta=rng.choice([1e4, 5e5, 1e6, 123456.0]),
                  tie_word_embeddings=rng.random() < 0.4)
    if arch == "llama":
        return arch, LlamaConfig(head_dim=width, attention_bias=rng.random() < 0.3, **common)
    if arch == "qwen2":
        return arch, Qwen2Config(**common)
    return arch, Qwen3Config(head_dim=rng.choice([8, 16, 32]), **common)


def put(w, name, a, rng):
    """A matrix in a random type that its rows allow; a vector in F32."""
    kind = rng.choice(TYPES) if a.ndim > 1 else "F32"
    if kind[0] == "Q" and a.shape[-1] % 32 != 0:
        kind = "F16"
    if kind in ("F32", "F16"):
        w.add_tensor(name, a.astype(np.float32 if kind == "F32" else np.float16))
    else:
        qtype = gguf.GGMLQuantizationType[kind]
        w.add_tensor(name, quants.quantize(np.ascontiguousarray(a), qtype), raw_dtype=qtype)


def write(path, arch, config, rng):
    model = AutoModelForCausalLM.from_config(config).float()
    for p in model.parameters():
        p.data = torch.randn_like(p) * 0.1
    state = {k: v for k, v in model.state_dict().items() if not (config.tie_word_embeddings and k == "lm_head.weight")}
    w = gguf.GGUFWriter(path, arch)
    if arch == "gpt2":
        w.add_context_length(config.n_positions)
        w.add_embedding_length(config.n_embd)
        w.add_block_count(config.n_layer)
        w.add_feed_forward_length(4 * config.n_embd)
        w.add_head_count(config.n_head)
        w.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        made.add_decoder(w, arch, config)
    table = made.names(arch, config)
    items = list(state.items())
    rng.shuffle(items)
    for k, v in items:
        module, kind = k.rsplit(".", 1)
        a = v.numpy()
        if arch == "llama" and module.endswith(("q_proj", "k_proj")):
            a = made.permute(a, config.num_attention_heads if module.endswith("q_proj") else config.num_key_value_heads)
        if arch == "gpt2" and kind == "weight" and ".c_" in module:
            a = a.T
        put(w, f"{table[module]}.{kind}", np.ascontiguousarray(a), rng)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def constants(config):
    names = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings", "tie_word_embeddings"]
    more = ["intermediate_size", "num_key_value_heads", "head_dim", "rms_norm_eps", "attention_bias"]
    found = {n: getattr(config, n, None) for n in names + (more if config.model_type != "gpt2" else ["layer_norm_epsilon"])}
    found["theta"] = (getattr(config, "rope_parameters", None) or {}).get("rope_theta")
    if config.model_type == "qwen2":  # it has no such field
        found["head_dim"] = found["attention_bias"] = None
    return found


def main():
    build, scratch = sys.argv[1], sys.argv[2]
    n = int(sys.argv[3]) if len(sys.argv) > 3 else 200
    rng = random.Random(int(sys.argv[4]) if len(sys.argv) > 4 else 1)
    torch.manual_seed(rng.randrange(1 << 30))
    refused = collections.Counter()
    different = 0
    for i in range(n):
        arch, config = draw(rng)
        path, out = os.path.join(scratch, "m.gguf"), os.path.join(scratch, "out")
        shutil.rmtree(out, ignore_errors=True)
        write(path, arch, config, rng)
        done = subprocess.run([build + "/ds_quantize", "--dtype", "f32", "--no_tokenizer", path, out], capture_output=True, text=True)
        if done.returncode != 0:
            refused[re.sub(r"\d+", "N", done.stderr.strip())[-120:]] += 1
            continue
        want = AutoModelForCausalLM.from_pretrained(scratch, gguf_file="m.gguf", config=config, dtype=torch.float32).state_dict()
        got = load_file(out + "/model.safetensors")
        wrong = [k for k, v in got.items() if k not in want or not torch.equal(v, want[k])]
        wrong += [k for k in want if k not in got and not (config.tie_word_embeddings and k == "lm_head.weight")]
        a, b = constants(config), constants(AutoConfig.from_pretrained(out))
        wrong += [f"{k}: {a[k]} {b[k]}" for k in a if a[k] != b[k] and not (isinstance(a[k], float) and abs(a[k] - b[k]) < 1e-6 * a[k])]
        if wrong:
            different += 1
            print("DIFFERENT", i, arch, wrong[:4], flush=True)
    print(f"{n - sum(refused.values()) - different} the same, {different} different, {sum(refused.values())} refused")
    for what, times in refused.most_common():
        print(f"  {times} refused: {what}")
    return different > 0 or sum(refused.values()) * 20 > n


if __name__ == "__main__":
    sys.exit(main())
