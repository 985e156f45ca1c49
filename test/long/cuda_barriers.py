#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes every barrier, every commit of copies and every wait for them out of the CUDA kernels, one at a time, and runs them
over the operator harness on the host layer with the thread sanitizer: each must be missed. One that is not, and is not marked
with a comment `redundant: why` on its line, fails; so does a report about the kernels as they are.

cuda_barriers.py BUILD [--only FILE[:LINE],…] [--jobs N] [--minutes N] [--table FILE]; BUILD is any build by ninja that has made
test_cuda_kernels. The kernels, their launch and the library's threads are compiled again for the sanitizer, the rest is not.
What came out is kept in BUILD/cuda_barriers.tsv beside a digest of the sources and cases that it depends on, so that a run that
was ended, by --minutes too, is gone on with by the next one. --table writes the results of all, as the documentation has them."""
import argparse
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

WAIT = re.compile(r"^\s*(__syncthreads\(\);|__syncwarp\(\);|dsc_copy_wait\(\d\);|dsc_copy_commit\(\);)")
FUNCTION = re.compile(r"^(?:DSC_INLINE|static) .*?(\w+)\(")
CUDA = "src/accel/cuda"
CASES = {  # whose cases run the barriers of a file; text that is in the labels of enough of them, where all take too long
    "norm.cu": ("layer_norm_backward rms_norm_backward",),
    "gradnorm.cu": ("sum_squares sum_parts abs_max max_of clip_factor",),
    "linear_tile.h": ("linear",),
    "linear_dw.cu": ("linear_dw",),
    "linear_dw_tile.h": ("linear_dw",),
    "route.cu": ("route route_backward",),
    "group.cu": ("group_rows", "several chunks"),
    "block_linear.cu": ("linear", "q"),
    "reduce.cu": ("sum_rows",),
    "integers.cu": ("count_targets",),
    "sinks.cu": ("slot_adapter",),
    "bmm.cu": ("bmm",),
    "attention.cu": ("attention attention_backward",),
    "attention_walk.h": ("attention", "head of 128"),
    "attention_forward.h": ("attention", "head of 128"),
    "attention_part.cu": ("attention_part attention_part_backward",),
    "weight_norms.cu": ("weight_norms",),
    "preference.cu": ("preference preference_backward",),
    "causal_conv.cu": ("causal_conv_backward",),
    "delta_rule.cu": ("delta_rule",),
    "delta_rule_backward.cu": ("delta_rule_backward",),
    "eight_bit.cu": ("adam_8bit",),
    "adafactor.cu": ("adafactor_rows adafactor_direction",),
    "onebit_lamb.cu": ("frozen_lamb_factor",),
    "paged_attention.cu": ("paged_attention", "small blocks"),
    "attention_mma_backward.cu": ("attention_backward", "head of 128"),
    "fake_quant.cu": ("fake_quant",),
    "prune.cu": ("top_mask",),
    "lamb.cu": ("lamb_sums lamb",),
    "columns.cu": ("choose_columns",),
    "muon.cu": ("unit_matrix",),
    "kernel_bins.h": ("sum_squares",),
    "cuda_device.h": ("layer_norm softmax max_last",),
}
USERS = {  # of the files that include a header, those with the kernels of its cases; else all are compiled
    "cuda_device.h": {"norm.cu", "softmax.cu", "reduce.cu"},
    "kernel_bins.h": {"gradnorm.cu"},
    "linear_tile.h": {"linear.cu"},
    "linear_dw_tile.h": {"linear_dw.cu"},
    "attention_walk.h": {"attention_mma.cu"},
    "attention_forward.h": {"attention_mma.cu"},
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


class Wait:
    """A line that is taken out. name: of those that a function has, number n from 1."""

    def __init__(self, path, line, text, function, n):
        self.path, self.line, self.text = path, line, text
        self.file = os.path.basename(path)
        self.what = text.split(";")[0]
        self.name = f"{self.file} {function} {self.what} {n}"


def places(root):
    for folder in (CUDA, CUDA + "/kernels"):
        for name in sorted(os.listdir(os.path.join(root, folder))):
            if not re.search(r"\.(cu|h)$", name) or name in ("device_cuda.h", "device_host.h"):
                continue
            path = os.path.join(folder, name)
            function, seen = "", {}
            for number, line in enumerate(open(os.path.join(root, path), encoding="utf-8"), 1):
                head = FUNCTION.match(line)
                function = head.group(1) if head else function
                if WAIT.match(line):
                    key = (function, line.strip().split(";")[0])
                    seen[key] = seen.get(key, 0) + 1
                    yield Wait(path, number, line.strip(), function, seen[key])


def users(root, name):
    """The files of the kernels that a barrier of the file is compiled in: itself, or those that include it, by way of others
    too."""
    if name in USERS:
        return USERS[name]
    folder = os.path.join(root, CUDA, "kernels")
    texts = {f: open(os.path.join(folder, f), encoding="utf-8").read() for f in os.listdir(folder)}
    found, more = {name}, True
    while more:
        more = {f for f, text in texts.items() if f not in found and any(f'/{n}"' in text for n in found)}
        found |= more
    return {f for f in found if f.endswith(".cu")}


def digest(root, wait):
    """Of what decides whether the wait is missed: the kernels that have it, every header, the harness, the cases."""
    folders = {CUDA: r"\.h$", CUDA + "/kernels": r"\.h$", CUDA + "/host": ".", "test/op": r"harness\w*\.[ch]$"}
    paths = [os.path.join(folder, f) for folder, names in folders.items()
             for f in sorted(os.listdir(os.path.join(root, folder))) if re.search(names, f)]
    paths += [os.path.join(CUDA, "kernels", f) for f in sorted(users(root, wait.file))]
    own = hashlib.sha256(repr(CASES[wait.file]).encode())
    for path in paths:
        own.update(open(os.path.join(root, path), "rb").read())
    rows = open(os.path.join(root, "test/op/op_cases.c"), encoding="utf-8").read().split("{&dsi_op_")
    for row in rows[1:]:
        if row.split(",")[0] in CASES[wait.file][0].split():
            own.update(row.encode())
    return own.hexdigest()[:16]


class Record:
    """Verdicts of runs before, in a file of lines: name, digest, verdict. Those of sources that have changed count for nothing."""

    def __init__(self, path):
        self.path, self.lock, self.found = path, threading.Lock(), {}
        if os.path.exists(path):
            for line in open(path, encoding="utf-8"):
                name, of, verdict = line.rstrip("\n").split("\t")
                self.found[name] = (of, verdict)

    def verdict(self, name, of):
        was = self.found.get(name)
        return was[1] if was is not None and was[0] == of else None

    def add(self, name, of, verdict):
        with self.lock:
            self.found[name] = (of, verdict)
            with open(self.path, "a", encoding="utf-8") as out:
                out.write(f"{name}\t{of}\t{verdict}\n")


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
        self.sound = self.objects(None, self.compiles, jobs)
        self.sound_program = self.program(self.sound, "sound")

    def objects(self, wait, sources, jobs):
        """Compiles these sources, without the wait. Returns object by source; of the others the sound one."""
        tree = os.path.join(self.folder, "sound" if wait is None else f"{wait.file}_{wait.line}")
        shutil.copytree(os.path.join(self.root, CUDA), os.path.join(tree, CUDA))
        if wait is not None:
            path = os.path.join(tree, wait.path)
            lines = open(path, encoding="utf-8").read().split("\n")
            lines[wait.line - 1] = WAIT.sub("", lines[wait.line - 1])
            open(path, "w", encoding="utf-8").write("\n".join(lines))
        made = dict(self.sound)
        runs = []
        for source in sources:
            part = os.path.relpath(source, self.root)
            made[source] = os.path.join(tree, os.path.basename(source) + ".o")
            own = os.path.join(tree, part) if part.startswith(CUDA) else source
            runs.append(sanitized(self.compiles[source], tree, made[source], own))
        with ThreadPoolExecutor(jobs) as pool:
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

    def run(self, program, operators, label=""):
        try:
            done = subprocess.run([program], cwd=self.build, capture_output=True, text=True, timeout=3600, errors="replace",
                                  env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1:die_after_fork=0",
                                       "DS_CUDA_OPS": operators, **({"DS_CUDA_LABEL": label} if label else {})})
        except subprocess.TimeoutExpired:
            return False, "did not end"
        text = done.stdout + done.stderr
        if done.returncode != 0:
            return False, "a race" if "WARNING: ThreadSanitizer" in text else "the result"
        return True, "nothing"

    def verdict(self, wait):
        part = [s for s in self.compiles if s.endswith(".cu") and os.path.basename(s) in users(self.root, wait.file)]
        name = f"{wait.file}_{wait.line}"
        how = self.run(self.program(self.objects(wait, part, 1), name), *CASES[wait.file])[1]
        shutil.rmtree(os.path.join(self.folder, name))
        return how


def write_table(path, waits, record, root):
    with open(path, "w", encoding="utf-8") as out:
        out.write("| file | function | what | missed by |\n|---|---|---|---|\n")
        for wait in waits:
            file, function, what, n = wait.name.split(" ")
            number = "" if n == "1" else f", number {n}"
            out.write(f"| {file} | {function} | `{what}`{number} | {record.verdict(wait.name, digest(root, wait))} |\n")


def take_out(given, root, waits, record, until):
    """Those that no run before has a verdict of, until the time is over."""
    left = [w for w in waits if record.verdict(w.name, digest(root, w)) is None]
    print(f"{len(waits)} barriers and waits, {len(waits) - len(left)} known from runs before", flush=True)
    if not left:
        return
    with tempfile.TemporaryDirectory(prefix="cuda_barriers.", dir=given.build) as folder:
        bench = Bench(root, os.path.realpath(given.build), os.path.realpath(folder), given.jobs)

        def sound(cases):
            name = "as they are: " + " / ".join(cases)
            of = digest(root, next(w for w in left if CASES[w.file] == cases))
            if record.verdict(name, of) is None and time.time() < until:
                passed, how = bench.run(bench.sound_program, *cases)
                if not passed:
                    sys.exit(f"the kernels as they are fail ({how}): {name}")
                record.add(name, of, "passed")
            return record.verdict(name, of) is not None

        def judge(wait):
            if time.time() < until:
                begun = time.time()
                how = bench.verdict(wait)
                record.add(wait.name, digest(root, wait), how)
                print(f"{wait.path}:{wait.line}: {wait.what}: missed by {how} ({time.time() - begun:.0f} s)", flush=True)

        with ThreadPoolExecutor(given.jobs) as pool:
            every = sorted({CASES[w.file] for w in left})
            good = {cases for cases, passed in zip(every, pool.map(sound, every)) if passed}
            for done in as_completed([pool.submit(judge, w) for w in left if CASES[w.file] in good]):
                done.result()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--only", help="FILE or FILE:LINE, of these alone, with commas between them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--table")
    given = parser.parse_args()
    root = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
    only = set(given.only.split(",")) if given.only else None
    waits = [w for w in places(root) if only is None or only & {w.file, w.path, f"{w.file}:{w.line}", f"{w.path}:{w.line}"}]
    record = Record(os.path.join(given.build, "cuda_barriers.tsv"))
    take_out(given, root, waits, record, time.time() + given.minutes * 60)
    if given.table:
        write_table(given.table, waits, record, root)
    bad, missing = 0, 0
    for wait in waits:
        how = record.verdict(wait.name, digest(root, wait))
        missing += how is None
        if how is not None and (how == "nothing") != ("redundant:" in wait.text):
            bad += 1
            print(f"{wait.path}:{wait.line}: {wait.what}: " +
                  ("the tests do not need it" if how == "nothing" else f"its comment says redundant, missed by {how}"))
    print(f"{len(waits)} barriers and waits, {bad} that the tests do not need and no comment explains, {missing} still to run")
    sys.exit(bad != 0 or missing != 0 or not waits)


main()
