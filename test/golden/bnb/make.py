# SPDX-License-Identifier: Apache-2.0
"""Writes nf4, nf4_nested, fp4 and int8: small Llama folders that transformers saved after load_in_4bit and load_in_8bit, each with `plain`, the same
dequantized by bitsandbytes on the processor, and greedy.json, the tokens that transformers generates from `plain` in fp32. Needs torch, transformers (5.24),
bitsandbytes (0.50), safetensors. Usage: make.py (in this folder)

nf4 has matrices of an odd number of elements, nf4_nested one with magnitudes of more than one group of 256 and a layer that is not converted.
"""
import json
import os
import shutil

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling its one formula takes minutes
import torch
from bitsandbytes import functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

VOCAB, PROMPT, NEW = 48, [3, 14, 15, 9, 26, 5, 35, 8], 12


def dequantized(stored):
    """By bitsandbytes' own functions, from the file alone."""
    plain = {}
    for name, value in stored.items():
        if name + ".absmax" in stored:
            parts = {key[len(name) + 1:]: part.clone() for key, part in stored.items() if key.startswith(name + ".")}
            plain[name] = F.dequantize_4bit(value, F.QuantState.from_dict(parts, device=torch.device("cpu")))
        elif name.removesuffix("weight") + "SCB" in stored:
            plain[name] = F.int8_vectorwise_dequant(value, stored[name.removesuffix("weight") + "SCB"])
        elif name.endswith((".weight", ".bias")):
            plain[name] = value
    return {name: value.contiguous() for name, value in plain.items()}


def write(name, dtype, quantization, **sizes):
    torch.manual_seed(11)
    config = LlamaConfig(**dict(dict(vocab_size=VOCAB, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=1,
                                     max_position_embeddings=64, initializer_range=0.3, tie_word_embeddings=False), **sizes))
    model = LlamaForCausalLM(config).to(dtype)
    model.save_pretrained("source")
    model = AutoModelForCausalLM.from_pretrained("source", dtype=dtype, quantization_config=BitsAndBytesConfig(**quantization), device_map="cpu")
    shutil.rmtree("source")
    model.save_pretrained(name)
    stored = load_file(f"{name}/model.safetensors")
    plain = dequantized(stored)
    os.makedirs(f"{name}/plain", exist_ok=True)
    save_file(plain, f"{name}/plain/model.safetensors", metadata={"format": "pt"})
    with open(f"{name}/config.json") as f:
        described = json.load(f)
    described.pop("quantization_config")
    with open(f"{name}/plain/config.json", "w") as f:
        json.dump(described, f, indent=2)
        f.write("\n")
    # what transformers makes of the folder
    again = AutoModelForCausalLM.from_pretrained(name, device_map="cpu").dequantize().state_dict()
    assert again.keys() == plain.keys(), again.keys() ^ plain.keys()
    for key, value in plain.items():
        assert torch.equal(again[key].to(dtype), value.to(dtype)), key
    whole = AutoModelForCausalLM.from_pretrained(f"{name}/plain", dtype=torch.float32)
    ids = whole.generate(torch.tensor([PROMPT]), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0)
    scores = whole(ids[:, :-1]).logits[0, len(PROMPT) - 1:].topk(2).values
    assert (scores[:, 0] - scores[:, 1]).min() > 1e-3  # no tie that the order of sums decides
    with open(f"{name}/greedy.json", "w") as f:
        json.dump({"prompt": PROMPT, "greedy": ids[0, len(PROMPT):].tolist()}, f)
        f.write("\n")
    for extra in ("generation_config.json",):
        if os.path.exists(f"{name}/{extra}"):
            os.remove(f"{name}/{extra}")


FOUR = dict(load_in_4bit=True)
write("nf4", torch.bfloat16, FOUR | dict(bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype="bfloat16"), hidden_size=33, intermediate_size=37, num_attention_heads=3, head_dim=8)
write("nf4_nested", torch.bfloat16, FOUR | dict(bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, llm_int8_skip_modules=["o_proj", "lm_head"]),
      hidden_size=40, intermediate_size=52, head_dim=104)
write("fp4", torch.float16, FOUR | dict(bnb_4bit_quant_type="fp4"), hidden_size=40, intermediate_size=50, head_dim=10)
write("int8", torch.float16, dict(load_in_8bit=True), hidden_size=36, intermediate_size=50, head_dim=8)
