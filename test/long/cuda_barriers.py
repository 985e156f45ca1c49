#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes every barrier and every wait for a copy out of the CUDA kernels, one at a time, and runs them over the operator
harness on the host layer with the thread sanitizer: each must be missed. One that is not, and is not marked with a comment
`redundant: why` on its line, fails; so does a report about the kernels as they are.

cuda_barriers.py BUILD [--only FILE[:LINE],…] [--jobs N]; BUILD is any build by ninja that has made test_cuda_kernels. The
kernels, their launch and the library's threads are compiled again for the sanitizer, the rest is not."""
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
OPERATORS = {  # whose cases run the barriers of a file
    "norm.cu": "layer_norm_backward rms_norm_backward",
    "gradnorm.cu": "sum_squares sum_parts abs_max max_of clip_factor",
    "linear_tile.h": "linear",
    "linear_dw.cu": "linear_dw",
    "linear_dw_tile.h": "linear_dw",
    "route.cu": "route route_backward",
    "group.cu": "group_rows",
    "block_linear.cu": "linear",
    "reduce.cu": "sum_rows",
    "integers.cu": "count_targets",
    "sinks.cu": "slot_adapter",
    "bmm.cu": "bmm",
    "attention.cu": "attention attention_backward",
    "attention_walk.h": "attention attention_backward",
    "attention_forward.h": "attention",
    "attention_part.cu": "attention_part attention_part_backward",
    "weight_norms.cu": "weight_norms",
    "preference.cu": "preference preference_backward",
    "causal_conv.cu": "causal_conv_backward",
    "delta_rule.cu": "delta_rule",
    "delta_rule_backward.cu": "delta_rule_backward",
    "eight_bit.cu": "adam_8bit",
    "adafactor.cu": "adafactor_rows adafactor_direction",
    "onebit_lamb.cu": "frozen_lamb_factor",
    "paged_attention.cu": "paged_attention",
    "attention_mma_backward.cu": "attention_backward",
    "lamb.cu": "lamb_sums lamb",
    "columns.cu": "choose_columns",
    "muon.cu": "unit_matrix",
    "kernel_bins.h": "sum_squares lamb_sums unit_matrix",
    "cuda_device.h": "layer_norm rms_norm layer_norm_backward softmax softmax_backward",
}
LABELS = {  # of whose cases, where all take too long: these have several tiles of rows and of keys
    "attention_walk.h": "head of 128",
    "attention_forward.h": "head of 128",
    "paged_attention.cu": "small blocks",
    "block_linear.cu": "q",
    "group.cu": "several chunks",
    "attention_mma_backward.cu": "head of 128",
}
SANITIZED = re.compile(r"-c (\S+(?:kernels/\w+\.cu|host/\w+\.c|src/base/pool\.c))$")


def commands(build, target):
    text = subprocess.run(["ninja", "-C", build, "-t", "commands", target], check=True, capture_output=True, text=True).stdout
    lines = text.splitlines()
    compiles = {}
    for line in lines:
        found = SANITIZED.search(line)
        if found and not ("pool.c" in found.group(1) and found.group(1) in compiles):
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


def users(root, name):
    """The file itself and those of the kernels that include it, by way of others too."""
    folder = os.path.join(root, CUDA, "kernels")
    texts = {f: open(os.path.join(folder, f), encoding="utf-8").read() for f in os.listdir(folder)}
    found, more = {name}, True
    while more:
        more = {f for f, text in texts.items() if f not in found and any(f'/{n}"' in text for n in found)}
        found |= more
    return found


def sanitized(words, tree, out, source):
    """The command of a build, for the sanitizer; the host layer itself it must not watch (cmake/cuda.cmake)."""
    keep = [w for w in words[1:] if w not in ("-MD", "-Werror", "-O3", "-c")][:-1]
    for option in ("-MF", "-MT", "-o"):
        while option in keep:
            at = keep.index(option)
            del keep[at:at + 2]
    watched = [] if source.endswith("host_layer.c") else ["-fsanitize=thread"]
    return [words[0], "-I", os.path.join(tree, "src"), *keep, "-O1", "-g1", "-DDSC_TSAN=1", *watched, "-o", out, "-c", source]


