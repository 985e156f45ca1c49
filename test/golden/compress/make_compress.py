#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden values of compression_training from DeepSpeed's own functions, on CPU in fp32.

    make_compress.py DEEPSPEED > quantizers.txt

DEEPSPEED: the folder `deepspeed` of a source archive that still has the compression library (0.17.5 and before; 0.19 has
not). Its files compression/utils.py and runtime/quantize.py are plain torch. A case is a line
`KIND BITS GROUPS RATIO ROWS COLUMNS`, a line of inputs and one of results, as the bits of floats in hexadecimal. KIND: sym,
asym, moq_sym, moq_asym (RATIO: the plain part that is mixed in), top (RATIO kept), rows_sym, rows_asym (a group a row)."""
import importlib.util
import struct
import sys
import types

import torch


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


root = sys.argv[1]
utils = load(root + "/compression/utils.py", "utils")
for name in ("deepspeed", "deepspeed.utils", "deepspeed.ops", "deepspeed.ops.quantizer"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["deepspeed.utils"].logger = None
sys.modules["deepspeed.ops.quantizer"].ds_quantizer = None
moq = load(root + "/runtime/quantize.py", "moq")


def bits(t):
    return " ".join(struct.pack(">f", v).hex() for v in t.flatten().tolist())


def case(kind, n_bits, groups, ratio, x, y):
    print(kind, n_bits, groups, ratio, x.shape[0], x.shape[1])
    print(bits(x))
    print(bits(y))


torch.manual_seed(1)
for rows, columns, groups in ((4, 6, 1), (6, 10, 4), (3, 35, 3)):
    x = torch.randn(rows, columns) * 0.05
    for n_bits in (3, 4, 8, 12, 16):
        case("sym", n_bits, groups, 0, x, utils.SymQuantizer.apply(x, n_bits, None, None, groups))
        case("asym", n_bits, groups, 0, x, utils.AsymQuantizer.apply(x, n_bits, None, None, groups))
        case("rows_sym", n_bits, rows, 0, x, utils.SymQuantizer.apply(x, n_bits, None, None, rows))
        case("rows_asym", n_bits, rows, 0, x, utils.AsymQuantizer.apply(x, n_bits, None, None, rows))
        for kind in ("symmetric", "asymmetric"):
            q = moq.Quantizer(q_groups=groups, q_type=kind, q_rounding="nearest", q_mixed_fp16=True)
            q.quantize_real_ratio = 0.25
            w = torch.nn.Parameter(x.clone())
            w.start_bits = w.target_bits = n_bits
            case("moq_" + kind[:-6], n_bits, groups, 0.25, x, q.compute_quantization(w).detach())
    case("sym", 2, groups, 0, x, utils.TernaryQuantizer.apply(x, 2, None, None, groups))
    case("sym", 1, groups, 0, x, utils.BinaryQuantizer.apply(x, 1, None, None, groups))
    for ratio in (0.0, 0.1, 0.5, 0.97, 1.0):
        case("top", 0, 1, ratio, x, utils.TopKBinarizer.apply(x, ratio, False))

# Bits and plain part of MoQ call by call: `schedule START TARGET PERIOD CHANGE CALLS`, then bits, then parts.
for start, target, period, change in ((8, 4, 1, 0.1), (8, 4, 3, 0.05), (12, 3, 0, 0.001), (8, 8, 5, 0.25), (6, 1, 2, 0.3)):
    q = moq.Quantizer(q_type="symmetric", q_rounding="nearest", q_mixed_fp16=True, q_change_ratio=change)
    w = torch.nn.Parameter(torch.randn(4, 4))
    w.start_bits, w.target_bits, w.q_period = start, target, period
    found, parts = [], []
    for call in range(40):
        q.step()
        q.update_fp16_ratio()
        q.compute_quantization(w)
        found.append(w.start_bits)
        parts.append(max(q.quantize_real_ratio, 0.0))
    print("schedule", start, target, period, change, len(found))
    print(*found)
    print(*(f"{p:.6f}" for p in parts))
