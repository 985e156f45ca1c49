#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the goldens of optimizers and of the dynamic loss scaler.

optim.json           cases: "config", sections of a DeepSpeed configuration; "source", what computed the golden
optim.safetensors    start (100), gradients (10,100); for each case its parameters after steps 1, 3 and 10 (3,100)
loss_scale.json      for each setting the overflow flags, the scale after each step, and the step that fails, if any

What DeepSpeed runs for a type without offload: Adam, AdamW, Lion and LAMB are CUDA kernels of its own, Adagrad and SGD
are torch's. Its CPU kernels stand for the former where they compute the same; LAMB has none, so its published formula
(csrc/lamb/fused_lamb_cuda_kernel.cu) is computed here in fp64. Needs torch, deepspeed, numpy, safetensors and a C++ compiler.
"""
import json
import os

import numpy as np
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
from deepspeed.ops.lion import DeepSpeedCPULion
from deepspeed.runtime.fp16 import loss_scaler
from safetensors.torch import save_file

N, STEPS, KEPT = 100, 10, (1, 3, 10)


def adam(params, mode=True, **k):
    return DeepSpeedCPUAdam(params, adamw_mode=mode, **k)


class Lamb:
    """DeepSpeed's FusedLamb: the trust ratio from norms of the parameter and of the raw update."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, max_coeff=10.0,
                 min_coeff=0.01, bias_correction=True):
        self.p = params[0]
        self.__dict__.update(lr=lr, b=betas, eps=eps, wd=weight_decay, hi=max_coeff, lo=min_coeff,
                             correct=bias_correction, t=0, m=np.zeros(N), v=np.zeros(N),
                             x=params[0].detach().double().numpy().copy())

    def step(self):
        g = self.p.grad.double().numpy()
        self.t += 1
        self.m = self.b[0] * self.m + (1 - self.b[0]) * g
        self.v = self.b[1] * self.v + (1 - self.b[1]) * g * g
        rate = self.lr
        if self.correct:
            rate *= np.sqrt(1 - self.b[1]**self.t) / (1 - self.b[0]**self.t)
        u = self.m / (np.sqrt(self.v) + self.eps) + self.wd * self.x
        norms = np.linalg.norm(self.x), np.linalg.norm(u)
        ratio = min(max(norms[0] / norms[1], self.lo), self.hi) if all(norms) else 1.0
        self.x -= rate * ratio * u
        with torch.no_grad():
            self.p.copy_(torch.from_numpy(self.x).float())


NO_CLIP, DEFAULT_CLIP = dict(gradient_clipping=0), {}
CPU, TORCH, FORMULA = "deepspeed CPU kernel", "torch.optim", "formula in fp64"
# name: (type in the configuration, its params, source, what makes the same optimizer here, other sections)
CASES = {
    "adam": ("Adam", dict(lr=0.01, betas=[0.9, 0.99], eps=1e-8, weight_decay=0.1), CPU, adam, NO_CLIP),
    # gradient_clipping is 1.0 when the configuration does not say
    "adam_defaults": ("Adam", {}, CPU, adam, DEFAULT_CLIP),
    "adam_l2": ("Adam", dict(lr=0.01, weight_decay=0.1, adam_w_mode=False), CPU,
                lambda p, adam_w_mode, **k: adam(p, mode=False, **k), NO_CLIP),
    "adamw": ("AdamW", dict(lr=0.003, betas=[0.8, 0.95], eps=1e-6, weight_decay=0.05), CPU, adam, NO_CLIP),
    "adamw_no_correction": ("AdamW", dict(lr=0.01, weight_decay=0.1, bias_correction=False), CPU, adam, NO_CLIP),
    "adamw_torch": ("AdamW", dict(lr=0.01, weight_decay=0.1, torch_adam=True), TORCH,
                    lambda p, torch_adam, **k: torch.optim.AdamW(p, foreach=False, **k), NO_CLIP),
    "adamw_clipped": ("AdamW", dict(lr=0.01, weight_decay=0.1), CPU, adam, dict(gradient_clipping=0.5)),
    "sgd": ("SGD", dict(lr=0.1), TORCH, torch.optim.SGD, NO_CLIP),
    "sgd_momentum": ("SGD", dict(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.05), TORCH,
                     torch.optim.SGD, NO_CLIP),
    "sgd_nesterov": ("SGD", dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.05), TORCH,
                     torch.optim.SGD, NO_CLIP),
    "lion": ("Lion", dict(lr=0.003, betas=[0.9, 0.99], weight_decay=0.1), CPU, DeepSpeedCPULion, NO_CLIP),
    "adagrad": ("Adagrad", dict(lr=0.1, eps=1e-10, weight_decay=0.05), TORCH, torch.optim.Adagrad, NO_CLIP),
    "lamb": ("Lamb", dict(lr=0.01, weight_decay=0.1), FORMULA, Lamb, NO_CLIP),
    "lamb_bounds": ("Lamb", dict(lr=0.01, weight_decay=0.01, max_coeff=0.3, min_coeff=0.08), FORMULA, Lamb, NO_CLIP),
    "lamb_no_correction": ("Lamb", dict(lr=0.01, weight_decay=0.1, bias_correction=False), FORMULA, Lamb, NO_CLIP),
}


