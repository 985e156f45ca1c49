# SPDX-License-Identifier: Apache-2.0
"""Makes what test_packed compares with: bytes.safetensors (matrices as bitsandbytes and torch pack them) and steps.json (losses of
ten steps of PEFT's adapters of test/golden/adapter beside models whose linear layers are dequantized from such bytes, and
logits of the first).

Needs: pip install torch transformers peft safetensors bitsandbytes. Run in this folder.
"""
import json
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import bitsandbytes.functional as bnb
import numpy as np
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from bitsandbytes.nn import Linear4bit
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from transformers.pytorch_utils import Conv1D

ADAPTER = "../adapter/"
STEPS, SEQ_LENGTH, RATE, EPS = 10, 48, 1e-2, 1e-5
SHAPES = {"odd": (5, 13), "short": (33, 70), "even": (64, 64), "one": (1, 1), "nested": (40, 701)}
FORMATS = ("nf4", "nf4_double", "int8", "fp8")
CASES = [("rslora", "llama", f) for f in FORMATS] + [("conv1d", "gpt2", "nf4"), ("saved", "llama", "nf4")]


def matrix(rows, columns, seed):
    """Numbers that C makes too, to the last bit: cubes of a counter's hash; a block of zeros."""
    i = np.arange(rows * columns, dtype=np.uint64) + np.uint64(1000003 * seed)
    x = ((i * 2654435761 % 2**32 >> 16).astype(np.float32) - np.float32(32768)) / np.float32(32768)
    w = x * x * x * np.float32(0.05)
    w[64:128] = 0
    return torch.tensor(w.reshape(rows, columns))


def unpack(q, state, shape):
    """By bitsandbytes' code for any processor: that for AVX-512 (0.50.2) takes a wrong scale where rows of a multiple of 16, but
    not of 64, share blocks."""
    absmax = state.absmax
    if state.nested:
        absmax = bnb.dequantize_blockwise(absmax, state.state2) + state.offset
    return _dequantize_4bit_compute(q.reshape(-1), absmax, state.code, 64, shape, torch.float32)


def pack(w, form):
    """Tensors by name, as bitsandbytes or torch has them, and the matrix that they stand for."""
    if form.startswith("nf4"):
        q, s = bnb.quantize_4bit(w, blocksize=64, compress_statistics=form != "nf4", quant_type="nf4")
        made = {"codes": q.reshape(-1)}
        if form == "nf4":
            made["absmax"] = s.absmax
        else:
            plain = bnb.quantize_4bit(w, blocksize=64, compress_statistics=False, quant_type="nf4")[1].absmax
            exact = np.float32(plain.double().mean().item())
            if exact != np.float32(s.offset.item()):  # torch's mean is rounded at every step
                return None, None
            made.update(absmax=s.absmax, nested=s.state2.absmax, offset=s.offset.reshape(1))
        return made, unpack(q, s, w.shape)
    if form == "int8":
        q, stats, _ = torch.ops.bitsandbytes.int8_vectorwise_quant(w)
        return {"codes": q.reshape(-1), "absmax": stats}, torch.ops.bitsandbytes.int8_vectorwise_dequant(q, stats)
    most = w.abs().amax(dim=1)
    scale = torch.where(most > 0, most / 448.0, most)
    q = torch.where(most[:, None] > 0, w / scale[:, None], w).to(torch.float8_e4m3fn)
    return {"codes": q.view(torch.uint8).reshape(-1), "absmax": scale}, q.float() * scale[:, None]


def batch_of(rows):
    ids, labels, mask = [], [], []
    for row in rows:
        prompt, whole = row["prompt"].encode(), (row["prompt"] + row["completion"]).encode()
        rest = SEQ_LENGTH - len(whole)
        ids.append(list(whole) + [0] * rest)
        labels.append([-100] * len(prompt) + list(whole[len(prompt):]) + [-100] * rest)
        mask.append([1] * len(whole) + [0] * rest)
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels), "attention_mask": torch.tensor(mask)}


def dequantized(family, form):
    model = AutoModelForCausalLM.from_pretrained(ADAPTER + "models/" + family, dtype=torch.float32)
    for name, module in model.named_modules():
        turned = isinstance(module, Conv1D)
        if (turned or isinstance(module, torch.nn.Linear)) and name != "lm_head":
            w = module.weight.data.T.contiguous() if turned else module.weight.data
            got = pack(w, form)[1]
            if got is None:  # an offset that torch rounds otherwise: at most one unit in the last place
                q, s = bnb.quantize_4bit(w, blocksize=64, compress_statistics=True, quant_type="nf4")
                got = unpack(q, s, w.shape)
            module.weight.data = got.T.contiguous() if turned else got
    return model


def check_loaded():
    """That transformers with bitsandbytes packs the same layers, to the same bytes."""
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    for family in ("llama", "gpt2"):
        folder = ADAPTER + "models/" + family
        plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=config)
        for (name, a), (_, b) in zip(plain.named_modules(), loaded.named_modules(), strict=True):
            turned = isinstance(a, Conv1D)
            packs = (turned or isinstance(a, torch.nn.Linear)) and name != "lm_head"
            assert packs == isinstance(b, Linear4bit), name
            if packs:
                w = a.weight.data.T.contiguous() if turned else a.weight.data
                assert torch.equal(pack(w, "nf4")[0]["codes"], b.weight.data.reshape(-1)), name


def steps(name, family, form, batch):
    model = PeftModel.from_pretrained(dequantized(family, form), ADAPTER + name + "/start", is_trainable=True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, weight_decay=0.0, eps=EPS)
    made = {"case": name, "model": family, "format": form, "losses": []}
    with torch.no_grad():
        made["logits"] = model(input_ids=torch.tensor([list(b"one two ")])).logits[0, -1, :32].tolist()
    for _ in range(STEPS):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        made["losses"].append(loss.item())
    return made


def main():
    torch.set_num_threads(1)
    tensors = {}
    for label, (rows, columns) in SHAPES.items():
        # of a seed for which torch's mean is the exact one, rounded
        seed = next(s for s in range(99) if pack(matrix(rows, columns, s), "nf4_double")[0] is not None)
        tensors[label + ".seed"] = torch.tensor([seed])
        for form in FORMATS[:2] if label == "nested" else FORMATS:
            made, _ = pack(matrix(rows, columns, seed), form)
            tensors.update({f"{label}.{form}.{key}": value.contiguous() for key, value in made.items()})
    save_file(tensors, "bytes.safetensors")
    os.chmod("bytes.safetensors", 0o644)
    batch = batch_of([json.loads(line) for line in open(ADAPTER + "rows.jsonl", encoding="utf-8")])
    check_loaded()
    made = [steps(*case, batch) for case in CASES]
    with open("steps.json", "w", encoding="utf-8") as out:
        out.write("[\n" + ",\n".join(json.dumps(m) for m in made) + "\n]\n")


main()
