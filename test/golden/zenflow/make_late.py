# SPDX-License-Identifier: Apache-2.0
"""Trajectories of DeepSpeed's ZenFlow with overlap_step (0.19.8, stage 2, one CPU rank) for
test/train/test_zenflow.c. Run: DS_ACCELERATOR=cpu python make_late.py OUT.

Everything is DeepSpeed's own: its engine, its selective optimizer, its optimizer process with the
native Adam. Undone are the four things that make_zenflow.py says, and three of the overlap: the two gradient
buffers share their moments; the first wait is not left out when there is no warm-up; and columns are
chosen once, since a later choice races with the update under way."""
import os
import sys

import torch
import deepspeed
from deepspeed.runtime.zenflow import zenflow_stage_1_and_2, zenflow_utils
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from safetensors.torch import load_file, save_file

import make_zenflow

CASES = {  # update_interval, full_warm_up_rounds
    "late": (2, 0),
    "late_long": (3, 0),
    "late_warm": (2, 4),
}
STEPS, BATCH, N_IN, HIDDEN, N_OUT = 13, 6, 24, 16, 8
LR, EPS, DECAY = 1e-2, 1e-15, 0.05


def optimizer_process(groups, ctrl, ready, affinity, adamw_mode):
    """DeepSpeed's, but with one set of moments."""
    from deepspeed.ops.op_builder import CPUAdamBuilder
    op = CPUAdamBuilder().load()
    op.create_adam(0, 1e-3, 0.9, 0.999, 1e-8, 0.0, adamw_mode, False)
    handle = op.zenflow_adam_create(0, list(affinity))
    for param, grad0, grad1, stale in groups:
        m, v = torch.zeros_like(param), torch.zeros_like(param)
        op.zenflow_adam_register_group(handle, param, grad0, grad1, m, m, v, v, stale)
    ready.set()
    op.zenflow_adam_run_worker(handle, ctrl.data_ptr())


def undo(engine, warm):
    optimizer = engine.optimizer
    count = [0]
    optimizer.first_update_round_after_warmup = warm > 0
    step = optimizer.zenflow_cpu_optimizer_step

    def counted(state, norm):  # its own updates, not steps
        real, optimizer.micro_step = optimizer.micro_step, count[0]
        count[0] += 1
        step(state, norm)
        optimizer.micro_step = real

    optimizer.zenflow_cpu_optimizer_step = counted


def run(name, out):
    update, warm = CASES[name]
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
                "select_interval": 1000,
                "update_interval": update,
                "full_warm_up_rounds": warm,
                "overlap_step": True,
            },
        },
    }
    for key, p in model.named_parameters():
        out[f"{name}/0/{key}"] = p.detach().clone(memory_format=torch.contiguous_format)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                           config=config)
    undo(engine, warm)
    for step in range(STEPS):
        x, y = out[f"x/{step}"], out[f"y/{step}"]
        loss = ((engine(x) - y)**2).mean()
        engine.backward(loss * update if step < warm else loss)
        engine.step()
        for key, p in engine.module.named_parameters():
            out[f"{name}/{step + 1}/{key}"] = p.detach().clone(memory_format=torch.contiguous_format)
    engine.optimizer._wait_for_optimizer_process()
    engine.optimizer.process.terminate()


def main():
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT="29612")
    DeepSpeedZeroOptimizer._update_model_bit16_weights = make_zenflow.view_weights
    zenflow_utils.zenflow_optimizer_process = optimizer_process
    here = os.path.dirname(os.path.abspath(__file__))
    batches = load_file(os.path.join(here, "trajectories.safetensors"))
    out = {k: v for k, v in batches.items() if k[:2] in ("x/", "y/")}
    for name in CASES:
        run(name, out)
    save_file({k: v for k, v in out.items() if k[:2] not in ("x/", "y/")}, sys.argv[1])


if __name__ == "__main__":
    main()
