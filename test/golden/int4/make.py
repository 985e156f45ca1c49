# SPDX-License-Identifier: Apache-2.0
"""Writes gptq, gptq_v2, awq, packed and packed_zero: small Llama folders whose linear layers are in four bits, each with `plain`, the same as real numbers by
the packages' own formulas in torch; the same of eight bits: fp8, fp8_whole, fbgemm, float_row, float_block, int_row, int_group, packed8 and
packed8_zero; and gptq_run, awq_run, packed_run and packed8_run, in groups of 32, which can stay in blocks. Needs torch, safetensors, compressed-tensors (0.20), transformers. Usage: make.py [SEED] (in this folder)
With a SEED sizes, groups and orders are drawn: for test/long/int4_random.sh.

GPTQModel (qlinear/torch.py): numbers are shifted out of int32, w = scales[g_idx] * (q - zeros[g_idx]), in the scales' dtype.
AutoAWQ (utils/packing_utils.py): columns are put back in order, w = (q - zeros) * scales.
compressed-tensors: the package itself packs and unpacks.
transformers (Fp8Dequantize): w = x * scale of its block, where blocks are all whole; the last ones are as large as is left (DeepSeek-V3).
fbgemm: w = x * scale of its row.
"""
import json
import os
import random
import sys

import torch
from compressed_tensors.compressors.naive_quantized.base import FloatQuantizationCompressor, IntQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

HIDDEN, INNER, VOCAB, GROUP = 32, 64, 48, 16
draw = random.Random(int(sys.argv[1])) if len(sys.argv) > 1 else None
if draw:
    HIDDEN, INNER, GROUP = 16 * draw.randint(1, 9), 8 * draw.randint(1, 25), draw.choice((8, 16, 24, 32, 48, 64, 128))
CONFIG = dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=INNER,
              num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, rms_norm_eps=1e-5,
              rope_theta=10000.0, torch_dtype="float16", tie_word_embeddings=False)
LAYERS = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (HIDDEN // 2, HIDDEN), "self_attn.v_proj": (HIDDEN // 2, HIDDEN),
          "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}
SHIFTS = torch.arange(0, 32, 4, dtype=torch.int64)
AWQ_ORDER = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])  # the nibble of column j
generator = torch.Generator().manual_seed(int(sys.argv[1]) if draw else 7)


def words(nibbles):
    """(..., 8) numbers below 16, the first in the low bits, as int32 words."""
    whole = (nibbles.to(torch.int64) << SHIFTS).sum(-1)
    return torch.where(whole >= 2**31, whole - 2**32, whole).to(torch.int32)


def nibbles_of(packed):
    return ((packed.to(torch.int64) & 0xffffffff).unsqueeze(-1) >> SHIFTS) & 15


