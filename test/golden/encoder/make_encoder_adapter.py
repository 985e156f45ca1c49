#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the goldens of adapters on encoders, beside those of make_encoder.py: for every variant with classes adapter/VARIANT/start
(an adapter that PEFT wrote, B not 0, its head in modules_to_save), adapter/VARIANT/end (the same after ten steps of AdamW on the
variant's golden batch), adapter/losses.json, and adapter/logits.json: the last adapter's classes of the first document alone.

Needs torch, transformers, peft, safetensors. Deterministic. Run: make_encoder_adapter.py
"""
import json
import os
import shutil

import torch
from make_encoder import forward, load
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

CASES = {
    "bert_sequence": dict(r=4, lora_alpha=8, target_modules="all-linear"),
    "bert_token": dict(r=3, lora_alpha=6, target_modules=["query", "value"]),  # PEFT does not start all-linear of TOKEN_CLS
    "roberta_sequence": dict(r=4, lora_alpha=4, target_modules=["query", "dense"], use_rslora=True),
    "roberta_token": dict(r=2, lora_alpha=4, target_modules=["key", "intermediate.dense"], use_dora=True),
    "modernbert_sequence": dict(r=4, lora_alpha=8, target_modules=["Wqkv", "Wo"]),
    "modernbert_token": dict(r=2, lora_alpha=4, target_modules=["Wqkv", "Wi"], modules_to_save=["head"]),
}


def save(model, folder):
    model.save_pretrained(folder)
    os.remove(folder + "/README.md")
    os.chmod(folder + "/adapter_model.safetensors", 0o644)


def case(name, fields):
    folder = "adapter/" + name
    task = "SEQ_CLS" if name.endswith("sequence") else "TOKEN_CLS"
    torch.manual_seed(11)
    model = get_peft_model(load(name), LoraConfig(task_type=task, **fields))
    for key, value in model.named_parameters():
        if "lora_B" in key:
            torch.nn.init.normal_(value, std=0.1)
    save(model, folder + "/start")
    model = PeftModel.from_pretrained(load(name), folder + "/start", is_trainable=True).eval()
    batch = {k: v.long() for k, v in load_file(name + "/golden.safetensors").items() if not k.startswith("logits")}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, eps=1e-5, weight_decay=0.01,
                                  foreach=False, fused=False)
    losses = []
    for _ in range(10):
        logits = forward(model.base_model.model, batch)
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch["targets"].reshape(-1),
                                                 ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    save(model, folder + "/end")
    ids = batch["tokens"][:1, batch["first"][0] == 0]
    return losses, model(input_ids=ids).logits.flatten().tolist()


def main():
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    shutil.rmtree("adapter", ignore_errors=True)
    made = {name: case(name, fields) for name, fields in CASES.items()}
    for i, what in enumerate(("losses", "logits")):
        with open(f"adapter/{what}.json", "w", encoding="utf-8") as out:
            out.write("{\n" + ",\n".join('"%s": %s' % (name, json.dumps(each[i])) for name, each in made.items()
                                         if what == "losses" or "sequence" in name) + "\n}\n")


main()
