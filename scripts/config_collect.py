#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes every DeepSpeed configuration out of git repositories, for config_table.py. Needs python3-yaml.

Usage: config_collect.py REPOSITORIES OUT

REPOSITORIES holds a bare repository a folder, OWNER+NAME/repo; the newest commit of each is read. OUT/OWNER+NAME gets a
file for each configuration, OUT/origins.tsv its repository, commit, path and kind:

  json    a .json or .hjson file whose top-level object has one of KEYS; the file as it is
  yaml    a mapping under deepspeed_config (accelerate), deepspeed or ds_config with ZeRO's keys. accelerate's own keys are
          written as its DeepSpeedPlugin does; a mapping that names a JSON file is none
  python  a dict literal in a .py file with one of KEYS, all of whose values are literals. One with names or calls in
          it is no data, and is counted only

Files from 200 kB on are passed over. Exit code: 0; 2 wrong usage.
"""
import ast
import json
import pathlib
import re
import subprocess
import sys

import yaml

KEYS = {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu"}
LARGEST = 200_000


class Loader(yaml.SafeLoader):
    """Tags of other programs are plain values."""


Loader.add_multi_constructor("", lambda loader, suffix, node: None)


def git(repository, *words):
    return subprocess.run(["git", "-C", repository, *words], capture_output=True, check=True).stdout


def json_configs(text):
    try:
        config = json.loads(text)
    except ValueError:
        return [("", text)] if any(f'"{key}"' in text for key in KEYS) else []
    return [("", text)] if isinstance(config, dict) and KEYS & set(config) else []


def accelerate(section, document):
    """The configuration of accelerate's keys, as DeepSpeedPlugin.__post_init__ makes it, but for steps_per_print, which it
    sets to infinity so that DeepSpeed prints nothing."""
    def offload(name):
        device = section.get(f"{name}_device", "none")
        path = section.get(f"{name}_nvme_path")
        return {"device": device, "nvme_path": path if device == "nvme" else None}

    config = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
              "gradient_accumulation_steps": section.get("gradient_accumulation_steps", 1),
              "zero_optimization": {"stage": section.get("zero_stage", 2),
                                    "offload_optimizer": offload("offload_optimizer"),
                                    "offload_param": offload("offload_param"),
                                    "stage3_gather_16bit_weights_on_model_save":
                                        bool(section.get("zero3_save_16bit_model", False))}}
    if section.get("gradient_clipping"):
        config["gradient_clipping"] = section["gradient_clipping"]
    precision = str(document.get("mixed_precision", "no"))
    if precision in ("fp16", "bf16"):
        config[precision] = {"enabled": True}
    return config


def yaml_sections(value, document):
    """Mappings below deepspeed keys, wherever they stand."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, dict) and key in ("deepspeed_config", "deepspeed", "ds_config"):
                if KEYS & set(inner):
                    yield inner
                elif "zero_stage" in inner and "deepspeed_config_file" not in inner:
                    yield accelerate(inner, document)
            else:
                yield from yaml_sections(inner, document)
    elif isinstance(value, list):
        for inner in value:
            yield from yaml_sections(inner, document)


def yaml_configs(text):
    if "deepspeed" not in text and "ds_config" not in text:
        return []
    try:
        documents = list(yaml.load_all(text, Loader))
    except (yaml.YAMLError, ValueError, TypeError):
        return []
    found = [s for d in documents if isinstance(d, dict) for s in yaml_sections(d, d)]
    return [(f".{i}.json", json.dumps(section, indent=2, default=str)) for i, section in enumerate(found)]


def python_configs(text):
    """Outermost dict literals with KEYS; None in place of the text where a value is no literal."""
    if not any(key in text for key in KEYS):
        return []
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    found, todo = [], [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Dict) and KEYS & {k.value for k in node.keys if isinstance(k, ast.Constant)}:
            try:
                found.append((f".{node.lineno}.json", json.dumps(ast.literal_eval(node), indent=2)))
            except (ValueError, TypeError):
                found.append(("", None))
        else:
            todo.extend(ast.iter_child_nodes(node))
    return sorted(found)


KINDS = {".json": ("json", json_configs), ".hjson": ("json", json_configs), ".yaml": ("yaml", yaml_configs),
         ".yml": ("yaml", yaml_configs), ".py": ("python", python_configs)}


def files(repository):
    for line in git(repository, "ls-tree", "-r", "-l", "-z", "HEAD").decode(errors="replace").split("\0"):
        found = re.fullmatch(r"(\d+) blob (\w+) +(\d+)\t(.*)", line, re.S)
        if found and found[1] != "120000" and int(found[3]) < LARGEST and pathlib.Path(found[4]).suffix in KINDS:
            yield found[2], found[4]


def read_all(repository, blobs):
    """Texts of blobs, in their order; None for one that the snapshot lacks."""
    done = subprocess.run(["git", "-C", repository, "cat-file", "--batch"], input="\n".join(blobs).encode() + b"\n",
                          capture_output=True, check=True).stdout
    at = 0
    for _ in blobs:
        end = done.index(b"\n", at)
        head = done[at:end].split()
        if len(head) != 3:
            at = end + 1
            yield None
            continue
        size = int(head[2])
        yield done[end + 1:end + 1 + size].decode("utf-8", errors="replace")
        at = end + 1 + size + 1


def collect(repository, name, out):
    commit = git(repository, "log", "-1", "--format=%H").decode().strip()
    listed = list(files(repository))
    rows, no_data = [], 0
    for (_, path), text in zip(listed, read_all(repository, [blob for blob, _ in listed])):
        kind, reader = KINDS[pathlib.Path(path).suffix]
        for suffix, config in reader(text) if text is not None else []:
            if config is None:
                no_data += 1
                continue
            to = out / name / (path + suffix)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(config, encoding="utf-8")
            rows.append((name.replace("+", "/", 1), commit, path + suffix, kind))
    return rows, no_data


def main():
    if len(sys.argv) != 3:
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    root, out = map(pathlib.Path, sys.argv[1:])
    every, no_data = [], 0
    for folder in sorted(root.iterdir()):
        if (folder / "repo").is_dir():
            rows, skipped = collect(folder / "repo", folder.name, out)
            print(f"{len(rows):5} {skipped:5} no data  {folder.name}")
            every += rows
            no_data += skipped
    with open(out / "origins.tsv", "w", encoding="utf-8") as file:
        file.write("# repository, commit, path, kind: the configurations of docs/measurements/configs.md\n")
        file.writelines("\t".join(row) + "\n" for row in sorted(every))
    kinds = {kind: sum(row[3] == kind for row in every) for kind in ("json", "yaml", "python")}
    print(f"{len(every)} configurations {kinds}; {no_data} dict literals are no data")
    return 0


if __name__ == "__main__":
    sys.exit(main())
