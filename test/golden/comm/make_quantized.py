# SPDX-License-Identifier: Apache-2.0
"""Goldens of quantized collectives (qwZ, qgZ, LoCo), in numpy.

    python make_quantized.py OUT_FOLDER

DeepSpeed's kernels run on CUDA alone, so this is their arithmetic restated from facts of 0.19.8
(csrc/includes/quantization_utils.h, csrc/quantization/*.cu, runtime/comm/coalesced_collectives.py,
runtime/zero/partition_parameters.py), in fp32 with IEEE operations:

    symmetric, b bits    s = 2^b / (2·largest magnitude); q = round to nearest even of x·s, cut off at
                         -2^(b-1) and 2^(b-1)-1; 1/s is sent, and q·(1/s) is what the receiver has
    4 bits               two in a byte, the first in the low half
    gradients            to 4 bits; all-to-all within a node; sum; to 4 bits; all-to-all between nodes; sum
    LoCo                 y = x + e; e = beta·e + (1-beta)·(y - what y's blocks say), kept in 8 bits
    weights              each rank's slice to 8 bits, gathered

Not from there but from this project: blocks of 256 (gradients) and 2048 (weights) elements from the
start of a slice, sums in fp32 by the aligned tree, the mean over all ranks by one factor in the last
sum, one rounding. Writes quantized.json and quantized.safetensors.
"""
import json
import os
import sys

import numpy as np
from safetensors.numpy import save_file

F = np.float32
ROUNDS = 3
BETA = 0.8
# dpr (groups), dps (ranks of a group), shape, type of gradients and weights
CASES = [(1, 2, (2, 271), "F32"), (1, 4, (5, 37), "F32"), (2, 2, (4, 90), "F32"),
         (2, 2, (5, 37), "BF16"), (1, 3, (4, 29), "BF16"), (1, 4, (3, 41), "F16")]
LONG = 4200  # weights of two ranks, more than a block each


def rounded(x, dtype):
    x = np.asarray(x, F)
    if dtype == "F16":
        return x.astype(np.float16).astype(F)
    if dtype == "BF16":
        bits = x.view(np.uint32).astype(np.uint64)
        bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16 << 16
        return bits.astype(np.uint32).view(F)
    return x


def quantize(x, bits, block):
    """Whole numbers, and what they stand for."""
    q = np.zeros(x.size, np.int8)
    y = np.zeros(x.size, F)
    for at in range(0, x.size, block):
        part = x[at:at + block]
        most = np.max(np.abs(part))
        if most < F(2.0**-110):
            continue
        s = F(2**bits) * F(0.5) / most
        whole = np.clip(np.rint(part * s), F(-2**(bits - 1)), F(2**(bits - 1) - 1))
        q[at:at + block] = whole.astype(np.int8)
        y[at:at + block] = whole * (F(1) / s)
    return q, y


def tree(terms):
    """((0+1)+(2+3))+…"""
    terms = list(terms)
    while len(terms) > 1:
        pairs = [terms[i] + terms[i + 1] for i in range(0, len(terms) - 1, 2)]
        terms = pairs + terms[len(terms) - len(terms) % 2:]
    return terms[0]


def exchange(rows, errors):
    """rows[sender][receiver]; errors likewise or None. → sums[receiver]."""
    n = len(rows)
    said = [[None] * n for _ in range(n)]
    for s in range(n):
        for r in range(n):
            x = rows[s][r]
            if errors is None:
                said[s][r] = quantize(x, 4, 256)[1]
                continue
            e = errors[s][r]
            y = x + e
            said[s][r] = quantize(y, 4, 256)[1]
            new = F(BETA) * e + (F(1) - F(BETA)) * (y - said[s][r])
            errors[s][r] = quantize(new, 8, 256)[1]
    return [tree([said[s][r] for s in range(n)]) for r in range(n)]


def reduce(x, n_groups, n_in, dtype, errors):
    """x[rank] flat → the slice of the mean that each rank has; rank = group·n_in + place."""
    n = n_groups * n_in
    width = -(-x[0].size // n)
    wide = [np.concatenate([t, np.zeros(width * n - t.size, F)]) for t in x]
    factor = F(1.0 / n)
    sums = {}
    for g in range(n_groups):
        rows = [wide[g * n_in + s].reshape(n_in, n_groups * width) for s in range(n_in)]
        made = exchange(rows, errors["inner"][g] if errors else None)
        for p in range(n_in):
            sums[g, p] = made[p]
    out = [None] * n
    for p in range(n_in):
        if n_groups == 1:
            out[p] = sums[0, p]
            continue
        rows = [sums[g, p].reshape(n_groups, width) for g in range(n_groups)]
        made = exchange(rows, errors["outer"][p] if errors else None)
        for g in range(n_groups):
            out[g * n_in + p] = made[g]
    return [rounded(t * factor, dtype) for t in out]


def gather(w, n, dtype):
    width = -(-w.size // n)
    wide = np.concatenate([w, np.zeros(width * n - w.size, F)])
    parts = [quantize(wide[r * width:(r + 1) * width], 8, 2048)[1] for r in range(n)]
    return rounded(np.concatenate(parts)[:w.size], dtype)


def numbers(rng, shape, dtype):
    """Of many magnitudes; a block of zeros; a block far below; ties."""
    x = (rng.standard_normal(shape) * np.exp(rng.standard_normal(shape))).astype(F)
    flat = x.reshape(-1)
    flat[:16] = 0.0
    flat[16:24] = [8, 0.5, 1.5, 2.5, -0.5, -1.5, -8, 7.5]
    return rounded(x * F(2.0**-6), dtype)


def run(n_groups, n_in, shape, dtype, tensors):
    rng = np.random.default_rng(7 * n_groups + n_in + shape[1])
    n = n_groups * n_in
    name = f"{n_groups}x{n_in}_{shape[0]}x{shape[1]}_{dtype}"
    size = shape[0] * shape[1]
    x = np.stack([[numbers(rng, size, dtype) for _ in range(n)] for _ in range(ROUNDS)])
    w = numbers(rng, size, dtype)
    tensors[name + ".x"] = x
    tensors[name + ".w"] = w
    tensors[name + ".gathered"] = gather(w, n, dtype)
    width = -(-size // n)
    zeros = {"inner": [[[np.zeros(width * n_groups, F)] * n_in for _ in range(n_in)] for _ in range(n_groups)],
             "outer": [[[np.zeros(width, F)] * n_groups for _ in range(n_groups)] for _ in range(n_in)]}
    tensors[name + ".sum"] = np.stack([np.stack(reduce(list(x[i]), n_groups, n_in, dtype, None)) for i in range(ROUNDS)])
    tensors[name + ".loco"] = np.stack([np.stack(reduce(list(x[i]), n_groups, n_in, dtype, zeros)) for i in range(ROUNDS)])
    return {"name": name, "groups": n_groups, "ranks": n_in, "rows": shape[0], "columns": shape[1], "dtype": dtype}


def main():
    tensors = {}
    cases = [run(*case, tensors) for case in CASES]
    long = ((np.arange(LONG) * 7919 % 2003).astype(F) - F(1001)) / F(1024)
    tensors["long"] = gather(long, 2, "F32")
    save_file(tensors, os.path.join(sys.argv[1], "quantized.safetensors"))
    with open(os.path.join(sys.argv[1], "quantized.json"), "w") as f:
        json.dump({"rounds": ROUNDS, "beta": BETA, "cases": cases}, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
