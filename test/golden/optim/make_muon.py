#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden of Muon with AdamW for the rest: DeepSpeed's own MuonWithAuxAdam (0.19.8), on whole matrices.

muon.json           cases: "config", sections of a DeepSpeed configuration
muon.safetensors    start.NAME, gradients.NAME (steps, …); CASE.NAME: the parameter after the last step
Run with TORCHDYNAMO_DISABLE=1. The iteration of "gram" runs in fp32 here, as where an accelerator has no fp16.
"""
import json

import torch
from deepspeed.runtime.zero.muon import original_muon
from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam
from safetensors.torch import save_file

STEPS = 6
SHAPES = {"wide.weight": (6, 20), "tall.weight": (21, 5), "square.weight": (8, 8), "experts.wide": (3, 6, 10), "experts.tall": (2, 9, 4), "embed.weight": (7, 4), "lm_head.weight": (7, 4),
          "norm.weight": (9,)}
NO_DECAY = ("norm.weight",)
original_muon.ns_compute_dtype = lambda method="gram": torch.float32 if method == "gram" else torch.bfloat16
CASES = {
    "defaults": ({}, 0),
    "gram": (dict(lr=0.01, momentum=0.9, weight_decay=0.1, betas=[0.8, 0.95], eps=1e-8), 0),
    "rates": (dict(lr=0.5, muon_lr=0.02, adam_lr=0.003, weight_decay=0.05), 0),
    "one_rate": (dict(muon_lr=0.05), 0),
    "clipped": (dict(lr=0.01), 0.5),
    "standard": (dict(lr=0.01, weight_decay=0.1, ns_method="standard"), 0),
}


def main():
    g = torch.Generator().manual_seed(11)
    start = {n: torch.randn(s, generator=g) for n, s in SHAPES.items()}
    gradients = {n: torch.randn((STEPS, ) + s, generator=g) * (10.0**-i) for i, (n, s) in enumerate(SHAPES.items())}
    gradients["square.weight"][0] = 0.0  # a matrix without a gradient
    tensors = {**{"start." + n: t for n, t in start.items()}, **{"gradients." + n: t for n, t in gradients.items()}}
    cases = {}
    for case, (params, clip) in CASES.items():
        p = {n: torch.nn.Parameter(t.clone()) for n, t in start.items()}
        muon = [n for n, s in SHAPES.items() if len(s) >= 2 and "embed" not in n and "lm_head" not in n]
        common = {k: v for k, v in params.items() if k in ("lr", "weight_decay")}
        groups = []
        for names in ([n for n in SHAPES if n not in NO_DECAY], list(NO_DECAY)):  # as the Trainer makes groups
            own = dict(common, weight_decay=0.0) if names[0] in NO_DECAY else common
            for use in (True, False):
                half = [p[n] for n in names if (n in muon) == use]
                keys = ("momentum", "ns_method") if use else ("betas", "eps")
                group = dict(params=half, use_muon=use, **own, **{k: v for k, v in params.items() if k in keys})
                rate = params.get("muon_lr" if use else "adam_lr")
                if rate is not None:
                    group["lr"] = rate
                if half:
                    groups.append(group)
        optimizer = MuonWithAuxAdam(groups)
        for t in range(STEPS):
            for n in SHAPES:
                p[n].grad = gradients[n][t].clone()
            if clip:
                torch.nn.utils.clip_grad_norm_(list(p.values()), clip)
            optimizer.step()
        tensors.update({f"{case}.{n}": t.detach().clone() for n, t in p.items()})
        cases[case] = dict(optimizer=dict(type="Muon", params=params), gradient_clipping=clip)
    save_file(tensors, "muon.safetensors")
    with open("muon.json", "w") as f:
        json.dump(dict(steps=STEPS, cases=cases), f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
