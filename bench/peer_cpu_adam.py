#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peer of bench_adamw: DeepSpeed's CPUAdam, its C++ operator built by DeepSpeed's own builder (g++ and ninja).

    peer_cpu_adam.py [--millions 134] [--threads 2]    prints "ready" when it is built and warm; then for each line on
                                                       stdin does one update and prints a JSON object with "total"

A line names the case: "f32" (all in fp32), "bf16" (as ZeRO-Offload does it: the bf16 gradient widened, the update in
fp32, the weights rounded to the bf16 parameter), either followed by "denormal". Its arrays are in huge pages as ours.
"""
import argparse
import json
import os
import sys
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--millions", type=int, default=134)
parser.add_argument("--threads", type=int, default=2)
args = parser.parse_args()
os.environ.update(DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS=str(args.threads), OMP_WAIT_POLICY="passive",
                  THP_MEM_ALLOC_ENABLE="1")
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]  # ninja may lie there
replies = os.dup(1)
os.dup2(2, 1)  # builders talk on stdout
import deepspeed
import torch
from deepspeed.ops.op_builder import CPUAdamBuilder

torch.set_num_threads(args.threads)
operator = CPUAdamBuilder().load()
RATE, BETA1, BETA2, EPS, DECAY = 1e-4, 0.9, 0.999, 1e-8, 0.01
operator.create_adam(0, RATE, BETA1, BETA2, EPS, DECAY, True, False)

n = -(-args.millions * 1000000 // 65536) * 65536
weight, grad, m, v = (torch.empty(n) for _ in range(4))
grad16, param16 = (torch.empty(n, dtype=torch.bfloat16) for _ in range(2))
unit = (torch.rand(65536) - 0.5).repeat(n // 65536)


def fill(denormal):
    scale = 1e-38 if denormal else 0.02
    weight.copy_(unit).mul_(0.02)
    grad.copy_(unit).mul_(scale)
    grad16.copy_(grad)
    m.copy_(grad).mul_(1.0 if denormal else 0.1)
    v.fill_(1e-39) if denormal else v.copy_(grad).square_()


steps = 0


def update(bf16):
    global steps
    steps += 1
    start = time.perf_counter()
    if bf16:
        grad.copy_(grad16)
    operator.adam_update(0, steps, RATE, BETA1, BETA2, EPS, DECAY, True, weight, grad, m, v)
    if bf16:
        param16.copy_(weight)
    return time.perf_counter() - start


def reply(text):
    os.write(replies, (text + "\n").encode())


fill(False)
update(True)
reply(f"DeepSpeed {deepspeed.__version__}, torch {torch.__version__}, {args.threads} threads")
reply("ready")
for line in sys.stdin:
    words = line.split()
    fill("denormal" in words)
    reply(json.dumps({"total": update("bf16" in words)}))
