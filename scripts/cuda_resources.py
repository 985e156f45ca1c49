#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what ptxas says of src/accel/cuda/kernels with a committed table.

Usage: cuda_resources.py check|update [--logs FOLDER] [--nvcc NVCC] [--jobs N] [SOURCE.cu …]

--logs: what a build left, SOURCE.ptxas in BUILD/cuda; without it nvcc compiles them here.
For sm_80, sm_90a and sm_100: registers a thread, bytes of shared memory a block, bytes spilled, bytes of stack
(arrays that are not in registers; rows without it are older than the column). check: nothing spills that did not
or has a larger stack, shared memory is as it was, and with the table's nvcc no kernel needs more registers.
update: writes the table. With SOURCEs of these alone. Exit status: 0 as in the table, 1 not, 2 wrong usage, 77 no
nvcc.
"""
import argparse
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
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
STACK = re.compile(r"(\d+) bytes stack frame")
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
    return read_log(done.stderr)


def read_log(text: str) -> dict:
    rows, name, arch, spill, stack = {}, None, None, 0, 0
    for line in text.splitlines():
        if match := ENTRY.search(line):
            name, arch = match.groups()
        elif match := SPILL.search(line):
            spill = int(match.group(1)) + int(match.group(2))
            stack = int(STACK.search(line).group(1))
        elif (match := USED.search(line)) and name is not None:
            shared = SMEM.search(line)
            rows[(name, arch)] = (int(match.group(1)), int(shared.group(1)) if shared else 0, spill, stack)
            name = None
    return rows


def measure(nvcc: str, sources: list, jobs: int, logs: pathlib.Path | None) -> dict:
    if logs is not None:
        return {key: row for source in sources for key, row in read_log((logs / f"{source.stem}.ptxas").read_text()).items()}
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        runs = [pool.submit(compile_one, nvcc, source, arch, folder) for source in sources for arch in ARCHS]
        rows = {}
        for job in runs:
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
    lines = [f"# nvcc {version}; scripts/cuda_resources.py update\n", "# kernel arch registers shared spilled stack\n"]
    lines += [f"{name} {arch} {' '.join(map(str, numbers))}\n" for (name, arch), numbers in sorted(rows.items())]
    TABLE.write_text("".join(lines))


def read() -> tuple[dict, str]:
    lines = TABLE.read_text().splitlines()
    rows = {}
    for line in lines[2:]:
        name, arch, *numbers = line.split()
        rows[(name, arch)] = tuple(map(int, numbers))
    return rows, lines[0].split()[2].rstrip(";")


def compare(rows: dict, version: str, whole: bool) -> int:
    table, of = read()
    bad = [f"{name} {arch}: not in the table" for name, arch in sorted(rows.keys() - table.keys())]
    if whole:
        bad += [f"{name} {arch}: in the table, not compiled" for name, arch in sorted(table.keys() - rows.keys())]
    for key in sorted(rows.keys() & table.keys()):
        now, then = rows[key], table[key]
        what = " ".join(key)
        if now[2] > then[2]:
            bad.append(f"{what}: spills {now[2]} bytes, {then[2]} in the table")
        if len(then) > 3 and now[3] > then[3]:
            bad.append(f"{what}: {now[3]} bytes of stack, {then[3]} in the table")
        if now[1] != then[1]:
            bad.append(f"{what}: {now[1]} bytes of shared memory, {then[1]} in the table")
        if version == of and now[0] > then[0]:
            bad.append(f"{what}: {now[0]} registers, {then[0]} in the table")
    print("\n".join(bad) if bad else f"{len(rows)} kernels as in the table (nvcc {version})")
    return 1 if bad else 0


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("mode", choices=["check", "update"])
    parser.add_argument("--logs", type=pathlib.Path)
    parser.add_argument("--nvcc")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("sources", nargs="*")
    given = parser.parse_intermixed_args()
    built = given.logs / "nvcc.path" if given.logs is not None else None
    nvcc = built.read_text() if built is not None and built.exists() else find_nvcc(given.nvcc)
    if nvcc is None or (given.logs is not None and not any(given.logs.glob("*.ptxas"))):
        print("no nvcc here" if nvcc is None else f"built without nvcc: {given.logs}")
        return 77
    folder = ROOT / "src/accel/cuda/kernels"
    whole = not given.sources
    rows = measure(nvcc, [folder / name for name in given.sources] or sorted(folder.glob("*.cu")), given.jobs, given.logs)
    names = {name for name, _ in rows}
    missing = names ^ listed() if whole else names - listed()
    if missing:
        print("in kernel_list.h or in kernels/, not in both: " + ", ".join(sorted(missing)))
        return 1
    version = version_of(nvcc)
    if given.mode == "check":
        return compare(rows, version, whole)
    kept = {} if whole else {key: row for key, row in read()[0].items() if key[0] in listed()}
    write({**kept, **rows}, version)
    return 0


if __name__ == "__main__":
    sys.exit(main())
