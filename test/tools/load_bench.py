# SPDX-License-Identifier: Apache-2.0
"""ds_bench --serve against a server of known conduct. Usage: load_bench.py PROGRAM

The server answers 60 ms after a request, then a text each 20 ms, in pieces of a few bytes that respect neither chunks nor frames; it
does wrong what the model's name says.
"""
import html.parser
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

PROGRAM = sys.argv[1]
FIRST, GAP = 0.060, 0.020
bodies, arrivals, connections, checks = [], [], [0], 0
began, waits = [0.0], []  # of the last run; how long the server let each request wait for its first text
mode = ["good"]


def expect(holds, *what):
    global checks
    checks += 1
    if not holds:
        raise SystemExit(f"FAILED at line {sys._getframe(1).f_lineno}: {what}")


def read_request(c, data):
    while b"\r\n\r\n" not in data:
        more = c.recv(65536)
        if not more:
            return None, None, b""
        data += more
    head, _, data = data.partition(b"\r\n\r\n")
    n = int((re.search(rb"Content-Length: (\d+)", head) or [0, 0])[1])
    while len(data) < n:
        data += c.recv(65536)
    return head, data[:n], data[n:]


def chunked(text, size):
    """As chunks of `size` bytes: their edges lie anywhere in frames and in characters."""
    return b"".join(b"%x\r\n%s\r\n" % (len(text[i:i + size]), text[i:i + size]) for i in range(0, len(text), size))


def dribble(c, data):
    """In small pieces: edges lie within chunk sizes, too."""
    for i in range(0, len(data), 7):
        c.sendall(data[i:i + 7])


def frame(**members):
    return b"data: " + json.dumps(members).encode() + b"\r\n\r\n"


def answer(c, body):
    n, kind = body["max_tokens"], mode[0]
    if kind == "refuse":
        text = json.dumps({"error": {"message": "too many \"requests\"", "code": None}}).encode()
        c.sendall(b"HTTP/1.1 429 Too Many\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        return True
    if kind == "page":
        c.sendall(b"HTTP/1.1 502 Bad\r\nContent-Type: text/html\r\n\r\n<html>no</html>")
        return False
    if kind == "garbage":
        c.sendall(b"SMTP ready\r\n\r\n")
        return False
    c.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    if kind == "size":
        c.sendall(b"zz\r\n")
        return False
    asked = time.monotonic()
    time.sleep(FIRST)
    waits.append(time.monotonic() - asked)
    chat = "messages" in body
    dribble(c, chunked(b": a comment\n\n" + frame(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}] if chat else []), 50))
    for i in range(n):
        if kind == "cut" and i == 2:
            return False
        if kind == "error" and i == 2:
            dribble(c, chunked(frame(error={"message": "engine fell over"}), 9))
            c.sendall(b"0\r\n\r\n")
            return True
        if i:
            time.sleep(GAP)
        text = "né\"} " + str(i)
        choice = {"index": 0, "delta": {"content": text}} if chat else {"index": 0, "text": text, "logprobs": None}
        dribble(c, chunked(frame(choices=[choice], usage=None), 11))
    usage = {"prompt_tokens": 7, "completion_tokens": n, "prompt_tokens_details": {"cached_tokens": 3}}
    dribble(c, chunked(frame(choices=[{"index": 0, "finish_reason": "length"}]) + frame(choices=[], usage=usage), 13))
    if kind != "open":
        dribble(c, chunked(b"data: [DONE]\n\n", 5))
    dribble(c, b"0\r\n\r\n")
    return kind != "close"


def serve_one(c):
    connections[0] += 1
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data = b""
    try:
        while True:
            head, text, data = read_request(c, data)
            if head is None:
                break
            if head.startswith(b"GET /sub/v1/models "):
                models = json.dumps({"object": "list", "data": [{"id": "a\"b", "vocab_size": 1000, "max_model_len": 100}, {"id": "c"}]}).encode()
                c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(models) + models)
                continue
            arrivals.append(time.monotonic())
            bodies.append(json.loads(text))
            if not answer(c, bodies[-1]):
                break
    except OSError:
        pass
    c.close()


def serve(listener):
    while True:
        threading.Thread(target=serve_one, args=(listener.accept()[0],), daemon=True).start()


def bench(*flags, code=0, kind="good", json_out=True):
    mode[0] = kind
    bodies.clear(), arrivals.clear(), waits.clear()
    connections[0] = 0
    began[0] = time.monotonic()
    run = subprocess.run([PROGRAM, "--serve", URL, "--warmups", "0", *(["--json"] if json_out else []), *flags], capture_output=True, text=True,
                         timeout=100)
    expect(run.returncode == code, flags, run.returncode, run.stdout[-2000:], run.stderr)
    return json.loads(run.stdout) if json_out and run.stdout else run.stdout + run.stderr


def quantile(values, part):
    at = part * (len(values) - 1)
    low = values[int(at)]
    return low + (at - int(at)) * (values[min(int(at) + 1, len(values) - 1)] - low)


