#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the goldens of T5: small random models, run by transformers a pair at a time.

For every variant a folder with
  config.json, model.safetensors   the model as transformers saves it
  golden.safetensors               tokens (sources, filled up with padding), targets (what is made of them, filled up
                                   with -100), positions and first (where the pair of each position begins), logits of
                                   the targets' positions in f32, and of bf16 as f32, and sources with what greedy
                                   decoding and the encoder make of them
  grads.safetensors                gradient of the loss by parameter name
  golden.json                      the loss, and those of twenty AdamW steps
heads.json has the loss of two of them for every way in which config.json and the weights can say what the output projection is:
keys there or not, and the projection not stored, stored with the embedding's bytes, or with half of the embedding's numbers.
buckets.safetensors has rows of transformers' buckets for distances of -300 to 300, by their numbers in the names.
Row 0 holds four pairs; row 1 one, and padding.

Needs torch, transformers, safetensors. Deterministic. Run: make_t5.py [OUTPUT_FOLDER [VARIANT ...]]
"""
import itertools
import json
import os
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Attention

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
torch.backends.mkldnn.enabled = False
V, B, T = 131, 2, 40
SMALL = dict(vocab_size=V, d_model=36, d_kv=10, d_ff=40, num_layers=2, num_decoder_layers=3, num_heads=3,
             relative_attention_num_buckets=8, relative_attention_max_distance=12, dropout_rate=0.0,
             decoder_start_token_id=0)
VARIANTS = {
    "t5": T5Config(**SMALL),
    "t5_untied": T5Config(**SMALL, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "t5_start": T5Config(**{**SMALL, "decoder_start_token_id": 5, "pad_token_id": 3, "layer_norm_epsilon": 1e-3,
                            "num_decoder_layers": 1, "relative_attention_num_buckets": 6}, feed_forward_proj="gated-silu"),
    # tied and not scaled, which the first files of T5 could not say
    "t5_shared": T5Config(**SMALL, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
}
PAIRS = (((0, 9, 6), (9, 4, 8), (17, 11, 11), (28, 5, 12)), ((0, 31, 17),))  # where it begins, source, target
STEPS, N_NEW = 20, 24


def perturb(model):
    """Norm weights away from 1; matrices large enough that layers decide, not embeddings."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1:
                p.copy_(1.0 + 0.2 * torch.randn_like(p))
            elif "relative" in name:
                p.copy_(torch.randn_like(p))
            else:  # scores have no factor that would keep them small
                std = 0.7 if name in ("shared.weight", "lm_head.weight") else 0.06 if name.endswith(".q.weight") else 0.25
                p.copy_(std * torch.randn_like(p))


def load(folder, dtype=torch.float32):
    return T5ForConditionalGeneration.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def make_batch(config, seed):
    g = torch.Generator().manual_seed(seed)
    tokens = torch.full((B, T), config.pad_token_id)
    targets = torch.full((B, T), -100)
    first = torch.full((B, T), T - 9)
    for b, pairs in enumerate(PAIRS):
        for i, (at, n_source, n_target) in enumerate(pairs):
            end = pairs[i + 1][0] if i + 1 < len(pairs) else at + max(n_source, n_target)
            source = torch.randint(6, V, (n_source,), generator=g)
            target = torch.randint(1, V, (n_target,), generator=g)
            target[n_target // 2] = -100 if i == 0 else target[n_target // 2]
            tokens[b, at:at + n_source] = source
            targets[b, at:at + n_target] = target
            first[b, at:end] = at
    return dict(tokens=tokens, targets=targets, positions=torch.arange(T).expand(B, T) - first, first=first)


def forward(model, batch):
    """Logits where there are targets, zeros else; each pair alone."""
    logits = torch.zeros(B, T, V, dtype=model.dtype)
    for b, pairs in enumerate(PAIRS):
        for at, n_source, n_target in pairs:
            source = batch["tokens"][b:b + 1, at:at + n_source]
            target = batch["targets"][b:b + 1, at:at + n_target]
            logits[b, at:at + n_target] = model(input_ids=source, labels=target).logits[0]
    return logits


def loss_of(model, batch):
    logits = forward(model, batch).float()
    return F.cross_entropy(logits.reshape(-1, V), batch["targets"].reshape(-1), ignore_index=-100)


def adamw_losses(folder, batch, noise=0):
    model = load(folder)
    if noise:
        g = torch.Generator().manual_seed(noise)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 + 3e-7 * torch.randn(p.shape, generator=g))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01,
                                  foreach=False, fused=False)
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def clear_batch(folder, config, seed):
    """One whose losses do not hang on a few roundings: Adam divides by the size of a gradient."""
    for attempt in range(400):
        batch = make_batch(config, seed + 1000 * attempt)
        want = torch.tensor(adamw_losses(folder, batch))
        if all(((torch.tensor(adamw_losses(folder, batch, n)) - want) / want[0]).abs().max() < 2e-5 for n in range(1, 4)):
            return batch
    raise SystemExit(f"{folder}: no well-conditioned batch")