class Bench:
    """A copy of the kernels' sources, what it takes to build the test from it, and the objects of the sources as they are."""

    def __init__(self, root, build, folder, jobs):
        self.root, self.build, self.folder, self.jobs = root, build, folder, jobs
        self.compiles, self.link = commands(build, "test_cuda_kernels")
        self.sound = {}
        self.sound = self.objects(None, self.compiles)
        self.sound_program = self.program(self.sound, "sound")

    def objects(self, wait, sources):
        """Compiles these sources, without the wait. Returns object by source; of the others the sound one."""
        tree = os.path.join(self.folder, "sound" if wait is None else f"{wait[0]}:{wait[1]}".replace("/", "_"))
        shutil.copytree(os.path.join(self.root, CUDA), os.path.join(tree, CUDA))
        if wait is not None:
            path = os.path.join(tree, wait[0])
            lines = open(path, encoding="utf-8").read().split("\n")
            lines[wait[1] - 1] = WAIT.sub("", lines[wait[1] - 1])
            open(path, "w", encoding="utf-8").write("\n".join(lines))
        made = dict(self.sound)
        runs = []
        for source in sources:
            part = os.path.relpath(source, self.root)
            made[source] = os.path.join(tree, os.path.basename(source) + ".o")
            own = os.path.join(tree, part) if part.startswith(CUDA) else source
            runs.append(sanitized(self.compiles[source], tree, made[source], own))
        with ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(lambda run: subprocess.run(run, check=True, cwd=self.build), runs))
        return made

    def program(self, made, name):
        program = os.path.join(self.folder, name, "test")
        by_end = {os.path.relpath(s, self.root) + ".o": o for s, o in made.items()}
        words = [by_end.get(re.split(r"ds_cuda_\w+\.dir/", w)[-1], w) for w in self.link]
        words[words.index("-o") + 1] = program
        pool = next(o for s, o in made.items() if s.endswith("pool.c"))
        words[words.index("-o"):words.index("-o")] = ["-fsanitize=thread", pool]
        subprocess.run(words, check=True, cwd=self.build)
        return program

    def run(self, program, operators, label):
        try:
            done = subprocess.run([program], cwd=self.build, capture_output=True, text=True, timeout=3600, errors="replace",
                                  env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1:die_after_fork=0",
                                       "DS_CUDA_OPS": operators, **({"DS_CUDA_LABEL": label} if label else {})})
        except subprocess.TimeoutExpired:
            return False, "did not end"
        text = done.stdout + done.stderr
        how = "race" if "WARNING: ThreadSanitizer" in text else "result"
        return done.returncode == 0, how if done.returncode else text.strip().splitlines()[-1]

    def passes(self, wait):
        names = users(self.root, os.path.basename(wait[0]))
        part = [s for s in self.compiles if s.endswith(".cu") and os.path.basename(s) in names]
        name = f"{wait[0]}:{wait[1]}".replace("/", "_")
        return self.run(self.program(self.objects(wait, part), name), *cases_of(wait))


def cases_of(wait):
    name = os.path.basename(wait[0])
    return OPERATORS[name], LABELS.get(name, "")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--only", help="FILE or FILE:LINE, of these alone, with commas between them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args()
    root = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
    bad = 0
    with tempfile.TemporaryDirectory(prefix="cuda_barriers.", dir=given.build) as folder:
        bench = Bench(root, os.path.realpath(given.build), os.path.realpath(folder), given.jobs)
        only = set(given.only.split(",")) if given.only else None
        waits = [w for w in places(root) if only is None or only & {w[0], f"{w[0]}:{w[1]}"}]
        for cases in sorted({cases_of(w) for w in waits}):
            passed, how = bench.run(bench.sound_program, *cases)
            if not passed:
                sys.exit(f"the kernels as they are fail ({how}): {' '.join(cases)}")
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