def figures():
    """The summary follows from the requests, and the requests from the server's conduct."""
    got = bench("--requests", "24", "--clients", "6", "--output_tokens", "uniform:1,9", "--slo_ttft", "75", "--slo_tpot", "500")
    each = got["each"]
    expect(len(each) == got["requests"] == got["done"] == 24 and got["failed"] == 0 and got["model"] == 'a"b', got)
    expect(2 <= connections[0] <= 7, "connections are used again", connections)  # one asked for the models
    ttft = sorted(1e3 * (r["first"] - r["due"]) for r in each)
    tpot = sorted(1e3 * (r["last"] - r["first"]) / (r["output"] - 1) for r in each if r["output"] > 1)
    e2e = sorted(1e3 * (r["last"] - r["due"]) for r in each)
    for name, values in (("ttft_ms", ttft), ("tpot_ms", tpot), ("e2e_ms", e2e)):
        m = got[name]
        expect(m["n"] == len(values) and abs(m["mean"] - sum(values) / len(values)) < 0.01 and abs(m["max"] - values[-1]) < 0.01, name, m)
        for key, part in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
            expect(abs(m[key] - quantile(values, part)) < 0.01, name, key, m[key], quantile(values, part))
    expect(got["good"] == sum(1 for r in each if 1e3 * (r["first"] - r["due"]) <= 75), got["good"])
    expect(all(r["output"] == r["asked"] and r["prompt"] == 7 and r["cached"] == 3 for r in each), each)
    expect(sorted(r["asked"] for r in each) == sorted(b["max_tokens"] for b in bodies))
    expect({r["asked"] for r in each} <= set(range(1, 10)) and len({r["asked"] for r in each}) > 4)
    # from below only what the server did; from above there is no bound on a busy machine, but no other unit fits
    expect(1e3 * FIRST <= ttft[0] and 1e3 * sorted(waits)[12] <= ttft[-1] < 30e3, ttft, waits)
    expect(got["itl_ms"]["n"] == sum(r["output"] - 1 for r in each))
    itl = got["itl_ms"]
    between = 1e3 * sum(r["last"] - r["first"] for r in each)  # a text in each token: the gaps add up to this
    expect(abs(itl["mean"] * itl["n"] - between) < 0.01 * itl["n"] and itl["p50"] <= itl["max"] < 30e3, itl, between)
    expect(abs(got["output_tokens_per_s"] - sum(r["output"] for r in each) / got["seconds"]) < 0.1)
    chat = bench("--requests", "4", "--endpoint", "chat", "--output_tokens", "3", "--keep_eos")
    expect(chat["done"] == 4 and all("messages" in b and "ignore_eos" not in b for b in bodies) and chat["itl_ms"]["n"] == 8, chat)
    words = bodies[0]["messages"][0]["content"].split()
    expect(64 <= len(words) <= 97, len(words))  # cut to the longest text that the server has


def work():
    """What is sent: lengths, shared beginnings, arrivals, traces; the same from the same seed."""
    short = ("--output_tokens", "1", "--clients", "64")
    bench("--requests", "40", *short, "--prompt_tokens", "normal:20,4", "--shared_prefix", "30", "--prefixes", "3")
    prompts = sorted(b["prompt"] for b in bodies)
    begins = {tuple(p[:30]) for p in prompts}
    expect(len(begins) == 3 and len({tuple(p) for p in prompts}) == 40, len(begins))
    own = [len(p) - 30 for p in prompts]
    expect(16 < sum(own) / 40 < 24 and len(set(own)) > 8 and all(3 <= i < 1000 for p in prompts for i in p), own)
    bench("--requests", "40", *short, "--prompt_tokens", "normal:20,4", "--shared_prefix", "30", "--prefixes", "3")
    expect(sorted(b["prompt"] for b in bodies) == prompts, "the same seed")
    bench("--requests", "40", *short, "--prompt_tokens", "normal:20,4", "--seed", "1")
    expect(not {tuple(b["prompt"]) for b in bodies} & {tuple(p[30:]) for p in prompts}, "another seed")
    got = bench("--rate", "100", "--duration", "2", *short)
    due = [r["due"] for r in got["each"]]
    gaps = [b - a for a, b in zip(due, due[1:])]
    mean = sum(gaps) / len(gaps)
    spread = math.sqrt(sum((g - mean) ** 2 for g in gaps) / len(gaps))
    expect(150 < len(due) < 250 and due[-1] < 2 and due == sorted(due) and 0.75 < spread / mean < 1.25, len(due), spread / mean)
    late = bench("--rate", "1000", "--requests", "12", "--clients", "2", "--output_tokens", "1")
    expect(late["ttft_ms"]["max"] > 5 * 1e3 * FIRST, "waiting for a client counts", late["ttft_ms"])
    with open("trace.jsonl", "w") as f:
        for at, n_in, n_out, blocks in ((1000, 40, 2, [5]), (1000, 45, 1, [5]), (1300, 30, 3, [6])):
            print(json.dumps({"timestamp": at, "input_length": n_in, "output_length": n_out, "hash_ids": blocks}), file=f)
    got = bench("--trace", "trace.jsonl")
    expect([r["due"] for r in got["each"]] == [0, 0, 0.3] and arrivals[2] - began[0] >= 0.3, got["each"])
    a, b = sorted((x["prompt"] for x in bodies[:2]), key=len)
    expect((len(a), len(b), len(bodies[2]["prompt"])) == (40, 45, 30) and b[:40] == a and bodies[2]["prompt"] != a[:30], a, b)
    with open("trace.csv", "w") as f:
        f.write("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,20,2\n2023-11-16 18:15:46.8805900,21,1\n")
    got = bench("--trace", "trace.csv")
    expect([(round(r["due"], 3), r["asked"]) for r in got["each"]] == [(0, 2), (0.2, 1)], got["each"])


