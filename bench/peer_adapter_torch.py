#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peer of bench_adapter.sh: training steps of a model folder in PyTorch on the CPU, by transformers, with an adapter of PEFT
or whole.

    peer_adapter_torch.py FOLDER RANK BATCH LENGTH [THREADS]     RANK 0: the whole model is trained

The model is bf16 where PyTorch has fast bf16 products, with attention by scaled_dot_product_attention; the adapter is on all
linear layers with alpha twice the rank, held in fp32 as PEFT does by default; AdamW is the fused one. Prints "ready" when warm;
then for each line on stdin runs one step on random tokens and prints its seconds; ends with stdin. torch_amx.py keeps AMX
products alive on machines that hide a CPUID leaf."""
import os
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
folder, rank, batch, length = sys.argv[1], *map(int, sys.argv[2:5])
threads = int(sys.argv[5]) if len(sys.argv) > 5 else 2
os.environ["OMP_NUM_THREADS"] = str(threads)
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

import torch_amx

torch_amx.enable()
torch.set_num_threads(threads)
fast = torch.ops.mkldnn._is_mkldnn_bf16_supported()
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16 if fast else torch.float32, attn_implementation="sdpa")
vocab = model.config.vocab_size
model.config.use_cache = False
if rank > 0:
    model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"))
model.train()
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0, fused=True)


def step():
    ids = torch.randint(0, vocab, (batch, length))
    begin = time.perf_counter()
    model(input_ids=ids, labels=ids).loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return time.perf_counter() - begin


step()
print(f"ready: torch {torch.__version__}, {'bf16' if fast else 'fp32'}, {sum(p.numel() for p in trained)} trained", flush=True)
for _ in sys.stdin:
    print(f"{step():.6f}", flush=True)
