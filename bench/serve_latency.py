#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long clients of ds_serve wait. Usage: serve_latency.py BUILD MODEL [ROUNDS [FLAG…]]
MODEL is a folder or a GGUF file whose texts may have 4,300 tokens; FLAGs go to ds_serve. Prints medians of ROUNDS (5) of
- the first token: from the start of the process, asked for as soon as the port answers;
- a prompt of 1,025 ids, cold, and with all but its last id in the prefix cache, beside a step of one token;
- a prompt of 4,096 ids that enters while four streams run: the longest time between two tokens of a stream, beside a budgeted step, which is the
  time of the prompt alone over the number of its budgets."""
import http.client
import json
import socket
import statistics
import subprocess
import sys
import threading
import time

PREFIX, LONG, STREAMS, BUDGET, PORT = 1024, 4096, 4, 512, 18437


def ids(n, first):
    return [100 + (first * 7919 + i * 31) % 20000 for i in range(n)]


def stream(prompt, n_new):
    """When each token came, in seconds; the first is when it was asked for."""
    c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
    body = {"model": "m", "prompt": prompt, "max_tokens": n_new, "temperature": 0, "stream": True, "logit_bias": {"0": -100, "2": -100}}
    at = [time.perf_counter()]
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = c.getresponse()
    assert answer.status == 200, answer.read()
    while (line := answer.readline()) and line != b"data: [DONE]\n":
        if line.startswith(b"data: "):
            at.append(time.perf_counter())
    c.close()
    return at


def start(build, model, flags):
    begin = time.perf_counter()
    server = subprocess.Popen([f"{build}/ds_serve", "--model", model, "--port", str(PORT), "--served_model_name", "m", "--max_length", "4352", "--max_batch_tokens", str(BUDGET),
                               *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while True:
        try:
            socket.create_connection(("127.0.0.1", PORT)).close()
            return server, begin
        except OSError:
            assert server.poll() is None, "ds_serve ended"
            time.sleep(0.002)


def one_round(build, model, flags, r):
    server, begin = start(build, model, flags)
    try:
        got = {"first token after the start": stream(ids(8, 0), 1)[1] - begin}
        steps = stream(ids(8, 1), 33)
        got["a step of one token"] = (steps[33] - steps[2]) / 31
        prompt = ids(PREFIX, 10 + r)
        for what, tail in (("cold", 1), ("in the prefix cache", 2)):
            at = stream(prompt + [tail], 1)
            got[f"prompt of {PREFIX}, {what}"] = at[1] - at[0]
        at = stream(ids(LONG, 40 + r), 1)
        got["a budgeted step"] = (at[1] - at[0]) / (LONG / BUDGET)
        times = [None] * STREAMS
        threads = [threading.Thread(target=lambda i=i: times.__setitem__(i, stream(ids(8, 100 + i), 128))) for i in range(STREAMS)]
        for t in threads:
            t.start()
        time.sleep(20 * got["a step of one token"])
        begin = time.perf_counter()
        entered = stream(ids(LONG, 70 + r), 1)[1]
        for t in threads:
            t.join()
        gaps = [b - a for at in times for a, b in zip(at[1:], at[2:]) if b > begin and a < entered]
        assert len(gaps) > STREAMS, "no stream ran while the prompt entered"
        got["longest wait of a stream while 4,096 enter"] = max(gaps)
    finally:
        server.terminate()
        server.wait()
    return got


def main():
    build, model = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    got = [one_round(build, model, sys.argv[4:], r) for r in range(rounds)]
    middle = {what: statistics.median(g[what] for g in got) for what in got[0]}
    for what, seconds in middle.items():
        print(f"{what:45} {seconds * 1e3:9.1f} ms ({min(g[what] for g in got) * 1e3:.1f} to {max(g[what] for g in got) * 1e3:.1f})")
    hit, cold = middle[f"prompt of {PREFIX}, in the prefix cache"], middle[f"prompt of {PREFIX}, cold"]
    print(f"a hit, less a step, over cold: {(hit - middle['a step of one token']) / cold * 100:.1f} %")
    print(f"longest wait over a budgeted step: {middle['longest wait of a stream while 4,096 enter'] / middle['a budgeted step']:.2f}")


main()