def interrupted():
    """Ctrl-C: what runs ends, and the report says that it is not all."""
    mode[0] = "good"
    run = subprocess.Popen([PROGRAM, "--serve", URL, "--warmups", "0", "--json", "--requests", "100000", "--clients", "2", "--output_tokens", "2"],
                           stdout=subprocess.PIPE, text=True)
    n = len(bodies)
    while len(bodies) < n + 4 and run.poll() is None:
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    got = json.loads(run.communicate(timeout=100)[0])
    expect(got["interrupted"] is True and 4 <= got["done"] < 100000 and run.returncode == 0, got["done"], run.returncode)
    expect(bench("--requests", "1")["interrupted"] is False)


def faults():
    """A failure is told with its reason, and the exit code is 1."""
    for kind, status, reason in (("refuse", 429, 'too many "requests"'), ("page", 502, ""), ("garbage", 0, "no HTTP answer"), ("size", 200, "chunk"),
                                 ("cut", 200, "closed before"), ("error", 200, "engine fell over"), ("open", 200, "[DONE]")):
        got = bench("--requests", "3", "--output_tokens", "4", kind=kind, code=1)
        expect(got["failed"] == 3 and got["good"] == 0, kind, got)
        expect(all(r["status"] == status and reason in r["error"] for r in got["each"]), kind, got["each"][0])
    expect("3 failed with status 429: too many" in bench("--requests", "3", kind="refuse", code=1, json_out=False))
    expect("status 429" in bench("--requests", "3", "--warmups", "1", kind="refuse", code=1, json_out=False), "the first request")
    again = bench("--requests", "4", "--clients", "1", "--output_tokens", "1", kind="close")
    expect(again["done"] == 4 and connections[0] == 5, "a server that closes each connection", connections)
    slow = bench("--requests", "1", "--output_tokens", "90", "--timeout_seconds", "1", code=1)
    expect("timeout" in slow["each"][0]["error"], slow["each"])
    for flags, code, words in ((("--prompt_tokens", "about 5"), 2, "LOW,HIGH"), (("--model", "x"), 2, "no 'x'"), (("--trace", "none"), 1, "none"),
                               (("--trace", "trace.csv", "--rate", "3"), 2, "--rate and --trace"), (("--serve", "https://a"), 1, "https"), (("--serve", "ftp://a"), 2, "expected http"),
                               (("--all_reduce",), 2, "--all_reduce and --serve"), (("--bw_unit", "GBps"), 2, "--bw_unit and --serve"),
                               (("--serve", "http://127.0.0.1:1"), 1, "refused"), (("--serve", "http://a b"), 2, "HOST")):
        expect(words in bench(*flags, code=code, json_out=False), flags)
    with open("bad.csv", "w") as f:
        f.write("at,prompt,output\n0,3,4\n1,x,4\n")
    expect("bad.csv:3:" in bench("--trace", "bad.csv", code=1, json_out=False))


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.cards, self.links, self.texts = [], 0, [], ""

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.cards += tag == "svg"
        self.links += [v for k, v in attrs.items() if k in ("src", "href", "xlink:href") or "url(" in (v or "")]
        if tag not in ("meta", "link", "br", "path", "polygon", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data):
        self.texts += data


def page():
    bench("--requests", "10", "--output_tokens", "3", "--html", "load.html", "--slo_ttft", "70", json_out=False)
    p = Page()
    with open("load.html") as f:
        text = f.read()
    p.feed(text)
    expect(not p.open and p.cards == 7 and not [x for x in p.links if not x.startswith("data:")], p.open, p.cards, p.links)
    expect("10 done, 0 failed" in p.texts and "Within limits" in p.texts and "nan" not in text.lower().replace("nanum", "") and "inf " not in text)
    bench("--requests", "1", "--output_tokens", "1", "--html", "load.html", json_out=False)  # its own
    with open("other.html", "w") as f:
        f.write("<html>mine</html>")
    bench("--requests", "1", "--html", "other.html", code=1, json_out=False)
    expect(open("other.html").read() == "<html>mine</html>" and not bodies, "another's file is kept, and nothing was sent")


with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
    URL = f"http://127.0.0.1:{listener.getsockname()[1]}/sub/v1/"
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    for part in (figures, work, interrupted, faults, page):
        part()
print(f"{checks} checks passed")
sys.stdout.flush()
os._exit(0)
