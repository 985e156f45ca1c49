# SPDX-License-Identifier: Apache-2.0
"""Gates of DeepSpeed's MoE layer on the processor: what each token's experts weigh, and the loss that balances them.

    DS_ACCELERATOR=cpu python make_moe_gates.py

Needs torch, safetensors and deepspeed 0.19.8. Writes gates.safetensors: for each case logits (T,E), weights (T,E), l_aux (1).
"""
import json

import torch
from deepspeed.moe import sharded_moe
from deepspeed.moe.sharded_moe import multiplicative_jitter, top1gating, top2gating, topkgating
from safetensors.torch import save_file

T, E = 24, 5
SEED, STEP, SITE = 77, 3, 1  # of what is drawn at random


def philox(element):
    """Random word of an element: Philox4x32-10, as in src/base/rng.h."""
    mask = 0xFFFFFFFF
    x = [element // 4 & mask, element >> 34, SITE, STEP]
    k = [SEED & mask, SEED >> 32]
    for _ in range(10):
        p, q = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(q >> 32) ^ x[1] ^ k[0], q & mask, (p >> 32) ^ x[3] ^ k[1], p & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return x[element % 4]


def uniform(shape):
    n = torch.Size(shape).numel()
    return torch.tensor([((philox(i) >> 9) + 0.5) * 2.0**-23 for i in range(n)], dtype=torch.float64).reshape(shape)


CPU = torch.device("cpu")
sharded_moe.gumbel_rsample = lambda shape, device: (-torch.log(-torch.log(uniform(shape)))).float()
sharded_moe.exp_selection_uniform_map[CPU] = lambda shape: uniform((shape[0], 1)).float()  # a token has one number
sharded_moe.uniform_map[CPU] = lambda shape: (1 + 0.01 * (2 * uniform(shape) - 1)).float()

CASES = {
    # name: k, capacity factor, drop_tokens, policy
    "top1": (1, 1.0, False, "position"),
    "top2": (2, 1.0, False, "position"),
    "top2_drop": (2, 0.7, True, "position"),
    "top3": (3, 1.0, False, "probs"),
    "top3_position": (3, 0.6, True, "position"),
    "top3_probs": (3, 0.6, True, "probs"),
    "top4_probs": (4, 0.5, True, "probs"),
    # in training, with what is drawn at random
    "top1_rsample": (1, 1.0, False, "position"),
    "top1_rts": (1, 0.6, True, "position"),
    "top2_second": (2, 1.0, False, "position"),
    "top2_second_drop": (2, 0.7, True, "position"),
    "top3_jitter": (3, 0.6, True, "position"),
}


def gate(name, x, k, factor, drop, policy):
    logits = multiplicative_jitter(x, CPU) if name.endswith("jitter") else x
    if k == 1:
        noise = "RSample" if name.endswith("rsample") else None
        return top1gating(logits, factor, 2, drop_tokens=drop, use_rts=name.endswith("rts"), noisy_gate_policy=noise)
    if k == 2:
        return top2gating(logits, factor, 2, drop_tokens=drop, top2_2nd_expert_sampling="second" in name)
    return topkgating(logits, k, factor, 2, drop_tokens=drop, drop_policy=policy)


tensors = {}
for i, (name, case) in enumerate(CASES.items()):
    torch.manual_seed(i)
    logits = torch.randn(T, E) * 1.5 + torch.tensor([1.0, 0.4, 0.0, 0.0, -2.0])  # some experts are liked more
    if name.endswith("jitter"):
        logits = torch.round(logits * 4) / 4 + torch.randn(T, E) * 0.002  # near ties, that the noise decides
    l_aux, combine, _, _ = gate(name, logits.clone(), *case)  # some add their noise in place
    tensors[name + ".logits"] = logits
    tensors[name + ".weights"] = combine.sum(-1).contiguous()
    tensors[name + ".l_aux"] = l_aux.reshape(1).float()
save_file(tensors, "gates.safetensors", metadata={"cases": json.dumps(CASES)})
