#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of DeepSpeed for Python (0.19.8) whose ranks share layers (AutoTP 2 on four processor ranks), and how it goes on.

    make_tensor.py OUT [FORM FOLDER]      needs deepspeed, torch, transformers

As make_deepspeed.py, whose batches these are; a Llama with two heads of keys and values (tensor.json), at ZeRO 1 and 2 (tensor1,
tensor2). With a form and the save folder of one, written by others, that form goes on from it, and the losses are printed:
test/long/deepspeed_out.py.
"""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_deepspeed as made  # noqa: E402

RANKS, TP = 4, 2
CONFIG = dict(made.CONFIG, num_key_value_heads=2)


def train(stage, out, resume):
    import deepspeed
    import safetensors.torch
    import torch
    import transformers
    deepspeed.init_distributed("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(3)
    config = dict(made.ds_config("zero1"), tensor_parallel={"autotp_size": TP}, zero_optimization={"stage": stage},
                  train_micro_batch_size_per_gpu=made.RANKS * made.MICRO * TP // RANKS)
    names = {k: v for k, v in CONFIG.items() if k not in ("model_type", "architectures")}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**names))
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    losses, start = [], 0
    if resume is not None:
        engine.load_checkpoint(resume)
        start = engine.global_steps
    for step, batch in list(enumerate(made.batches()))[start:]:
        if step == made.BEFORE and resume is None:
            engine.save_checkpoint(out)
        rows = [row for part in batch for row in part]
        n = len(rows) * TP // RANKS
        ids = torch.tensor(rows[rank // TP * n:(rank // TP + 1) * n])
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        mean = loss.detach().float().clone()
        torch.distributed.all_reduce(mean)
        losses.append(mean.item() / RANKS)
    if rank == 0 and resume is not None:
        print(json.dumps(losses))
    elif rank == 0:
        with open(os.path.join(out, "losses.json"), "w") as f:
            json.dump({"before": losses[:made.BEFORE], "after": losses[made.BEFORE:], "lr": engine.get_lr()[0]}, f)


def run(form, *more):
    subprocess.run([sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={RANKS}", "--master_port=29635", __file__,
                    "--rank", form, *more], check=True, env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"})


def main():
    if sys.argv[1] == "--rank":
        return train(int(sys.argv[2][-1]), sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None)
    root = os.path.abspath(sys.argv[1])
    if len(sys.argv) > 2:
        return run(sys.argv[2], root, os.path.abspath(sys.argv[3]))
    with open(os.path.join(root, "tensor.json"), "w") as f:
        json.dump(CONFIG, f, indent=1)
    for stage in (1, 2):
        name = f"tensor{stage}"
        out = os.path.join(root, name)
        run(name, out)
        for script in ("zero_to_fp32.py", "zero_to_torch.py"):
            os.remove(os.path.join(out, script))
        made.tar(root, name)


if __name__ == "__main__":
    main()
