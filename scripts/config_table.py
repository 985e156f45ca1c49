#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which DeepSpeed configurations of a folder run as they are, with the flags of a user of Hugging Face's Trainer.

Usage: config_table.py BUILD FOLDER [--world_size N] [--run N] [--full]

Every .json and .hjson file below FOLDER is checked as ds_train would read it (`ds_config check`, one rank unless
--world_size says otherwise) with the flags FLAGS, by the Trainer's names. The Trainer refuses a flag that contradicts a
number in the file, and so does ds_train: a user gives such a flag the file's value, or leaves it out; it is left out here.
A file's group is its first folder below FOLDER. The table has a line a group and a line for every file that is refused;
--full lists all files.

--run N also trains a tiny model for two steps with N of the files that run, evenly spaced: an end other than 0 is told.
Exit code: 0; 1 when a run of --run failed; 2 wrong usage.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

FLAGS = {"--per_device_train_batch_size": "4", "--gradient_accumulation_steps": "2", "--learning_rate": "2e-5",
         "--weight_decay": "0.01", "--adam_beta1": "0.9", "--adam_beta2": "0.95", "--adam_epsilon": "1e-8",
         "--max_grad_norm": "1.0", "--warmup_ratio": "0.03", "--lr_scheduler_type": "cosine", "--max_steps": "100"}
OTHER_NAMES = {"--micro_batch": "--per_device_train_batch_size", "--steps": "--max_steps"}  # errors say ours
MODEL = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 256}
TOP = {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "optimizer", "fp16", "bf16"}


def precision(path):
    """The switch of a file that leaves its precision to the flags."""
    try:
        config = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except ValueError:
        return []
    sections = [(config.get(name) or {}) if isinstance(config, dict) else {} for name in ("fp16", "bf16")]
    said = [s.get("enabled") if isinstance(s, dict) else None for s in sections]
    if said[1] == "auto" and said[0] is not True:
        return ["--bf16"]
    return ["--fp16"] if said[0] == "auto" and said[1] is not True else []


def words(flags):
    return [word for pair in flags.items() for word in pair]


def check(build, path, world_size):
    """The error lines of a file, [] when it runs; and the flags that it takes."""
    flags, more = dict(FLAGS), precision(path)
    while True:
        done = subprocess.run([f"{build}/ds_config", "check", str(path), "--world_size", str(world_size), "--hidden_size",
                               str(MODEL["n_embd"]), *words(flags), *more],
                              capture_output=True, text=True, errors="replace")
        if done.returncode == 0:
            return [], words(flags) + more
        lines = (done.stdout if done.returncode == 1 else done.stderr).splitlines()
        errors = [line.replace(f"{path}:", "", 1) for line in lines if not re.search(r": \d+ errors?$", line)]
        names = {name for line in errors for name in re.findall(r"--\w+", line)}
        names |= {trainers for ours, trainers in OTHER_NAMES.items() if ours in names}
        given = [name for name in flags if name in names]
        if not given:
            return errors, words(flags) + more
        for name in given:
            del flags[name]


def train(build, path, flags, folder):
    """None when two steps were taken, else the last line of what was said."""
    done = subprocess.run([f"{build}/ds_train", "--model_config", folder / "model.json", "--tokenizer", "bytes", "--data",
                           folder / "text.txt", "--max_steps", "2", "--block_size", "32", "--deepspeed", path, *flags],
                          capture_output=True, text=True, errors="replace", timeout=300, cwd=folder)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["nothing said"])[-1]


def train_some(build, runs, count):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "model.json").write_text(json.dumps(MODEL))
        (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 400)
        chosen = [runs[i * len(runs) // count] for i in range(min(count, len(runs)))] if count < len(runs) else runs
        failures = 0
        for path, flags in chosen:
            said = train(build, path, flags, folder)
            failures += said is not None
            if said is not None:
                print(f"  {path}: {said}")
        print(f"{len(chosen) - failures} of {len(chosen)} train two steps of a tiny model")
    return failures


def is_config(path):
    """A file that is JSON, but no configuration of DeepSpeed, is passed over; one that is no JSON is judged."""
    try:
        config = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except ValueError:
        return True
    return isinstance(config, dict) and bool(TOP & set(config))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--world_size", type=int, default=1)
    parser.add_argument("--run", type=int, default=0)
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    build = str(pathlib.Path(options.build).resolve())
    root = options.folder.resolve()
    groups, runs = {}, []
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".json", ".hjson") and p.is_file() and is_config(p)):
        errors, flags = check(build, path, options.world_size)
        name = str(path.relative_to(root))
        groups.setdefault(name.split("/")[0] if "/" in name else ".", []).append((name, errors))
        if not errors:
            runs.append((path, flags))
        elif not options.full:
            print(f"refused  {name}: {errors[0]}" + (f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""))
        if options.full:
            print(f"{'refused' if errors else 'runs':8} {name}" + (f": {errors[0]}" if errors else ""))
    total = sum(len(files) for files in groups.values())
    if total == 0:
        print(f"no configuration below {root}", file=sys.stderr)
        return 2
    print(f"\n{'files':>6} {'run':>5}  of")
    for group, files in sorted(groups.items()):
        print(f"{len(files):6} {sum(not errors for _, errors in files):5}  {group}")
    print(f"{total:6} {len(runs):5}  all: {100 * len(runs) / total:.1f} % run as they are")
    return 1 if options.run > 0 and train_some(build, runs, options.run) > 0 else 0


if __name__ == "__main__":
    sys.exit(main())
