#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random adapters of every family of make_parity.py: the logits that PEFT has with the adapter beside the model, beside those of
the adapter in a generator and of the merged folder. Usage: adapter_families.py BUILD SCRATCH [N [SEED [SECONDS]]]

An adapter_config.json is drawn by the names of the model's own modules: suffixes, whole paths, expressions, "all-linear", ranks and
alphas by patterns, layers, rsLoRA, DoRA, modules_to_save, embeddings, biases, kinds of init_lora_weights, and odd types of values.
None may differ by more than 1e-5 of the logits' length; what is refused here is counted by its words.
"""
import collections
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")
root = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "test/golden/parity"))
import make_parity as mp  # noqa: E402
import torch  # noqa: E402
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402
from transformers import logging  # noqa: E402
from transformers.pytorch_utils import Conv1D  # noqa: E402

logging.set_verbosity_error()
logging.disable_progress_bar()
build, scratch = os.path.realpath(sys.argv[1]), sys.argv[2]
count = int(sys.argv[3]) if len(sys.argv) > 3 else 200
seed = int(sys.argv[4]) if len(sys.argv) > 4 else 1
until = time.monotonic() + (float(sys.argv[5]) if len(sys.argv) > 5 else 1e9)
os.chdir(scratch)
torch.set_num_threads(1)
rng = random.Random(seed)
SHORT, LONG, MOST = 6, 14, 1e-5
IDS = torch.tensor([[(11 * i + 5 * (i // 7) + 3) % 37 for i in range(LONG)]])
FAMILIES = [n for n in mp.VARIANTS if n not in mp.WEIGHTS_OF and n != "gpt_oss_mxfp4"]


def modules(model):
    """Linear layers, embeddings, others with parameters of their own."""
    linear, tables, others = [], [], []
    for name, m in model.named_modules():
        if isinstance(m, (torch.nn.Linear, Conv1D)):
            linear.append(name)
        elif isinstance(m, torch.nn.Embedding):
            tables.append(name)
        elif next(m.parameters(recurse=False), None) is not None:
            others.append(name)
    return linear, tables, others


def suffix(name, most=4):
    parts = name.split(".")
    return ".".join(parts[-rng.randint(1, min(most, len(parts))):])


def expression(names):
    name = rng.choice(names)
    leaf = name.rsplit(".", 1)[-1]
    return rng.choice([rf".*{leaf}", rf".*\.{leaf}$", rf"(?!.*\.0\.).*{leaf}", rf".*\.[01]\..*{leaf}", rf".*\.({leaf}|{suffix(rng.choice(names), 1)})",
                       ".*" + name[len(name) // 2:].replace(".", r"\."), leaf, rf"[a-z_]+\..*\.\d+\..*\.{leaf}"])


def draw_targets(c, linear, tables):
    r = rng.random()
    body = [n for n in linear if n not in ("lm_head", "embed_out")]
    if r < 0.12:
        c["target_modules"] = rng.choice(["all-linear", "ALL-LINEAR"])
    elif r < 0.35:
        c["target_modules"] = expression(body)
    else:
        pool = body + (linear if rng.random() < 0.3 else []) + (tables if rng.random() < 0.3 else [])
        c["target_modules"] = sorted({suffix(n) for n in rng.sample(pool, rng.randint(1, 4))})


def draw(linear, tables, others):
    c = {"r": rng.randint(1, 7), "lora_alpha": rng.choice([1, 4, 8, 16, 0.5, 3.7, 0])}
    draw_targets(c, linear, tables)
    body = [n for n in linear if n not in ("lm_head", "embed_out")]
    if rng.random() < 0.3:
        c["use_rslora"] = True
    if rng.random() < 0.25:
        c["use_dora"] = True
    if rng.random() < 0.3:
        c["lora_dropout"] = 0.1
    if rng.random() < 0.2:
        c["exclude_modules"] = rng.choice([[suffix(rng.choice(body))], expression(body), suffix(rng.choice(body))])
    for key, values in (("rank_pattern", [1, 2, 5]), ("alpha_pattern", [2, 5.5, 32, 0])):
        if rng.random() < 0.3:
            c[key] = {rng.choice([suffix(rng.choice(body)), expression(body), "^" + rng.choice(body).replace(".", r"\."), "."]): rng.choice(values)
                      for _ in range(rng.randint(1, 3))}
    if rng.random() < 0.25:
        c["layers_to_transform"] = rng.choice([0, 1, [0], [1, 0], [0, 5], [], -1])
        if rng.random() < 0.5:
            c["layers_pattern"] = rng.choice(["layers", "h", ["h", "layers", "blocks"], "blocks", [], "model.layers"])
    if rng.random() < 0.25:
        c["modules_to_save"] = rng.sample([suffix(n, 2) for n in others + tables + linear[-1:]], rng.randint(1, 2))
    if rng.random() < 0.1:
        c["init_lora_weights"] = rng.choice([True, False, "gaussian", "olora", "pissa", "pissa_niter_4", "orthogonal", "eva", "mica"])
    if rng.random() < 0.1:
        c["bias"] = rng.choice(["all", "lora_only", "none"])
    if rng.random() < 0.3:
        c["fan_in_fan_out"] = rng.random() < 0.5
    if rng.random() < 0.05:
        c["lora_bias"] = True
    return c


def spoil(folder):
    """Values that another writer of the file may have, or that the reader has to refuse."""
    path = folder + "/adapter_config.json"
    fields = json.load(open(path, encoding="utf-8"))
    kind = rng.randrange(9)
    if kind == 0:
        fields["r"] = float(fields["r"])
    elif kind == 1:
        fields["lora_alpha"] = str(fields["lora_alpha"])
    elif kind == 2:
        fields.pop(rng.choice(["r", "lora_alpha", "target_modules", "peft_type", "task_type", "use_rslora", "fan_in_fan_out", "init_lora_weights"]), None)
    elif kind == 3:
        fields["use_rslora"] = rng.choice([1, 0, "true", None])
    elif kind == 4:
        fields["use_dora"] = rng.choice([1, 0, "false", None])
    elif kind == 5:
        fields["rank_pattern"] = rng.choice([None, {}, [], {"q_proj": "2"}])
    elif kind == 6:
        fields["peft_type"] = rng.choice(["lora", "LORA", "Lora", "ADALORA", "LOHA"])
    elif kind == 7:
        fields["target_modules"] = rng.choice([fields["target_modules"], None, [], "", [""]])
    else:
        fields["layers_to_transform"] = rng.choice([None, [], "0", [0.0], 0.0, True])
    json.dump(fields, open(path, "w", encoding="utf-8"))
    return kind


def logits(model):
    with torch.no_grad():
        return torch.stack([model(input_ids=IDS[:, :n]).logits[0, -1].float() for n in (SHORT, LONG)])


def theirs(family, c, odd):
    try:
        base = mp.load(family, torch.float32)
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **c))
        for key, value in model.named_parameters():
            if value.requires_grad:
                if "lora_" in key or "lora_magnitude" in key:
                    torch.nn.init.normal_(value, std=0.2)
                else:
                    value.data.add_(torch.randn_like(value) * 0.05)
        shutil.rmtree("adapter", ignore_errors=True)
        model.save_pretrained("adapter")
        if odd:
            spoil("adapter")
        model = PeftModel.from_pretrained(mp.load(family, torch.float32), "adapter").eval()
        beside = logits(model)
        return beside, model.merge_and_unload()
    except Exception as error:  # pylint: disable=broad-except
        return str(error)


def ours(lines):
    """A row of logits, or words, for each."""
    pathlib.Path("list").write_text("".join(f"{x}\n" for x in lines), encoding="utf-8")
    done = subprocess.run([build + "/model_logits", "list", "out", str(SHORT), str(LONG), "f32"], capture_output=True, text=True, check=True)
    data = torch.frombuffer(bytearray(pathlib.Path("out").read_bytes() or b"\0\0\0\0"), dtype=torch.float32)
    at, made = 0, []
    for line in done.stdout.splitlines():
        words = line.split(" ")
        if words[0] != "ok":
            made.append(line[8:])
            continue
        n = 2 * int(words[2])
        made.append(data[at:at + n].reshape(2, -1))
        at += n
    return made


def far(a, b):
    return float(((a - b).norm(dim=1) / b.norm(dim=1)).max())


seen, why, refused_there = collections.Counter(), collections.Counter(), collections.Counter()
made, failed = {}, 0
for i in range(count):
    if time.monotonic() > until:
        break
    family = rng.choice(FAMILIES)
    if family not in made:
        mp.save_model(family, mp.VARIANTS[family], 7)
        made[family] = modules(mp.load(family, torch.float32))
    torch.manual_seed(seed * 100003 + i)
    odd = rng.random() < 0.15
    c = draw(*made[family])
    want = theirs(family, c, odd)
    if isinstance(want, str):
        seen["refused by PEFT"] += 1
        refused_there[want[:80]] += 1
        if odd and os.path.exists("adapter/adapter_config.json"):  # what it does not read, or cannot run, has no result to compare
            got = ours([family + "\tadapter"])[0]
            seen["read here alone"] += not isinstance(got, str)
            if not isinstance(got, str):
                print(f"read here alone: case {i} of {seed}, {family} {json.dumps(c)}: {want[:200]}", flush=True)
        continue
    shutil.rmtree("merged", ignore_errors=True)
    run = subprocess.run([build + "/ds_checkpoint", "merge", family, "adapter", "merged"], capture_output=True, text=True, check=False)
    assert run.returncode in (0, 1, 2), run
    rows = ours([family + "\tadapter"] + (["merged"] if run.returncode == 0 else []))
    if isinstance(rows[0], str) or run.returncode:
        seen["refused"] += 1
        why[(rows[0] if isinstance(rows[0], str) else run.stderr.strip().split(": ", 1)[-1])[:110]] += 1
        if isinstance(rows[0], str) != bool(run.returncode):
            seen["refused by one of two"] += 1
            print(f"one of two: case {i} of {seed}: {family} {json.dumps(c)}: {rows[0] if isinstance(rows[0], str) else run.stderr}", flush=True)
        continue
    one, two = far(rows[0], want[0]), far(rows[1], want[0]) if not isinstance(rows[1], str) else 1.0
    merged = {k: v for k, v in want[1].state_dict().items()}
    seen["the same"] += 1
    if not (one < MOST and two < 3 * MOST):
        failed += 1
        print(f"DIFFERS: case {i} of {seed}: {family} {json.dumps(c)} odd {odd}: beside {one:.2e}, merged {two:.2e}", flush=True)
        shutil.copytree("adapter", f"bad{i}_{family}", dirs_exist_ok=True)
print(dict(seen))
for text, n in why.most_common(40):
    print(n, text)
print("by PEFT:")
for text, n in refused_there.most_common(12):
    print(n, text)
sys.exit(1 if failed else 0)
