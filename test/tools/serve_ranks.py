# SPDX-License-Identifier: Apache-2.0
"""ds_serve over several ranks, as clients and their launcher meet it. Usage: serve_ranks.py BUILD MODEL"""
import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BUILD, MODEL = pathlib.Path(sys.argv[1]), sys.argv[2]
PROMPTS = ["the quick brown ", "fox jumps over", "x", "the lazy dog. the quick brown fox jumps over the la", "dog dog dog", "q" * 70]
TICKS = os.sysconf("SC_CLK_TCK")
checks = 0


def expect(holds, *what):
    global checks
    checks += 1
    if not holds:
        raise SystemExit(f"FAILED at line {sys._getframe(1).f_lineno}: {what}")


class Server:
    """n ranks by the launcher, by mpirun, or one process."""

    def __init__(self, n, *flags, mpi=False):
        # over MPI alone, as if each rank had a host of its own: those of one use shared memory
        launcher = (["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(n), "env",
                     "OMPI_COMM_WORLD_LOCAL_SIZE=1", "OMPI_COMM_WORLD_LOCAL_RANK=0"] if mpi
                    else [BUILD / "deepspeed", "--num_gpus", str(n)] if n > 1 else [])
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [*launcher, BUILD / "ds_serve", "--model", MODEL, "--served_model_name", "m", "--port", "0", "--threads", "1",
             "--dtype", "f32", "--kv_tokens", "2048", "--max_length", "512", *flags],
            stdout=subprocess.PIPE, stderr=self.errors, text=True)
        line = "-"
        while line and not (found := re.search(r"serving m on http://127.0.0.1:(\d+)", line)):
            line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"FAILED: no server of {n}: {self.said()}")
        self.port = int(found.group(1))

    def said(self):
        self.errors.seek(0)
        return self.errors.read()

    def ask(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        c.request(method, path, None if body is None else json.dumps(body))
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text

    def complete(self, prompt, **body):
        status, text = self.ask("POST", "/v1/completions",
                                {"model": "m", "prompt": prompt, "max_tokens": 24, "temperature": 0, "logprobs": 2, **body})
        expect(status == 200, status, text)
        return json.loads(text)["choices"]

    def ranks(self):
        return json.loads(self.ask("GET", "/health")[1]).get("ranks", [])

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def texts(server):
    greedy = [server.complete(p) for p in PROMPTS]
    seeded = [server.complete(p, temperature=1, seed=i, top_p=0.9) for i, p in enumerate(PROMPTS)]
    return greedy, seeded


def same_as_one(n, mpi=False):
    server = Server(n, mpi=mpi)
    greedy, seeded = texts(server)
    for want, got in zip(one[0] + one[1], greedy + seeded):
        expect(want[0]["text"] == got[0]["text"], n, want, got)
        for a, b in zip(want[0]["logprobs"]["token_logprobs"], got[0]["logprobs"]["token_logprobs"]):
            expect(abs(a - b) < 1e-4, n, a, b)
    with concurrent.futures.ThreadPoolExecutor(12) as pool:  # all together: the same bits
        crowd = list(pool.map(server.complete, PROMPTS))
        drawn = list(pool.map(lambda i: server.complete(PROMPTS[i], temperature=1, seed=i, top_p=0.9), range(len(PROMPTS))))
    expect(crowd == greedy and drawn == seeded, n)
    return server


def seconds_of(process):
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def is_named(n, server):
    ranks = server.ranks()
    expect([r["rank"] for r in ranks] == list(range(n)), ranks)
    metrics = server.ask("GET", "/metrics")[1]
    expect(f"ds_serve_ranks {n}\n" in metrics, metrics)
    for r in ranks:
        expect(f'ds_serve_rank_info{{rank="{r["rank"]}",host="{r["host"]}",process="{r["process"]}"}} 1\n' in metrics, metrics)
    return [r["process"] for r in ranks]


def rests(processes):
    time.sleep(1)
    before = [seconds_of(p) for p in processes]
    time.sleep(3)
    spent = [seconds_of(p) - b for p, b in zip(processes, before)]
    expect(max(spent) < 0.6, "idle ranks compute", spent)


def drains(server):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answer = pool.submit(server.complete, PROMPTS[0], max_tokens=400)
        time.sleep(0.3)
        code = server.end()
        expect(len(answer.result()[0]["logprobs"]["tokens"]) == 400, "a running text is cut")
    expect(code == 0, code, server.said())


def fails(what, when_running, words):
    server = Server(2)
    victim = server.ranks()[1]["process"]
    words = words.format(victim)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        if when_running:
            pool.submit(lambda: server.ask("POST", "/v1/completions",
                                           {"model": "m", "prompt": ["a"] * 8, "max_tokens": 500, "temperature": 1})).add_done_callback(
                                               lambda f: f.exception())
            time.sleep(0.3)
        begin = time.monotonic()
        os.kill(victim, what)
        while words not in server.said() and time.monotonic() - begin < 30:
            time.sleep(0.1)
        named = time.monotonic() - begin
        code = server.process.wait(60)
    expect(words in server.said() and code != 0, code, server.said())
    expect(named < 10, named)
    print(f"{what.name}, {'a batch runs' if when_running else 'idle'}: named after {named:.1f} s", flush=True)


def weights_of(n, *flags):
    text = subprocess.run([BUILD / "ds_plan", "serve", "--model", MODEL, "--dtype", "f32", "--ranks", str(n), "--json", "-", *flags],
                          check=True, capture_output=True, text=True, timeout=120).stdout
    return json.loads(text)["weights"]


def quantized(flags):
    """Of blocks that are cut between them the texts are those of one rank; codes of what they are multiplied with may round otherwise."""
    got = []
    for n in (1, 2):
        server = Server(n, *flags)
        got.append([server.complete(p) for p in PROMPTS])
        expect(server.end() == 0, server.said())
    for a, b in zip(*got):
        expect(a[0]["text"] == b[0]["text"], flags, a, b)
        for x, y in zip(a[0]["logprobs"]["token_logprobs"], b[0]["logprobs"]["token_logprobs"]):
            expect(abs(x - y) < 0.05, flags, x, y)
    expect(weights_of(2, *flags) < 0.7 * weights_of(1, *flags), flags)


alone = Server(1)
one = texts(alone)
expect(alone.ranks() == [], "one rank is named")
expect(alone.end() == 0, "one rank")

two = same_as_one(2)
rests(is_named(2, two))
drains(two)
three = same_as_one(3)  # two heads: attention is whole on each
expect(three.end() == 0, three.said())
fails(signal.SIGKILL, False, "rank 1")
fails(signal.SIGKILL, True, "rank 1")
fails(signal.SIGSTOP, False, "(process {}, stopped by a signal)")
fails(signal.SIGSTOP, True, "(process {}, stopped by a signal)")
quantized(["--quantize", "q8_0"])
quantized(["--quantize", "q4_0", "--kv_type", "int8"])
if shutil.which("mpirun.openmpi") and (BUILD / "libdeepspeed_mpi_openmpi.so").exists():
    mpi = same_as_one(2, mpi=True)
    is_named(2, mpi)
    mpi.process.send_signal(signal.SIGTERM)
    mpi.process.wait(60)
else:
    print("mpi: module or mpirun is not installed")
print(f"{checks} checks")
