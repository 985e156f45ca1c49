#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What transformers makes of sources with the models of this folder: greedy ids with their log-probabilities, and beam searches.

served.json has a row for each way to say a model: base, its folder here; scale, scale_decoder_outputs where that is not the folder's own;
texts (source, ids, logprobs); and of the first rows a search: n, length penalty, ids that end a text, texts with scores.
Ends of texts are no ends in greedy ones. Without cache, which transformers 5.24 makes for as many layers as the encoder has.

Needs torch, transformers. Deterministic. Run: make_served.py
"""
import json
import os
import pathlib
import shutil
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import transformers

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
torch.backends.mkldnn.enabled = False
HERE = pathlib.Path(__file__).parent
V = 131
LENGTHS = ((1, 24), (13, 90), (37, 24), (100, 24))  # of a source, and what is made of it
ROWS = (("t5", None), ("t5", False), ("t5_untied", None), ("t5_untied", True), ("t5_start", None), ("t5_shared", None))


def load(base, scale):
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(HERE / base / "model.safetensors", folder)
        config = json.loads((HERE / base / "config.json").read_text())
        if scale is not None:
            config["scale_decoder_outputs"] = scale
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        model = transformers.T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    model.generation_config = transformers.GenerationConfig(decoder_start_token_id=model.config.decoder_start_token_id)
    return model


def generate(model, source, n, **how):
    return model.generate(source, attention_mask=torch.ones_like(source), max_new_tokens=n, do_sample=False, use_cache=False,
                          pad_token_id=model.config.pad_token_id, decoder_start_token_id=model.config.decoder_start_token_id, **how)


def greedy(model, source, n):
    ids = generate(model, source, n, num_beams=1, eos_token_id=None)
    with torch.no_grad():
        logits = model(input_ids=source, decoder_input_ids=ids[:, :-1]).logits[0]
    logprobs = torch.log_softmax(logits.double(), -1).gather(-1, ids[0, 1:, None])[:, 0]
    assert torch.equal(logits.argmax(-1), ids[0, 1:])
    return {"source": source[0].tolist(), "ids": ids[0, 1:].tolist(), "logprobs": [round(x, 6) for x in logprobs.tolist()]}


def search(model, source, n, penalty):
    with torch.no_grad():
        first = model(input_ids=source, decoder_input_ids=torch.tensor([[model.config.decoder_start_token_id]])).logits[0, -1]
    stops = torch.topk(first, 12).indices[5:7].tolist()
    got = generate(model, source, 20, num_beams=n, num_return_sequences=n, length_penalty=penalty, early_stopping=False, eos_token_id=stops,
                   output_scores=True, return_dict_in_generate=True)
    texts = []
    for row, score in zip(got.sequences, got.sequences_scores):
        text = row[1:].tolist()
        at = min((text.index(e) + 1 for e in stops if e in text), default=20)
        texts.append({"ids": text[:at], "score": round(score.item(), 6)})
    return {"source": source[0].tolist(), "n": n, "penalty": penalty, "stops": stops, "texts": texts}


def main():
    rows = []
    for k, (base, scale) in enumerate(ROWS):
        model = load(base, scale)
        g = torch.Generator().manual_seed(77 + k)
        sources = [torch.randint(6, V, (1, n), generator=g) for n, _ in LENGTHS]
        rows.append({"base": base, "scale": scale, "texts": [greedy(model, s, n) for s, (_, n) in zip(sources, LENGTHS)],
                     "search": search(model, sources[2], 3, 1.0) if k in (0, 2, 4) else None})
    (HERE / "served.json").write_text("[" + ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows) + "]\n", encoding="utf-8")


main()
