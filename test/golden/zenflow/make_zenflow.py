# SPDX-License-Identifier: Apache-2.0
"""Trajectories of DeepSpeed's ZenFlow (0.19.8, stages 1 and 2, overlap_step false, one CPU rank) on a
small network, for test/train/test_zenflow.c. Run: DS_ACCELERATOR=cpu python make_zenflow.py OUT.

Everything is DeepSpeed's own engine, selective optimizer and CPUAdam. Four things of it are undone,
which docs/internals/zenflow.md names: weights are views of a flat buffer that holds them transposed,
and the views are made as if it did not, which scrambles them; the bias correction of an Adam counts its own updates, not
steps; a new choice resets the count together with the moments, and only where columns are chosen;
the gradients of warm-up steps are not divided by update_interval. And the network has no biases: the
search for columns steps over them without stepping over their gradients."""
import os
import sys

import torch
import deepspeed
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from safetensors.torch import save_file

CASES = {  # update_interval, select_interval, full_warm_up_rounds
    "plain": (2, 4, 0),
    "long": (3, 6, 0),
    "warm": (2, 6, 4),
    "every": (1, 1, 0),
}
STEPS, BATCH, N_IN, HIDDEN, N_OUT = 13, 6, 24, 16, 8
LR, EPS, DECAY = 1e-2, 1e-15, 0.05


def view_weights(optimizer, group):
    flat = optimizer.bit16_groups_flat[group]
    for p, meta, offset in zip(optimizer.round_robin_bit16_groups[group],
                               optimizer.round_robin_bit16_meta[group],
                               optimizer.round_robin_bit16_offsets[group]):
        part = flat.narrow(0, offset, meta.numel())
        p.data = part.view(meta.shape[::-1]).t() if len(meta.shape) == 2 else part.view(meta.shape)
    for i, param in enumerate(optimizer.bit16_groups[group]):
        new = optimizer.round_robin_bit16_indices[group][i]
        param.data = optimizer.round_robin_bit16_groups[group][new].data


def undo(engine, count):
    selective = engine.optimizer.selective_optimizer

    def step(group_no):
        count[0] += 1
        engine.optimizer.optimizer.step(step_id=count[0])

    def clear():
        for group in selective.param_groups:
            for p in group["params"]:
                state = selective.state.get(p, {})
                if state and p.dim() == 2:
                    for name in ("step", "exp_avg", "exp_avg_sq"):
                        state[name].zero_()

    engine.optimizer.zenflow_cpu_optimizer_step = step
    selective.clear_selected_mv = clear


def run(name, out):
    update, select, warm = CASES[name]
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(N_IN, HIDDEN, bias=False), torch.nn.Tanh(),
                                torch.nn.Linear(HIDDEN, N_OUT, bias=False))
    config = {
        "train_batch_size": BATCH,
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_clipping": 0.0,
        "optimizer": {"type": "AdamW", "params": {"lr": LR, "eps": EPS, "weight_decay": DECAY}},
        "zero_optimization": {
            "stage": 2,
            "offload_optimizer": {"device": "cpu"},
            "overlap_comm": False,
            "zenflow": {
                "topk_ratio": 0.25,
                "select_strategy": "step",
                "select_interval": select,
                "update_interval": update,
                "full_warm_up_rounds": warm,
            },
        },
    }
    for key, p in model.named_parameters():
        out[f"{name}/0/{key}"] = p.detach().clone(memory_format=torch.contiguous_format)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                           config=config)
    undo(engine, [0])
    for step in range(STEPS):
        x, y = out[f"x/{step}"], out[f"y/{step}"]
        loss = ((engine(x) - y)**2).mean()
        engine.backward(loss * update if step < warm else loss)
        engine.step()
        for key, p in engine.module.named_parameters():
            out[f"{name}/{step + 1}/{key}"] = p.detach().clone(memory_format=torch.contiguous_format)
            if p.dim() == 2 and step >= warm:
                out[f"{name}/{step + 1}/{key}/index"] = p.selected_indices.to(torch.int32).clone()


def main():
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT="29611")
    DeepSpeedZeroOptimizer._update_model_bit16_weights = view_weights
    torch.manual_seed(3)
    out = {}
    for step in range(STEPS):
        out[f"x/{step}"] = torch.randn(BATCH, N_IN) * torch.linspace(0.2, 2.0, N_IN)[torch.randperm(N_IN)]
        out[f"y/{step}"] = torch.randn(BATCH, N_OUT)
    for name in CASES:
        run(name, out)
    save_file(out, sys.argv[1])


if __name__ == "__main__":
    main()
