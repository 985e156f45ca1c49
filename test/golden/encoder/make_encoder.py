#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the goldens of encoders: small random models with a head for masked tokens or classes, run by transformers.

For every variant a folder with
  config.json, model.safetensors   the model as transformers saves it
  golden.safetensors               tokens, targets (aligned with the logits, -100 not counted), positions and
                                   first (where the document of each position begins), logits in f32, and of bf16 as f32
  grads.safetensors                gradient of the loss by parameter name
  golden.json                      the loss, and those of twenty AdamW steps
Row 0 holds four documents; row 1 one, and padding as a second. Of classes of documents each row is one, and padding;
the logits are there at its first token, zeros else.

Needs torch, transformers, safetensors. Deterministic. Run: make_encoder.py [OUTPUT_FOLDER [VARIANT ...]]
"""
import json
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import (AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoModelForTokenClassification,
                          BertConfig, ModernBertConfig, RobertaConfig)

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
torch.backends.mkldnn.enabled = False
V, B, T = 131, 2, 24
SMALL = dict(vocab_size=V, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40,
             max_position_embeddings=32, initializer_range=0.2, hidden_dropout_prob=0.0,
             attention_probs_dropout_prob=0.0)
VARIANTS = {
    "bert": BertConfig(**SMALL, type_vocab_size=3),
    "bert_untied": BertConfig(**{**SMALL, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3}, tie_word_embeddings=False),
    "roberta": RobertaConfig(**SMALL, layer_norm_eps=1e-5, type_vocab_size=1, pad_token_id=1),
}
IDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
# layer 0 sees all, layers 1 and 2 four positions to both sides
MODERN = dict(vocab_size=V, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=40,
              max_position_embeddings=64, initializer_range=0.2, norm_eps=1e-4, local_attention=9, **IDS)
VARIANTS |= {
    "modernbert": ModernBertConfig(**MODERN),
    "modernbert_untied": ModernBertConfig(**MODERN, norm_bias=True, attention_bias=True, mlp_bias=True, decoder_bias=False,
                                          classifier_bias=True, tie_word_embeddings=False, global_attn_every_n_layers=2,
                                          classifier_activation="silu"),
}
CLASSES = 3
HEADS = {"sequence": AutoModelForSequenceClassification, "token": AutoModelForTokenClassification}
for kind, config in (("bert", BertConfig(**SMALL, num_labels=CLASSES)),
                     ("roberta", RobertaConfig(**SMALL, layer_norm_eps=1e-5, type_vocab_size=1, pad_token_id=1,
                                               num_labels=CLASSES)),
                     ("modernbert", ModernBertConfig(**MODERN, num_labels=CLASSES))):
    VARIANTS |= {f"{kind}_{head}": config for head in HEADS}
TABLES = ("word_embeddings.weight", "position_embeddings.weight", "tok_embeddings.weight", "decoder.weight")


def perturb(model):
    """Norm weights away from 1 and biases away from 0, so that forgetting one shows."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1:
                p.copy_((0.0 if name.endswith("bias") else 1.0) + 0.2 * torch.randn_like(p))
            elif not name.endswith(TABLES):
                p.copy_(0.3 * torch.randn_like(p))


def head_of(folder):
    """"" for masked tokens."""
    return folder.rpartition("_")[2] if folder.rpartition("_")[2] in HEADS else ""


def load(folder, dtype=torch.float32):
    return HEADS.get(head_of(folder), AutoModelForMaskedLM).from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def make_batch(seed, head):
    g = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, V, (B, T), generator=g)
    tokens = torch.where(torch.rand((B, T), generator=g) < 0.2, torch.randint(0, V, (B, T), generator=g), targets)
    targets = torch.where(torch.rand((B, T), generator=g) < 0.6, targets, torch.full_like(targets, -100))
    first = torch.zeros((B, T), dtype=torch.long)
    for b, starts in enumerate(((0, 21), (0, 19)) if head == "sequence" else ((0, 5, 6, 17), (0, 19))):
        for start in starts:
            first[b, start:] = start
    targets[1, 19:] = -100
    if head:
        targets = torch.where(targets == -100, targets, targets % CLASSES)
    if head == "sequence":
        targets = torch.where(torch.arange(T) == 0, (torch.arange(B) + seed)[:, None] % CLASSES, -100)
    return dict(tokens=tokens, targets=targets, positions=torch.arange(T).expand(B, T) - first, first=first)


