#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the goldens of tasks of encoders: small random models run by transformers, and by sentence-transformers' loss.

For every case a folder with
  config.json, model.safetensors   the model as transformers saves it
  golden.safetensors               the engine's inputs by their names; "logits" at each row's first token
  grads.safetensors                gradient of the loss by parameter name
  golden.json                      what the task is, the loss, and those of six AdamW steps
  dense.safetensors                of sentence-transformers' modules Dense the weights, by the engine's names
A row is one text, or two with their types, and padding behind it.

Needs torch, transformers, sentence-transformers, safetensors. Deterministic. Run: make_tasks.py [OUTPUT_FOLDER [CASE ...]]
"""
import json
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.models import Dense
from sentence_transformers.losses import MultipleNegativesRankingLoss
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification, BertConfig, LlamaConfig

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
torch.backends.mkldnn.enabled = False
V, T, STEPS = 61, 10, 6
BERT = dict(vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20,
            max_position_embeddings=12, initializer_range=0.3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
LLAMA = dict(vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
             intermediate_size=20, max_position_embeddings=16, initializer_range=0.3, tie_word_embeddings=False)
CASES = {
    "pair": (BertConfig(**BERT, num_labels=3), dict(task="classes", token_types=1)),
    "regression": (BertConfig(**BERT, num_labels=1), dict(task="classes", problem=1, token_types=1)),
    "regressions": (BertConfig(**BERT, num_labels=2, problem_type="regression"), dict(task="classes", problem=1)),
    "multi_label": (BertConfig(**BERT, num_labels=3, problem_type="multi_label_classification"),
                    dict(task="classes", problem=2, token_types=1)),
    "contrast": (BertConfig(**BERT), dict(task="contrast", pooling="mean", scale=20.0, negatives=0)),
    "contrast_negatives": (BertConfig(**BERT), dict(task="contrast", pooling="cls", scale=5.0, negatives=1)),
    "contrast_decoder": (LlamaConfig(**LLAMA), dict(task="contrast", pooling="last", scale=20.0, negatives=0)),
    "contrast_dense": (BertConfig(**BERT), dict(task="contrast", pooling="mean", scale=20.0, negatives=0, dense=[
        dict(in_features=24, out_features=24, activation_function="Tanh", use_residual=True),
        dict(in_features=24, out_features=10, bias=False, activation_function="GELU", use_residual=True),
        dict(in_features=10, out_features=12, activation_function="SiLU")])),
    "contrast_dense_more": (BertConfig(**BERT), dict(task="contrast", pooling="cls", scale=5.0, negatives=1, dense=[
        dict(in_features=24, out_features=20, activation_function="Sigmoid"),
        dict(in_features=20, out_features=32, activation_function="ReLU"),
        dict(in_features=32, out_features=12, activation_function="Identity")])),
}


def lengths_of(rows, seed):
    return [4 + (7 * i + seed) % (T - 3) for i in range(rows)]


def make_batch(what, labels, seed):
    g = torch.Generator().manual_seed(seed)
    contrast = what["task"] == "contrast"
    rows = 3 * (2 + what["negatives"]) if contrast else 3
    n = torch.tensor(lengths_of(rows, seed))[:, None]
    place = torch.arange(T).expand(rows, T)
    ids = torch.randint(3, V, (rows, T), generator=g).masked_fill(place >= n, 0)
    batch = dict(input_ids=ids, positions=torch.where(place < n, place, place - n), first=torch.where(place < n, 0, n))
    if contrast:
        weights = dict(mean=1.0 / n * torch.ones(rows, T), cls=(place == 0) * 1.0, last=(place == n - 1) * 1.0)
        batch |= dict(pool=weights[what["pooling"]].masked_fill(place >= n, 0.0), labels=torch.arange(3))
        return batch
    if what.get("token_types"):
        batch["token_type_ids"] = ((place >= n // 2) & (place < n)).long()
    first = (place == 0)
    if what.get("problem", 0) == 0:
        batch["labels"] = torch.where(first, torch.randint(0, labels, (rows, 1), generator=g), -100)
    else:
        values = torch.randn((rows, 1, labels), generator=g) if what["problem"] == 1 else (
            torch.rand((rows, 1, labels), generator=g) < 0.5) * 1.0
        batch |= dict(labels=torch.where(first[..., None], values, 0.0), counted=first * 1.0)
    return batch


def load(folder, what):
    kind = AutoModelForSequenceClassification if what["task"] == "classes" else (
        AutoModelForCausalLM if folder.endswith("decoder") else AutoModel)
    return kind.from_pretrained(folder, attn_implementation="eager").eval()


def dense_of(name, what):
    """The modules Dense, as torch.nn.Sequential whose names are those of the engine."""
    modules = torch.nn.Sequential()
    for i, fields in enumerate(what.get("dense", [])):
        modules.append(Dense(**fields | dict(activation_function=getattr(torch.nn, fields["activation_function"])())))
    if os.path.exists(f"{name}/dense.safetensors"):
        modules.load_state_dict({n.removeprefix("sentence_dense."): p for n, p in load_file(f"{name}/dense.safetensors").items()})
    return modules


def forward(model, what, batch, dense=()):
    """Loss and logits by transformers' own loss of labels, or by sentence-transformers'."""
    mask = (batch["first"] == 0).long() * ((batch["positions"] > 0) | (torch.arange(T) == 0))
    if what["task"] == "classes":
        out = model(input_ids=batch["input_ids"], attention_mask=mask, token_type_ids=batch.get("token_type_ids"),
                    labels=batch["labels"][:, 0] if what.get("problem", 0) == 0 or batch["labels"].shape[-1] > 1
                    else batch["labels"][:, 0, 0])
        return out.loss, out.logits
    base = model.model if hasattr(model, "lm_head") else model
    hidden = base(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
    vectors = (batch["pool"][..., None] * hidden).sum(1)
    for module in dense:
        vectors = module(dict(sentence_embedding=vectors))["sentence_embedding"]
    parts = list(vectors.split(3))
    return MultipleNegativesRankingLoss(None, scale=what["scale"]).compute_loss_from_embeddings(parts, None), vectors


def adamw_losses(folder, what, batch):
    model = load(folder, what)
    dense = dense_of(folder, what)
    params = [p for n, p in model.named_parameters() if not n.startswith(("pooler.", "lm_head."))] + list(dense.parameters())
    optimizer = torch.optim.AdamW(params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, foreach=False, fused=False)
    losses = []
    for _ in range(STEPS):
        loss, _logits = forward(model, what, batch, dense)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__)))
    for seed, (name, (config, what)) in enumerate(CASES.items()):
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        torch.manual_seed(seed)
        kind = AutoModelForSequenceClassification if what["task"] == "classes" else (
            AutoModelForCausalLM if name.endswith("decoder") else AutoModel)
        model = kind.from_config(config)
        with torch.no_grad():
            for n, p in model.named_parameters():
                if p.ndim == 1:
                    p.copy_((0.0 if n.endswith("bias") else 1.0) + 0.2 * torch.randn_like(p))
        model.save_pretrained(name)
        if what.get("dense"):
            save_file({"sentence_dense." + n: p.data for n, p in dense_of("", what).named_parameters()}, f"{name}/dense.safetensors")
        dense = dense_of(name, what)
        batch = make_batch(what, config.num_labels, seed)
        model = load(name, what)
        loss, logits = forward(model, what, batch, dense)
        loss.backward()
        golden = {k: (v.float() if v.is_floating_point() else v.to(torch.int32)).contiguous() for k, v in batch.items()}
        save_file(golden | {"logits": logits.detach().contiguous()}, f"{name}/golden.safetensors")
        prefix = "bert." if what["task"] == "contrast" and not name.endswith("decoder") else ""
        save_file({prefix + n: p.grad for n, p in model.named_parameters() if p.grad is not None}
                  | {"sentence_dense." + n: p.grad for n, p in dense.named_parameters()}, f"{name}/grads.safetensors")
        with open(f"{name}/golden.json", "w") as f:
            json.dump(what | dict(labels=config.num_labels, loss=loss.item(), adamw_losses=adamw_losses(name, what, batch)), f, indent=1)
            f.write("\n")
        print(name, loss.item())


if __name__ == "__main__":
    main()
