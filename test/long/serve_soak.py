# SPDX-License-Identifier: Apache-2.0
"""ds_serve for a long time and among rough clients. Usage: serve_soak.py BUILD MODEL [REQUESTS]

10,000 requests from 32 clients by ds_bench, none of which may fail, beside clients that vanish, send garbage, send slowly and send
100 MB; memory is flat within 1 % over the later four fifths. 5,000 connections at once. SIGTERM under load: what runs ends, what comes is refused,
the process ends by itself.
"""
import json
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

BUILD, MODEL = sys.argv[1:3]
TOTAL = int(sys.argv[3]) if len(sys.argv) > 3 else 10000
CLIENTS, ROUNDS = 32, 10
IDLE = 5000


def start(*flags):
    log = open("serve.log", "a")
    p = subprocess.Popen([f"{BUILD}/ds_serve", "--model", MODEL, "--served_model_name", "m", "--chat_template", "chatml", "--port", "0", "--threads", "1", "--max_length", "256",
                          "--kv_tokens", "16384", "--max_connections", "6000", "--timeout_seconds", "5", *flags], stdout=subprocess.PIPE, stderr=log, text=True)
    line = p.stdout.readline()
    return p, int(re.search(r":(\d+)$", line.strip()).group(1))


def memory(pid):
    """Bytes of its own: anonymous and resident."""
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"RssAnon:\s+(\d+) kB", f.read()).group(1)) * 1024


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as r:
        return r.read().decode()


def bench(port, requests, seed, *flags):
    return subprocess.Popen([f"{BUILD}/ds_bench", "--serve", f"http://127.0.0.1:{port}", "--requests", str(requests), "--clients", str(CLIENTS), "--prompt_tokens",
                             "lognormal:40,0.6", "--output_tokens", "exp:12", "--shared_prefix", "64", "--prefixes", "5", "--seed", str(seed), "--warmups", "0",
                             "--json", "--timeout_seconds", "120", *flags], stdout=subprocess.PIPE, text=True)


def raw(port):
    return socket.create_connection(("127.0.0.1", port), timeout=20)


