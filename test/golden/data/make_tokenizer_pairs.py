#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tokenizer_pairs.json: pairs of texts as transformers' tokenizer(a, b) encodes them, whole and cut.

A case has "file", a tokenizer.json here, "post", what replaces its post-processor (absent: its own), "config",
tokenizer_config.json, and "pairs": [a, b, max_length or 0, ids, types]. Needs transformers. Deterministic.
Run: make_tokenizer_pairs.py [OUTPUT [SEED]]
"""
import json
import os
import random
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
from transformers import AutoTokenizer

here = os.path.dirname(os.path.abspath(__file__))
PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast"}
BERT = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "unk_token": "[UNK]", "cls_token": "[CLS]",
        "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
T5 = {"tokenizer_class": "T5Tokenizer", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "extra_ids": 0}
AROUND = {"sep": ["b", 66], "cls": ["a", 65]}
CASES = [
    {"file": "tokenizer-bert.json", "config": BERT},
    {"file": "tokenizer-bert.json", "config": PLAIN},
    {"file": "tokenizer-gpt2.json", "config": PLAIN},
    {"file": "tokenizer-gpt2.json", "config": PLAIN,
     "post": {"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False, **AROUND}},
    {"file": "tokenizer-gpt2.json", "config": PLAIN, "post": {"type": "BertProcessing", **AROUND}},
    {"file": "tokenizer-llama3.json", "config": PLAIN},
    {"file": "tokenizer-t5.json", "config": T5},
    {"file": "tokenizer-llama2.json", "config": PLAIN},
]
WORDS = "the of marius and ! , . you ou 12 that for héllo 日本 [SEP] wh ing t' <s> x  y".split(" ")


def text(r):
    return " ".join(r.choice(WORDS) for _ in range(r.choice([0, 1, 2, 5, 12])))


def main():
    r = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{here}/{case['file']}", encoding="utf-8") as f:
                tree = json.load(f)
            tree["post_processor"] = case.get("post", tree["post_processor"])
            for name, value in (("tokenizer.json", tree), ("tokenizer_config.json", case["config"])):
                with open(f"{folder}/{name}", "w", encoding="utf-8") as f:
                    json.dump(value, f)
            tok = AutoTokenizer.from_pretrained(folder)
        case["pairs"] = []
        for i in range(40):
            a, b, most = text(r), text(r), 0 if i % 2 else r.randint(5, 16)
            cut = dict(truncation="longest_first", max_length=most) if most else {}
            out = tok([a], [b], return_token_type_ids=True, **cut)  # of an empty b alone it makes a single text
            case["pairs"].append([a, b, most, out["input_ids"][0], out["token_type_ids"][0]])
    with open(sys.argv[1] if len(sys.argv) > 1 else f"{here}/tokenizer_pairs.json", "w", encoding="utf-8") as f:
        f.write("[" + ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in CASES) + "]\n")


if __name__ == "__main__":
    main()
