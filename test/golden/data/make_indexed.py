# SPDX-License-Identifier: Apache-2.0
"""Writes indexed/*.bin and *.idx with DeepSpeed's own builder, in each type of token, and in Megatron's type codes;
and reads a pair of ours back with DeepSpeed's reader.

    make_indexed.py                 writes the golden files
    make_indexed.py check PREFIX    prints the documents of PREFIX.bin and PREFIX.idx as JSON

Document d has items of the sizes SIZES[d]; token i of the data is (7 i + 3) mod 120, plus 1000 where the type holds it.
"""
import json
import pathlib
import struct
import sys

import numpy as np
from deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset import (MMapIndexedDataset,
                                                                            MMapIndexedDatasetBuilder)

HERE = pathlib.Path(__file__).parent / "indexed"
SIZES = [[5], [3, 4], [0], [1], [6, 2, 9]]
TYPES = {"u8": np.uint8, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
         "u16": np.uint16, "u32": np.uint32, "u64": np.uint64}


def build(name, dtype, end_documents=True, sizes=SIZES):
    builder = MMapIndexedDatasetBuilder(str(HERE / (name + ".bin")), dtype=dtype)
    at = 0
    for items in sizes:
        for n in items:
            tokens = (7 * np.arange(at, at + n) + 3) % 120 + (1000 if np.dtype(dtype).itemsize > 1 else 0)
            builder.add_item_numpy(tokens.astype(dtype))
            at += n
        if end_documents:
            builder.end_document()
    builder.finalize(str(HERE / (name + ".idx")))


def megatron(name):
    """Megatron numbers its types otherwise: 8 is uint16."""
    build(name, np.uint16)
    path = HERE / (name + ".idx")
    data = bytearray(path.read_bytes())
    assert data[17] == 6
    data[17] = 8
    path.write_bytes(data)


def check(prefix):
    data = MMapIndexedDataset(prefix, skip_warmup=True)
    bounds = data.doc_idx
    documents = [np.concatenate([data[int(i)] for i in range(a, b)] or [np.zeros(0)]).astype(int).tolist()
                 for a, b in zip(bounds[:-1], bounds[1:])]
    json.dump(documents, sys.stdout)


if len(sys.argv) > 2:
    check(sys.argv[2])
else:
    HERE.mkdir(exist_ok=True)
    for name, dtype in TYPES.items():
        build(name, dtype)
    build("no_documents", np.int32, end_documents=False)
    megatron("megatron_u16")
    for name, dtype in (("items_u16", np.uint16), ("items_i32", np.int32)):  # as we write: one item a document
        build(name, dtype, sizes=[[sum(items)] for items in SIZES])
