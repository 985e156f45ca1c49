#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peer of bench_train: a training step of GPT-2 124M in PyTorch on the CPU.

Plain GPT-2 with random weights and random data: eager, scaled_dot_product_attention, cross entropy over the whole
vocabulary, AdamW. In bf16 the whole model is bf16, as .to(torch.bfloat16) gives it. Where PyTorch has no fast bf16
products (oneDNN's want AVX-512; without them a step takes minutes) it runs in fp32 instead, and says so.

    peer_gpt2_torch.py [--dtype bf16|fp32] [--threads 2] [--steps 5] [--compile] ...   medians, a line each
    peer_gpt2_torch.py --stepwise ...     for a bench that alternates: prints "ready" when warm; then for each line on
                                          stdin runs one step and prints a JSON object of seconds; ends with stdin

torch_amx.py keeps its AMX products alive on virtual machines that hide a CPUID leaf.
"""
import argparse
import json
import os
import statistics
import sys
import time


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--warm", type=int, default=2)
    p.add_argument("--micro_batch", type=int, default=4)
    p.add_argument("--seq_length", type=int, default=1024)
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--heads", type=int, default=12)
    p.add_argument("--width", type=int, default=768)
    p.add_argument("--vocab", type=int, default=50257)
    p.add_argument("--optimizer", choices=("fused", "loop"), default="fused",
                   help="AdamW(fused=True), the faster one; loop: PyTorch's default on the CPU")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--stepwise", action="store_true")
    return p.parse_args()


args = arguments()
os.environ["OMP_NUM_THREADS"] = str(args.threads)
import torch
import torch.nn.functional as F
from torch import nn

import torch_amx

amx = torch_amx.enable()
torch.set_num_threads(args.threads)
if args.dtype == "bf16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
    args.dtype = "fp32"
    print("PyTorch has no fast bf16 products on this processor: it runs in fp32", flush=True)


class Block(nn.Module):

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.ln_1(x)).split(c, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):

    def __init__(self, a):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(a.vocab, a.width), nn.Embedding(a.seq_length, a.width)
        self.blocks = nn.ModuleList(Block(a.width, a.heads) for _ in range(a.layers))
        self.ln_f = nn.LayerNorm(a.width)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def make_step():
    torch.manual_seed(0)
    model = GPT2(args).to({"bf16": torch.bfloat16, "fp32": torch.float32}[args.dtype])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=args.optimizer == "fused")
    run = torch.compile(model) if args.compile else model
    shape = (args.micro_batch, args.seq_length)

    def step():
        ids, targets = (torch.randint(0, args.vocab, shape) for _ in range(2))
        times = [time.perf_counter()]
        loss = run(ids, targets)
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter())
        seconds = dict(zip(("forward", "backward", "optimizer"), (b - a for a, b in zip(times, times[1:]))))
        return dict(seconds, total=times[-1] - times[0], loss=loss.item())

    return step


def main():
    step = make_step()
    for _ in range(args.warm):
        step()
    if args.stepwise:
        print("ready", flush=True)
        for _ in sys.stdin:
            print(json.dumps(step()), flush=True)
        return
    seen = [step() for _ in range(args.steps)]
    tokens = args.micro_batch * args.seq_length
    print(f"torch {torch.__version__} ({amx}) {args.dtype} {'compiled' if args.compile else 'eager'} "
          f"threads {args.threads} batch {args.micro_batch}x{args.seq_length} AdamW {args.optimizer}, median of {args.steps}")
    for key in ("forward", "backward", "optimizer", "total"):
        print(f"{key:10s} {statistics.median(s[key] for s in seen):8.3f} s")
    print(f"tokens/s   {tokens / statistics.median(s['total'] for s in seen):8.0f}")


if __name__ == "__main__":
    main()
