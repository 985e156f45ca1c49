#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden files of test/io: written by the safetensors package and by transformers' save_pretrained.

    python make_safetensors.py      # torch, transformers, safetensors; writes beside itself
"""
import os
import shutil

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))


def at(*parts):
    return os.path.join(HERE, *parts)


def reals(*shape):
    return torch.arange(1, 1 + int(torch.tensor(shape).prod()), dtype=torch.float64).reshape(shape) / 7 - 1


def main():
    mixed = {
        "z.weight": reals(3, 5).float(),
        "a.weight": reals(2, 2, 2).bfloat16(),
        "a.half": reals(7).half(),
        "a.double": reals(4),
        "count": torch.tensor(12345678901, dtype=torch.int64),
        "ids": torch.arange(-3, 3, dtype=torch.int32),
        "bytes": torch.arange(250, 256, dtype=torch.uint8),
        "signed": torch.arange(-2, 1, dtype=torch.int8),
        "mask": torch.tensor([True, False, True]),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        'odd "name"\\ \b\f\n\r\t\x01\x7f é/日本': reals(1).float(),
    }
    save_file(mixed, at("mixed.safetensors"), metadata={"format": "pt"})
    save_file(mixed, at("no_metadata.safetensors"))
    save_file({"a": reals(2).float()}, at("texts.safetensors"),
              metadata={"format": "pt", "zeta": "ü\n\"", "alpha": ""})
    save_file({}, at("nothing.safetensors"))

    torch.manual_seed(1)
    gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=32, vocab_size=67))
    llama = LlamaForCausalLM(LlamaConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                                         num_attention_heads=4, num_key_value_heads=2, vocab_size=67,
                                         tie_word_embeddings=False)).bfloat16()
    for name, model, size in (("gpt2", gpt2, "50GB"), ("llama_sharded", llama, 2500)):
        shutil.rmtree(at(name), ignore_errors=True)
        model.save_pretrained(at(name), max_shard_size=size)
    for name, dtype in (("gpt2_bf16", torch.bfloat16), ("gpt2_f16", torch.float16)):
        shutil.rmtree(at(name), ignore_errors=True)
        GPT2LMHeadModel.from_pretrained(at("gpt2"), dtype=dtype).save_pretrained(at(name))
        os.remove(at(name, "generation_config.json"))
    for name in os.listdir(HERE):
        for file in os.listdir(at(name)) if os.path.isdir(at(name)) else []:
            os.chmod(at(name, file), 0o644)


main()
