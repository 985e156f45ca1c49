#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each source, header, script and CMake file of ours names its licence in its first line (behind #! in its second).

    spdx.py          lists the files that do not; exit 1 when there are any
    spdx.py add      adds the line to them
"""
import pathlib
import subprocess
import sys

LICENCE = "SPDX-License-Identifier: Apache-2.0"
ENDINGS = {".c": "/* {} */", ".h": "/* {} */", ".sh": "# {}", ".py": "# {}", ".cmake": "# {}", ".bash": "# {}", ".toml": "# {}"}
NAMES = {"CMakeLists.txt": "# {}", "Makefile": "# {}", "deepspeedConfig.cmake.in": "# {}", "run": "# {}"}


def line_of(path: pathlib.Path) -> str:
    return (NAMES.get(path.name) or ENDINGS.get(path.suffix, "")).format(LICENCE)


def lacks(root: pathlib.Path, path: pathlib.Path) -> bool:
    lines = (root / path).read_text().split("\n", 2)
    return lines[1 if lines[0].startswith("#!") else 0] != line_of(path)


def add(root: pathlib.Path, path: pathlib.Path) -> None:
    text = (root / path).read_text()
    first, rest = text.split("\n", 1) if text.startswith("#!") else ("", text)
    (root / path).write_text((first + "\n" if first else "") + line_of(path) + "\n" + rest)


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    ours = [p for p in map(pathlib.Path, listed.split("\0")) if str(p) != "." and line_of(p) and (root / p).is_file()]
    without = [p for p in ours if lacks(root, p)]
    if sys.argv[1:] == ["add"]:
        for path in without:
            add(root, path)
        print(f"added to {len(without)} of {len(ours)} files")
        return 0
    for path in without:
        print(f"{path}: expected \"{line_of(path)}\" at its top; scripts/spdx.py add writes it")
    if not without:
        print(f"{len(ours)} files name their licence")
    return 1 if without else 0


sys.exit(main())
