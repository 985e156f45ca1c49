# SPDX-License-Identifier: Apache-2.0
"""Ranks that differ, at random: ranks_differ.py BUILD SOURCE CASES SEED.

Each case gives one rank another flag, key of the configuration, field of config.json, variable of the environment, or file
(model folder, tokenizer, data of each kind), on 2 to 4 ranks and any ZeRO stage. What can differ is taken from the program's
tables (differ_tables.py). The rank and what differs must be named before anything is trained, within seconds, unless the
table says that a rank may have its own: then the run must end well. Needs no package. Exit 1 when a case does not hold.
"""
import gzip
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

import differ_tables

SECONDS = 20  # with the machine busy; alone it is below one
MODEL = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 320, "hidden_size": 32, "intermediate_size": 64,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
         "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "attention_dropout": 0.0}
CONFIG = {"train_batch_size": 12, "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
          "zero_optimization": {"stage": 0}, "gradient_clipping": 1.0}
JOB = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


class Case:
    def __init__(self, build, folder, tables, rng):
        self.build, self.folder, self.tables, self.rng = build, folder, tables, rng
        self.ranks = rng.choice([2, 2, 3, 4])
        self.other = rng.randrange(1, self.ranks)
        self.config = json.loads(json.dumps(CONFIG))
        self.config["zero_optimization"]["stage"] = rng.randrange(4)
        (folder / "ds.json").write_text(json.dumps(self.config))
        self.common = {"--model": folder / "model", "--data": folder / "data.txt", "--deepspeed_config": folder / "ds.json", "--eval_fraction": "0.2",
                       "--seq_length": "32", "--steps": "2", "--learning_rate": "1e-3", "--output": "out", "--threads": "1"}

    def copy(self, name):
        """A copy of a file or folder, under the same name."""
        to = self.folder / "copy" / name
        to.parent.mkdir(exist_ok=True)
        shutil.copytree(self.folder / name, to) if (self.folder / name).is_dir() else shutil.copy(self.folder / name, to)
        return to

    def run(self, flags, variables):
        """Exit code, text and seconds of a run in which the other rank has these flags and variables besides."""
        other = dict(self.common)
        for i, word in enumerate(flags):
            if str(word).startswith("--"):
                alone = i + 1 == len(flags) or str(flags[i + 1]).startswith("--")
                other[word] = None if alone else flags[i + 1]
        lines = [shlex.join([f"{self.build}/ds_train"] + [str(w) for pair in given.items() for w in pair if w is not None])
                 for given in (other, self.common)]
        script = self.folder / "rank.sh"
        exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in variables.items())
        script.write_text(f'#!/bin/sh\n[ "$RANK" = {self.other} ] && {{ {exports}exec {lines[0]}; }}\nexec {lines[1]}\n')
        script.chmod(0o755)
        env = {k: v for k, v in os.environ.items() if k not in JOB and not k.startswith("DS_")}
        env["DEEPSPEED_TIMEOUT"] = "0.5"
        begin = time.monotonic()
        done = subprocess.run([f"{self.build}/deepspeed", "--num_gpus", str(self.ranks), str(script)], cwd=self.folder,
                              env=env, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout + done.stderr, time.monotonic() - begin

    def says(self, what, text, bad):
        stage = self.config["zero_optimization"]["stage"]
        return [f"{what}, {self.ranks} ranks, stage {stage}, rank {self.other}: {b}\n{text[-1500:]}" for b in bad]

    def named(self, what, name, flags=(), variables=None, own_name=None):
        """`name` is a regular expression of what must be in the line that names the rank; own_name of the rank's own error."""
        code, text, seconds = self.run(flags, variables or {})
        compared = [line for line in text.splitlines() if f"rank {self.other} has " in line]
        own = [line for line in text.splitlines() if f"[rank {self.other}] ds_train: " in line]  # it refuses its own command line or file
        bad = []
        if code == 0:
            bad.append("it ended with exit code 0")
        if not compared and not own:
            bad.append("the rank is not named")
        elif not any(re.search(name if compared else own_name or name, line) for line in compared or own):
            bad.append(f"'{name}' is not named")
        if list((self.folder / "out").glob("global_step*")):
            bad.append("something was trained and saved")
        if seconds > SECONDS:
            bad.append(f"it took {seconds:.0f} s")
        return self.says(what, text, bad)

    def trains(self, what, flags=(), variables=None):
        code, text, _ = self.run(flags, variables or {})
        return self.says(what, text, [f"exit code {code}"] if code != 0 else [])


def flip_bit(path, rng):
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data) * 3 // 4, len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def a_flag(case):
    flag = case.rng.choice([f for f in case.tables["flags"] if f.may["ranks"] != "content"])
    words = flag.words(case.rng, case.common.get(flag.name))
    if flag.may["ranks"] == "free":
        return case.trains(" ".join(words), words)
    return case.named(" ".join(words), re.escape(flag.name) + r"\b", words)


