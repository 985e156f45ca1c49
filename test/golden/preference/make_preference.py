#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the goldens of preference training: TRL's trainers on the models of test/golden/parity.

For gpt2 and llama3_tied, and of each of TRL's losses
  VARIANT.safetensors   rows (ids, completion mask), reference log-probabilities, labels; gradients of
                        a few parameters by "LOSS/NAME"
  VARIANT.json          by loss: settings, loss, norm of the whole gradient, TRL's metrics

Rows are texts of words "w5 w17 …", a token each, so that the trainers read their own data format. The reference is the
same model with weights moved a little. Needs torch, transformers, trl, datasets, tokenizers, safetensors.
Run: make_preference.py [OUTPUT_FOLDER]
"""
import json
import os
import random
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (AutoModelForCausalLM, AutoModelForSequenceClassification,
                          PreTrainedTokenizerFast)
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

torch.set_num_threads(1)
HERE = os.path.dirname(os.path.abspath(__file__))
V, PAIRS, T = 131, 3, 16
SHOWN = {"gpt2": ["transformer.ln_f.weight", "transformer.h.0.attn.c_attn.bias", "transformer.wpe.weight"],
         "llama3_tied": ["model.norm.weight", "model.layers.0.self_attn.k_proj.weight",
                         "model.layers.3.mlp.down_proj.weight"]}


def tokenizer():
    words = {f"w{i}": i for i in range(V - 2)}
    words["<pad>"], words["<eos>"] = V - 2, V - 1
    t = Tokenizer(models.WordLevel(words, unk_token="w0"))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    t.add_special_tokens(["<pad>", "<eos>"])
    return PreTrainedTokenizerFast(tokenizer_object=t, pad_token="<pad>", eos_token="<eos>")


def rows():
    r = random.Random(7)

    def text(n):
        return "".join(f" w{r.randrange(V - 2)}" for _ in range(n))

    return [{"prompt": text(r.randrange(2, 6)).strip(), "chosen": text(r.randrange(2, 8)),
             "rejected": text(r.randrange(2, 8))} for _ in range(PAIRS)]


def moved(model):
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.02 * torch.randn(p.shape, generator=g)
    return model


def load(folder, kind=AutoModelForCausalLM, **more):
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **more)


def config(kind, out, **more):
    return kind(output_dir=out, per_device_train_batch_size=PAIRS, report_to=[], max_length=T, use_cpu=True,
                logging_steps=1, gradient_checkpointing=False, bf16=False, **more)


def run(trainer, model, out, key, variant, settings):
    """The loss of one batch, its gradient and metrics."""
    batch = next(iter(trainer.get_train_dataloader()))
    model.train()
    trainer.model_wrapped = model
    loss = trainer.compute_loss(model, batch)
    if isinstance(loss, tuple):
        loss = loss[0]
    model.zero_grad()
    loss.backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    norm = sum(g.double().square().sum() for g in grads.values()).sqrt()
    stored = getattr(trainer, "_metrics", None) or getattr(trainer, "_stored_metrics")
    metrics = {k: (sum(v) / len(v)) for k, v in stored["train"].items()}
    out["scalars"][key] = {**settings, "loss_value": loss.item(), "norm": norm.item(),
                           "metrics": {k: float(v) for k, v in metrics.items()}}
    for name in SHOWN[variant]:
        out["tensors"][f"{key}/{name}"] = grads[name].contiguous()
    return batch


def make(variant, target):
    folder = os.path.join(HERE, "..", "parity", variant)
    tok = tokenizer()
    data = Dataset.from_list(rows())
    out = {"scalars": {}, "tensors": {}}
    dpo = {"sigmoid": {}, "hinge": {}, "ipo": {}, "robust": {"label_smoothing": 0.1}, "exo_pair": {"label_smoothing": 0.1},
           "nca_pair": {}, "bco_pair": {}, "sppo_hard": {}, "apo_zero": {}, "apo_down": {}, "sigmoid_norm": {}}
    with tempfile.TemporaryDirectory() as tmp:
        for loss, more in dpo.items():
            model = load(folder)
            args = config(DPOConfig, tmp, loss_type=[loss], beta=0.3, precompute_ref_log_probs=True, **more)
            args.train_sampling_strategy = "sequential"
            trainer = DPOTrainer(model=model, ref_model=moved(load(folder)), args=args, train_dataset=data,
                                 processing_class=tok)
            batch = run(trainer, model, out, loss, variant, {"loss": loss, "beta": 0.3, **more})
        out["tensors"]["input_ids"] = batch["input_ids"].int()
        out["tensors"]["completion_mask"] = batch["completion_mask"].int()
        out["tensors"]["attention_mask"] = batch["attention_mask"].int()
        out["tensors"]["ref_logps"] = torch.cat([batch["ref_chosen_logps"], batch["ref_rejected_logps"]]).float()

        model = load(folder)
        args = config(CPOConfig, tmp, loss_type="simpo", beta=2.0, simpo_gamma=0.5, cpo_alpha=0.0, label_smoothing=0.1)
        args.train_sampling_strategy = "sequential"
        run(CPOTrainer(model=model, args=args, train_dataset=data, processing_class=tok), model, out, "simpo", variant,
            {"loss": "simpo", "beta": 2.0, "gamma": 0.5, "label_smoothing": 0.1})
        model = load(folder)
        args = config(CPOConfig, tmp, loss_type="sigmoid", beta=0.3, cpo_alpha=0.0, label_smoothing=0.1)
        args.train_sampling_strategy = "sequential"
        run(CPOTrainer(model=model, args=args, train_dataset=data, processing_class=tok), model, out, "reference_free",
            variant, {"loss": "sigmoid", "reference_free": True, "beta": 0.3, "label_smoothing": 0.1})
        model = load(folder)
        args = config(ORPOConfig, tmp, beta=0.3)
        args.train_sampling_strategy = "sequential"
        run(ORPOTrainer(model=model, args=args, train_dataset=data, processing_class=tok), model, out, "orpo", variant,
            {"loss": "orpo", "beta": 0.3})

        labels = [{"prompt": r["prompt"], "completion": r["chosen" if i % 2 == 0 else "rejected"], "label": i % 2 == 0}
                  for i, r in enumerate(rows())]
        for loss in ("kto", "apo_zero_unpaired"):
            model = load(folder)
            args = config(KTOConfig, tmp, loss_type=loss, beta=0.3, desirable_weight=1.0, undesirable_weight=1.5,
                          precompute_ref_log_probs=True)
            args.train_sampling_strategy = "sequential"
            trainer = KTOTrainer(model=model, ref_model=moved(load(folder)), args=args,
                                 train_dataset=Dataset.from_list(labels), processing_class=tok)
            batch = run(trainer, model, out, loss, variant,
                        {"loss": loss, "beta": 0.3, "undesirable_weight": 1.5})
            if loss == "kto":
                for name in ("input_ids", "completion_mask", "KL_input_ids", "KL_completion_mask"):
                    out["tensors"]["kto/" + name] = batch[name].int()
                out["tensors"]["kto/ref_logps"] = batch["ref_logps"].float()
                out["tensors"]["kto/ref_KL_logps"] = batch["ref_KL_logps"].float()
                out["tensors"]["kto/labels"] = torch.tensor(batch["label"]).int()

        model = load(folder, AutoModelForSequenceClassification, num_labels=1, pad_token_id=V - 2)
        with torch.no_grad():
            model.score.weight.copy_(0.2 * torch.randn(model.score.weight.shape,
                                                       generator=torch.Generator().manual_seed(5)))
        args = config(RewardConfig, tmp, center_rewards_coefficient=0.01)
        args.train_sampling_strategy = "sequential"
        trainer = RewardTrainer(model=model, args=args, train_dataset=data, processing_class=tok)
        score = model.score.weight.detach().clone()
        batch = run(trainer, model, out, "reward", variant, {"loss": "reward", "beta": 1.0, "center": 0.01})
        out["tensors"]["reward/score.weight"] = score.contiguous()
        out["tensors"]["reward/input_ids"] = batch["input_ids"].int()
        out["tensors"]["reward/attention_mask"] = batch["attention_mask"].int()
    save_file(out["tensors"], os.path.join(target, variant + ".safetensors"))
    with open(os.path.join(target, variant + ".json"), "w") as f:
        json.dump(out["scalars"], f, indent=1, sort_keys=True)
        f.write("\n")
    for key, s in out["scalars"].items():
        print(variant, key, s["loss_value"], s["norm"])


if __name__ == "__main__":
    where = sys.argv[1] if len(sys.argv) > 1 else HERE
    for variant_name in SHOWN:
        make(variant_name, where)
