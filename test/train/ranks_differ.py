"""Ranks that differ, at random: ranks_differ.py BUILD CASES SEED.

Each case gives one rank another flag, another file of the model folder (one bit of a weight, a field of config.json, the
tokenizer), other data or another configuration file, on 2 to 4 ranks and any ZeRO stage. It must be named, with the right
rank, before anything is trained, within seconds; what changes no result (metrics, a copy of a file with the same
content) trains on (its exit code is looked at, not its loss). Needs no package. Exit 1 when a case does not hold.
"""
import json
import os
import pathlib
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

SECONDS = 20  # with the machine busy; alone it is below one
MODEL = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 320, "hidden_size": 32, "intermediate_size": 64,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
         "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "attention_dropout": 0.0}
FIELDS = {"rms_norm_eps": 1e-6, "rope_theta": 500000.0, "attention_dropout": 0.1, "max_position_embeddings": 512,
          "hidden_act": "gelu", "initializer_range": 0.03, "num_attention_heads": 8, "num_key_value_heads": 4,
          "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
CONFIG = {"train_batch_size": 12, "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
          "zero_optimization": {"stage": 0}, "gradient_clipping": 1.0}
FLAGS = [["--steps", "4"], ["--save_interval", "1"], ["--eval_interval", "1", "--eval_fraction", "0.2"], ["--seed", "7"], ["--seq_length", "24"],
         ["--too_long", "drop"], ["--append_eos"], ["--loss_average", "targets"], ["--decay_all"], ["--max_skipped_steps", "3"],
         ["--freeze", "*norm*"], ["--eval_fraction", "0.3"], ["--keep_last", "2"], ["--learning_rate", "3e-4"],
         ["--weight_decay", "0.2"], ["--adam_beta1", "0.8"], ["--bf16"], ["--output", "other"], ["--resume"],
         ["--trace", "t.json"], ["--max_grad_norm", "1.0"], ["--gradient_accumulation_steps", "1"], ["--threads", "2"], ["--strict"],
         ["--warmup_steps", "1"], ["--warmup_ratio", "0.5"], ["--lr_scheduler_type", "cosine"], ["--lr_scheduler_kwargs", "{}"],
         ["--optim", "adamw_torch"],
         ["--column_map", "text=content"], ["--skip_bad", "3"]]
HARMLESS = [["--metrics", "m.jsonl"], ["--print_plan"]]


class Case:
    def __init__(self, build, folder, rng):
        self.build, self.folder, self.rng = build, folder, rng
        self.ranks = rng.choice([2, 2, 3, 4])
        self.other = rng.randrange(1, self.ranks)
        self.stage = rng.randrange(4)
        self.common = {"--model": folder / "model", "--data": folder / "data.txt", "--deepspeed_config": self.config({}, "ds.json"),
                       "--seq_length": "32", "--steps": "2", "--learning_rate": "1e-3", "--output": "out", "--threads": "1"}

    def config(self, change, name):
        config = json.loads(json.dumps(CONFIG))
        config["zero_optimization"]["stage"] = self.stage
        config.update(change)
        path = self.folder / name
        path.write_text(json.dumps(config))
        return path

    def copy(self, name):
        to = self.folder / "copy"
        shutil.rmtree(to, ignore_errors=True)
        if (self.folder / name).is_dir():
            shutil.copytree(self.folder / name, to)
        else:
            to = self.folder / f"copy-{name}"
            shutil.copy(self.folder / name, to)
        return to

    def run(self, flags):
        """Exit code, text and seconds of a run in which the other rank has these flags besides."""
        other = dict(self.common)
        for i, word in enumerate(flags):
            if str(word).startswith("--"):
                alone = i + 1 == len(flags) or str(flags[i + 1]).startswith("--")
                other[word] = None if alone else flags[i + 1]
        program = [f"{self.build}/ds_train"]
        lines = [shlex.join(program + [str(w) for pair in given.items() for w in pair if w is not None]) for given in (other, self.common)]
        script = self.folder / "rank.sh"
        script.write_text(f'#!/bin/sh\n[ "$RANK" = {self.other} ] && exec {lines[0]}\nexec {lines[1]}\n')
        script.chmod(0o755)
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
        env["DEEPSPEED_TIMEOUT"] = "0.5"
        begin = time.monotonic()
        done = subprocess.run([f"{self.build}/deepspeed", "--num_gpus", str(self.ranks), str(script)], cwd=self.folder,
                              env=env, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout + done.stderr, time.monotonic() - begin

    def named(self, flags, what):
        code, text, seconds = self.run(flags)
        bad = []
        if code == 0:
            bad.append("it ended with exit code 0")
        if f"rank {self.other} has another" not in text:
            bad.append("the rank is not named")
        if list((self.folder / "out").glob("global_step*")):
            bad.append("something was trained and saved")
        if seconds > SECONDS:
            bad.append(f"it took {seconds:.0f} s")
        return [f"{what}, {self.ranks} ranks, stage {self.stage}, rank {self.other}: {b}\n{text[-1500:]}" for b in bad]

    def trains(self, flags, what):
        code, text, _ = self.run(flags)
        if code != 0:
            return [f"{what}, {self.ranks} ranks, stage {self.stage}: exit code {code}\n{text[-1500:]}"]
        return []


def flip_bit(path, rng):
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data) * 3 // 4, len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def differ(case, kind):
    rng = case.rng
    if kind == "flag":
        flags = rng.choice(FLAGS)
        return case.named(flags, " ".join(flags))
    if kind == "harmless":
        flags = rng.choice(HARMLESS)
        return case.trains(flags, " ".join(flags))
    if kind == "weight":
        copy = case.copy("model")
        flip_bit(copy / "model.safetensors", rng)
        return case.named(["--model", copy], "a bit of a weight")
    if kind == "field":
        copy = case.copy("model")
        key = rng.choice(list(FIELDS))
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**config, key: FIELDS[key]}))
        return case.named(["--model", copy], key)
    if kind == "tokenizer":
        copy = case.copy("model")
        text = (copy / "tokenizer.json").read_text()
        (copy / "tokenizer.json").write_text(text.replace("{", "{ ", 1))
        return case.named(["--model", copy], "tokenizer.json")
    if kind == "template":
        copy = case.copy("model")
        for folder, text in ((case.folder / "model", "a"), (copy, "b")):
            (folder / "additional_chat_templates").mkdir(exist_ok=True)
            (folder / "additional_chat_templates" / "foo.jinja").write_text(text)
        return case.named(["--model", copy], "a template of a folder")
    if kind == "beside":
        copy = case.copy("model")
        (copy / "tokenizer_config.json").write_text('{"chat_template": "x"}')
        case.common["--tokenizer"] = case.folder / "model" / "tokenizer.json"
        return case.named(["--tokenizer", copy / "tokenizer.json"], "a file beside the tokenizer")
    if kind == "file":
        copy = case.copy("model")
        (copy / "generation_config.json").write_text("{}")
        return case.named(["--model", copy], "one file more")
    if kind == "data":
        copy = case.copy("data.txt")
        flip_bit(copy, rng)
        os.replace(copy, case.folder / "other" / "data.txt")
        return case.named(["--data", case.folder / "other" / "data.txt"], "a bit of the data")
    if kind == "config":
        change = rng.choice([{"gradient_clipping": 0.5}, {"train_batch_size": 24}, {"bf16": {"enabled": True}}])
        return case.named(["--deepspeed_config", case.config(change, "other.json")], f"configuration {change}")
    copy = case.copy("model")
    shutil.copy(case.folder / "data.txt", case.folder / "other" / "data.txt")
    return case.trains(["--model", copy, "--data", case.folder / "other" / "data.txt"], "copies with the same content")


