# SPDX-License-Identifier: Apache-2.0
"""Folders that ds_train writes of embeddings, loaded by sentence-transformers, give ds_encode's vectors, within 1e-5; that of
a decoder gives its last token's. See sentence_folders.sh. Usage: sentence_folders.py BUILD SCRATCH"""
import json
import os
import shutil
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.losses import CachedMultipleNegativesRankingLoss
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

BUILD = os.path.abspath(sys.argv[1])
HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "golden", "encoder_tasks", "sentence")
TEXTS = [line.rstrip("\n") for line in open(os.path.join(GOLDEN, "texts.txt"), encoding="utf-8")]
PAIRS = [("a small river", "the old mill"), ("children look", "fish in may"), ("stones", "past the river"), ("where", "look and look")]


def train(model, out, *flags, times=4, steps=4):
    with open("ds.json", "w", encoding="utf-8") as f:
        json.dump({"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}, f)
    with open("rows.jsonl", "w", encoding="utf-8") as f:
        f.writelines(json.dumps({"anchor": a, "positive": b}) + "\n" for a, b in PAIRS * times)
    subprocess.run([f"{BUILD}/ds_train", "--model", model, "--data", "rows.jsonl", "--seq_length", "12", "--objective", "embeddings", "--micro_batch", "4",
                    "--steps", str(steps), "--deepspeed_config", "ds.json", "--output", out, *flags], check=True, capture_output=True)


def ours(folder):
    out = subprocess.run([f"{BUILD}/ds_encode", "--model", folder, "--task", "embedding", "--dtype", "f32", "--file", f"{GOLDEN}/texts.txt"], check=True,
                         capture_output=True, text=True).stdout
    return torch.tensor([json.loads(line)["embedding"] for line in out.splitlines()], dtype=torch.float64)


def near(name, got, want):
    worst = (got - want).abs().max().item() / want.abs().max().item()
    assert worst < 1e-5, (name, worst)
    print(f"{name}: {worst:.1e}")


def cached():
    """The first loss and gradient norm in mini-batches are those of sentence-transformers' CachedMultipleNegativesRankingLoss."""
    shutil.copytree(GOLDEN, "still")
    with open("still/config.json", encoding="utf-8") as f:
        config = json.load(f) | dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    with open("still/config.json", "w", encoding="utf-8") as f:
        json.dump(config, f)
    for size in (1, 3, 5):
        train("still", f"cached{size}", "--mini_batch", str(size), "--metrics", f"cached{size}.jsonl", times=1, steps=1)
        with open(f"cached{size}.jsonl", encoding="utf-8") as f:
            first = next(row for row in map(json.loads, f) if row.get("step") == 1)
        loaded = SentenceTransformer("still", device="cpu")
        loss = CachedMultipleNegativesRankingLoss(loaded, mini_batch_size=size)
        got = loss([loaded.tokenize([p[i] for p in PAIRS]) for i in (0, 1)], None)
        got.backward()
        norm = sum((p.grad.double() ** 2).sum() for p in loaded.parameters() if p.grad is not None).sqrt().item()
        errors = abs(first["loss"] / got.item() - 1), abs(first["grad_norm"] / norm - 1)
        assert max(errors) < 2e-6, (size, first, got.item(), norm)
        print(f"cached, mini-batches of {size}: loss {errors[0]:.1e}, norm of gradients {errors[1]:.1e}")


def main():
    torch.set_num_threads(1)
    os.chdir(sys.argv[2])
    cached()
    plain = shutil.copytree(GOLDEN, "plain")
    for gone in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        os.remove(f"plain/{gone}")
    for name, model, flags in [("as it is", GOLDEN, ()), ("without modules", plain, ()), ("cls", GOLDEN, ("--pooling", "cls")),
                               ("weighted", plain, ("--pooling", "weighted")), ("mean_sqrt", plain, ("--pooling", "mean_sqrt")),
                               ("last", GOLDEN, ("--pooling", "last"))]:
        out = name.replace(" ", "_")
        train(model, out, *flags)
        want = SentenceTransformer(out, device="cpu").encode(TEXTS, batch_size=2, show_progress_bar=False)
        near(name, ours(out), torch.tensor(want, dtype=torch.float64))
    shutil.copytree(plain, "llama")
    os.remove("llama/model.safetensors")
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=len(AutoTokenizer.from_pretrained(plain)), hidden_size=24, num_hidden_layers=2, num_attention_heads=2,
                                                 num_key_value_heads=1, intermediate_size=20, max_position_embeddings=32,
                                                 initializer_range=0.3)).save_pretrained("llama")
    train("llama", "decoder")
    loaded = SentenceTransformer("decoder", device="cpu")
    ids = loaded.tokenizer(TEXTS[0])["input_ids"]
    with torch.no_grad():
        want = loaded[0].auto_model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
    near("decoder: the last token", torch.tensor(loaded.encode(TEXTS[:1]), dtype=torch.float64)[0], want.double())


main()
