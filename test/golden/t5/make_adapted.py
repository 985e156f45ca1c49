#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What transformers makes of sources with PEFT's adapters on the models of this folder: greedy ids with their log-probabilities.

adapters/NAME are small random LoRAs: on t5 three that are on a part of it alone (the encoder; the decoder's self attention and feed forward; what the
decoder reads of a source), and one on blocks_untied. adapted.json has a row for each model and adapter (null: none; a folder under ..): base, adapter,
texts (source, ids, logprobs), and vector, the mean of what the encoder makes of the second source. The sources of a model are the same in all its rows. Ends of texts are no ends.

Needs torch, transformers, peft. Deterministic. Run: make_adapted.py
"""
import json
import os
import pathlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from make_t5 import load
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
torch.backends.mkldnn.enabled = False
HERE = pathlib.Path(__file__).parent
V = 131
LENGTHS = ((1, 12), (21, 20), (70, 20))
PARTS = {"encoder": ("t5", dict(r=3, lora_alpha=6, target_modules=r"encoder\..*\.(q|k|v|o|wi|wo)")),
         "decoder": ("t5", dict(r=2, lora_alpha=6, use_rslora=True, target_modules=r"decoder\..*(SelfAttention\.[qkvo]|wi|wo)")),
         "cross": ("t5", dict(r=4, lora_alpha=8, target_modules=r".*EncDecAttention\.(k|v)")),
         "blocks": ("blocks_untied", dict(r=3, lora_alpha=3, target_modules=["q", "v", "o", "wi_0", "wo"]))}
ROWS = (("t5", None), *(("t5", f"t5/adapters/{name}") for name in ("encoder", "decoder", "cross")), ("t5", "adapter/t5_lora/end"), ("t5_untied", None),
        ("t5_untied", "adapter/t5_all/start"), ("t5_untied", "adapter/t5_all/end"))


def make(name, base, fields, seed):
    torch.manual_seed(seed)
    folder = HERE / "adapters" / name
    model = get_peft_model(load(HERE / base), LoraConfig(task_type="SEQ_2_SEQ_LM", bias="none", **fields))
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "lora_" in key:
                p.copy_(0.25 * torch.randn_like(p))
    model.peft_config["default"].base_model_name_or_path = f"../../{base}"
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file(load_file(folder / "adapter_model.safetensors"), folder / "adapter_model.safetensors", metadata={"format": "pt"})


@torch.no_grad()
def greedy(model, source, n):
    ids, logprobs = [0], []
    for _ in range(n):
        row = model(input_ids=source, decoder_input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        best = torch.topk(row, 2).values
        assert best[0] - best[1] > 1e-4
        ids.append(row.argmax().item())
        logprobs.append(round(torch.log_softmax(row.double(), -1)[ids[-1]].item(), 6))
    return {"source": source[0].tolist(), "ids": ids[1:], "logprobs": logprobs}


def main():
    rows = []
    for k, (name, (base, fields)) in enumerate(PARTS.items()):
        make(name, base, fields, 60 + k)
    for base, adapter in ROWS:
        model = load(HERE / base)
        model = model if adapter is None else PeftModel.from_pretrained(model, HERE.parent / adapter).eval()
        g = torch.Generator().manual_seed(7)
        texts = [greedy(model, torch.randint(6, V, (1, n), generator=g), made) for n, made in LENGTHS]
        with torch.no_grad():
            vector = model.get_encoder()(torch.tensor([texts[1]["source"]])).last_hidden_state[0].mean(0)
        rows.append({"base": base, "adapter": adapter, "texts": texts, "vector": [round(x, 6) for x in vector.tolist()]})
    assert len({json.dumps(r["texts"]) for r in rows}) == len(rows)
    assert len({json.dumps(r["vector"]) for r in rows}) == 6  # of the encoder, of all; none is of none
    (HERE / "adapted.json").write_text("[" + ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows) + "]\n", encoding="utf-8")


main()
