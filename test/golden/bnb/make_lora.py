# SPDX-License-Identifier: Apache-2.0
"""Writes NAME/lora for each folder of make.py: an adapter by PEFT, steps.json (losses of five steps of it beside NAME/plain, in fp32, and the tokens
that they are of) and merged.safetensors (what merge_and_unload makes of the adapter as it began, where it changes; of the largest folder down_proj alone).
Needs torch, transformers, peft, safetensors. Usage: make_lora.py (in this folder)"""
import json
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

ROWS, SEQ, STEPS, RATE, EPS = 2, 16, 5, 1e-2, 1e-5


def plain(name):
    return AutoModelForCausalLM.from_pretrained(f"{name}/plain", dtype=torch.float32)


def write(name, largest):
    torch.manual_seed(5)
    folder = f"{name}/lora"
    model = get_peft_model(plain(name), LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"))
    for key, parameter in model.named_parameters():
        if "lora_B" in key:
            torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(folder)
    os.remove(f"{folder}/README.md")
    before = load_file(f"{name}/plain/model.safetensors")
    merged = {k: v.contiguous() for k, v in model.merge_and_unload().state_dict().items() if not torch.equal(v, before[k].float())}
    assert len(merged) == 2
    save_file({k: v for k, v in merged.items() if not largest or "down_proj" in k}, f"{folder}/merged.safetensors")
    ids = torch.randint(0, 48, (ROWS, SEQ))
    model = PeftModel.from_pretrained(plain(name), folder, is_trainable=True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, weight_decay=0.0, eps=EPS)
    losses = []
    for _ in range(STEPS):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    with open(f"{folder}/steps.json", "w", encoding="utf-8") as f:
        json.dump({"ids": ids.tolist(), "losses": losses}, f)
        f.write("\n")
    for file in ("adapter_model", "merged"):
        os.chmod(f"{folder}/{file}.safetensors", 0o644)


for which in ("nf4", "nf4_nested", "fp4", "int8"):
    write(which, which == "nf4_nested")