KINDS = ["flag"] * 5 + ["harmless", "weight", "weight", "field", "field", "tokenizer", "file", "template", "beside", "data", "config", "copy"]


def main():
    build, n, seed = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    counts = {}
    failures = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "other").mkdir()
        (folder / "data.txt").write_text("".join(rng.choice("abcdefgh ,.\n") for _ in range(20000)))
        (folder / "first.json").write_text(json.dumps(MODEL))
        (folder / "one.json").write_text(json.dumps({**CONFIG, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}))
        subprocess.run([build / "ds_train", "--model_config", folder / "first.json", "--tokenizer", "bytes", "--data", folder / "data.txt",
                        "--seq_length", "32", "--steps", "1", "--deepspeed_config", folder / "one.json", "--output", folder / "model"],
                       check=True, capture_output=True)
        for place in (folder / "model").iterdir():
            if place.name.startswith("global_step") or place.name == "latest":
                shutil.rmtree(place) if place.is_dir() else place.unlink()
        for i in range(n):
            kind = KINDS[i % len(KINDS)] if n <= 2 * len(KINDS) else rng.choice(KINDS)
            found = differ(Case(build, folder, rng), kind)
            counts[kind] = counts.get(kind, 0) + 1
            failures += found
            for line in found:
                print(line)
    print("ranks that differ:", ", ".join(f"{counts[k]} {k}" for k in sorted(counts)), f"- {len(failures)} failures")
    return 1 if failures else 0


sys.exit(main())