def gptq(n_out, n_in, v2, order, size):
    """size -1: one group; the last of others may have fewer rows."""
    size = n_in if size < 0 else size
    groups = -(-n_in // size)
    g_idx = (torch.randperm(n_in, generator=generator) // size if order else torch.arange(n_in) // size).to(torch.int32)
    q = torch.randint(0, 16, (n_in, n_out), generator=generator)
    zeros = torch.randint(0, 16 if v2 else 15, (groups, n_out), generator=generator)
    scales = (torch.rand(groups, n_out, generator=generator) * 0.02 + 0.001).to(torch.float16)
    qweight = words(q.reshape(n_in // 8, 8, n_out).transpose(1, 2))
    qzeros = words(zeros.reshape(groups, n_out // 8, 8))
    # back, as the package does
    back = nibbles_of(qweight).transpose(1, 2).reshape(n_in, n_out).to(torch.int32)
    z = nibbles_of(qzeros).reshape(groups, n_out).to(torch.int32) + (0 if v2 else 1)
    w = scales[g_idx.long()] * (back - z[g_idx.long()])
    assert w.dtype == torch.float16
    parts = dict(qweight=qweight, qzeros=qzeros, scales=scales)
    return (parts | dict(g_idx=g_idx)), w.T.contiguous()


def awq(n_out, n_in):
    groups = n_in // GROUP
    q = torch.randint(0, 16, (n_in, n_out), generator=generator)
    zeros = torch.randint(0, 16, (groups, n_out), generator=generator)
    scales = (torch.rand(groups, n_out, generator=generator) * 0.02 + 0.001).to(torch.float16)
    place = torch.argsort(AWQ_ORDER)  # the column that nibble k holds

    def pack(x):
        return words(x.reshape(x.shape[0], -1, 8)[..., place])

    def unpack(x):
        return nibbles_of(x)[..., AWQ_ORDER].reshape(x.shape[0], -1).to(torch.int32)

    qweight, qzeros = pack(q), pack(zeros)
    w = (unpack(qweight) - unpack(qzeros).repeat_interleave(GROUP, 0)) * scales.repeat_interleave(GROUP, 0)
    assert (unpack(qweight) == q).all() and w.dtype == torch.float16
    return dict(qweight=qweight, qzeros=qzeros, scales=scales), w.T.contiguous()


def packed(n_out, n_in, weights, kind=PackedQuantizationCompressor, dtype=torch.float16):
    """By group with zeros in the middle; by row with zeros of their own."""
    args = QuantizationArgs(**weights)
    down, along = dict(tensor=(1, 1), channel=(n_out, 1), group=(n_out, n_in // GROUP),
                       block=(-(-n_out // 16), -(-n_in // 24)))[args.strategy]
    size = 0.02 if args.num_bits == 4 else 0.002
    scale = (torch.rand(down, along, generator=generator) * size + size / 20).to(dtype)
    state = dict(weight=(torch.randn(n_out, n_in, generator=generator) * 0.05).to(dtype), weight_scale=scale)
    if not args.symmetric:
        middle = 2 ** (args.num_bits - 1)
        state["weight_zero_point"] = torch.randint(-middle, middle, (down, along), generator=generator).to(torch.int8)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    parts = kind.compress(state, scheme)
    w = kind.decompress(dict(parts), scheme)["weight"]
    assert w.dtype == dtype
    return {key: value for key, value in parts.items()}, w.contiguous()


def fp8(n_out, n_in, block, name="weight_scale_inv"):
    """block: a pair, or None: a scale for all."""
    weight = (torch.randn(n_out, n_in, generator=generator) * 60).to(torch.float8_e4m3fn)
    weight.view(-1)[0] = 2.0 ** -9  # the smallest
    rows, columns = block or (n_out, n_in)
    rows, columns = min(rows, n_out), min(columns, n_in)
    scale = torch.rand(-(-n_out // rows), -(-n_in // columns), generator=generator) * 1e-3 + 1e-5
    w = weight.float() * scale.repeat_interleave(rows, 0)[:n_out].repeat_interleave(columns, 1)[:, :n_in]
    if n_out % rows == 0 and n_in % columns == 0:
        assert torch.equal(w, Fp8Dequantize(None)._dequantize_one(weight, scale, torch.float32))
    return {"weight": weight, name: scale if block else scale.reshape([])}, w


def fp8_powers(n_out, n_in, block):
    """Scales that are powers of two, as exponents."""
    made, _ = fp8(n_out, n_in, block)
    scale = torch.exp2(torch.randint(-14, -4, made["weight_scale_inv"].shape, generator=generator).float())
    w = made["weight"].float() * scale.repeat_interleave(block[0], 0)[:n_out].repeat_interleave(block[1], 1)[:, :n_in]
    return {"weight": made["weight"], "weight_scale_inv": scale.to(torch.float8_e8m0fnu)}, w


def write(name, quantization, make):
    def real(*shape):
        return (torch.randn(*shape, generator=generator) * 0.1).to(torch.float16)

    common = {"model.embed_tokens.weight": real(VOCAB, HIDDEN), "lm_head.weight": real(VOCAB, HIDDEN), "model.norm.weight": real(HIDDEN) + 1,
              "model.layers.0.input_layernorm.weight": real(HIDDEN) + 1, "model.layers.0.post_attention_layernorm.weight": real(HIDDEN) + 1}
    stored, plain = dict(common), dict(common)
    for layer, (n_out, n_in) in LAYERS.items():
        parts, w = make(n_out, n_in)
        for key, value in parts.items():
            stored[f"model.layers.0.{layer}.{key}"] = value.contiguous()
        plain[f"model.layers.0.{layer}.weight"] = w
    for folder, tensors, config in ((name, stored, CONFIG | dict(quantization_config=quantization)), (f"{name}/plain", plain, CONFIG)):
        os.makedirs(folder, exist_ok=True)
        save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})
        with open(f"{folder}/config.json", "w") as f:
            json.dump(config, f, indent=1)
            f.write("\n")


def gptq_folder(name, v2, order, size):
    config = dict(quant_method="gptq", bits=4, group_size=size, sym=False, lm_head=False, meta=dict(quantizer=["by hand"]), desc_act=order,
                  checkpoint_format="gptq_v2" if v2 else "gptq")
    if v2:
        config["pack_dtype"] = "int32"
    write(name, config, lambda n_out, n_in: gptq(n_out, n_in, v2, order, size))


gptq_folder("gptq", False, draw.random() < 0.5 if draw else False, draw.choice((GROUP, GROUP, -1)) if draw else GROUP)
gptq_folder("gptq_v2", True, draw.random() < 0.5 if draw else True, draw.choice((GROUP, GROUP, -1)) if draw else GROUP)
if draw:  # groups of the other formats are whole
    GROUP = draw.choice([g for g in (8, 16, 24, 32, 48, 64) if HIDDEN % g == 0 and INNER % g == 0])
write("awq", dict(quant_method="awq", bits=4, group_size=GROUP, zero_point=True, version="gemm", modules_to_not_convert=None), awq)
FLOATS = dict(num_bits=8, type="float", dynamic=True, strategy="token", symmetric=True)
EIGHT = dict(num_bits=8, type="int")


def compressed(name, layout, weights, inputs=None, **more):
    config = dict(quant_method="compressed-tensors", format=layout, quantization_status="compressed", ignore=["lm_head"],
                  kv_cache_scheme=None, config_groups=dict(group_0=dict(targets=["Linear"], weights=weights, input_activations=inputs)))
    write(name, config, lambda n_out, n_in: packed(n_out, n_in, weights, **more))


compressed("packed", "pack-quantized", dict(num_bits=4, type="int", symmetric=True, strategy="group", group_size=GROUP))
compressed("packed_zero", "pack-quantized", dict(num_bits=4, type="int", symmetric=False, strategy="channel"))
if draw:
    BLOCK = [draw.choice((8, 16, 24, 128)), draw.choice((16, 24, 128))]
else:
    BLOCK = [16, 24]
write("fp8", dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=BLOCK), lambda o, i: fp8(o, i, BLOCK))
write("fp8_whole", dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=None), lambda o, i: fp8(o, i, None))
write("fbgemm", dict(quant_method="fbgemm_fp8", activation_scale_ub=1200.0, modules_to_not_convert=["lm_head"]),
      lambda o, i: fp8(o, i, (1, i), "weight_scale"))
compressed("float_row", "float-quantized", dict(num_bits=8, type="float", strategy="channel", symmetric=True), FLOATS,
           kind=FloatQuantizationCompressor, dtype=torch.bfloat16)
compressed("float_block", "float-quantized", dict(num_bits=8, type="float", strategy="block", block_structure=[16, 24], symmetric=True), FLOATS,
           kind=FloatQuantizationCompressor, dtype=torch.float32)
compressed("int_row", "int-quantized", EIGHT | dict(strategy="channel", symmetric=True), EIGHT | dict(dynamic=True, strategy="token"),
           kind=IntQuantizationCompressor)
compressed("int_group", "int-quantized", EIGHT | dict(strategy="group", group_size=GROUP, symmetric=False), kind=IntQuantizationCompressor,
           dtype=torch.bfloat16)
compressed("packed8", "pack-quantized", EIGHT | dict(strategy="group", group_size=GROUP, symmetric=True))
compressed("packed8_zero", "pack-quantized", EIGHT | dict(strategy="channel", symmetric=False), dtype=torch.bfloat16)
for name, block in (("fp8_e8m0", BLOCK), ("fp8_mx", [1, 32])):  # DeepSeek-V3.1's; blocks of the Microscaling formats
    write(name, dict(quant_method="fp8", fmt="e4m3", scale_fmt="ue8m0", activation_scheme="dynamic", weight_block_size=block),
          lambda o, i, block=block: fp8_powers(o, i, block))
if not draw:
    GROUP = 32
    gptq_folder("gptq_run", True, False, GROUP)
    write("awq_run", dict(quant_method="awq", bits=4, group_size=GROUP, zero_point=True, version="gemm", modules_to_not_convert=None), awq)
    compressed("packed_run", "pack-quantized", dict(num_bits=4, type="int", symmetric=True, strategy="group", group_size=GROUP))
    compressed("packed8_run", "pack-quantized", EIGHT | dict(strategy="group", group_size=GROUP, symmetric=True))
