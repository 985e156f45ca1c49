# SPDX-License-Identifier: Apache-2.0
"""Writes lamb_*.json and lamb_*.safetensors: ten steps of LAMB by DeepSpeed's own kernel.

DeepSpeed has LAMB only as a CUDA kernel. Its source, from the installed package, is taken as it is, run by one thread on
the processor and in double precision: only the reduction over threads, which one thread does not need, is replaced. The
step size follows the package's host function. So nothing here was written from the formula that src/ was written from;
make_optim.py has that, and the two must agree.

    python make_lamb.py        (deepspeed, torch, numpy, a C++ compiler)
"""
import ctypes
import json
import pathlib
import re
import subprocess
import tempfile

import deepspeed
import numpy as np
import torch
from safetensors.torch import save_file

N, STEPS, KEPT = 100, 10, (1, 3, 10)
SOURCE = pathlib.Path(deepspeed.__path__[0]) / "ops/csrc/lamb/fused_lamb_cuda_kernel.cu"
BEFORE = """
#include <cmath>
#include <cstddef>
#define __global__
using std::sqrt;
struct pair_of { int x, y; };
static const pair_of blockIdx = {0, 0}, blockDim = {1, 1}, gridDim = {1, 1};
namespace cg { struct one { int thread_rank() const { return 0; } }; static one this_thread_block() { return one(); } }
typedef enum { ADAM_MODE_0 = 0, ADAM_MODE_1 = 1 } adamMode_t;
template <typename T, int blockSize> static void reduce_two_vectors_in_register(T a, T b, T* sum_a, T* sum_b)
{ *sum_a = a; *sum_b = b; }
"""
AFTER = """
extern "C" void lamb(double* p, double* m, double* v, const double* g, double b1, double b2, double hi, double lo,
                     double eps, double step_size, size_t n, double decay)
{
    double w, u, ratio;
    lamb_cuda_kernel_part1<double, double, 1>(p, NULL, m, v, g, b1, b2, eps, 1.0, step_size, n, ADAM_MODE_1, decay, &w, &u);
    lamb_cuda_kernel_part3<double, double>(p, NULL, m, v, g, b1, b2, hi, lo, eps, 1.0, step_size, n, ADAM_MODE_1, decay,
                                           &w, &u, &ratio);
}
"""


def kernel():
    text = SOURCE.read_text()
    parts = [re.search(r"template <[^>]*>\s*__global__ void lamb_cuda_kernel_part%d\(.*?\n}\n" % i, text, re.S).group(0)
             for i in (1, 3)]
    body = "\n".join(parts).replace("sqrtf", "sqrt")
    body = re.sub(r"\bfloat\b", "double", body)
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "lamb.cc").write_text(BEFORE + body + AFTER)
    subprocess.run(["c++", "-O1", "-ffp-contract=off", "-shared", "-fPIC", folder / "lamb.cc", "-o", folder / "lamb.so"],
                   check=True)
    return ctypes.CDLL(str(folder / "lamb.so")).lamb


LAMB = kernel()


def address(x):
    return x.ctypes.data_as(ctypes.POINTER(ctypes.c_double))


def trajectory(start, gradients, clip, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, max_coeff=10.0,
               min_coeff=0.01, bias_correction=True):
    p, m, v = start.double().numpy().copy(), np.zeros(N), np.zeros(N)
    d, kept = ctypes.c_double, []
    betas = [float(np.float32(b)) for b in betas]  # the kernel's and the host function's parameters are float
    for t in range(1, STEPS + 1):
        g = gradients[t - 1].double().numpy().copy()
        if clip:
            g *= min(1.0, clip / (np.linalg.norm(g) + 1e-6))
        rate = lr * np.sqrt(1 - betas[1]**t) / (1 - betas[0]**t) if bias_correction else lr
        LAMB(address(p), address(m), address(v), address(g), d(betas[0]), d(betas[1]), d(max_coeff), d(min_coeff),
             d(eps), d(rate), ctypes.c_size_t(N), d(weight_decay))
        if t in KEPT:
            kept.append(torch.from_numpy(p.copy()).float())
    return torch.stack(kept)


CASES = {
    "lamb": (dict(lr=0.01, weight_decay=0.1), 0),
    "lamb_defaults": ({}, 1.0),
    "lamb_betas": (dict(lr=0.003, betas=[0.8, 0.95], eps=1e-4), 0),
    "lamb_bounds": (dict(lr=0.01, weight_decay=0.01, max_coeff=0.3, min_coeff=0.08), 0),
    "lamb_no_correction": (dict(lr=0.01, weight_decay=0.1, bias_correction=False), 0),
    "lamb_clipped": (dict(lr=0.01, weight_decay=0.1), 0.5),
}


def write(name, scale):
    g = torch.Generator().manual_seed(11)
    start = torch.randn(N, generator=g) * scale
    gradients = torch.randn(STEPS, N, generator=g) * torch.logspace(-4, 1, N)
    tensors, cases = dict(start=start, gradients=gradients), {}
    for case, (params, clip) in CASES.items():
        tensors[case] = trajectory(start, gradients, clip, **params)
        more = {} if clip == 1.0 else dict(gradient_clipping=clip)
        cases[case] = dict(config=dict(optimizer=dict(type="Lamb", params=params), **more), source="deepspeed kernel, fp64")
    save_file(tensors, name + ".safetensors")
    with open(name + ".json", "w") as f:
        json.dump(dict(steps=STEPS, kept=KEPT, cases=cases), f, indent=1)
        f.write("\n")


write("lamb_usual", 1.0)
write("lamb_large", 300.0)  # the trust ratio at its upper bound
write("lamb_small", 1e-4)  # at its lower bound
write("lamb_zero", 0.0)  # no norm: the first ratio is 1
