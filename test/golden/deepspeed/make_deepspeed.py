#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of DeepSpeed for Python (0.19.8, three processor ranks, so that partitions are padded), and how it goes on from them.

    make_deepspeed.py OUT      needs deepspeed, torch, transformers

A tiny Llama is trained for 3 steps and saved in each form; then 5 more steps are made, whose losses
(mean of all ranks) are in NAME/losses.json, as is what DeepSpeed's own zero_to_fp32 makes of the
folder (NAME/fp32.safetensors); universal2 and universal3 are what its ds_to_universal makes of zero2 and zero3. config.json and batches.json (ids by step, rank) are shared. Folders
are packed as NAME.tar.gz.
"""
import json
import os
import shutil
import subprocess
import sys

CONFIG = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=35, hidden_size=8, intermediate_size=12,
              num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32,
              rms_norm_eps=1e-5, tie_word_embeddings=True, hidden_act="silu", rope_theta=10000.0)
BEFORE, AFTER, MICRO, LENGTH, RANKS = 3, 5, 2, 12, 3
FORMS = {
    "zero1": {"zero_optimization": {"stage": 1}},
    "zero2": {"zero_optimization": {"stage": 2}},
    "zero3": {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 10, "sub_group_size": 300}},
    "bf16": {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}},
}


def ds_config(form):
    return {"train_micro_batch_size_per_gpu": MICRO, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1,
                                                      "torch_adam": True}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-2, "warmup_num_steps": 6,
                                                         "warmup_type": "linear"}}, **FORMS[form]}


def batches():
    import random
    rng = random.Random(7)
    return [[[[rng.randrange(35) for _ in range(LENGTH)] for _ in range(MICRO)] for _ in range(RANKS)]
            for _ in range(BEFORE + AFTER)]


def start():
    """Ranks by gloo alone: without the collectives that DeepSpeed compiles for ranks of one host."""
    import deepspeed
    import deepspeed.ops
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")


def train(form, out):
    import deepspeed
    import torch
    import transformers
    deepspeed.init_distributed("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(3)
    config = ds_config(form)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{k: v for k, v in CONFIG.items() if k not in ("model_type", "architectures")}))
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    losses = []
    for step, batch in enumerate(batches()):
        if step == BEFORE:
            engine.save_checkpoint(out)
        ids = torch.tensor(batch[rank])
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        mean = loss.detach().float().clone()
        torch.distributed.all_reduce(mean)
        losses.append(mean.item() / RANKS)
    if rank == 0:
        with open(os.path.join(out, "losses.json"), "w") as f:
            json.dump({"before": losses[:BEFORE], "after": losses[BEFORE:], "lr": engine.get_lr()[0],
                       "scale": float(getattr(engine.optimizer, "cur_scale", 1.0))}, f)


def pack(root, form):
    """DeepSpeed's own fp32 weights, then the folder as one file."""
    import safetensors.torch
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    out = os.path.join(root, form)
    if form != "bf16":  # its script does not know these
        state = get_fp32_state_dict_from_zero_checkpoint(out)
        state.pop("lm_head.weight", None)
        safetensors.torch.save_file({k: v.contiguous().clone() for k, v in state.items()}, os.path.join(out, "fp32.safetensors"))
    for name in ("zero_to_fp32.py", "zero_to_torch.py"):
        os.remove(os.path.join(out, name))
    tar(root, form)


def tar(root, name):
    subprocess.run(["tar", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "-czf", name + ".tar.gz", name],
                   cwd=root, check=True)


def convert(root, source, name, files=("losses.json", ), flags=()):
    """What ds_to_universal makes of the save folder, with these files of it, as NAME.tar.gz."""
    shutil.rmtree(os.path.join(root, name), ignore_errors=True)
    os.makedirs(os.path.join(root, name))
    subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", *flags, "--input_folder",
                    os.path.join(source, "global_step3"), "--output_folder", os.path.join(root, name, "global_step3_universal")],
                   check=True)
    for file in files:
        shutil.copy(os.path.join(source, file), os.path.join(root, name))
    tar(root, name)


def universal(root, stage):
    convert(root, os.path.join(root, f"zero{stage}"), f"universal{stage}", ("losses.json", "fp32.safetensors"),
            ("--inject_missing_state", ))


def main():
    if len(sys.argv) == 3:
        return train(sys.argv[1], sys.argv[2])
    root = os.path.abspath(sys.argv[1])
    os.makedirs(root, exist_ok=True)
    with open(os.path.join(root, "config.json"), "w") as f:
        json.dump(CONFIG, f, indent=1)
    with open(os.path.join(root, "batches.json"), "w") as f:
        json.dump(batches(), f)
    for form in FORMS:
        subprocess.run([sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={RANKS}", "--master_port=29631", __file__,
                        form, os.path.join(root, form)], check=True,
                       env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"})
        pack(root, form)
    for stage in (2, 3):
        universal(root, stage)


if __name__ == "__main__":
    main()
