#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What transformers makes of sources with weights in blocks: two small random models, whose matrices the package gguf rounds and makes real numbers
again.

blocks_tied and blocks_untied are the models, with their matrices in bf16; the rest is not, whose ratios would lie on borders of bytes. blocks.json has a row for each of them and each type: base, type, and
texts: source, greedy ids, their log-probabilities (logprobs) where each product's input is rounded as docs/internals/serve.md says (blocks of 32 to
bytes by their largest magnitude / 127), and where it is not (plain). Both have the same ids. A source is taken only where no input lies near the border
of two bytes and no other id near the likeliest, so that differences of the last bits change no byte and no id.
blocks_packed and blocks_fp8 are blocks_untied as compressed-tensors packs it (four bits, groups of 32, in blocks as it is: type "file") and in FP8 of blocks
of 32 by 32 (read as real numbers: type "none", where logprobs are those without rounding), their output projections as they were.
A model's lookups and its output projection are of one matrix where they are tied, which is q8_0 whatever the type; of blocks_untied lookups are not rounded.

Needs torch, transformers, gguf, compressed-tensors. Deterministic. Run: make_blocks.py
"""
import json
import os
import pathlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import gguf
import torch
import transformers
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from make_t5 import perturb
from safetensors.torch import load_file, save_file

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
torch.backends.mkldnn.enabled = False
HERE = pathlib.Path(__file__).parent
V, BLOCK, BORDER, GAP = 131, 32, 1e-4, 5e-3
SMALL = dict(vocab_size=V, num_heads=2, relative_attention_num_buckets=8, relative_attention_max_distance=12, dropout_rate=0.0,
             decoder_start_token_id=0)
MODELS = {"blocks_tied": transformers.T5Config(**SMALL, d_model=32, d_kv=16, d_ff=96, num_layers=2, num_decoder_layers=2),
          "blocks_untied": transformers.T5Config(**SMALL, d_model=64, d_kv=32, d_ff=128, num_layers=1, num_decoder_layers=1,
                                                 feed_forward_proj="gated-gelu", tie_word_embeddings=False)}
TYPES = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1")
LENGTHS = ((5, 5), (11, 5))  # of a source, and what is made of it


def make(name, config, seed):
    torch.manual_seed(seed)
    model = transformers.T5ForConditionalGeneration(config)
    if name == "blocks_untied":
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
    perturb(model)
    model.save_pretrained(HERE / name)
    (HERE / name / "generation_config.json").unlink()
    tensors = load_file(HERE / name / "model.safetensors")
    linear = {f"{module_name}.weight" for module_name, module in model.named_modules() if isinstance(module, torch.nn.Linear)} & set(tensors)
    tensors |= {key: tensors[key].to(torch.bfloat16) for key in linear}
    save_file(tensors, HERE / name / "model.safetensors", metadata={"format": "pt"})


def load(name):
    return transformers.T5ForConditionalGeneration.from_pretrained(HERE / name, dtype=torch.float32, attn_implementation="eager").eval()


def rounded(weight, kind):
    kind = gguf.GGMLQuantizationType[kind.upper()]
    return torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(weight.detach().numpy(), kind), kind).copy())


class Inputs:
    """Rounds what linear layers read, where `on`; `near`: how near one of them was to a border."""

    def __init__(self, model, head=True):
        self.on, self.near = False, 1.0
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and (head or name != "lm_head"):
                module.register_forward_pre_hook(self.hook)

    def hook(self, _, args):
        if not self.on:
            return None
        x = args[0].reshape(*args[0].shape[:-1], -1, BLOCK)
        top = x.abs().amax(-1, keepdim=True)
        scaled = x * (127.0 / top)
        self.near = min(self.near, ((scaled - scaled.floor()) - 0.5).abs().min().item())
        return ((torch.round(scaled) * (top / 127.0)).reshape(args[0].shape),)


def quantize(model, kind):
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and name != "lm_head":
                module.weight.copy_(rounded(module.weight, kind))
        tied = model.lm_head.weight.data_ptr() == model.shared.weight.data_ptr()
        model.lm_head.weight.copy_(rounded(model.lm_head.weight, "q8_0" if tied else kind))
    assert model.encoder.embed_tokens.weight.data_ptr() == model.shared.weight.data_ptr()
    return Inputs(model)


def packed(weight):
    args = dict(num_bits=4, type="int", symmetric=True, strategy="group", group_size=BLOCK)
    scale = (weight.reshape(weight.shape[0], -1, BLOCK).abs().amax(-1) / 7.5).to(torch.float16).float()
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    parts = PackedQuantizationCompressor.compress(dict(weight=weight, weight_scale=scale), scheme)
    return dict(parts), PackedQuantizationCompressor.decompress(dict(parts), scheme)["weight"], dict(
        quant_method="compressed-tensors", format="pack-quantized", quantization_status="compressed", ignore=["lm_head"], kv_cache_scheme=None,
        config_groups=dict(group_0=dict(targets=["Linear"], weights=args, input_activations=None)))


def fp8(weight):
    parts = weight.reshape(weight.shape[0] // BLOCK, BLOCK, -1, BLOCK)
    scale = parts.abs().amax((1, 3)) / 448.0
    stored = (parts / scale[:, None, :, None]).reshape(weight.shape).to(torch.float8_e4m3fn)
    back = (stored.float().reshape(parts.shape) * scale[:, None, :, None]).reshape(weight.shape)
    return dict(weight=stored, weight_scale_inv=scale), back, dict(
        quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[BLOCK, BLOCK], modules_to_not_convert=["lm_head"])


def write_few(name, base, how):
    """The folder; returns the model with what its matrices are as real numbers."""
    model, stored = load(base), {}
    tensors = load_file(HERE / base / "model.safetensors")
    with torch.no_grad():
        for module_name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and module_name != "lm_head":
                parts, real, quantization = how(module.weight.detach().clone())
                module.weight.copy_(real)
                del tensors[f"{module_name}.weight"]
                stored |= {f"{module_name}.{key}": value.contiguous() for key, value in parts.items()}
    (HERE / name).mkdir(exist_ok=True)
    save_file(stored | tensors, HERE / name / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((HERE / base / "config.json").read_text()) | {"quantization_config": quantization}
    (HERE / name / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return model


@torch.no_grad()
def greedy(model, inputs, source, n):
    """Ids, their log-probabilities, and how far the second best id is behind, at least: 0 where an input was near a border."""
    memory = model.encoder(source)
    ids, logprobs, gap = [model.config.decoder_start_token_id], [], 1e9
    for _ in range(n):
        if inputs.near < BORDER:
            return [], [], 0.0
        row = model(encoder_outputs=memory, decoder_input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        best = torch.topk(row, 2).values
        gap = min(gap, (best[0] - best[1]).item())
        ids.append(row.argmax().item())
        logprobs.append(round(torch.log_softmax(row.double(), -1)[ids[-1]].item(), 6))
    return ids[1:], logprobs, gap


def text(model, inputs, rounds, g, n_source, n):
    for attempt in range(4000):
        source = torch.randint(6, V, (1, n_source), generator=g)
        inputs.on, inputs.near = rounds, 1.0
        ids, logprobs, gap = greedy(model, inputs, source, n)
        if inputs.near < BORDER or gap < GAP:
            continue
        inputs.on = False
        others, plain, _ = greedy(model, inputs, source, n)
        if others == ids:
            return {"source": source[0].tolist(), "ids": ids, "logprobs": logprobs, "plain": plain}, attempt
    raise SystemExit("no source without borders")


def row(name, kind, model, inputs, seed):
    g = torch.Generator().manual_seed(seed)
    texts = [text(model, inputs, kind != "none", g, *lengths) for lengths in LENGTHS]
    print(name, kind, [attempt for _, attempt in texts], max(abs(a - b) for t, _ in texts for a, b in zip(t["logprobs"], t["plain"])), flush=True)
    return {"base": name, "type": kind, "texts": [t for t, _ in texts]}


def main():
    rows = []
    for k, (name, config) in enumerate(MODELS.items()):
        make(name, config, 40 + k)
        for kind in TYPES:
            model = load(name)
            rows.append(row(name, kind, model, quantize(model, kind), 90 + k))
    for name, kind, how in (("blocks_packed", "file", packed), ("blocks_fp8", "none", fp8)):
        model = write_few(name, "blocks_untied", how)
        rows.append(row(name, kind, model, Inputs(model, head=False), 95))
    (HERE / "blocks.json").write_text("[" + ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows) + "]\n", encoding="utf-8")


main()