def forward(model, batch):
    """Each document's tokens see each other."""
    see = batch["first"][:, :, None] == batch["first"][:, None, :]
    mask = torch.zeros(see.shape).masked_fill(~see, torch.finfo(torch.float32).min)[:, None].to(model.dtype)
    if model.config.model_type == "modernbert":
        place = torch.arange(T)
        near = (place[:, None] - place).abs() <= model.config.local_attention // 2
        local = torch.zeros(see.shape).masked_fill(~(see & near), torch.finfo(torch.float32).min)[:, None]
        mask = dict(full_attention=mask, sliding_attention=local.to(model.dtype))
    offset = model.config.pad_token_id + 1 if model.config.model_type == "roberta" else 0
    logits = model(input_ids=batch["tokens"], attention_mask=mask, position_ids=batch["positions"] + offset).logits
    if logits.ndim == 3:
        return logits
    return torch.cat([logits[:, None], logits.new_zeros(B, T - 1, CLASSES)], dim=1)


def check_alone(model, batch, logits):
    """A document alone gives the logits that it has in the row."""
    tokens = batch["tokens"][:1, 6:17]
    if logits.shape[1] == T and batch["first"][0, 6] == 6:
        alone = model(input_ids=tokens).logits
        assert torch.allclose(alone[0], logits[0, 6:17], atol=1e-4), "packing differs"


def loss_of(model, batch):
    logits = forward(model, batch).float()
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch["targets"].reshape(-1), ignore_index=-100)


def adamw_losses(folder, batch, noise=0, steps=10):
    model = load(folder)
    if noise:
        g = torch.Generator().manual_seed(noise)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 + 3e-7 * torch.randn(p.shape, generator=g))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01,
                                  foreach=False, fused=False)
    losses = []
    for _ in range(steps):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def clear_batch(folder, seed):
    """One whose first ten losses do not hang on a few roundings: Adam divides by the size of a gradient. No id of
    padding in it, for which torch's embedding has no gradient."""
    for attempt in range(4000):
        batch = make_batch(seed + 1000 * attempt, head_of(folder))
        if (batch["tokens"] == load(folder).config.pad_token_id).any():
            continue
        want = torch.tensor(adamw_losses(folder, batch))
        most = 6e-6 if head_of(folder) else 2e-6  # of few targets
        if all(((torch.tensor(adamw_losses(folder, batch, n)) - want) / want[0]).abs().max() < most for n in range(1, 5)):
            return batch
    raise SystemExit(f"{folder}: no well-conditioned batch")


def write(folder, batch):
    model = load(folder)
    logits = forward(model, batch)
    check_alone(model, batch, logits)
    loss = loss_of(model, batch)
    loss.backward()
    golden = {k: v.to(torch.int32).contiguous() for k, v in batch.items()}
    golden["logits"] = logits.detach()
    with torch.no_grad():
        golden["logits_bf16"] = forward(load(folder, torch.bfloat16), batch).float()
    save_file(golden, f"{folder}/golden.safetensors")
    names = {id(p): n for n, p in model.named_parameters()}
    save_file({names[id(p)]: p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()},
              f"{folder}/grads.safetensors")
    with open(f"{folder}/golden.json", "w") as f:
        json.dump(dict(loss=loss.item(), adamw_losses=adamw_losses(folder, batch, steps=20)), f, indent=1)
        f.write("\n")
    print(folder, loss.item())


def main():
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__)))
    for seed, (name, config) in enumerate(VARIANTS.items()):
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        torch.manual_seed(seed)
        model = HEADS.get(head_of(name), AutoModelForMaskedLM).from_config(config, attn_implementation="eager")
        perturb(model)
        model.save_pretrained(name)
        write(name, clear_batch(name, 100 + seed))


if __name__ == "__main__":
    main()
