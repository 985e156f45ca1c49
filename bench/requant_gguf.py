#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A copy of a GGUF file of Llama whose Q4_1 matrices are of another type, for peer_llama_cpp.py. Usage: requant_gguf.py FROM TO TYPE. Needs gguf."""
import sys

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants

source, target, kind = sys.argv[1:4]
kind = GGMLQuantizationType[kind]
reader = GGUFReader(source)
writer = GGUFWriter(target, "llama")
for f in reader.fields.values():
    if not f.name.startswith("GGUF.") and f.name != "general.architecture":
        writer.add_key_value(f.name, f.contents(), f.types[0], sub_type=f.types[-1] if f.types[0] == GGUFValueType.ARRAY else None)
for t in reader.tensors:
    data, of = t.data, t.tensor_type
    if of == GGMLQuantizationType.Q4_1:
        data, of = quants.quantize(quants.dequantize(data, of), kind), kind
    writer.add_tensor(t.name, data, raw_dtype=of)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
