# SPDX-License-Identifier: Apache-2.0
"""Goldens of 1-bit optimizers: DeepSpeed's own classes over its own NcclBackend.compressed_allreduce
(see make_signs.py), run on the CPU in threads that are ranks.

    python make_onebit.py DEEPSPEED_SOURCE OUT_FOLDER

DEEPSPEED_SOURCE: a folder that has deepspeed/runtime/fp16/onebit (0.19.6 here). Writes
onebit.safetensors: gradients of every rank and the weights after each step, of each case.

The very first call of DeepSpeed's optimizers drops its gradient and updates nothing; here it is
made with zeros and not counted, so that a step more is frozen later.
"""
import json
import os
import sys
import threading
import types

import torch
from safetensors.torch import save_file

import make_signs
from make_signs import LOCAL, World

STEPS = 16
FREEZE = {"freeze_step": 5}  # one more than the steps of the warm-up
ZERO_ONE = {"var_freeze_step": 6, "var_update_scaler": 2, "local_step_scaler": 3, "local_step_clipper": 4}
SHAPES = {"a": (5, 7), "b": (29, )}
COMMON = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.02}
# clip: the largest norm, of the mean, then of each rank's own
CASES = [("OnebitAdam", "adam", ranks, FREEZE, 0.0) for ranks in (1, 2, 4)]
CASES += [("OnebitLamb", "lamb", ranks, FREEZE, 0.0) for ranks in (1, 2, 4)]
CASES += [("ZeroOneAdam", "zero_one", ranks, ZERO_ONE, 0.0) for ranks in (2, 4)]
CASES += [("OnebitAdam", "clip", 2, FREEZE, 0.3)]


def module(name, **fields):
    made = types.ModuleType(name)
    made.__dict__.update(fields)
    sys.modules[name] = made
    return made


def load(source):
    """The classes of runtime/fp16/onebit, by name."""
    signs = make_signs.load(source)

    class Backend(signs):

        def __init__(self, mpu=None):
            self.size, self.rank, self.world_group = LOCAL.world.size, LOCAL.rank, None
            self.bool_not_supported, self.compression_backend = False, make_signs.Compression

    accelerator = types.SimpleNamespace(empty_cache=lambda: None)
    comm = module("deepspeed.comm", is_initialized=lambda: True, get_rank=lambda: LOCAL.rank)
    module("deepspeed", comm=comm, __path__=[])
    module("deepspeed.accelerator", get_accelerator=lambda: accelerator)
    module("deepspeed.utils", __path__=[])
    module("deepspeed.utils.torch", required_torch_version=lambda **k: True)
    module("deepspeed.runtime", __path__=[])
    module("deepspeed.runtime.utils",
           filter_empty_parameters=lambda params: [p for p in params if p.numel() > 0])
    module("deepspeed.runtime.comm", __path__=[])
    module("deepspeed.runtime.comm.nccl", NcclBackend=Backend)
    space = {}
    with open(os.path.join(source, "deepspeed/runtime/comm/utils.py")) as f:
        utils = module("deepspeed.runtime.comm.utils")
        exec(f.read(), utils.__dict__)
    for name in ("adam", "lamb", "zoadam"):
        with open(os.path.join(source, "deepspeed/runtime/fp16/onebit", name + ".py")) as f:
            text = f.read().replace("print(", "(lambda *x, **k: None)(")
        exec(text, space)
    return space


def run(classes, kind, short, size, how, most, tensors):
    generator = torch.Generator().manual_seed(77 * size + len(short))
    name = f"{short}{size}"
    start = {k: torch.randn(s, generator=generator) for k, s in SHAPES.items()}
    scale = torch.tensor([0.3, 1.0, 0.1, 2.0])
    grads = {k: torch.randn((STEPS, size) + s, generator=generator) * 0.05 for k, s in
             SHAPES.items()}
    for k, g in grads.items():
        g += 0.02 * torch.randn(SHAPES[k], generator=generator)  # what ranks have in common
        g *= scale[torch.arange(STEPS) % 4].reshape((STEPS, ) + (1, ) * (g.dim() - 1))
    weights = {k: torch.zeros((STEPS + 1, ) + s) for k, s in SHAPES.items()}
    world = World(size)

    def rank_main(rank):
        LOCAL.world, LOCAL.rank = world, rank
        params = {k: torch.nn.Parameter(v.clone()) for k, v in start.items()}
        engine = types.SimpleNamespace(mpu=None, local_rank=0, enable_backward_allreduce=True)
        optimizer = classes[kind](list(params.values()), engine, **how, **COMMON)
        for p in params.values():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        if kind == "ZeroOneAdam":  # whose intervals count steps
            for p in params.values():
                optimizer.state[p]["step"] = 0
        for step in range(STEPS):
            if rank == 0:
                for k, p in params.items():
                    weights[k][step] = p.data
            for k, p in params.items():
                all_ranks = grads[k][step]
                p.grad = (all_ranks.mean(0) if engine.enable_backward_allreduce else
                          all_ranks[rank].clone())
            if most > 0.0:
                torch.nn.utils.clip_grad_norm_(list(params.values()), most)
            optimizer.step()
        if rank == 0:
            for k, p in params.items():
                weights[k][STEPS] = p.data

    threads = [threading.Thread(target=rank_main, args=(r, )) for r in range(size)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k in SHAPES:
        tensors[f"{name}.{k}.grads"] = grads[k]
        tensors[f"{name}.{k}.weights"] = weights[k]


def main():
    classes = load(sys.argv[1])
    tensors = {}
    for kind, short, size, how, most in CASES:
        run(classes, kind, short, size, how, most, tensors)
    save_file(tensors, os.path.join(sys.argv[2], "onebit.safetensors"))
    for k, v in sorted(tensors.items()):
        if k.endswith("weights"):
            print(k, "moved by", float((v[-1] - v[0]).abs().max()))


if __name__ == "__main__":
    main()