class Rough(threading.Thread):
    """Clients that nobody wishes for, one after the other, until told to stop."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.ends, self.counts, self.statuses, self.random = port, threading.Event(), {}, {}, random.Random(1)
        self.pause = threading.Lock()

    def request(self, c, size=None):
        body = json.dumps(dict(model="m", prompt="the", max_tokens=200, stream=bool(self.random.getrandbits(1)), ignore_eos=True)).encode()
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (size or len(body)))
        return body

    def vanish(self, c):
        body = self.request(c)
        c.sendall(body[:self.random.choice((0, 10, len(body), len(body)))])
        if self.random.getrandbits(1):
            c.settimeout(0.02)
            c.recv(100)

    def garbage(self, c):
        c.sendall(self.random.choice((os.urandom(3000), b"GET\r\n\r\n", b"\0" * 500, b"GET /" + b"a" * 70000, b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")))
        self.note(c)

    def nonsense(self, c):
        body = self.random.choice((b"{", b"[]", b"\xff\xfe", b"[" * 50000, b'{"model":"m","prompt":[1e9]}', b'{"model":"m","prompt":"a","max_tokens":-1}'))
        self.request(c, len(body))
        c.sendall(body)
        self.note(c)

    def slow(self, c):
        for byte in self.request(c)[:4]:
            c.sendall(bytes([byte]))
            time.sleep(0.05)

    def large(self, c):
        self.request(c, 100 << 20)
        block = b"a" * (1 << 20)
        try:
            for _ in range(100):
                c.sendall(block)
        except OSError:
            pass  # refused before its end
        self.note(c)

    def note(self, c):
        c.settimeout(10)
        found = re.match(rb"HTTP/1.. (\d+)", c.recv(1000))
        status = int(found[1]) if found else 0
        self.statuses[status] = self.statuses.get(status, 0) + 1

    def run(self):
        ways = (self.vanish, self.vanish, self.garbage, self.nonsense, self.slow, self.large)
        while not self.ends.is_set():
            way = self.random.choice(ways)
            self.counts[way.__name__] = self.counts.get(way.__name__, 0) + 1
            with self.pause:
                try:
                    c = raw(self.port)
                    way(c)
                except OSError:
                    pass
                c.close()
            self.ends.wait(0.02)


def settle(port):
    for _ in range(200):
        text = get(port, "/metrics")
        if all(float(re.search(rf"^{n} (\S+)$", text, re.M).group(1)) == 0 for n in ("vllm:num_requests_running", "ds_serve_jobs", "vllm:kv_cache_usage_perc")):
            return
        time.sleep(0.05)
    raise SystemExit("FAILED: texts of clients that are gone go on, or their blocks are not free")


def soak():
    p, port = start()
    rough = Rough(port)
    rough.start()
    sizes, done, first = [], 0, []
    for k in range(ROUNDS):
        run = bench(port, TOTAL // ROUNDS, k)
        text = run.communicate(timeout=600)[0]
        got = json.loads(text)
        bad = [r for r in got["each"] if "error" in r]
        if run.returncode != 0 or bad:
            raise SystemExit(f"FAILED: {len(bad)} requests: {bad[:3]}")
        if any(r["output"] != r["asked"] for r in got["each"]):
            raise SystemExit("FAILED: a text of another length")
        done += got["done"]
        first.append(got["ttft_ms"]["p99"])
        with rough.pause:
            settle(port)
            sizes.append(memory(p.pid))
    rough.ends.set()
    rough.join(60)
    settle(port)
    print(f"{done} requests; first token, 99 %: {min(first):.0f} to {max(first):.0f} ms; rough clients {rough.counts}, answered {rough.statuses}")
    print("memory, KiB:", *(s // 1024 for s in sizes))
    if any(500 <= s for s in rough.statuses) or set(rough.statuses) - {0, 400, 405, 413, 414, 431}:
        raise SystemExit(f"FAILED: answers to rough clients: {rough.statuses}")
    late = sizes[ROUNDS // 5:]
    if max(late) > 1.01 * min(late):
        raise SystemExit(f"FAILED: memory goes from {min(late)} to {max(late)} bytes")
    crowd(port, p)
    drain(p, port)


def crowd(port, p):
    """Very many connections that say nothing: others are served, and when they are gone so is their memory."""
    idle = []
    for _ in range(IDLE):
        idle.append(raw(port))
    got = json.loads(bench(port, 200, 99).communicate(timeout=600)[0])
    print(f"beside {IDLE} connections: {got['done']} done, {got['failed']} failed, first token, 99 %: {got['ttft_ms']['p99']:.0f} ms; "
          f"{memory(p.pid) // 1024} KiB")
    if got["failed"]:
        raise SystemExit(f"FAILED beside {IDLE} connections: {[r for r in got['each'] if 'error' in r][:3]}")
    over = time.monotonic() + 30
    for c in idle:  # --timeout_seconds closes them
        c.settimeout(max(0.1, over - time.monotonic()))
        if c.recv(100) not in (b"",) and not c.recv(100) == b"":
            raise SystemExit("FAILED: an idle connection is open still")
        c.close()


def drain(p, port):
    run = bench(port, 20000, 7)
    time.sleep(0.7)
    p.send_signal(signal.SIGTERM)
    began = time.monotonic()
    code = p.wait(60)
    seconds = time.monotonic() - began
    text = run.communicate(timeout=60)[0]
    got = json.loads(text)
    kinds = {}
    for r in got["each"]:
        if "error" in r:
            kinds[(r["status"], r["error"][:40])] = kinds.get((r["status"], r["error"][:40]), 0) + 1
    print(f"SIGTERM: ended after {seconds:.2f} s with {code}; {got['done']} done; refused {kinds}")
    cut = [r for r in got["each"] if "error" in r and r["first"] > 0]
    if code != 0 or cut or seconds > 10 or not got["done"] or not got["failed"]:
        raise SystemExit(f"FAILED: code {code}, texts that were cut: {cut[:3]}")


resource.setrlimit(resource.RLIMIT_NOFILE, (min(16384, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
soak()
