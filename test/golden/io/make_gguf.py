#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes gguf_blocks.gguf: random blocks of every type that PyPI's `gguf` can dequantize, with the values that it makes of
them as F32 tensors NAME.values, and entries of every kind. Needs numpy and gguf 0.19.

    python3 make_gguf.py                 writes the golden file beside this script
    python3 make_gguf.py FILE BLOCKS SEED   for test/long: more blocks
"""
import os
import sys

import gguf
import numpy as np
from gguf import quants

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
         "MXFP4", "NVFP4", "TQ1_0", "TQ2_0"]
# Where a type's f16 scales lie in a block, so that random ones are neither NaN nor infinite.
SCALES = {"F16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64]}


def blocks_of(rng, name, n):
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for at in SCALES.get(name, []):
        scale = rng.choice([0.0, 1.0, -1.0, 6.1e-5, 5.96e-8, 65504.0, 1e-3, 0.37], n).astype(np.float16)
        random = (rng.standard_normal(n) * 0.1).astype(np.float16)
        data[:, at:at + 2] = np.where(rng.random(n) < 0.2, scale, random).astype(np.float16).view(np.uint8).reshape(n, 2)
    if name == "F32":
        data = rng.standard_normal(n * elements).astype(np.float32).view(np.uint8).reshape(n, size)
    if name == "BF16":
        data[:, 1] &= 0xBF  # no NaN, no infinity
    return kind, elements, data


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "gguf_blocks.gguf")
    n = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    rng = np.random.default_rng(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    writer = gguf.GGUFWriter(path, "none")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -100)
    writer.add_uint16("a.u16", 60000)
    writer.add_int16("a.i16", -30000)
    writer.add_uint32("a.u32", 4000000000)
    writer.add_int32("a.i32", -2000000000)
    writer.add_uint64("a.u64", 1 << 40)
    writer.add_int64("a.i64", -(1 << 40))
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.text", "Grüße")
    writer.add_array("a.texts", ["one", "", "three"])
    writer.add_array("a.numbers", [3, -1, 4])
    for name in TYPES:
        kind, elements, data = blocks_of(rng, name, 2 * n)
        if name in ("F32", "F16", "BF16"):
            values = {"F32": lambda d: d.view(np.float32), "F16": lambda d: d.view(np.float16).astype(np.float32),
                      "BF16": lambda d: (d.view(np.uint16).astype(np.uint32) << 16).view(np.float32)}[name](data.reshape(-1))
            raw = {"F32": lambda d: d.view(np.float32), "F16": lambda d: d.view(np.float16), "BF16": lambda d: d}[name](data.reshape(-1))
            raw = raw.reshape(2, -1)
            writer.add_tensor(name, raw, raw_dtype=kind if name == "BF16" else None)
        else:
            values = quants.dequantize(data.reshape(2, -1), kind).astype(np.float32)
            writer.add_tensor(name, data.reshape(2, -1), raw_dtype=kind)
        writer.add_tensor(name + ".values", values.reshape(2, -1).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
