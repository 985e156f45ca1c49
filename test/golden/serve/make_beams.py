#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""transformers' beam searches of models of ../parity. Needs torch and transformers. Writes beams.json beside it."""
import itertools
import json
import pathlib

import torch
import transformers

ENDS = {"likely": False, "early": True, "never": "never"}


def search(model, prompt, n, penalty, end, eos, least):
    ids = torch.tensor([prompt])
    got = model.generate(ids, attention_mask=torch.ones_like(ids), num_beams=n, num_return_sequences=n, do_sample=False, max_new_tokens=20,
                         min_new_tokens=least or None, length_penalty=penalty, early_stopping=ENDS[end], eos_token_id=eos or None, pad_token_id=0,
                         output_scores=True, return_dict_in_generate=True)
    texts = []
    for row, score in zip(got.sequences, got.sequences_scores):
        text = row[len(prompt):].tolist()
        at = min((text.index(e) + 1 for e in eos if e in text), default=20)
        texts.append({"ids": text[:at], "score": score.item()})
    return texts


def main():
    here = pathlib.Path(__file__).parent
    rows = []
    for name in ("llama3_tied", "gpt2", "qwen3_next"):
        folder = here.parent / "parity" / name
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        model.generation_config = transformers.GenerationConfig()
        vocab = model.config.vocab_size
        torch.manual_seed(2)
        for k, (n, end) in enumerate(itertools.product((2, 3, 5), ENDS)):
            prompt = torch.randint(vocab, (3 + (15 if name == "llama3_tied" else 4) * k,)).tolist()
            ids = torch.tensor([prompt])
            with torch.no_grad():
                logits = model(ids).logits[0, -1]
            eos = [] if k == 0 else torch.topk(logits, 12).indices[5:5 + 1 + k % 3].tolist()
            penalty = (1.0, 0.0, -0.5, 1.7)[k % 4]
            least = 3 if k % 3 == 2 else 0
            rows.append({"model": name, "prompt": prompt, "n": n, "end": end, "penalty": penalty, "stops": eos, "least": least,
                         "texts": search(model, prompt, n, penalty, end, eos, least)})
    (here / "beams.json").write_text("[" + ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows) + "]\n", encoding="utf-8")


main()
