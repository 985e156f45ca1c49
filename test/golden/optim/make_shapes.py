#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes goldens of optimizers that see a tensor's shape or part of it, by the packages that people take them from:

adafactor.json, .safetensors      transformers' Adafactor (5.24)
schedule_free.json, .safetensors  schedulefree's AdamWScheduleFree (1.4.1): the averaged weights (eval)
adamw8bit.json, .safetensors      bitsandbytes' AdamW8bit (0.50) on the processor
ademamix.json, .safetensors       bitsandbytes' AdEMAMix (0.50) on the processor, states of 32 bits
ademamix8bit.json, .safetensors   likewise of 8 bits

Each: cases: "config", sections of a DeepSpeed configuration; start.NAME, gradients.NAME (steps, …); CASE.NAME: the
parameter after the last step. Norms have no weight decay, as in all goldens. Names of files: makes those alone.
"""
import json
import sys

import torch
from safetensors.torch import save_file

STEPS = 10
SHAPES = {"wide.weight": (6, 20), "tall.weight": (21, 5), "square.weight": (8, 8), "experts.wide": (3, 6, 10), "experts.tall": (2, 9, 4), "embed.weight": (7, 4), "lm_head.weight": (7, 4),
          "norm.weight": (9,)}


def adafactor(groups, **params):
    from transformers.optimization import Adafactor
    return Adafactor(groups, **params)


def schedule_free(groups, **params):
    from schedulefree import AdamWScheduleFree
    optimizer = AdamWScheduleFree(groups, **params)
    optimizer.train()
    return optimizer


def adamw8bit(groups, **params):
    from bitsandbytes.optim import AdamW8bit
    return AdamW8bit(groups, min_8bit_size=params.pop("min_8bit_size", 4096), **params)


def ademamix(groups, **params):
    from bitsandbytes.optim import AdEMAMix
    return AdEMAMix(groups, optim_bits=params.pop("optim_bits", 32), min_8bit_size=params.pop("min_8bit_size", 4096), **params)


FIXED = dict(relative_step=False, scale_parameter=False)
FILES = {
    "adafactor": (adafactor, "Adafactor", {
        "defaults": {},
        "warmup": dict(warmup_init=True, weight_decay=0.1),
        "trainer": dict(lr=0.01, **FIXED),
        "scaled": dict(lr=0.01, relative_step=False, weight_decay=0.05, eps=[1e-20, 1e-2], clip_threshold=0.5),
        "average": dict(lr=0.02, beta1=0.9, decay_rate=-0.6, **FIXED),
    }),
    "schedule_free": (schedule_free, "AdamWScheduleFree", {
        "defaults": {},
        "warmup": dict(lr=0.01, warmup_steps=4, weight_decay=0.1, betas=[0.95, 0.99], eps=1e-6),
        "weighted": dict(lr=0.02, r=1.0, weight_lr_power=1.0, warmup_steps=3),
    }),
    "adamw8bit": (adamw8bit, "AdamW8bit", {
        "defaults": {},
        "small": dict(lr=0.01, betas=[0.9, 0.99], weight_decay=0.1, min_8bit_size=16),
    }),
    "ademamix": (ademamix, "AdEMAMix", {
        "defaults": {},
        "fast": dict(lr=0.01, betas=[0.8, 0.9, 0.95], alpha=2.0, eps=1e-6, weight_decay=0.1),
        "growing": dict(lr=0.01, t_alpha=6, t_beta3=7),
        "at_the_end": dict(lr=0.01, betas=[0.9, 0.999, 0.99], t_alpha=40, t_beta3=5),
    }),
    "ademamix8bit": (ademamix, "AdEMAMix", {
        "defaults": dict(optim_bits=8),
        "small": dict(optim_bits=8, min_8bit_size=16, lr=0.01, betas=[0.8, 0.9, 0.95], alpha=2.0, eps=1e-6, weight_decay=0.1),
        "growing": dict(optim_bits=8, min_8bit_size=16, lr=0.01, t_alpha=6, t_beta3=7),
    }),
}


def gradients_of(g, shapes):
    grads = {n: torch.randn((STEPS, ) + s, generator=g) * (10.0**-i) for i, (n, s) in enumerate(shapes.items())}
    grads["square.weight"][1] = 0.0
    return grads


def make(file):
    optimizer_of, kind, all_cases = FILES[file]
    g = torch.Generator().manual_seed(11)
    shapes = dict(SHAPES, **({"embed.weight": (257, 17)} if "8bit" in file else {}))
    start = {n: torch.randn(s, generator=g) for n, s in shapes.items()}
    gradients = gradients_of(g, shapes)
    tensors = {**{"start." + n: t for n, t in start.items()}, **{"gradients." + n: t for n, t in gradients.items()}}
    cases = {}
    for case, params in all_cases.items():
        p = {n: torch.nn.Parameter(t.clone()) for n, t in start.items()}
        groups = [dict(params=[p[n] for n in shapes if n != "norm.weight"]),
                  dict(params=[p["norm.weight"]], weight_decay=0.0)]
        optimizer = optimizer_of(groups, **dict(params))
        for t in range(STEPS):
            for n in shapes:
                p[n].grad = gradients[n][t].clone()
            optimizer.step()
        if file == "schedule_free":
            tensors.update({f"{case}.{n}.train": t.detach().clone() for n, t in p.items()})
            optimizer.eval()
        tensors.update({f"{case}.{n}": t.detach().clone() for n, t in p.items()})
        cases[case] = dict(optimizer=dict(type=kind, params=params), gradient_clipping=0)
    save_file(tensors, f"{file}.safetensors")
    with open(f"{file}.json", "w") as f:
        json.dump(dict(steps=STEPS, cases=cases), f, indent=1)
        f.write("\n")


for name in sys.argv[1:] or FILES:
    make(name)
