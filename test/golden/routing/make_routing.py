# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's routers (AutoEP) under random keys of expert_parallel over random models of its presets.

    DS_ACCELERATOR=cpu python make_routing.py

Needs torch and deepspeed 0.19.8. Writes routing.json: for each case the keys, what the model itself says, logits (T,E) and what each
expert weighs for each token, (T,E).
"""
import json
import random
import types

import torch
from deepspeed.moe.ep_router import TokenChoiceTopKRouter
from deepspeed.module_inject import auto_ep
from deepspeed.module_inject.auto_ep_config import parse_autoep_config
from deepspeed.module_inject.auto_ep_presets.registry import get_preset, get_preset_adapter

T, E, CASES = 6, 8, 48
GROUPED = ("deepseek_v2", "deepseek_v3")


def model(rng, preset):
    """What a model's config.json says, as attributes of transformers' configuration."""
    said = {"num_experts_per_tok": rng.choice((1, 2, 3))}
    if preset == "qwen3_moe":
        said["norm_topk_prob"] = rng.random() < 0.5
    if preset in GROUPED:
        said["routed_scaling_factor"] = rng.choice((1.0, 2.5))
        groups = rng.choice((1, 2, 4)) if preset == "deepseek_v3" else rng.choice((2, 4))
        said |= {"n_group": groups, "topk_group": rng.randint((groups + 1) // 2, groups)}
    if preset == "deepseek_v2":
        said["topk_method"] = rng.choice(("greedy", "group_limited_greedy"))
    if preset == "deepseek_v3":
        said["norm_topk_prob"] = rng.random() < 0.5
    return said


def keys(rng):
    some = {}
    if rng.random() < 0.4:
        some["top_k"] = rng.choice((1, 2, 3))
    if rng.random() < 0.4:
        some["route_norm"] = rng.random() < 0.5
    if rng.random() < 0.4:
        some["route_scale"] = rng.choice((0.5, 1.0, 3.0))
    if rng.random() < 0.3:
        some["routed_scaling_factor"] = rng.choice((0.25, 1, 2.0))
    if rng.random() < 0.4:
        some["score_func"] = rng.choice(("softmax", "sigmoid"))
    if rng.random() < 0.4:
        some["num_expert_groups"] = rng.choice((2, 4))
        some["num_limited_groups"] = 2
    if rng.random() < 0.3:  # not the router's, but where its weights go
        some["score_apply"] = rng.choice(("auto", "pre", "post"))
    return some


def case(rng, seed):
    preset_name = rng.choice(("mixtral", "qwen3_moe", *GROUPED))
    said, some = model(rng, preset_name), keys(rng)
    preset = get_preset(preset_name)
    adapter = get_preset_adapter(preset.preset_adapter)
    config = parse_autoep_config({"enabled": True, **some})
    attributes = types.SimpleNamespace(**said)
    groups = adapter.resolve_group_routing(config, attributes)
    score = config.score_func if config.score_func != "auto" else preset.score_func
    router = TokenChoiceTopKRouter(
        dim=E, num_experts=E, num_expert_groups=groups.num_expert_groups, num_limited_groups=groups.num_limited_groups,
        top_k=config.top_k if isinstance(config.top_k, int) else said["num_experts_per_tok"], score_func=score,
        route_norm=adapter.resolve_route_norm(config, preset, attributes), route_scale=auto_ep._resolve_route_scale(config, attributes),
        gate_bias=False, group_score_func=groups.group_score_func)
    with torch.no_grad():
        router.gate.weight.copy_(torch.eye(E))
        logits = torch.randn(T, E, generator=torch.Generator().manual_seed(seed)) * 2
        weights, chosen, _ = router(logits)
        dense = torch.zeros(T, E).scatter(1, chosen, weights)
    own = {"top_k": said["num_experts_per_tok"], "sigmoid": preset.score_func == "sigmoid",
           "normalise": bool(said.get("norm_topk_prob", True)) if preset_name != "deepseek_v2" else bool(preset.route_norm),
           "factor": said.get("routed_scaling_factor", 1.0), "by_two": preset_name == "deepseek_v3",
           "groups": said["n_group"] if said.get("topk_method") != "greedy" and "n_group" in said else int(preset_name in GROUPED),
           "top_groups": said["topk_group"] if said.get("topk_method") != "greedy" and "n_group" in said else int(preset_name in GROUPED)}
    return {"preset": preset_name, "keys": some, "own": own, "logits": [float(f"{x:.9g}") for x in logits.flatten().tolist()],
            "weights": [float(f"{w:.9g}") for w in dense.flatten().tolist()]}


rng = random.Random(19)
with open("routing.json", "w") as file:
    cases = [json.dumps(case(rng, i)) for i in range(CASES)]
    file.write("[" + ",\n".join(cases) + "]\n")
