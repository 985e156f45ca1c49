#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which ids transformers' warpers keep, in its order. Needs torch and transformers. Writes warpers.json beside it."""
import json
import pathlib

import torch
from transformers.generation import logits_process as lp

CASES = [dict(), dict(typical_p=0.2), dict(typical_p=0.5), dict(typical_p=0.95), dict(temperature=0.6, typical_p=0.4), dict(top_k=9, typical_p=0.5),
         dict(top_p=0.7, typical_p=0.6), dict(min_p=0.1, typical_p=0.8), dict(temperature=1.7, top_k=20, top_p=0.9, min_p=0.05, typical_p=0.7),
         dict(top_k=5), dict(top_p=0.3), dict(min_p=0.2), dict(top_k=12, top_p=0.6, min_p=0.15)]


def kept(logits, case):
    scores = logits[None] / case.get("temperature", 1.0)
    for key, warper in (("top_k", lp.TopKLogitsWarper), ("top_p", lp.TopPLogitsWarper), ("min_p", lp.MinPLogitsWarper),
                        ("typical_p", lp.TypicalLogitsWarper)):
        if key in case:
            scores = warper(case[key])(None, scores)
    return torch.nonzero(scores[0] > -torch.inf)[:, 0].tolist()


def main():
    torch.manual_seed(11)
    rows = []
    for n in (37, 211):
        for spread in (1.0, 3.0):
            logits = torch.randn(n) * spread
            rows.append({"logits": [float(x) for x in logits], "cases": [{**c, "kept": kept(logits, c)} for c in CASES]})
    path = pathlib.Path(__file__).parent / "warpers.json"
    path.write_text("[" + ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows) + "]\n", encoding="utf-8")


main()