def trajectory(make, params, gradients, start, clip):
    p = torch.nn.Parameter(start.clone())
    optimizer = make([p], **params)
    kept = []
    for t in range(STEPS):
        p.grad = gradients[t].clone()
        if clip:
            torch.nn.utils.clip_grad_norm_([p], clip)
        optimizer.step()
        if t + 1 in KEPT:
            kept.append(p.detach().clone())
    return torch.stack(kept)


def optimizers():
    g = torch.Generator().manual_seed(7)
    start = torch.randn(N, generator=g)
    gradients = torch.randn(STEPS, N, generator=g) * torch.logspace(-4, 1, N)
    tensors, cases = dict(start=start, gradients=gradients), {}
    for name, (kind, params, source, make, more) in CASES.items():
        tensors[name] = trajectory(make, params, gradients, start, more.get("gradient_clipping", 1.0))
        cases[name] = dict(config=dict(optimizer=dict(type=kind, params=params), **more), source=source)
    save_file(tensors, "optim.safetensors")
    with open("optim.json", "w") as f:
        json.dump(dict(steps=STEPS, kept=KEPT, cases=cases), f, indent=1)
        f.write("\n")


class OneRank:
    @staticmethod
    def get_rank():
        return 0


def scales(settings, flags):
    loss_scaler.dist = OneRank
    scaler = loss_scaler.DynamicLossScaler(**settings)
    seen = []
    for flag in flags:
        try:
            scaler.update_scale(bool(flag))
        except Exception:
            return dict(settings=settings, overflow=flags, scales=seen, fails_at=len(seen))
        seen.append(scaler.loss_scale)
    return dict(settings=settings, overflow=flags, scales=seen)


def loss_scales():
    rng = np.random.default_rng(3)
    usual = dict(init_scale=2.0**16, scale_window=4, min_scale=1.0, delayed_shift=2, consecutive_hysteresis=False)
    some = (rng.random(150) < 0.15).astype(int).tolist()
    many = (rng.random(150) < 0.5).astype(int).tolist()
    cases = [scales({**usual, **change}, flags) for change, flags in (
        ({}, some), (dict(delayed_shift=1), some), (dict(delayed_shift=4), many),
        (dict(consecutive_hysteresis=True), some), (dict(consecutive_hysteresis=True, delayed_shift=3), many),
        (dict(scale_window=1), some), (dict(min_scale=48.0, init_scale=1024.0), many),
        (dict(init_scale=8.0, delayed_shift=1), [1] * 6))]
    assert "fails_at" in cases[-1]
    with open("loss_scale.json", "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


if __name__ == "__main__":
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    optimizers()
    loss_scales()
