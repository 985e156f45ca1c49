#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random adapters that ds_checkpoint makes one of, beside PEFT's add_weighted_adapter: linear, cat, magnitude_prune and ties by tensors,
svd by the changes of weights, the dare ways by the number of elements that stay. None may differ.
Usage: adapter_combine.py BUILD SCRATCH [N [SEED [FIRST]]]"""
import collections
import os
import random
import shutil
import subprocess
import sys
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")
import torch
import transformers as T
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

T.logging.set_verbosity_error()
BUILD, SCRATCH = os.path.realpath(sys.argv[1]), sys.argv[2]
COUNT, SEED, FIRST = (int(sys.argv[i]) if len(sys.argv) > i else d for i, d in ((3, 100), (4, 1), (5, 0)))
torch.set_num_threads(1)
NAMES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "embed_tokens"]
WAYS = ["linear", "cat", "svd", "magnitude_prune", "ties", "dare_linear", "dare_ties"]


def base():
    torch.manual_seed(3)
    return T.LlamaForCausalLM(T.LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                                            num_key_value_heads=1, tie_word_embeddings=False))


def adapters(rng, folder, way):
    """Folders of adapters that PEFT wrote."""
    rank = rng.randint(1, 5)
    made = []
    for i in range(rng.randint(2, 4)):  # of one adapter PEFT takes "linear", whatever is asked for
        own = rng.randint(1, 5) if way in ("cat", "svd") else rank
        fields = dict(r=own, lora_alpha=rng.randint(1, 9), target_modules=rng.sample(NAMES, rng.randint(1, 5)), use_rslora=rng.random() < 0.3)
        if way in ("cat", "svd") and rng.random() < 0.4:
            fields["alpha_pattern"] = {rng.choice(NAMES): rng.randint(1, 9)}
        torch.manual_seed(rng.randint(0, 1 << 30))
        model = get_peft_model(base(), LoraConfig(task_type="CAUSAL_LM", **fields))
        for key, value in model.named_parameters():
            if "lora_" in key:
                torch.nn.init.normal_(value, std=0.3)
        model.save_pretrained(f"{folder}/{i}", save_embedding_layers=False)
        made.append(f"{folder}/{i}")
    return made


def theirs(folders, weights, way, how, out):
    model = PeftModel.from_pretrained(base(), folders[0], adapter_name="a0")
    for i, folder in enumerate(folders[1:], 1):
        model.load_adapter(folder, adapter_name=f"a{i}")
    model.add_weighted_adapter([f"a{i}" for i in range(len(folders))], weights, "made", combination_type=way, **how)
    model.save_pretrained(out, selected_adapters=["made"], save_embedding_layers=False)
    return load_file(out + "/made/adapter_model.safetensors")


def ours(folders, weights, way, how, out):
    flags = ["--weights", ",".join(map(repr, weights)), "--combination", way]
    for key, value in how.items():
        flags += ["--" + key, str(value)]
    run = subprocess.run([BUILD + "/ds_checkpoint", "combine", out, *folders, *flags], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return load_file(out + "/adapter_model.safetensors")


def product(tensors, key):
    a = tensors[key]
    b = tensors[key.replace("lora_A", "lora_B").replace("lora_embedding_A", "lora_embedding_B")]
    return b.double() @ a.double()


def compare(got, want, way, density):
    """What differs; None: nothing."""
    if set(got) != set(want):
        return f"tensors {set(got) ^ set(want)}"
    for key, value in want.items():
        if way.startswith("dare"):
            n, kept = value.numel(), (got[key] != 0).sum().item()
            other = (value != 0).sum().item()
            if density == 1 and not torch.allclose(got[key], value, rtol=1e-6, atol=1e-6):
                return f"{key} of density 1"
            if abs(kept - other) > 6 * (n ** 0.5) + 2:
                return f"{key}: {kept} of {n} stay, {other} with PEFT"
            continue
        if way == "svd":
            if "_A" in key and (product(got, key) - product(want, key)).abs().max() > 1e-5:
                return key
        elif (got[key].double() - value.double()).abs().max() > 2e-6:
            return f"{key} by {(got[key] - value).abs().max():g}"
    return None


def main():
    seen, bad = collections.Counter(), 0
    for number in range(FIRST, FIRST + COUNT):
        rng = random.Random(SEED * 1000003 + number)
        folder = f"{SCRATCH}/{number}"
        os.makedirs(folder)
        way = rng.choice(WAYS)
        how = {}
        if way not in ("linear", "cat", "svd"):
            how["density"] = rng.choice([1, 0.999, 0.5, round(rng.uniform(0.01, 0.99), 3)])
        if way in ("ties", "dare_ties") and rng.random() < 0.5:
            how["majority_sign_method"] = rng.choice(["total", "frequency"])
        if way == "svd" and rng.random() < 0.5:
            how["svd_rank"] = rng.randint(1, 6)
        folders = adapters(rng, folder, way)
        weights = [round(rng.uniform(-2, 2), 3) for _ in folders]
        want = theirs(folders, weights, way, how, folder + "/theirs")
        got = ours(folders, weights, way, how, folder + "/ours")
        why = compare(got, want, way, how.get("density"))
        seen[way] += why is None
        if why is not None:
            bad += 1
            print(number, "DIFFERENT", way, how, weights, why, flush=True)
        shutil.rmtree(folder)
    print(f"cases from {FIRST} of seed {SEED}: {dict(seen)} equal, {bad} different")
    sys.exit(bad > 0)


main()
