#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the goldens of distillation: small models of test/golden/parity that learn from others of them.

golden.json has a list of cases: student, teacher (folders of test/golden/parity, on the student's batch), weight,
temperature, mix, the loss of eight AdamW steps, and the first step's gradients as norms and sums by parameter.
The divergence is that of TRL's GKDTrainer; the rest of the formula: include/deepspeed/distillation.h.

Needs torch, transformers, trl, safetensors. Run: make_distillation.py
"""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PARITY = os.path.join(HERE, "..", "parity")
sys.path.insert(0, PARITY)
import torch
from make_parity import forward, load, loss_of, run, stored_gradients
from safetensors.torch import load_file
from trl.experimental.gkd import GKDTrainer

STEPS = 8
CASES = [("qwen3", "llama3", 0.5, 1.0, 0.0), ("qwen3", "llama3", 1.0, 2.0, 0.0), ("llama3_tied", "gemma2", 0.7, 3.0, 1.0),
         ("gpt2", "llama3", 0.9, 0.5, 0.25), ("gemma2", "qwen3", 0.5, 1.5, 0.5), ("mistral", "mistral", 0.3, 4.0, 0.9),
         # experts, whose balance of the model counts and that of a teacher does not; packed documents; the other layouts
         ("qwen3_moe", "mixtral", 0.6, 1.5, 0.0), ("mixtral", "qwen3", 0.5, 2.0, 1.0), ("llama2", "qwen3_moe", 0.8, 1.0, 0.7),
         ("falcon", "gpt_neox", 0.4, 0.7, 0.0), ("olmo2", "deepseek_v3", 0.9, 1.2, 0.4), ("bloom", "cohere", 0.5, 3.0, 1.0)]


def loss(student, lesson, batch, weight, temperature, mix):
    logits, balance = run(student, batch)
    kept = batch["targets"] != -100
    d = GKDTrainer.generalized_jsd_loss(logits, lesson, labels=batch["targets"], beta=mix, temperature=temperature,
                                        reduction="sum") / kept.sum()
    return (1 - weight) * loss_of(logits, batch["targets"]) + weight * temperature**2 * d + balance


def make(student_name, teacher_name, weight, temperature, mix):
    golden = load_file(os.path.join(PARITY, student_name, "golden.safetensors"))
    batch = {k: golden[k].long() for k in ("tokens", "targets", "positions", "first")}
    student = load(os.path.join(PARITY, student_name), torch.float32)
    with torch.no_grad():
        lesson = forward(load(os.path.join(PARITY, teacher_name), torch.float32), batch)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01,
                                  foreach=False, fused=False)
    losses, gradients = [], {}
    for step in range(STEPS):
        value = loss(student, lesson, batch, weight, temperature, mix)
        losses.append(value.item())
        optimizer.zero_grad()
        value.backward()
        if step == 0:
            gradients = {k: [g.norm().item(), g.double().sum().item()] for k, g in stored_gradients(student).items()}
        optimizer.step()
    return dict(student=student_name, teacher=teacher_name, weight=weight, temperature=temperature, mix=mix,
                losses=losses, gradients=gradients)


def main():
    with open(os.path.join(HERE, "golden.json"), "w") as f:
        json.dump([make(*case) for case in CASES], f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
