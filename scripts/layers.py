#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that a folder of src/ includes only from itself and from folders to its left.

The order is DESIGN's; groups on one level must not include one another. Public headers of
include/deepspeed may be included by anybody. models/ and examples/ use only public headers.
"""
import pathlib
import re
import sys

LEVELS = [
    ["base"], ["config", "ir", "comm", "io"], ["op"], ["accel", "grad", "optim", "nn"], ["place"],
    ["cost", "pass"], ["plan"], ["pipe"], ["exec"], ["ckpt", "data", "monitor"], ["train"],
    ["infer"], ["launch"], ["tune"],
]
RANK = {folder: level for level, folders in enumerate(LEVELS) for folder in folders}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    bad = []
    names = {}
    for path in sorted(root.glob("src/**/*.[ch]")):
        folder = path.relative_to(root / "src").parts[0]
        if folder not in RANK:
            bad.append(f"{path.relative_to(root)}: folder {folder} has no layer")
            continue
        for name in INCLUDE.findall(path.read_text()):
            other = name.split("/")[0]
            if "/" not in name or other == folder or other == "deepspeed":
                continue
            if other not in RANK or RANK[other] >= RANK[folder]:
                bad.append(f"{path.relative_to(root)}: {folder} must not include {name}")
    for path in sorted([*root.glob("models/*.[ch]"), *root.glob("examples/**/*.[ch]")]):
        for name in INCLUDE.findall(path.read_text()):
            if not (path.parent / name).exists():
                bad.append(f"{path.relative_to(root)}: only public headers, not {name}")
    for path in root.glob("src/**/*.[ch]"):
        if path.name in names and "cpu" not in path.parts:
            bad.append(f"{path.relative_to(root)}: file name is not unique: {names[path.name]}")
        names[path.name] = path.relative_to(root)
    print("\n".join(bad) if bad else "layers hold")
    return 1 if bad else 0


sys.exit(main())