def a_key(case):
    key = case.rng.choice(case.tables["keys"])
    given = case.config.get(key.path)
    value = key.value(case.rng, given)
    if value is None:
        return a_key(case)
    other = case.folder / "other.json"
    other.write_text(json.dumps(differ_tables.with_key(case.config, key.path, value)))
    names = "|".join(re.escape(name) + r"\b" for name in [key.path, *differ_tables.resolved_otherwise(case.build, case.folder / "ds.json", other)])
    stage = case.config["zero_optimization"]["stage"]
    if re.match(r"(scheduler|optimizer)\.params", key.path) or (key.path == "zero_optimization.overlap_comm" and value == (stage == 3)):
        names += "|configuration file"  # of another type, no key of the run; or what null comes to
    section = re.escape(key.path.split(".")[0])  # a file that is wrong by itself may be told by another key of the section
    return case.named(f"{key.path} {json.dumps(value)}", names, ["--deepspeed_config", other], own_name=section)


def a_field(case):
    field = case.rng.choice(case.tables["fields"])
    value = field.value(case.rng, MODEL.get(field.key))
    inside = "|".join(value) if isinstance(value, dict) else field.key
    if field.key == "hidden_size":
        inside += "|head_dim"  # which follows from it
    name = rf"\b({field.key}|{inside})\b|(folder|model_config) than rank 0.*(config|first)\.json"
    what = f"{field.key} {json.dumps(value)}"
    if case.rng.random() < 0.5:
        case.common["--model_config"], case.common["--tokenizer"] = case.folder / "first.json", "bytes"
        del case.common["--model"]
        copy = case.copy("first.json")
        copy.write_text(json.dumps({**MODEL, field.key: value}))
        return case.named(what, name, ["--model_config", copy])
    copy = case.copy("model")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, field.key: value}))
    return case.named(what, name, ["--model", copy])


def a_variable(case):
    variable = case.rng.choice(case.tables["variables"])
    value = case.rng.choice(variable.values)
    if variable.name == "DS_THREADS":
        del case.common["--threads"]
    given = {variable.name: value}
    if variable.ranks == "OWN":
        return case.trains(f"{variable.name}={value}", variables=given)
    return case.named(f"{variable.name}={value}", variable.name, variables=given)


