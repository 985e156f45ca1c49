#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes dynamic/*/config.json and dynamic/greedy.json: what transformers' generate makes greedily of
prompts within and beyond the length that dynamic rotary scaling (NTK) begins at, each of a model
that has seen nothing before (its frequencies keep those of the longest text so far).

The weights are those of ../parity/. usage: make_dynamic.py (torch, transformers)
"""
import json
import pathlib

import torch
from transformers import AutoConfig, AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
PARITY = HERE.parent / "parity"
ORIGINAL, FACTOR, NEW = 16, 8.0, 64
LENGTHS = (3, 15, 16, 17, 40, 60)


def greedy(weights, config, prompt):
    """Its ids, and the least distance of a likeliest id's logit from the next one's."""
    model = AutoModelForCausalLM.from_pretrained(PARITY / weights, config=config,
                                                 dtype=torch.float32).eval()
    with torch.no_grad():
        out = model.generate(prompt, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False,
                             output_logits=True, return_dict_in_generate=True)
    top = torch.stack(out.logits)[:, 0].topk(2).values
    return out.sequences[0, prompt.shape[1]:].tolist(), (top[:, 0] - top[:, 1]).min().item()


def write(name, config):
    folder = HERE / "dynamic" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def main():
    cases = []
    for name, weights in (("llama", "rope_dynamic"), ("gpt_neox", "gpt_neox")):
        config = AutoConfig.from_pretrained(PARITY / weights)
        config.max_position_embeddings = ORIGINAL
        config.rope_parameters = {**config.rope_parameters, "rope_type": "dynamic", "factor": FACTOR}
        text = json.loads((PARITY / weights / "config.json").read_text())
        text["max_position_embeddings"] = ORIGINAL
        text["rope_parameters"] = {**text["rope_parameters"], "rope_type": "dynamic",
                                   "factor": FACTOR}
        write(name, text)
        if name == "llama":  # of which a test asks many long prompts
            write("crowd", {**text, "max_position_embeddings": 100, "rope_parameters":
                            {**text["rope_parameters"], "factor": 3.0}})
        gen = torch.Generator().manual_seed(3)
        for n in LENGTHS:
            margin = 0.0
            while margin < 1e-3:  # no id hangs on rounding
                prompt = torch.randint(0, config.vocab_size, (1, n), generator=gen)
                ids, margin = greedy(weights, config, prompt)
            cases.append({"config": name, "weights": weights, "prompt": prompt[0].tolist(),
                          "greedy": ids})
            print(name, n, f"margin {margin:.2g}", len(set(ids)), "different ids")
    (HERE / "dynamic" / "greedy.json").write_text(json.dumps(cases) + "\n")


if __name__ == "__main__":
    main()
