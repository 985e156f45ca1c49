# SPDX-License-Identifier: Apache-2.0
"""ds_config check and ds_train agree: check_agrees.py BUILD CASES SEED.

Random configurations and flags, right and wrong; each is given to ds_config check and, for one step on one rank, to
ds_train. Exit status and error text must be the same. Needs no package. Exit 1 when a case differs.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

MODEL = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": 256,
         "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
OPTIMIZERS = [{"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
              {"type": "Adam", "params": {"adam_w_mode": False}}, {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
              {"type": "Lion", "params": {}}, {"type": "Lamb", "params": {}}, {"type": "Muon", "params": {}}, {"type": "AdamV"},
              {"params": {}}, "AdamW"]
SCHEDULES = [{"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}},
             {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_max_lr": "auto"}},
             {"type": "WarmupDecayLR", "params": {"total_num_steps": 7}}, {"type": "WarmupCosineLR", "params": {"total_num_steps": 5}},
             {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2}}, {"type": "cosine", "params": {"total_num_steps": "auto"}},
             {"type": "linear", "params": {"total_num_steps": "auto", "warmup": 3}}, {"type": "StepLR"}]
KEYS = {"train_batch_size": ["auto", 1, 2, 4, 0, "x"], "train_micro_batch_size_per_gpu": ["auto", 1, 2, 3],
        "gradient_accumulation_steps": ["auto", 1, 2], "gradient_clipping": ["auto", 0, 1.0, -1, "much"],
        "bf16": [{"enabled": "auto"}, {"enabled": True}, {"enabled": False}, {}], "fp16": [{"enabled": "auto"}, {"enabled": True}],
        "zero_optimization": [{"stage": s} for s in range(5)] + [{"stage": 3, "stage3_prefetch_bucket_size": "auto"}, {"stage": 2, "stag": 1}],
        "optimizer": OPTIMIZERS, "scheduler": SCHEDULES, "activation_checkpointing": [{"recompute": "full"}, {"recompute": "some"}],
        "device_memory": [1000, 10**9], "steps_per_print": [1, "inf", 2.5], "wandb": [{"enabled": False}], "my_own_key": [1],
        "gradient_acumulation_steps": [1], "zero_allow_untested_optimizer": [True], "tensor_parallel": [{"autotp_size": 2}]}
FLAGS = [["--micro_batch", "2"], ["--gradient_accumulation_steps", "2"], ["--learning_rate", "1e-3"], ["--weight_decay", "0.1"],
         ["--adam_beta1", "0.8"], ["--adam_epsilon", "1e-6"], ["--max_grad_norm", "0.5"], ["--warmup_steps", "1"], ["--warmup_steps", "0.5"],
         ["--warmup_steps", "1.5"], ["--warmup_ratio", "0.5"], ["--optim", "sgd"], ["--optim", "adamw_torch"], ["--optim", "adafactor"],
         ["--lr_scheduler_type", "cosine"], ["--lr_scheduler_type", "none"], ["--lr_scheduler_type", "polynomial"],
         ["--lr_scheduler_type", "cosine_with_min_lr"], ["--lr_scheduler_kwargs", '{"min_lr_rate": 0.1}'], ["--lr_scheduler_kwargs", "{"],
         ["--bf16"], ["--fp16"], ["--strict"], ["--allow_unknown_keys"], ["--loss_average", "targets"], ["--freeze", "no.such"], ["--epochs", "1"],
         ["--seq_length", "100"], ["--warmup_ratio", "2"]]


def draw(rng):
    config = {key: rng.choice(values) for key, values in KEYS.items() if rng.random() < 0.1}
    if rng.random() < 0.8:
        config["train_micro_batch_size_per_gpu"] = "auto"
    return config, [word for flag in rng.sample(FLAGS, rng.choice([0, 0, 1, 1, 2, 3])) for word in flag]


def run(command, folder, name):
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, (done.stdout + done.stderr).replace(f"{name}: ", "")


def main():
    build, cases, rng = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    taken = wrong = 0
    with tempfile.TemporaryDirectory(dir=build, prefix="check_agrees.") as folder:
        here = pathlib.Path(folder)
        (here / "gpt.json").write_text(json.dumps(MODEL))
        (here / "text.txt").write_text("0123456789" * 40)
        common = ["--model_config", "gpt.json", "--tokenizer", "bytes", "--data", "text.txt", "--threads", "1"]
        for _ in range(cases):
            config, flags = draw(rng)
            (here / "ds.json").write_text(json.dumps(config))
            if "--epochs" not in flags:
                flags += ["--steps", "1"]
            if "--seq_length" not in flags:
                flags += ["--seq_length", "16"]
            train, text = run([f"{build}/ds_train", "--deepspeed_config", "ds.json", *common, *flags], here, "ds_train")
            check, said = run([f"{build}/ds_config", "check", "ds.json", "--world_size", "1", *common, *flags], here, "ds_config")
            errors = [line for line in text.splitlines() if train != 0 and line.strip()]
            missing = [line for line in errors if line not in said] if train != 0 else []
            taken += train == 0
            if train != check or missing:
                wrong += 1
                print(f"DIFFERS {json.dumps(config)} {flags}\nds_train {train}: {text}\nds_config {check}: {said}")
    print(f"{cases} cases, {taken} taken, {wrong} differ")
    sys.exit(1 if wrong or (cases >= 20 and not 0 < taken < cases) else 0)


main()
