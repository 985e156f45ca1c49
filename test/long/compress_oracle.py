#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loss and gradient norm of a compressed model against torch: transformers' Llama whose layers compute with what DeepSpeed's
own quantizers and masks make of weights and inputs. Usage: compress_oracle.py BUILD DEEPSPEED SCRATCH

DEEPSPEED: the folder `deepspeed` of a source archive that has compression/utils.py (0.17.5 and before)."""
import copy
import importlib.util
import json
import os
import re
import subprocess
import sys
import types

import torch
from transformers import LlamaConfig, LlamaForCausalLM

build, deepspeed, scratch = sys.argv[1:4]
os.chdir(scratch)
spec = importlib.util.spec_from_file_location("utils", deepspeed + "/compression/utils.py")
u = importlib.util.module_from_spec(spec)
spec.loader.exec_module(u)

SEQ = 32
TEXT = "The quick brown fox jumps over 1"  # SEQ bytes, again and again: each sample is a rotation of it
torch.manual_seed(3)
model = LlamaForCausalLM(LlamaConfig(
    hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=256,
    max_position_embeddings=128, tie_word_embeddings=False, initializer_range=0.2)).eval()
model.save_pretrained("model")
with open("data.txt", "w", encoding="utf-8") as f:
    f.write(TEXT * 200)


def ours(section):
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
    if section:
        config["compression_training"] = section
    with open("ds.json", "w", encoding="utf-8") as f:
        json.dump(config, f)
    run = subprocess.run([build + "/ds_train", "--model", "model", "--tokenizer", "bytes", "--data", "data.txt", "--seq_length",
                          str(SEQ), "--max_steps", "1", "--deepspeed_config", "ds.json", "--output", "out", "--overwrite"],
                         capture_output=True, text=True, check=True)
    found = re.search(r"step 1/1 +loss ([0-9.]+).* norm ([0-9.e+-]+)", run.stdout + run.stderr)
    return float(found[1]), float(found[2])


def loss_of(m, sample):
    return torch.nn.functional.cross_entropy(m(sample[:, :SEQ]).logits[0], sample[0][1:SEQ + 1])


plain = ours(None)
with torch.no_grad():
    samples = [torch.tensor([list((TEXT * 3)[r:r + SEQ + 1].encode())]) for r in range(SEQ)]
    sample = min(samples, key=lambda s: abs(loss_of(model, s).item() - plain[0]))


def theirs(names, weight, value):
    m = copy.deepcopy(model)

    def forward(self, x):
        return torch.nn.functional.linear(value(x), weight(self.weight), self.bias)

    for name, module in m.named_modules():
        if isinstance(module, torch.nn.Linear) and any(n in name for n in names):
            module.forward = types.MethodType(forward, module)
    loss = loss_of(m, sample)
    loss.backward()
    return loss.item(), sum((p.grad.double()**2).sum() for p in m.parameters()).sqrt().item()


def group(names, params, **shared):
    return {"shared_parameters": {"enabled": True, "schedule_offset": 0, **shared},
            "different_groups": {"g": {"params": params, "modules": names}}}


def same(x):
    return x


def per_token(quantizer, n_bits):
    return lambda x: quantizer.apply(x, n_bits, None, None, x.numel() // x.size(-1))


def wq(names, n_bits, **shared):
    return {"weight_quantization": group(names, {"start_bits": n_bits, "target_bits": n_bits}, **shared)}


def row_mask(w):
    return u.TopKBinarizer.apply(torch.linalg.norm(w.data, ord=1, dim=1), 0.4, False).view(-1, 1)


CASES = [
    ("nothing", [], same, same, None),
    ("4 bits, forward", ["self_attn", "mlp"], lambda w: u.SymQuantizer.apply(w, 4, None, None, 4), same,
     wq(["self_attn", "mlp"], 4, quantize_groups=4, quantize_weight_in_forward=True)),
    ("8 bits, asymmetric", ["mlp"], lambda w: u.AsymQuantizer.apply(w, 8, None, None, 2), same,
     wq(["mlp"], 8, quantize_groups=2, quantization_type="asymmetric")),
    ("2 bits", ["mlp"], lambda w: u.TernaryQuantizer.apply(w, 2, None, None, 1), same, wq(["mlp"], 2)),
    ("1 bit, inputs of 8", ["mlp"], lambda w: u.BinaryQuantizer.apply(w, 1, None, None, 1), per_token(u.AsymQuantizer, 8),
     {**wq(["mlp"], 1), "activation_quantization": group(["mlp"], {"bits": 8}, quantization_type="asymmetric")}),
    ("inputs of 4", ["_proj"], same, per_token(u.SymQuantizer, 4), {"activation_quantization": group(["_proj"], {"bits": 4})}),
    ("sparse", ["q_proj", "down_proj"], lambda w: w * u.TopKBinarizer.apply(w.data.abs(), 0.3, False), same,
     {"sparse_pruning": group(["q_proj", "down_proj"], {"dense_ratio": 0.3}, method="l1")}),
    ("rows", ["gate_proj"], lambda w: w * row_mask(w), same,
     {"row_pruning": group(["gate_proj"], {"dense_ratio": 0.4}, method="l1")}),
]
worst = 0.0
for label, names, weight, value, section in CASES:
    a, b = ours(section), theirs(names, weight, value)
    error = max(abs(x - y) / abs(y) for x, y in zip(a, b))
    worst = max(worst, error)
    print(f"{label}: loss {a[0]} and {b[0]:.4f}, norm {a[1]} and {b[1]:.3f}, {error:.1e} apart")
sys.exit(0 if worst < 2e-4 else 1)
