# SPDX-License-Identifier: Apache-2.0
"""Runs that are resumed otherwise, at random: resume_differs.py BUILD SOURCE CASES SEED.

A run of 4 steps saves after 2. Each case goes on from there with another flag, key of the configuration, field of config.json,
data, or number of ranks, stage or residency; what can differ is taken from the program's tables (differ_tables.py). It must be
refused by name, or go on: with a notice that names it, or else to the bits of the run that was never interrupted. Needs no
package. Exit 1 when a case does not hold.
"""
import array
import collections
import json
import math
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

import differ_tables

MODEL = {"model_type": "llama", "vocab_size": 320, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "attention_dropout": 0.0}
CONFIG = {"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95]}}, "gradient_clipping": 1.0,
          "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}, "zero_optimization": {"stage": 0}}
VARIANTS = [{}, {}, {"bf16": {"enabled": True}}, {"fp16": {"enabled": True, "initial_scale_power": 8}}, {"optimizer": {"type": "Lion", "params": {"lr": 1e-4}}},
            {"optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}, "zero_allow_untested_optimizer": True},
            {"optimizer": {"type": "Adagrad", "params": {"lr": 1e-3}}},
            {"train_batch_size": 8, "gradient_accumulation_steps": 2, "deterministic": True}, {"scheduler": {"type": "OneCycle", "params": {
                "cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 3}}}]
NEAR = 1e-6  # other sums: the order over ranks is another
JOB = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
NOT_ALONE = ("--output", "--resume", "--overwrite", "--restart_data", "--data_weights")  # they say what is resumed, or from which data

BEST = ("--load_best_model_at_end", "--metric_for_best_model", "--greater_is_better", "--early_stopping_patience", "--early_stopping_threshold")


class Runs:
    def __init__(self, build, folder, rng):
        self.build, self.folder, self.rng, self.firsts = build, folder, rng, {}
        (folder / "data.txt").write_text("".join(rng.choice("abcdefgh ,.\n") for _ in range(6000)))
        (folder / "model.json").write_text(json.dumps(MODEL))

    def config(self, config, name):
        (self.folder / name).write_text(json.dumps(config))
        return name

    def run(self, given, ranks):
        words = [str(w) for pair in given.items() for w in pair if w is not None]
        program = [f"{self.build}/ds_train", *words]
        if ranks > 1:
            program = [f"{self.build}/deepspeed", "--num_gpus", str(ranks), "--prefix", "none", *program]
        env = {k: v for k, v in os.environ.items() if k not in JOB and not k.startswith("DS_")}
        done = subprocess.run(program, cwd=self.folder, env=env, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout + done.stderr

    def given(self, stage, variant):
        config = json.loads(json.dumps({**CONFIG, **VARIANTS[variant]}))
        config["zero_optimization"]["stage"] = stage
        return config, {"--model_config": "model.json", "--tokenizer": "bytes", "--data": "data.txt", "--deepspeed_config":
                        self.config(config, "ds.json"), "--seq_length": "32", "--eval_fraction": "0.2", "--steps": "4", "--save_interval": "2",
                        "--output": "out", "--threads": "1"}

    def first(self, ranks, stage, variant):
        """A folder with the checkpoint after 2 steps, and the weights of step 4."""
        case = (ranks, stage, variant)
        if case not in self.firsts:
            _, given = self.given(stage, variant)
            shutil.rmtree(self.folder / "out", ignore_errors=True)
            code, text = self.run(given, ranks)
            assert code == 0, text
            weights = self.weights()
            folder = self.folder / f"first{ranks}{stage}{variant}"
            (self.folder / "out").rename(folder)
            shutil.rmtree(folder / "global_step4")
            (folder / "latest").write_text("global_step2")
            self.firsts[case] = folder, weights
        return self.firsts[case]

    def weights(self):
        """Those of step 4, the file's bytes; b"" without."""
        if not (self.folder / "out" / "global_step4").is_dir():
            return b""
        shutil.rmtree(self.folder / "export", ignore_errors=True)
        subprocess.run([f"{self.build}/ds_checkpoint", "export", "out", "export", "global_step4"], cwd=self.folder, check=True, capture_output=True)
        return (self.folder / "export" / "model.safetensors").read_bytes()


def distance(a, b):
    """Mean distance of the fp32 numbers in two files of one layout."""
    begin = 8 + int.from_bytes(a[:8], "little")
    x, y = (array.array("f", file[begin:]) for file in (a, b))
    return sum(abs(p - q) for p, q in zip(x, y)) / len(x) if len(x) == len(y) else math.inf


class Case:
    def __init__(self, runs, tables):
        self.runs, self.tables, self.rng = runs, tables, runs.rng
        self.ranks, self.stage = self.rng.choice([1, 1, 1, 2]), self.rng.randrange(4)
        self.variant = self.rng.randrange(len(VARIANTS))
        self.folder, self.wanted = runs.first(self.ranks, self.stage, self.variant)
        self.config, self.given = runs.given(self.stage, self.variant)

    def resumed(self, what, name, changes, ranks=None, must=("refused", "noticed", "same bits"), own_name=None):
        """Goes on with these flags. `name`: regular expression of what a refusal and a notice say. Returns the outcome and complaints."""
        given = {**self.given, **changes}
        for place in ("out", "other_out"):
            shutil.rmtree(self.runs.folder / place, ignore_errors=True)
        shutil.copytree(self.folder, self.runs.folder / "out")
        code, text = self.runs.run({**given, "--resume": None}, ranks or self.ranks)
        notices = [line for line in text.splitlines() if "from here on" in line]
        errors = [line for line in text.splitlines() if "ds_train: " in line or "other.json" in line]
        weights = self.runs.weights() if code == 0 else b""
        bad = []
        if code != 0:
            outcome = "refused"
            if not any(re.search(f"{name}|{own_name}" if own_name else name, line) for line in errors):
                bad.append(f"'{name}' is not named")
        elif any(re.search(name, line) for line in notices):
            outcome = "noticed"
        else:
            outcome = "same bits"
            if weights != self.wanted:
                bad.append("it went on in silence, to other bits")
        others = [line for line in notices if not re.search(name, line)]
        if others:
            bad.append(f"a notice of what did not change: {others[0]}")
        if outcome == "noticed" and "same bits too" in must and weights != self.wanted:
            bad.append("the bits changed")
        if outcome == "noticed" and "near too" in must and distance(weights, self.wanted) > NEAR:
            bad.append(f"the weights are {distance(weights, self.wanted):.3g} away")
        if outcome not in must:
            bad.append(f"it was: {outcome}")
        return outcome, [f"{what}, {self.ranks} ranks, stage {self.stage}, {json.dumps(VARIANTS[self.variant])}: {b}\n{text[-1200:]}" for b in bad]


def a_field(case):
    field = case.rng.choice(case.tables["fields"])
    value = field.value(case.rng, MODEL.get(field.key))
    (case.runs.folder / "other.json").write_text(json.dumps({**MODEL, field.key: value}))
    inside = "|".join(value) if isinstance(value, dict) else field.key
    must = ("refused", "same bits")
    return case.resumed(f"{field.key} {json.dumps(value)}", rf"\b({field.key}|{inside})\b", {"--model_config": "other.json"}, must=must)


def leaves_of(config, path=""):
    for name, value in config.items():
        if isinstance(value, dict):
            yield from leaves_of(value, f"{path}{name}.")
        else:
            yield path + name, value


def a_key(case):
    """Any key, or one that the run has."""
    given = dict(leaves_of(case.config))
    keys = case.tables["keys"]
    key = case.rng.choice([k for k in keys if k.path in given] if case.rng.random() < 0.3 else keys)
    value = key.value(case.rng, given.get(key.path))
    if value is None:
        return a_key(case)
    other = case.runs.config(differ_tables.with_key(case.config, key.path, value), "other.json")
    names = [key.path, *differ_tables.resolved_otherwise(case.runs.build, case.runs.folder / "ds.json", case.runs.folder / other)]
    if key.path.startswith("tensor_parallel."):  # fewer ranks have samples of their own
        names += ["train_micro_batch_size_per_gpu", "gradient_accumulation_steps"]
    names += [name.rsplit(".", n)[0] for name in names for n in range(1, name.count(".") + 1) if name.rsplit(".", n)[0] != "zero_optimization"]
    name = "|".join(re.escape(n) + r"\b" for n in names)
    return case.resumed(f"{key.path} {json.dumps(value)}", name, {"--deepspeed_config": other}, own_name=re.escape(key.path.split(".")[0]))


def a_flag(case):
    flag = case.rng.choice([f for f in case.tables["flags"] if "content" not in (f.may["ranks"], f.may["resume"]) and f.name not in NOT_ALONE])
    words = flag.words(case.rng, case.given.get(flag.name))
    changes = {words[0]: words[1] if len(words) > 1 else None}
    if flag.name == "--epochs":
        del case.given["--steps"]
    if flag.name == "--trace_steps":
        changes["--trace"] = "t.json"
    if flag.name in BEST:  # none is taken alone
        changes = {"--eval_interval": "2", **({} if flag.name == BEST[0] else {"--early_stopping_patience": "3"}), **changes}
    name = "|".join([re.escape(flag.name) + r"\b", flag.name[2:] + r"\b", *(re.escape(key) + r"\b" for key in flag.keys if flag.trainer)])
    name += {"--epochs": "|--steps", "--append_eos": "|end token", "--micro_batch": "|gradient_accumulation_steps",
             "--gradient_accumulation_steps": "|train_micro_batch_size_per_gpu", **dict.fromkeys(BEST, "|--eval_interval|--early_stopping_patience")}.get(
                 flag.name, "")
    must = {"free": ("same bits",), "noticed": ("noticed",), "same": ("refused", "same bits")}[flag.may["resume"]]
    if flag.trainer or flag.name in ("--trace", "--trace_steps", *BEST):
        must = ("refused", "noticed", "same bits")
    return case.resumed(" ".join(words), name, changes, must=must)


def a_topology(case):
    """Ranks, stage and residency: a notice, and the same bits, which hold for one number of ranks."""
    kind = case.rng.choice(["ranks", "stage", "optimizer", "both"])
    name, changes, ranks = "train_micro_batch|gradient_accumulation", {}, case.ranks
    config = json.loads(json.dumps(case.config))
    if kind in ("ranks", "both"):
        ranks = case.rng.choice([n for n in (1, 2, 4) if n != case.ranks])
        name += "|saved by"
    if kind in ("stage", "both"):
        config["zero_optimization"]["stage"] = case.rng.choice([s for s in range(4) if s != case.stage])
        name += r"|zero_optimization\.stage"
    if kind == "optimizer":
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
        name += r"|offload_optimizer"
    changes["--deepspeed_config"] = case.runs.config(config, "other.json")
    must = ("noticed", "near too" if ranks != case.ranks else "same bits too") + (("refused",) if kind == "optimizer" and case.stage == 0 else ())
    return case.resumed(f"{kind}: {ranks} ranks, {json.dumps(config['zero_optimization'])}", name, changes, ranks, must)


def a_data(case):
    kind = case.rng.choice(["letter", "shorter", "copy"])
    data = bytearray((case.runs.folder / "data.txt").read_bytes())
    if kind == "letter":
        at = case.rng.randrange(len(data) * 3 // 4)
        data[at] = ord("y") if data[at] != ord("y") else ord("z")
    elif kind == "shorter":
        del data[case.rng.randrange(len(data))]
    (case.runs.folder / "other.txt").write_bytes(data)
    must = ("same bits",) if kind == "copy" else ("refused",)
    return case.resumed(f"data: {kind}", "other data", {"--data": "other.txt"}, must=must)


def nothing(case):
    return case.resumed("nothing changed", "nothing", {}, must=("same bits",))


KINDS = [a_flag] * 6 + [a_key] * 8 + [a_field] * 3 + [a_topology] * 3 + [a_data] * 2 + [nothing]


def main():
    build, source, n, seed = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), int(sys.argv[3]), int(sys.argv[4])
    rng = random.Random(seed)
    tables = {"flags": differ_tables.flags(build), "keys": differ_tables.keys(build), "fields": differ_tables.fields(source)}
    counts = collections.Counter()
    n_failures = 0
    with tempfile.TemporaryDirectory() as name:
        runs = Runs(build, pathlib.Path(name), rng)
        for i in range(n):
            kind = KINDS[i % len(KINDS)] if n <= 2 * len(KINDS) else rng.choice(KINDS)
            outcome, bad = kind(Case(runs, tables))
            counts[f"{kind.__name__} {outcome}"] += 1
            n_failures += len(bad)
            for line in bad:
                print(f"case {i}: {line}", flush=True)
    print(f"resumes that differ, seed {seed}:", ", ".join(f"{counts[k]} {k}" for k in sorted(counts)), f"- {n_failures} failures")
    return 1 if n_failures else 0


sys.exit(main())
