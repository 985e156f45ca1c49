# SPDX-License-Identifier: Apache-2.0
"""Gates of DeepSpeed's MoE layer on the processor: what each token's experts weigh, and the loss that balances them.

    DS_ACCELERATOR=cpu python make_moe_gates.py

Needs torch, safetensors and deepspeed 0.19.8. Writes gates.safetensors: for each case logits (T,E), weights (T,E), l_aux (1).
"""
import json

import torch
from deepspeed.moe.sharded_moe import top1gating, top2gating, topkgating
from safetensors.torch import save_file

T, E = 24, 5
CASES = {
    # name: k, capacity factor, drop_tokens, policy
    "top1": (1, 1.0, False, "position"),
    "top2": (2, 1.0, False, "position"),
    "top2_drop": (2, 0.7, True, "position"),
    "top3": (3, 1.0, False, "probs"),
    "top3_position": (3, 0.6, True, "position"),
    "top3_probs": (3, 0.6, True, "probs"),
    "top4_probs": (4, 0.5, True, "probs"),
}


def gate(k, logits, factor, drop, policy):
    if k == 1:
        return top1gating(logits, factor, 2, drop_tokens=drop, use_rts=False)
    if k == 2:
        return top2gating(logits, factor, 2, drop_tokens=drop, top2_2nd_expert_sampling=False)
    return topkgating(logits, k, factor, 2, drop_tokens=drop, drop_policy=policy)


tensors = {}
for i, (name, (k, factor, drop, policy)) in enumerate(CASES.items()):
    torch.manual_seed(i)
    logits = torch.randn(T, E) * 1.5 + torch.tensor([1.0, 0.4, 0.0, 0.0, -2.0])  # some experts are liked more
    l_aux, combine, _, _ = gate(k, logits, factor, drop, policy)
    tensors[name + ".logits"] = logits
    tensors[name + ".weights"] = combine.sum(-1).contiguous()
    tensors[name + ".l_aux"] = l_aux.reshape(1).float()
save_file(tensors, "gates.safetensors", metadata={"cases": json.dumps(CASES)})
