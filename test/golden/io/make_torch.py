#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights as torch.save writes them, and the same as safetensors: make_torch.py OUT (test/golden/io/torch).

one/: pytorch_model.bin of every dtype, a transposed tensor, two that share a storage, a part of a
storage, an empty one, a scalar. two/: two shards with their index. bad.bin: a pickle that calls.
"""
import json
import os
import sys

import torch
from collections import OrderedDict
from safetensors.torch import save_file


class Call:
    def __reduce__(self):
        return os.system, ("true",)


def main():
    out = sys.argv[1]
    for name in ("one", "two"):
        os.makedirs(os.path.join(out, name), exist_ok=True)
    torch.manual_seed(1)
    base = torch.arange(24, dtype=torch.float32)
    state = OrderedDict(
        f32=torch.randn(3, 5), bf16=torch.randn(7).bfloat16(), f16=torch.randn(2, 2).half(), f64=torch.randn(3).double(),
        i64=torch.tensor([1, -2]), i32=torch.tensor([3], dtype=torch.int32), i8=torch.tensor([-4], dtype=torch.int8),
        u8=torch.tensor([5], dtype=torch.uint8), flag=torch.tensor([True, False]), turned=torch.randn(4, 3).t(),
        part=base[5:11].view(2, 3), whole=base, column=base.view(4, 6)[:, 2], nothing=torch.empty(0, 3), scalar=torch.tensor(2.5),
        parameter=torch.nn.Parameter(torch.randn(2)))
    state._metadata = {"": {"version": 1}}
    torch.save(state, os.path.join(out, "one", "pytorch_model.bin"))
    save_file({k: v.detach().contiguous().clone() for k, v in state.items()}, os.path.join(out, "one.safetensors"))
    names = list(state)
    shards = {f"pytorch_model-0000{i + 1}-of-00002.bin": names[i::2] for i in range(2)}
    for file, part in shards.items():
        torch.save({n: state[n] for n in part}, os.path.join(out, "two", file))
    with open(os.path.join(out, "two", "pytorch_model.bin.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": 1}, "weight_map": {n: file for file, part in shards.items() for n in part}}, f)
    torch.save({"a": torch.zeros(1), "b": Call()}, os.path.join(out, "bad.bin"))
    torch.save({"a": torch.zeros(1)}, os.path.join(out, "old.bin"), _use_new_zipfile_serialization=False)


if __name__ == "__main__":
    main()
