#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes every barrier and every wait for a copy out of the CUDA kernels, one at a time, and runs them over the operator
harness on the host layer with the thread sanitizer: each must be missed. One that is not, and is not marked with a comment
`redundant: why` on its line, fails.

cuda_barriers.py BUILD [--only FILE:LINE] [--jobs N]; BUILD is a build by ninja with the thread sanitizer."""
import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

WAIT = re.compile(r"^\s*(__syncthreads\(\);|__syncwarp\(\);|dsc_copy_wait\(\d\);)")
CUDA = "src/accel/cuda"
OPERATORS = {  # that run the kernels of a file
    "norm.cu": "layer_norm_backward rms_norm_backward",
    "gradnorm.cu": "sum_squares sum_parts abs_max max_of clip_factor",
    "linear.cu": "linear_cross_entropy",
    "linear_dw.cu": "linear_dw",
    "attention.cu": "attention_backward",
    "cuda_device.h": "layer_norm_backward rms_norm_backward softmax_backward linear_cross_entropy sum_squares",
}


def commands(build, target):
    text = subprocess.run(["ninja", "-C", build, "-t", "commands", target], check=True, capture_output=True, text=True).stdout
    lines = text.splitlines()
    compiles = {}
    for line in lines:
        found = re.search(r"-c (\S+(?:kernels/\w+\.cu|host/\w+\.c))$", line)
        if found and "ds_cuda_kernels.dir" in line:
            words = shlex.split(line)
            if "ccache" in words[0]:
                words = words[1:]
            compiles[found.group(1)] = words
    link = lines[-1].split("&&")[1].strip()
    return compiles, shlex.split(link)


def places(root):
    for folder in (CUDA, CUDA + "/kernels"):
        for name in sorted(os.listdir(os.path.join(root, folder))):
            if not re.search(r"\.(cu|h)$", name) or name in ("device_cuda.h", "device_host.h"):
                continue
            path = os.path.join(folder, name)
            for number, line in enumerate(open(os.path.join(root, path), encoding="utf-8"), 1):
                if WAIT.match(line):
                    yield path, number, line.strip()


class Bench:
    """A copy of the kernels' sources, what it takes to build the test from it, and the objects of the sources as they are."""

    def __init__(self, root, build, folder):
        self.root, self.build, self.folder = root, build, folder
        self.compiles, self.link = commands(build, "test_cuda_kernels")
        self.sound = self.objects(None)

    def objects(self, wait):
        """Compiles all sources, or those that the mutated file is part of. Returns object by source."""
        name = "sound" if wait is None else f"{wait[0]}:{wait[1]}".replace("/", "_")
        tree = os.path.join(self.folder, name)
        shutil.copytree(os.path.join(self.root, CUDA), os.path.join(tree, "src/accel/cuda"))
        if wait is not None:
            path = os.path.join(tree, wait[0])
            lines = open(path, encoding="utf-8").read().split("\n")
            lines[wait[1] - 1] = WAIT.sub("", lines[wait[1] - 1])
            open(path, "w", encoding="utf-8").write("\n".join(lines))
        made = {} if wait is None else dict(self.sound)
        for source, words in self.compiles.items():
            own = os.path.join(tree, os.path.relpath(source, self.root))
            if wait is not None and wait[0].endswith(".cu") and not own.endswith(wait[0]):
                continue
            out = os.path.join(tree, os.path.basename(source) + ".o")
            keep = [w for w in words[1:-4] if w not in ("-MD", "-Werror")]
            if "-MF" in keep:
                at = keep.index("-MF")
                del keep[at - 2 if keep[at - 2] == "-MT" else at:at + 2]
            while "-MT" in keep:
                at = keep.index("-MT")
                del keep[at:at + 2]
            if "-o" in keep:
                at = keep.index("-o")
                del keep[at:at + 2]
            run = [words[0], "-I", os.path.join(tree, "src"), *keep, "-o", out, "-c", own]
            subprocess.run(run, check=True, cwd=self.build)
            made[source] = out
        return made

    def passes(self, wait):
        made = self.objects(wait)
        program = os.path.join(self.folder, f"{wait[0]}:{wait[1]}".replace("/", "_"), "test")
        by_end = {os.path.relpath(s, self.root) + ".o": o for s, o in made.items()}
        words = []
        skip = False
        for word in self.link:
            if skip:
                words.append(program)
                skip = False
                continue
            end = word.split("ds_cuda_kernels.dir/")[-1]
            words.append(by_end.get(end, word) if "ds_cuda_kernels.dir/" in word else word)
            skip = word == "-o"
        subprocess.run(words, check=True, cwd=self.build)
        try:
            done = subprocess.run([program], cwd=self.build, capture_output=True, text=True, timeout=3600, errors="replace",
                                  env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1:die_after_fork=0",
                                       "DS_CUDA_OPS": OPERATORS[os.path.basename(wait[0])]})
        except subprocess.TimeoutExpired:
            return False, "did not end"
        text = done.stdout + done.stderr
        how = "race" if "WARNING: ThreadSanitizer" in text else "result" if done.returncode else ""
        return done.returncode == 0, how if done.returncode else text.strip().splitlines()[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--only", help="FILE:LINE, of this one alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args()
    root = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
    bad = 0
    with tempfile.TemporaryDirectory(prefix="cuda_barriers.", dir=given.build) as folder:
        bench = Bench(root, os.path.realpath(given.build), os.path.realpath(folder))
        waits = [w for w in places(root) if given.only in (None, f"{w[0]}:{w[1]}")]
        with ThreadPoolExecutor(given.jobs) as pool:
            for wait, (passed, how) in zip(waits, pool.map(bench.passes, waits)):
                marked = "redundant:" in wait[2]
                verdict = "not missed" if passed else f"missed ({how})"
                if passed and marked:
                    verdict += ", as its comment says"
                bad += passed != marked
                print(f"{wait[0]}:{wait[1]}: {wait[2].split(';')[0]}: {verdict}", flush=True)
    print(f"{len(waits)} barriers and waits, {bad} that the tests do not need and no comment explains")
    sys.exit(bad != 0 or not waits)


main()
