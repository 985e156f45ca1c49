#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles src/accel/cuda/kernels with nvcc and compares what ptxas says with a committed table.

Usage: cuda_resources.py check|update [NVCC]

For sm_80, sm_90a and sm_100: registers a thread, bytes of shared memory a block, bytes spilled. check:
nothing spills that did not, shared memory is as it was, and with the table's nvcc no kernel needs more
registers. update: writes the table. Exit status: 0 as in the table, 1 not, 2 wrong usage, 77 no nvcc.
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "test/golden/cuda_resources.txt"
ARCHS = ["sm_80", "sm_90a", "sm_100"]
FLAGS = ["-std=c++17", "-fmad=false", "-Xptxas", "-v", "-cubin", "-I", str(ROOT / "include"), "-I", str(ROOT / "src")]
ENTRY = re.compile(r"Compiling entry function '(\w+)'")
SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SMEM = re.compile(r"(\d+) bytes smem")


def find_nvcc(given: str | None) -> str | None:
    return given or shutil.which("nvcc") or next(
        (path for path in ["/usr/local/cuda/bin/nvcc"] if os.access(path, os.X_OK)), None)


def version_of(nvcc: str) -> str:
    text = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    return re.search(r"release ([\d.]+)", text).group(1)


def compile_one(nvcc: str, source: pathlib.Path, arch: str, folder: str) -> dict:
    out = pathlib.Path(folder) / f"{source.stem}.{arch}.cubin"
    done = subprocess.run([nvcc, f"-arch={arch}", *FLAGS, "-o", str(out), str(source)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{source.name} for {arch}:\n{done.stderr}")
    rows, name, spill = {}, None, 0
    for line in done.stderr.splitlines():
        if match := ENTRY.search(line):
            name = match.group(1)
        elif match := SPILL.search(line):
            spill = int(match.group(1)) + int(match.group(2))
        elif (match := USED.search(line)) and name is not None:
            shared = SMEM.search(line)
            rows[(name, arch)] = (int(match.group(1)), int(shared.group(1)) if shared else 0, spill)
            name = None
    return rows


def measure(nvcc: str) -> dict:
    sources = sorted((ROOT / "src/accel/cuda/kernels").glob("*.cu"))
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(compile_one, nvcc, source, arch, folder) for source in sources for arch in ARCHS]
        rows = {}
        for job in jobs:
            rows.update(job.result())
    return rows


def listed() -> set:
    """Names of kernel_list.h."""
    text = (ROOT / "src/accel/cuda/kernel_list.h").read_text()
    names = set(re.findall(r"\bX\((\w+)\)", text)) - {"name"}
    for name in set(re.findall(r"\bXA\((\w+)\)", text)) - {"name"}:
        names |= {f"{name}_{dtype}" for dtype in ("f32", "bf16", "f16")}
    return names


def write(rows: dict, version: str) -> None:
    lines = [f"# nvcc {version}; scripts/cuda_resources.py update\n", "# kernel arch registers shared spilled\n"]
    lines += [f"{name} {arch} {a} {b} {c}\n" for (name, arch), (a, b, c) in sorted(rows.items())]
    TABLE.write_text("".join(lines))


def read() -> tuple[dict, str]:
    lines = TABLE.read_text().splitlines()
    rows = {}
    for line in lines[2:]:
        name, arch, *numbers = line.split()
        rows[(name, arch)] = tuple(map(int, numbers))
    return rows, lines[0].split()[2].rstrip(";")


def compare(rows: dict, version: str) -> int:
    table, of = read()
    bad = [f"{name} {arch}: not in the table" for name, arch in sorted(rows.keys() - table.keys())]
    bad += [f"{name} {arch}: in the table, not compiled" for name, arch in sorted(table.keys() - rows.keys())]
    for key in sorted(rows.keys() & table.keys()):
        now, then = rows[key], table[key]
        what = " ".join(key)
        if now[2] > then[2]:
            bad.append(f"{what}: spills {now[2]} bytes, {then[2]} in the table")
        if now[1] != then[1]:
            bad.append(f"{what}: {now[1]} bytes of shared memory, {then[1]} in the table")
        if version == of and now[0] > then[0]:
            bad.append(f"{what}: {now[0]} registers, {then[0]} in the table")
    print("\n".join(bad) if bad else f"{len(rows)} kernels as in the table (nvcc {version})")
    return 1 if bad else 0


def main() -> int:
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in ("check", "update"):
        print(__doc__, file=sys.stderr)
        return 2
    nvcc = find_nvcc(sys.argv[2] if len(sys.argv) == 3 else None)
    if nvcc is None:
        print("no nvcc here")
        return 77
    rows = measure(nvcc)
    missing = listed() ^ {name for name, _ in rows}
    if missing:
        print("in kernel_list.h or in kernels/, not in both: " + ", ".join(sorted(missing)))
        return 1
    if sys.argv[1] == "update":
        write(rows, version_of(nvcc))
        return 0
    return compare(rows, version_of(nvcc))


if __name__ == "__main__":
    sys.exit(main())