def greedy(model, seed):
    """Sources of three lengths, what the encoder makes of one, and what follows; the ends of texts are no ends here. Without cache, which transformers
    5.24 makes for as many layers as the encoder has."""
    g = torch.Generator().manual_seed(seed)
    out = {}
    for n in (1, 13, 37):
        source = torch.randint(6, V, (1, n), generator=g)
        ids = model.generate(source, attention_mask=torch.ones_like(source), max_new_tokens=N_NEW, do_sample=False,
                             use_cache=False, num_beams=1, eos_token_id=None, pad_token_id=model.config.pad_token_id,
                             decoder_start_token_id=model.config.decoder_start_token_id)
        out[f"source_{n}"] = source[0].to(torch.int32)
        out[f"greedy_{n}"] = ids[0, 1:].to(torch.int32).contiguous()
        if n == 13:
            out["hidden_13"] = model.encoder(source).last_hidden_state[0].detach()
    return out


def write(folder, batch, seed):
    model = load(folder)
    logits = forward(model, batch)
    loss = loss_of(model, batch)
    loss.backward()
    golden = {k: v.to(torch.int32).contiguous() for k, v in batch.items()} | greedy(model, seed)
    golden["logits"] = logits.detach()
    with torch.no_grad():
        golden["logits_bf16"] = forward(load(folder, torch.bfloat16), batch).float()
    save_file(golden, f"{folder}/golden.safetensors")
    save_file({n: p.grad for n, p in model.named_parameters()}, f"{folder}/grads.safetensors")
    with open(f"{folder}/golden.json", "w") as f:
        json.dump(dict(loss=loss.item(), adamw_losses=adamw_losses(folder, batch)), f, indent=1)
        f.write("\n")
    print(folder, loss.item())


def write_buckets():
    rows = {}
    distances = torch.arange(-300, 301)
    for both in (0, 1):
        for n, most in ((32, 128), (8, 12), (6, 20), (64, 128), (64, 256), (33, 100), (12, 250), (128, 96), (4, 3)):
            rows[f"{both}_{n}_{most}"] = T5Attention._relative_position_bucket(
                distances, bidirectional=bool(both), num_buckets=n, max_distance=most).to(torch.int32)
    save_file(rows, "buckets.safetensors")


def head_folder(base, tie, scale, head, folder):
    """A model of `base`. tie, scale: the value of a key, or None: there is none. head: None, "same" or "half"."""
    with open(f"{base}/config.json") as f:
        config = json.load(f)
    for key, value in (("tie_word_embeddings", tie), ("scale_decoder_outputs", scale)):
        config.pop(key)
        config |= {} if value is None else {key: value}
    tensors = load_file(f"{base}/model.safetensors")
    tensors.pop("lm_head.weight", None)
    if head is not None:
        tensors["lm_head.weight"] = tensors["shared.weight"] * (1.0 if head == "same" else 0.5)
    with open(f"{folder}/config.json", "w") as f:
        json.dump(config, f)
    save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})


def write_heads():
    rows = []
    for base in ("t5", "t5_untied"):
        batch = {k: v.long() for k, v in load_file(f"{base}/golden.safetensors").items() if k in ("tokens", "targets")}
        for tie, scale, head in itertools.product((None, True, False), (None, True, False), (None, "same", "half")):
            with tempfile.TemporaryDirectory() as folder:
                head_folder(base, tie, scale, head, folder)
                with torch.no_grad():
                    loss = loss_of(load(folder), batch).item()
            rows.append(dict(base=base, tie=tie, scale=scale, head=head, loss=loss))
    with open("heads.json", "w") as f:
        f.write("[" + ",\n ".join(json.dumps(r) for r in rows) + "]\n")
    print(len(rows), "heads,", len({r["loss"] for r in rows}), "losses")


def main():
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__)))
    write_buckets()
    for seed, (name, config) in enumerate(VARIANTS.items()):
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        torch.manual_seed(seed)
        model = T5ForConditionalGeneration(config)
        if name == "t5_untied":
            model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
        perturb(model)
        model.save_pretrained(name)
        write(name, clear_batch(name, config, 100 + seed), seed)
    if not sys.argv[2:] or "heads" in sys.argv[2:]:
        write_heads()


if __name__ == "__main__":
    main()
