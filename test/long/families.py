#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The families of make_parity.py against transformers in bf16, and their folders written back: run by families.sh.

    families.py BUILD [VARIANT ...]

bf16: the last logits of 24 seeds each; how far from transformers' fp32 ours are, over how far transformers' own bf16
is, the median over the seeds at most 1.1. Export: ds_train with a rate of 0 gives a folder whose tensors have the
bytes of the model's, and that transformers loads with no key missing or left over. Encoders (of make_encoder.py, with
their heads for masked tokens): bf16 alone.
"""
import copy
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(root / "test/golden/parity"), str(root / "test/golden/encoder")]
import make_encoder as me  # noqa: E402
import make_parity as mp  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

SEEDS, SHORT, LONG, MOST = 24, 6, 40, 1.1
IDS = torch.tensor([[(11 * i + 5 * (i // 7) + 3) % 37 for i in range(LONG)]])
SETTINGS = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.0}}}


def ours(build, folders, scratch, dtype="bf16"):
    """The last logits behind all ids that a model has positions for, and how many those are."""
    (scratch / "list").write_text("".join(f"{f}\n" for f in folders))
    done = subprocess.run([f"{build}/model_logits", scratch / "list", scratch / "out", str(SHORT), str(LONG), dtype],
                          capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert all(line.startswith("ok ") for line in lines), done.stdout
    rows = torch.frombuffer(bytearray((scratch / "out").read_bytes()), dtype=torch.float32).reshape(len(folders), 2, -1)
    return rows[:, 1], int(lines[0].split()[1])


def theirs(load, folder, dtype, n):
    with torch.no_grad():
        return load(str(folder), dtype)(input_ids=IDS[:, :n]).logits[0, -1].float()


def median_ratio(build, load, folders, scratch):
    ratios = []
    rows, n = ours(build, folders, scratch)
    for folder, got in zip(folders, rows):
        want = theirs(load, folder, torch.float32, n)
        ratios.append(float((got - want).norm() / (theirs(load, folder, torch.bfloat16, n) - want).norm()))
    return statistics.median(ratios)


def ratio(build, config, scratch):
    folders = [scratch / f"seed{seed}" for seed in range(SEEDS)]
    for seed, folder in enumerate(folders):
        mp.save_model(str(folder), config, seed)
    return median_ratio(build, mp.load, folders, scratch)


def without_padding(config):
    """RoBERTa counts positions by what is no padding: a token that is not among the ids."""
    if config.model_type == "roberta":
        config = copy.deepcopy(config)
        config.pad_token_id = 37
        config.max_position_embeddings += 37
    return config


def encoder_ratio(build, name, scratch):
    folders = [scratch / f"seed{seed}" for seed in range(SEEDS)]
    for seed, folder in enumerate(folders):
        torch.manual_seed(seed)
        model = me.AutoModelForMaskedLM.from_config(without_padding(me.VARIANTS[name]))
        me.perturb(model)
        model.save_pretrained(folder)
    near, n = ours(build, folders[:1], scratch, "f32")
    want = theirs(me.load, folders[0], torch.float32, n)
    far = float((near[0] - want).norm() / want.norm())
    assert far < 2e-5, f"{name}: fp32 is {far} from transformers"
    return median_ratio(build, me.load, folders, scratch)


def export(build, config, scratch):
    config.vocab_size = 301  # for bytes
    model, out = scratch / "model", scratch / "trained"
    mp.save_model(str(model), config, 0)
    (scratch / "config.json").write_text(json.dumps(SETTINGS))
    (scratch / "text.txt").write_text("a text of some length, for one step. " * 20)
    subprocess.run([f"{build}/ds_train", "--model", model, "--tokenizer", "bytes", "--data", scratch / "text.txt",
                    "--deepspeed_config", scratch / "config.json", "--seq_length", "32", "--steps", "1",
                    "--output", out], check=True, capture_output=True, text=True)
    before, after = load_file(model / "model.safetensors"), load_file(out / "model.safetensors")
    assert before.keys() == after.keys(), before.keys() ^ after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor.view(torch.uint8), after[name].view(torch.uint8)), name
    _, info = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info


def main():
    failed = 0
    build = sys.argv[1]
    encoders = [n for n in me.VARIANTS if me.head_of(n) == ""]
    for name in sys.argv[2:] or [*(n for n in mp.VARIANTS if n not in mp.WEIGHTS_OF), *encoders]:
        with tempfile.TemporaryDirectory() as scratch:
            if name in encoders:
                median, beside = encoder_ratio(build, name, pathlib.Path(scratch)), ""
            else:
                median, beside = ratio(build, mp.VARIANTS[name], pathlib.Path(scratch)), "; export has the same bytes"
                export(build, mp.VARIANTS[name], pathlib.Path(scratch))
        print(f"{name:18} bf16 {median:.3f} of transformers' own distance{beside}", flush=True)
        failed += median > MOST
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
