# SPDX-License-Identifier: Apache-2.0
"""Makes steps.json: loss, learning rate and gradient norm of 20 steps of Hugging Face's Trainer, in fp32 and bf16, with
model/ and rows.jsonl, which it makes too. zero2.json is a configuration as fine-tuning frameworks ship them: everything
"auto", no optimizer, no scheduler.

Needs: pip install torch transformers accelerate safetensors bitsandbytes. Run in this folder. Rows come in the order in which ds_train
takes them (src/data/permutation.c, seed 42): prompt and completion as bytes, the prompt not counted.
"""
import json
import os
import random
import shutil

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from torch.utils.data import SequentialSampler
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

STEPS, MICRO_BATCH, ACCUMULATION, ROWS, SEED, SEQ_LENGTH = 20, 2, 3, 24, 42, 48
RUNS = {
    "cosine": dict(learning_rate=1e-2, lr_scheduler_type="cosine", warmup_steps=0.13, weight_decay=0.1, max_grad_norm=0.5,
                   adam_beta2=0.95),
    "default": dict(learning_rate=5e-3),
    "adafactor": dict(learning_rate=5e-3, optim="adafactor", weight_decay=0.1),
    "adamw_8bit": dict(learning_rate=5e-3, optim="adamw_bnb_8bit", weight_decay=0.1, adam_beta2=0.95),  # the embedding has 4096 elements
    "ademamix": dict(learning_rate=5e-3, optim="ademamix", weight_decay=0.1, adam_beta2=0.95),
}
BF16 = ("cosine", "default")


def philox(seed, counter):
    """Philox 4x32 with ten rounds (Salmon et al. 2011)."""
    c, key = list(counter), [seed & 0xffffffff, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ key[0], b & 0xffffffff, (a >> 32) ^ c[3] ^ key[1], a & 0xffffffff]
        key = [(key[0] + 0x9E3779B9) & 0xffffffff, (key[1] + 0xBB67AE85) & 0xffffffff]
    return c


def permute(i, n, epoch):
    half = 1
    while 1 << (2 * half) < n:
        half += 1
    while True:
        left, right = i >> half, i & ((1 << half) - 1)
        for turn in range(6):
            v = philox(SEED, [right, 0, 0x5045524D + turn, epoch])
            left, right = right, left ^ ((v[0] << 32 | v[1]) & ((1 << half) - 1))
        i = left << half | right
        if i < n:
            return i


def make_rows(rng):
    words = "the model learns to count one two three four five six seven eight nine ten and starts again".split()
    rows = []
    while len(rows) < ROWS:
        prompt = " ".join(rng.choice(words) for _ in range(4))
        row = {"prompt": prompt, "completion": " " + " ".join(rng.choice(words) for _ in range(rng.randint(2, 5)))}
        if SEQ_LENGTH // 2 < len(prompt + row["completion"]) <= SEQ_LENGTH:  # one a row: two are packed into none
            rows.append(row)
    return rows


def example(row):
    prompt, whole = row["prompt"].encode(), (row["prompt"] + row["completion"]).encode()
    return {"input_ids": list(whole), "labels": [-100] * len(prompt) + list(whole[len(prompt):])}


def pad(batch):
    longest = max(len(one["input_ids"]) for one in batch)
    fill = lambda one, key, value: one[key] + [value] * (longest - len(one[key]))
    mask = [[1] * len(one["input_ids"]) + [0] * (longest - len(one["input_ids"])) for one in batch]
    return {"input_ids": torch.tensor([fill(one, "input_ids", 0) for one in batch]), "attention_mask": torch.tensor(mask),
            "labels": torch.tensor([fill(one, "labels", -100) for one in batch])}


class InOrder(Trainer):
    def _get_train_sampler(self, *_):
        return SequentialSampler(self.train_dataset)


class Record(TrainerCallback):
    def __init__(self):
        self.steps = []

    def on_log(self, args, state, control, logs=None, **_):
        if "grad_norm" in logs:
            self.steps.append([logs["loss"], logs["learning_rate"], float(logs["grad_norm"])])


def run(rows, flags, bf16):
    torch.manual_seed(0)
    model = LlamaForCausalLM.from_pretrained("model", dtype=torch.float32)
    taken = STEPS * MICRO_BATCH * ACCUMULATION
    data = [example(rows[permute(k % ROWS, ROWS, k // ROWS)]) for k in range(taken)]
    args = TrainingArguments(output_dir="/tmp/trainer_steps", max_steps=STEPS, per_device_train_batch_size=MICRO_BATCH,
                             gradient_accumulation_steps=ACCUMULATION, bf16=bf16, logging_steps=1, report_to=[],
                             save_strategy="no", use_cpu=True, disable_tqdm=True, **flags)
    record = Record()
    InOrder(model=model, args=args, train_dataset=data, data_collator=pad, callbacks=[record]).train()
    assert len(record.steps) == STEPS
    return record.steps


def main():
    torch.set_num_threads(1)
    rows = make_rows(random.Random(1))
    with open("rows.jsonl", "w", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
    config = LlamaConfig(vocab_size=256, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                         num_key_value_heads=1, max_position_embeddings=128, tie_word_embeddings=True, initializer_range=0.1,
                         bos_token_id=None, eos_token_id=None, pad_token_id=None)
    torch.manual_seed(3)
    shutil.rmtree("model", ignore_errors=True)
    LlamaForCausalLM(config).save_pretrained("model")
    os.remove("model/generation_config.json")
    golden = {name + suffix: run(rows, flags, bf16) for name, flags in RUNS.items()
              for suffix, bf16 in (("_fp32", False), ("_bf16", True)) if not bf16 or name in BF16}
    os.chmod("model/model.safetensors", 0o644)
    with open("steps.json", "w", encoding="utf-8") as out:
        out.write("{\n" + ",\n".join('"%s": %s' % (name, json.dumps(steps)) for name, steps in golden.items()) + "\n}\n")


main()