def a_model_file(case):
    copy = case.copy("model")
    kind = case.rng.choice(["weight", "tokenizer", "more", "template", "beside"])
    if kind == "weight":
        flip_bit(copy / "model.safetensors", case.rng)
        return case.named("a bit of a weight", "model.safetensors", ["--model", copy])
    if kind == "tokenizer":
        text = (copy / "tokenizer.json").read_text()
        (copy / "tokenizer.json").write_text(text.replace("{", "{ ", 1))
        return case.named("tokenizer.json", "tokenizer.json", ["--model", copy])
    if kind == "more":
        (copy / "generation_config.json").write_text("{}")
        return case.named("one file more", "generation_config.json", ["--model", copy])
    if kind == "template":
        (copy / "additional_chat_templates").mkdir()
        (copy / "additional_chat_templates" / "foo.jinja").write_text("b")
        return case.named("a template of a folder", "foo.jinja", ["--model", copy])
    (copy / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    case.common["--tokenizer"] = case.folder / "model" / "tokenizer.json"
    return case.named("a file beside the tokenizer", "tokenizer_config.json", ["--tokenizer", copy / "tokenizer.json"])


def a_data_file(case):
    """Of each kind, as training or evaluation data, alone or behind another."""
    first, bits = case.rng.choice([("data.txt", "data.txt"), ("rows.jsonl", "rows.jsonl"), ("rows.csv", "rows.csv"),
                                   ("rows.jsonl.gz", "rows.jsonl.gz"), ("packed.bin", "packed.bin"),
                                   ("packed.bin", "packed.idx"), ("packed.idx", "packed.bin"), ("packed.idx", "packed.idx")])
    flag = case.rng.choice(["--data", "--eval_data"])
    if flag == "--eval_data":
        del case.common["--eval_fraction"]
    for name in {first, bits, "packed.bin", "packed.idx"} if first.startswith("packed") else {first}:
        copy = case.copy(name)
    case.common[flag] = case.folder / first
    if case.rng.random() < 0.2:
        return case.trains(f"a copy of {first}", [flag, copy.parent / first])
    flip_bit(copy.parent / bits, case.rng)
    return case.named(f"{flag} {first}: a bit of {bits}", re.escape(bits), [flag, copy.parent / first])


def a_data_folder(case):
    """A folder stands for the files in it: one more, one less, another bit."""
    copy = case.copy("folder")
    kind = case.rng.choice(["more", "less", "bit"])
    name = case.rng.choice(sorted(path.name for path in copy.iterdir()))
    if kind == "more":
        name = case.rng.choice(["a.txt", "m.jsonl", "z.txt"])
        (copy / name).write_text('{"text": "more"}\n')
    elif kind == "less":
        (copy / name).unlink()
    else:
        flip_bit(copy / name, case.rng)
    case.common["--data"] = case.folder / "folder"
    return case.named(f"a folder of data: {kind} {name}", re.escape(name), ["--data", copy])


def a_copy(case):
    return case.trains("copies with the same content", ["--model", case.copy("model"), "--data", case.copy("data.txt"), "--deepspeed_config",
                                                        case.copy("ds.json")])


KINDS = [a_flag] * 6 + [a_key] * 6 + [a_field] * 4 + [a_variable] * 2 + [a_model_file] * 2 + [a_data_file] * 3 + [a_data_folder, a_copy]


def make_files(build, folder, rng):
    text = "".join(rng.choice("abcdefgh ,.\n") for _ in range(20000))
    (folder / "data.txt").write_text(text)
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in text.split("\n") if line))
    (folder / "rows.csv").write_text("text\n" + "".join(json.dumps(line) + "\n" for line in text.split("\n") if line))
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress((folder / "rows.jsonl").read_bytes()))
    (folder / "folder").mkdir()
    for name in ("b.txt", "c.jsonl", "n.csv"):
        shutil.copy(folder / {"b.txt": "data.txt", "c.jsonl": "rows.jsonl", "n.csv": "rows.csv"}[name], folder / "folder" / name)
    (folder / "first.json").write_text(json.dumps(MODEL))
    (folder / "one.json").write_text(json.dumps({**CONFIG, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}))
    for command in (["ds_data", "tokenize", folder / "data.txt", "--tokenizer", "bytes", "--output", folder / "packed"],
                    ["ds_train", "--model_config", folder / "first.json", "--tokenizer", "bytes", "--data", folder / "data.txt", "--seq_length", "32",
                     "--steps", "1", "--deepspeed_config", folder / "one.json", "--output", folder / "model"]):
        subprocess.run([build / command[0], *command[1:]], check=True, capture_output=True)
    for place in (folder / "model").iterdir():
        if place.name.startswith("global_step") or place.name == "latest":
            shutil.rmtree(place) if place.is_dir() else place.unlink()


def main():
    build, source, n, seed = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), int(sys.argv[3]), int(sys.argv[4])
    rng = random.Random(seed)
    tables = {"flags": differ_tables.flags(build), "keys": differ_tables.keys(build), "fields": differ_tables.fields(source),
              "variables": differ_tables.variables(source)}
    counts = {}
    failures = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_files(build, folder, rng)
        for i in range(n):
            for left in ("copy", "out", "other_out"):
                shutil.rmtree(folder / left, ignore_errors=True)
            kind = KINDS[i % len(KINDS)] if n <= 2 * len(KINDS) else rng.choice(KINDS)
            found = kind(Case(build, folder, tables, rng))
            counts[kind.__name__] = counts.get(kind.__name__, 0) + 1
            failures += found
            for line in found:
                print(f"case {i}: {line}", flush=True)
    print(f"ranks that differ, seed {seed}:", ", ".join(f"{counts[k]} {k}" for k in sorted(counts)), f"- {len(failures)} failures")
    return 1 if failures else 0


sys.exit(main())
