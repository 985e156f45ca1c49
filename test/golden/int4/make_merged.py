# SPDX-License-Identifier: Apache-2.0
"""Writes lora, an adapter by PEFT, and lora/merged.safetensors: what merge_and_unload makes of it in gptq_v2/plain, in fp32, where it changes.
Needs torch, transformers, peft, safetensors. Run in this folder."""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

torch.manual_seed(5)
model = AutoModelForCausalLM.from_pretrained("gptq_v2/plain", dtype=torch.float32)
model = get_peft_model(model, LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"))
for name, parameter in model.named_parameters():
    if "lora_B" in name:
        torch.nn.init.normal_(parameter, std=0.05)
model.save_pretrained("lora")
os.remove("lora/README.md")
before = load_file("gptq_v2/plain/model.safetensors")
merged = {k: v.contiguous() for k, v in model.merge_and_unload().state_dict().items() if not torch.equal(v, before[k].float())}
assert len(merged) == 2
save_file(merged, "lora/merged.safetensors")
for name in ("adapter_model", "merged"):
    os.chmod(f"lora/{name}.safetensors", 0o644)
