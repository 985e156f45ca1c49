#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes steps/: ten optimizer steps of TRL's DPOTrainer and KTOTrainer on a tiny Llama over ASCII.

A batch is the whole data set, so that no order matters; texts end with "~", which is the end token. AdamW at a constant rate without
decay, no clipping. steps/ has the model, rows.jsonl, labelled.jsonl and steps.txt: a line "LOSS NAME VALUE…" of ten values each.
Needs torch, transformers, trl, datasets, tokenizers. Run: make_steps.py
"""
import json
import os
import random
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer

torch.set_num_threads(1)
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "steps")
PAIRS, STEPS = 4, 10


def tokenizer():
    t = Tokenizer(models.WordLevel({chr(i): i for i in range(128)}, unk_token="?"))
    t.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=t, eos_token="~", pad_token="\x00")


def rows():
    r = random.Random(2)

    def text(n):
        return "".join(r.choice("abcdefgh ") for _ in range(n))

    return [{"prompt": "q" + text(4), "chosen": text(3 + i) + "~", "rejected": text(7 - i) + "~"} for i in range(PAIRS)]


def model():
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32, attn_implementation="eager")


def run(trainer):
    trainer.train()
    logs = [h for h in trainer.state.log_history if "rewards/margins" in h]
    return {k: [h[k] for h in logs] for k in ("loss", "rewards/margins", "rewards/chosen", "logps/rejected", "grad_norm")}


def main():
    torch.manual_seed(4)
    os.makedirs(FOLDER, exist_ok=True)
    LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                                 num_key_value_heads=1, max_position_embeddings=64, initializer_range=0.2, tie_word_embeddings=True,
                                 bos_token_id=None, eos_token_id=None, pad_token_id=None)).save_pretrained(FOLDER)
    pairs = rows()
    labelled = [{"prompt": r["prompt"], "completion": r["chosen" if i % 2 else "rejected"], "label": bool(i % 2)} for i, r in enumerate(pairs)]
    for name, data in (("rows", pairs), ("labelled", labelled)):
        with open(os.path.join(FOLDER, name + ".jsonl"), "w") as f:
            f.write("".join(json.dumps(r) + "\n" for r in data))
    with tempfile.TemporaryDirectory() as out, open(os.path.join(FOLDER, "steps.txt"), "w") as f:
        common = dict(output_dir=out, report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False, max_steps=STEPS, logging_steps=1,
                      per_device_train_batch_size=PAIRS, learning_rate=1e-3, lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=0.0,
                      save_strategy="no", max_length=32, logging_nan_inf_filter=False)
        made = {}
        for loss in ("sigmoid", "ipo", "apo_zero"):
            args = DPOConfig(**common, loss_type=[loss], beta=0.2, precompute_ref_log_probs=True)
            made["dpo " + loss] = run(DPOTrainer(model=model(), args=args, train_dataset=Dataset.from_list(pairs), processing_class=tokenizer()))
        args = KTOConfig(**common, loss_type="kto", beta=0.2, precompute_ref_log_probs=True)
        made["kto kto"] = run(KTOTrainer(model=model(), ref_model=model(), args=args, train_dataset=Dataset.from_list(labelled),
                                         processing_class=tokenizer()))
        for loss, found in made.items():
            for name, values in found.items():
                f.write(f"{loss} {name} " + " ".join(f"{v:.9g}" for v in values) + "\n")


if __name__ == "__main__":
    main()
