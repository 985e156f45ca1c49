#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ds_serve beside llama.cpp's llama-bench on one GGUF file, two threads each, alternating. Usage:
    peer_llama_cpp.py BUILD LLAMA_BENCH FILE.gguf TYPE [ROUNDS]
TYPE is that of the file's matrices, for --quantize (none: as they are). Prints medians of tokens a second, their spread and ratio: a prompt of 512 ids, 64 tokens
one by one, and eight texts together. ds_serve's figures include HTTP, sampling and JSON; llama-bench's do not. ds_serve is stopped
(SIGSTOP) while llama-bench is timed. llama-bench is built from the source package llama-cpp-python of PyPI (vendor/llama.cpp)."""
import concurrent.futures
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

PROMPT, NEW, TEXTS, PORT = 512, 64, 8, 18437


def post(n_ids, first, n_new):
    """Seconds, and tokens that came."""
    body = {"model": "m", "prompt": [100 + (first * 7919 + i * 31) % 20000 for i in range(n_ids)], "max_tokens": n_new, "temperature": 0,
            "logit_bias": {str(i): -100 for i in (0, 2)}}
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    begin = time.perf_counter()
    usage = json.load(urllib.request.urlopen(request))["usage"]
    assert usage["prompt_tokens"] == n_ids, usage
    return time.perf_counter() - begin, usage["completion_tokens"]


def ours(first):
    prefill, _ = post(PROMPT, first, 1)
    short, _ = post(8, first + 1, 1)
    long, n = post(8, first + 1, NEW + 1)
    with concurrent.futures.ThreadPoolExecutor(TEXTS) as pool:
        begin = time.perf_counter()
        together = sum(n for _, n in pool.map(lambda i: post(8, first + 2 + i, NEW), range(TEXTS)))
        seconds = time.perf_counter() - begin
    assert n == NEW + 1 and together == NEW * TEXTS, (n, together)
    return {"prompt of 512": PROMPT / prefill, "one text": NEW / (long - short), "eight texts": together / seconds}


def theirs(bench, file):
    rows = json.loads(subprocess.run([bench, "-m", file, "-t", "2", "-p", str(PROMPT), "-n", str(NEW), "-r", "1", "-o", "json"],
                                     check=True, capture_output=True).stdout)
    return {"prompt of 512" if r["n_prompt"] else "one text": r["avg_ts"] for r in rows}


def main():
    build, bench, file, kind = sys.argv[1:5]
    rounds = int(sys.argv[5]) if len(sys.argv) > 5 else 5
    server = subprocess.Popen([f"{build}/ds_serve", "--model", file, *([] if kind == "none" else ["--quantize", kind]), "--threads", "2", "--port", str(PORT),
                               "--served_model_name", "m", "--no_prefix_cache", "--max_length", "1024"])
    got = {"ours": [], "theirs": []}
    try:
        while True:
            try:
                post(8, 0, 1)
                break
            except urllib.error.HTTPError:
                raise
            except OSError:
                assert server.poll() is None, "ds_serve ended"
                time.sleep(0.2)
        for r in range(rounds):
            got["ours"].append(ours(1 + 20 * r))
            os.kill(server.pid, signal.SIGSTOP)
            got["theirs"].append(theirs(bench, file))
            os.kill(server.pid, signal.SIGCONT)
    finally:
        os.kill(server.pid, signal.SIGCONT)
        server.terminate()
        server.wait()
    for what in ("prompt of 512", "one text", "eight texts"):
        a = [g[what] for g in got["ours"]]
        b = [g[what] for g in got["theirs"] if what in g]
        line = f"{what:14} ds_serve {statistics.median(a):8.1f} ({min(a):.1f} to {max(a):.1f}) tokens/s"
        if b:
            line += f"  llama.cpp {statistics.median(b):8.1f} ({min(b):.1f} to {max(b):.1f})  ratio {statistics.median(a) / statistics.median(b):.2f}"
        else:
            line += f"  {statistics.median(a) / statistics.median(g['one text'] for g in got['ours']):.2f} times one text"
        print(line)


main()
