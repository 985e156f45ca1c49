# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of prompts' ids, their ranks and the three likeliest, by transformers 5.24 in fp32, of the model ../adapter/models/llama.
Usage: make_prompt_logprobs.py > prompt_logprobs.json"""
import json
import os
import random

import torch
import transformers

model = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../adapter/models/llama"),
                                                          dtype=torch.float32).eval()
rng = random.Random(1)
rows = []
for n in (1, 2, 5, 17, 40, 59):
    ids = [rng.randrange(32, 127) for _ in range(n)]
    with torch.no_grad():
        all_logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
    scores = [None]
    for i in range(1, n):
        of_id = all_logprobs[i - 1]
        own = of_id[ids[i]].item()
        top = torch.topk(of_id, 3)
        scores.append({"logprob": round(own, 6), "rank": int((of_id >= own).sum()),
                       "top": [[int(k), round(v, 6)] for k, v in zip(top.indices.tolist(), top.values.tolist())]})
    rows.append({"ids": ids, "scores": scores})
print("[" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "]")
