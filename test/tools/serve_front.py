# SPDX-License-Identifier: Apache-2.0
"""ds_serve as the front of replicas: of servers made here, whose conduct is known, and of its own.
Usage: serve_front.py PROGRAM MODEL"""
import atexit
import concurrent.futures
import ctypes
import http.client
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

PROGRAM, MODEL = sys.argv[1:3]
checks = 0


def expect(holds, *what):
    global checks
    checks += 1
    if not holds:
        raise SystemExit(f"FAILED at line {sys._getframe(1).f_lineno}: {what}")


def until(condition, *what, seconds=30):
    end = time.time() + seconds
    while time.time() < end:
        if condition():
            return
        time.sleep(0.02)
    expect(False, *what)


class Fake(http.server.ThreadingHTTPServer):
    """A replica that does what `mode` says."""
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, *models, port=0):
        self.models, self.mode, self.sick, self.seen, self.gone = models, "well", threading.Event(), [], 0
        self.go, self.n_series, self.path, self.bad_paths, self.loads = threading.Event(), 0, "first", set(), []
        self.says_path, self.bad_once, self.lates, self.hold = True, set(), set(), threading.Event()
        self.hold.set()
        super().__init__(("127.0.0.1", port), Handler)
        self.port = self.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def handle_error(self, request, address):
        pass


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, status, body, kind="application/json", **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def frame(self, value):
        data = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def do_GET(self):
        s = self.server
        if s.sick.is_set():
            time.sleep(5)
        if self.path == "/health":
            status = {"draining": "draining", "hangs": "hangs"}.get(s.mode, "ok")
            self.send(200 if status == "ok" else 503, {"status": status, "why": "its engine hangs: for 9 s"} if status == "hangs" else {"status": status})
        elif self.path == "/slots":
            self.send(200, [{"id": 0, "from": s.port}, {"id": 1, "from": s.port}])
        elif self.path == "/v1/models":
            self.send(200, {"object": "list", "data": [{"id": m, "object": "model", **({"root": s.path} if s.says_path else {})} for m in s.models]})
        else:
            self.send(200, b"# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total 3\n"
                           b"# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc 0.5\n"
                           + b"# TYPE many counter\n" + b"".join(b'many{label="%s%d"} 1\n' % (b"x" * 300, i) for i in range(s.n_series)), "text/plain")

    def do_POST(self):
        s = self.server
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        body = json.loads(raw)
        mode = s.mode
        s.seen.append((self.path, body, dict(self.headers), raw))
        if self.path == "/v1/reload":
            path = body.get("model", s.path)
            s.loads.append(path)
            s.hold.wait(20)
            if path in s.bad_paths | s.bad_once:
                s.bad_once.discard(path)
                self.send(400, {"error": {"message": f"{path} is broken"}})
            else:
                was, s.path = s.path, path
                if path in s.lates:  # it has it, but does not say so
                    s.lates.discard(path)
                    s.go.wait(20)
                self.send(200, {"status": "ok", "model": path, "was": was, "seconds": 0})
        elif mode == "dies":
            self.connection.close()
            self.close_connection = True
        elif mode == "full":
            self.send(429, {"error": {"message": "full", "from": s.port}})
        elif body.get("stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.send_header("X-Request-Id", "r1")
            self.end_headers()
            if mode == "silent":
                s.go.wait(20)
            self.frame({"from": s.port, "n": 1})
            if mode == "wide":  # a frame that is larger than what waits for a client
                self.frame({"from": s.port, "pad": "x" * 3000000})
            if mode == "torn":  # within a frame
                self.wfile.write(b"1c\r\ndata: {\"choices\": [{\"text\": \r\n")
                self.wfile.flush()
            if mode == "told":  # all but the connection's end
                self.frame(b"[DONE]")
            if mode in ("half", "torn", "told"):
                self.connection.shutdown(2)
                self.close_connection = True
                return
            if mode in ("slow", "endless"):
                s.go.wait(20)
            try:
                for n in range(2, 1000 if mode == "endless" else 4):
                    self.frame({"from": s.port, "n": n})
                    time.sleep(0.01 if mode == "endless" else 0)
            except OSError:
                s.gone += 1
                self.close_connection = True
                return
            self.frame(b"[DONE]")
            self.wfile.write(b"0\r\n\r\n")
        else:
            if mode == "slow":
                s.go.wait(20)
            self.send(200, {"from": s.port, "weights": s.path, "text": "é" * 3}, X_Ignored_Fields="user", X_Request_Id="r2")


class Front:
    def __init__(self, *flags, ready=True, env=None):
        probes = ("--probe_seconds", "0.1", "--probe_timeout", "1") if flags[0] != "--model" else ()  # of a server of a model, none
        self.process = subprocess.Popen([PROGRAM, "--port", "0", *probes, *flags], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        atexit.register(self.process.kill)
        self.lines = []
        threading.Thread(target=lambda: self.lines.extend(iter(self.process.stderr.readline, "")), daemon=True).start()
        self.line = self.process.stdout.readline()
        found = re.fullmatch(r"serving (.*) on http://127.0.0.1:(\d+)\n", self.line)
        if not found:
            raise SystemExit(f"FAILED: no front: {self.line!r} {self.lines}")
        self.served, self.port = found.group(1), int(found.group(2))
        if ready:
            until(lambda: self.get("/ready")[0] == 200, self.lines)

    def ask(self, method, path, body=None, headers=None, timeout=60):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        c.request(method, path, None if body is None else body if isinstance(body, bytes) else json.dumps(body), headers or {})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text, r.headers

    def get(self, path, **headers):
        status, text, _ = self.ask("GET", path, headers=headers)
        return status, text

    def post(self, path="/v1/completions", **body):
        status, text, _ = self.ask("POST", path, body)
        return status, json.loads(text)

    def frames(self, **body):
        status, text, _ = self.ask("POST", "/v1/completions", dict(body, stream=True))
        return status, [f.removeprefix("data: ") for f in text.split("\n\n") if f]

    def metric(self, name):
        return float(re.search(rf"^{re.escape(name)} (\S+)$", self.get("/metrics")[1], re.M).group(1))

    def states(self):
        return [r["state"] for r in json.loads(self.get("/health")[1])["replicas"]]

    def end(self, code=0):
        self.process.send_signal(signal.SIGTERM)
        expect(self.process.wait(60) == code, self.process.returncode, self.lines)


pool = concurrent.futures.ThreadPoolExecutor(64)


def together(f, *calls):
    return [pool.submit(f.post, **c) for c in calls]


def running(f, *counts):
    until(lambda: sorted(r["running"] for r in json.loads(f.get("/health")[1])["replicas"]) == sorted(counts), counts, f.get("/health"))


def by_name():
    a, b = Fake("m1"), Fake("m1", "m2")
    f = Front("--upstream", a.url, b.url)
    expect(f.served == "m1, m2", f.line)
    models = json.loads(f.get("/v1/models")[1])["data"]
    expect([(m["id"], m["replicas"]) for m in models] == [("m1", 2), ("m2", 1)], models)
    expect(f.get("/v1/models/m2")[0] == 200 and f.get("/v1/models/m3")[0] == 404)
    for _ in range(4):
        expect(f.post(model="m2", prompt="x")[1]["from"] == b.port)
    status, got = f.post(model="m3", prompt="x")
    expect(status == 404 and got["error"]["code"] == "model_not_found", got)
    status, got = f.post(prompt="x")
    expect(status == 400 and got["error"]["param"] == "model" and "several" in got["error"]["message"], got)
    # bytes, headers and statuses go on as they are
    status, text, headers = f.ask("POST", "/v1/completions", b'{ "model": "m1",\n"prompt": "\\u00e9" }')
    expect(status == 200 and json.loads(text)["text"] == "ééé" and headers["X-Ignored-Fields"] == "user" and headers["X-Request-Id"] == "r2", headers)
    expect((a.seen + b.seen)[-1][3] == b'{ "model": "m1",\n"prompt": "\\u00e9" }' or a.seen[-1][3] == b'{ "model": "m1",\n"prompt": "\\u00e9" }')
    # the paths whose replicas know no model
    f.post("/tokenize", model="m2", content="x")
    expect(b.seen[-1][:2] == ("/tokenize", {"content": "x"}), b.seen[-1])
    expect(f.ask("POST", "/v1/completions", b"[1]")[0] == 400 and f.ask("POST", "/v1/completions", b"{")[0] == 400)
    expect(f.get("/v1/completions")[0] == 405)
    status, got = f.frames(model="m2", prompt="x")
    expect(status == 200 and [json.loads(x)["n"] for x in got[:-1]] == [1, 2, 3] and got[-1] == "[DONE]", got)
    expect(f.get("/")[1].startswith("<!doctype html>") and f.get("/v1/models/")[0] == 404)
    # counters are added, a share is a mean
    expect(f.metric("vllm:generation_tokens_total") == 6 and f.metric("vllm:kv_cache_usage_perc") == 0.5)
    expect(f.metric('http_requests_total{status="2xx"}') > 5 and f.metric(f'ds_front_replica_up{{replica="1",host="127.0.0.1",port="{b.port}"}}') == 1)
    f.end()


def loads():
    fakes = [Fake("m") for _ in range(3)]
    f = Front("--upstream", *(s.url for s in fakes))
    for s in fakes:
        s.mode = "slow"
    calls = together(f, *(dict(model="m", prompt=f"{i}") for i in range(9)))
    running(f, 3, 3, 3)
    for s in fakes:
        s.go.set()
    expect(all(c.result()[0] == 200 for c in calls))
    # one after the other: the one that had fewest
    expect(sorted(f.post(model="m", prompt=f"p{i}")[1]["from"] for i in range(3)) == sorted(s.port for s in fakes))
    # a prompt's begin stays where it was
    long = "".join(f"sentence {i}. " for i in range(400))
    first = f.post(model="m", prompt=long)[1]["from"]
    for i in range(6):
        expect(f.post(model="m", prompt=long + f"question {i}")[1]["from"] == first, i)
    chat = [dict(role="system", content=long), dict(role="user", content="a")]
    where = f.post("/v1/chat/completions", model="m", messages=chat)[1]["from"]
    for i in range(6):
        more = chat + [dict(role="assistant", content="b"), dict(role="user", content=f"{i}")]
        expect(f.post("/v1/chat/completions", model="m", messages=more)[1]["from"] == where, i)
    expect(f.metric("ds_front_prefix_routed_total") == 12)
    # unless that one is much busier: four requests more
    for s in fakes:
        s.go.clear()
    calls = []
    for i in range(7):
        calls += together(f, dict(model="m", prompt=long + f"held {i}"))
        until(lambda: sum(r["running"] for r in json.loads(f.get("/health")[1])["replicas"]) == i + 1, i)
    running(f, 5, 2, 0)  # the last two share the begin, too
    for s in fakes:
        s.go.set()
    expect(all(c.result()[0] == 200 for c in calls))
    # a short begin that all have does not send all to one
    for s in fakes:
        s.go.clear()
    short = "y" * 300
    calls = []
    for i in range(6):
        calls += together(f, dict(model="m", prompt=short + f"{i}"))
        until(lambda: sum(r["running"] for r in json.loads(f.get("/health")[1])["replicas"]) == i + 1, i)
    running(f, 2, 2, 2)
    for s in fakes:
        s.go.set()
    expect(all(c.result()[0] == 200 for c in calls))
    f.end()


def losses():
    a, b, c = (Fake("m") for _ in range(3))
    f = Front("--upstream", a.url, b.url, c.url)
    # lost before it began: another one has it, once
    a.mode = "dies"
    for i in range(6):
        status, got = f.post(model="m", prompt=f"{i}")
        expect(status == 200 and got["from"] != a.port, got)
    expect(f.metric("ds_front_moved_total") >= 1 and f.metric("ds_front_lost_total") == 0)
    b.mode = c.mode = "dies"
    n = len(a.seen) + len(b.seen) + len(c.seen)
    status, got = f.post(model="m", prompt="x")
    expect(status == 502 and got["error"]["code"] == "replica_lost" and "replica " in got["error"]["message"], got)
    expect(len(a.seen) + len(b.seen) + len(c.seen) == n + 2, "a request that ends two replicas is not sent to a third")
    # full: another one; all are: their word
    a.mode, b.mode, c.mode = "full", "full", "well"
    expect(all(f.post(model="m", prompt=f"f{i}")[1]["from"] == c.port for i in range(6)))
    c.mode = "full"
    status, got = f.post(model="m", prompt="x")
    expect(status == 429 and got["error"]["message"] == "full", got)
    # a stream that had begun is told, and not begun anew
    for mode in ("half", "torn"):
        a.mode = b.mode = c.mode = mode
        until(lambda: f.states() == ["up"] * 3, f.states())
        n = len(a.seen) + len(b.seen) + len(c.seen)
        status, got = f.frames(model="m", prompt="x")
        expect(status == 200 and len(got) == 2 and json.loads(got[0])["n"] == 1 and json.loads(got[1])["error"]["code"] == "replica_lost", mode, got)
        expect(len(a.seen) + len(b.seen) + len(c.seen) == n + 1)
    a.mode = b.mode = c.mode = "told"
    until(lambda: f.states() == ["up"] * 3, f.states())
    expect(f.frames(model="m", prompt="x")[1][1:] == ["[DONE]"], "a stream that was whole")
    a.mode = b.mode = c.mode = "half"
    until(lambda: f.states() == ["up"] * 3, f.states())
    status, text, _ = f.ask("POST", "/v1/responses", dict(model="m", input="x", stream=True))
    expect("event: error\ndata: " in text and json.loads(text.split("data: ")[-1])["type"] == "error", text)
    f.end()


def passing():
    """Frames come when they are sent; a client that is gone is gone for the replica, too."""
    a = Fake("m")
    f = Front("--upstream", a.url)
    a.mode = "slow"
    c = http.client.HTTPConnection("127.0.0.1", f.port, timeout=20)
    c.request("POST", "/v1/completions", json.dumps(dict(model="m", prompt="x", stream=True)))
    r = c.getresponse()
    expect(json.loads(r.readline().decode().removeprefix("data: "))["n"] == 1)
    a.go.set()
    expect("[DONE]" in r.read().decode() and r.headers["X-Request-Id"] == "r1")
    a.mode = "endless"
    c = http.client.HTTPConnection("127.0.0.1", f.port, timeout=20)
    c.request("POST", "/v1/completions", json.dumps(dict(model="m", prompt="x", stream=True)))
    expect(c.getresponse().readline().startswith(b"data: "))
    c.sock.close()
    c.close()
    del r
    until(lambda: a.gone == 1, "the replica goes on for nobody")
    a.mode = "wide"
    status, got = f.frames(model="m", prompt="x")
    expect(status == 200 and [json.loads(x).get("n") for x in got[:-1]] == [1, None, 2, 3] and got[-1] == "[DONE]", status, len(got))
    a.mode, a.gone = "silent", 0
    a.go.clear()
    c = http.client.HTTPConnection("127.0.0.1", f.port, timeout=20)
    c.request("POST", "/v1/completions", json.dumps(dict(model="m", prompt="x", stream=True)))
    running(f, 1)
    c.close()
    running(f, 0)
    a.go.set()
    f.end()


def refused_early():
    """A server that says no before it has the body has the last word."""
    a = Front("--model", MODEL, "--threads", "1", "--served_model_name", "m", "--max_body", "2000")
    f = Front("--upstream", f"http://127.0.0.1:{a.port}")
    for n in (3000, 8000000):
        status, got = f.post(model="m", prompt="x" * n)
        expect(status == 413 and got["error"]["code"] == "body_too_large", n, got)
    expect(f.metric("ds_front_lost_total") == 0)
    f.end()
    a.end()


def hangs():
    a, b = Fake("m"), Fake("m")
    f = Front("--upstream", a.url, b.url)
    a.mode = b.mode = "slow"
    begun = [pool.submit(f.frames, model="m", prompt=f"{i}") for i in range(2)]
    until(lambda: len(a.seen) == len(b.seen) == 1, "two streams")
    b.mode = a.mode = "silent"
    waiting = [pool.submit(f.frames, model="m", prompt=f"w{i}") for i in range(4)]
    running(f, 3, 3)
    time.sleep(0.3)
    a.sick.set()
    until(lambda: f.states() == ["down", "up"], f.get("/health"))
    health = json.loads(f.get("/health")[1])
    expect(health["status"] == "degraded" and "within 1 s" in health["replicas"][0]["why"] and f.get("/ready")[0] == 200, health)
    told = [c for c in begun if c.done()] or [concurrent.futures.wait(begun, 10, "FIRST_COMPLETED").done.pop()]
    expect(len(told) == 1 and "did not answer" in json.loads(told[0].result()[1][-1])["error"]["message"], told)
    running(f, 0, 5)
    b.go.set()
    for w in waiting:
        status, got = w.result()
        expect(status == 200 and got[-1] == "[DONE]" and json.loads(got[0])["from"] == b.port, got)
    until(lambda: any("replica 0" in x and "is out" in x and "2 went elsewhere, 1 were told" in x for x in f.lines), f.lines)
    a.sick.clear()
    a.mode = "well"
    a.go.set()
    until(lambda: f.states() == ["up", "up"], f.get("/health"))
    until(lambda: any("is back" in x for x in f.lines), f.lines)
    # one that says that it ends: nothing new, and what runs there goes on
    a.go.clear()
    a.mode = b.mode = "slow"
    b.go.clear()
    calls = together(f, dict(model="m", prompt="1"), dict(model="m", prompt="2"))
    running(f, 1, 1)
    until(lambda: [s.seen[-1][1].get("prompt") in ("1", "2") for s in (a, b)] == [True] * 2, "both have begun")
    a.mode = "draining"
    until(lambda: f.states() == ["down", "up"], f.get("/health"))
    b.go.set()
    expect(all(f.post(model="m", prompt=f"d{i}")[1]["from"] == b.port for i in range(3)))
    a.go.set()
    expect(sorted(c.result()[1]["from"] for c in calls) == sorted((a.port, b.port)))
    # nobody is left
    a.sick.set()
    b.sick.set()
    until(lambda: f.states() == ["down", "down"], f.get("/health"))
    status, got = f.post(model="m", prompt="x")
    expect(status == 503 and "replica " in got["error"]["message"] and f.get("/ready")[0] == 503 and f.get("/health")[0] == 503, got)
    f.end()


def refused():
    a, b = Fake("m"), Fake("m")
    port = b.port
    f = Front("--upstream", a.url, b.url)
    b.shutdown()
    b.server_close()
    expect(all(f.post(model="m", prompt=f"{i}")[0] == 200 for i in range(6)), f.lines)
    until(lambda: f.states() == ["up", "down"], f.get("/health"))
    again = Fake("m", port=port)
    until(lambda: f.states() == ["up", "up"], f.get("/health"))
    f.end()
    again.shutdown()


def keys_and_drain():
    with open("front.keys", "w", encoding="utf8") as out:
        out.write("outer\n")
    with open("inner.keys", "w", encoding="utf8") as out:
        out.write("inner\n")
    a = Fake("m")
    f = Front("--upstream", a.url, "--api_key_file", "front.keys", "--upstream_key_file", "inner.keys", "--drain_seconds", "20")
    expect(f.post(model="m", prompt="x")[0] == 401 and f.get("/metrics")[0] == 401 and f.get("/health")[0] == 200)
    status, _, _ = f.ask("POST", "/v1/completions", dict(model="m", prompt="x"), {"Authorization": "Bearer outer"})
    expect(status == 200 and a.seen[-1][2]["Authorization"] == "Bearer inner", a.seen[-1])
    a.mode = "slow"
    last = pool.submit(f.ask, "POST", "/v1/completions", dict(model="m", prompt="x", stream=True), {"Authorization": "Bearer outer"})
    running(f, 1)
    f.process.send_signal(signal.SIGTERM)
    until(lambda: f.get("/health")[0] == 503)
    status, text, headers = f.ask("POST", "/v1/completions", dict(model="m", prompt="x"), {"Authorization": "Bearer outer"})
    expect(status == 503 and headers["Connection"] == "close" and "ends" in text, text, headers.items())
    a.go.set()
    expect("[DONE]" in last.result()[1])
    expect(f.process.wait(20) == 0, f.lines)


def at_each():
    """/slots, /mii/NAME, /v1/reload; many series; an engine that hangs."""
    with open("front.keys", "w", encoding="utf8") as out:
        out.write("outer\n")
    key = {"Authorization": "Bearer outer"}
    a, b, c = Fake("m"), Fake("m"), Fake("other")
    a.n_series = b.n_series = 700
    f = Front("--upstream", a.url, b.url, c.url, "--api_key_file", "front.keys")

    def reload(**body):
        status, text, _ = f.ask("POST", "/v1/reload", body, key)
        return status, json.loads(text)

    status, text = f.get("/slots", **key)
    slots = json.loads(text)
    expect(status == 200 and [(x["replica"], x["id"], x["from"]) for x in slots]
           == [(k, i, s.port) for k, s in enumerate((a, b, c)) for i in (0, 1)], slots)
    expect(f.get("/slots")[0] == 401 and f.ask("POST", "/v1/reload", {})[0] == 401)
    text = f.get("/metrics", **key)[1]
    expect(len(re.findall(r'^many{label="x{300}\d+"} 2$', text, re.M)) == 700, text[:300])
    expect(text.count("# TYPE many counter") == 1 and "http_requests_total{" in text)
    # MII's path names the model
    status, text, _ = f.ask("POST", "/mii/other", dict(prompts=["x"]), key)
    expect(status == 200 and json.loads(text)["from"] == c.port and c.seen[-1][0] == "/mii/other", text)
    expect(f.ask("POST", "/mii/none", dict(prompts="x"), key)[0] == 404 and f.ask("GET", "/mii/m", None, key)[0] == 405)
    # a reload goes to one after the other, of the model that is named
    expect(reload(model="w2") [0] == 400 and reload(model="w2", name="none")[0] == 404 and reload(what=1)[0] == 400 and reload(model=3, name="m")[0] == 400)
    status, got = reload(model="w2", name="m")
    expect(status == 200 and got["replicas"] == 2 and got["model"] == "w2" and (a.path, b.path, c.path) == ("w2", "w2", "first"), got)
    # one cannot: the one that could goes back
    b.bad_paths = {"w3"}
    status, got = reload(model="w3", name="m")
    expect(status == 400 and "replica 1" in got["error"]["message"] and "w3 is broken" in got["error"]["message"], got)
    expect((a.path, b.path) == ("w2", "w2") and a.loads == ["w2", "w3", "w2"], a.loads)
    # one that was out gets it before it is asked again
    b.sick.set()
    until(lambda: f.ask("GET", "/health")[0] and [r["state"] for r in json.loads(f.get("/health")[1])["replicas"]][1] == "down", f.get("/health"))
    status, got = reload(model="w4", name="m")
    expect(status == 200 and got["replicas"] == 1 and a.path == "w4" and b.path == "w2", got)
    b.bad_paths = {"w4"}
    b.sick.clear()
    until(lambda: "w4 is broken" in f.get("/health")[1], f.get("/health"))
    expect(f.states()[1] == "down")
    b.bad_paths = set()
    until(lambda: f.states() == ["up"] * 3, f.get("/health"), seconds=60)
    expect(b.path == "w4", b.loads)
    n = len(a.loads)
    status, got = reload()  # all, each what it has
    expect(status == 200 and got["replicas"] == 3 and a.loads[n:] == ["w4"] and c.loads == ["first"], got)
    # an engine that hangs is named; what had not begun there goes elsewhere
    a.mode = b.mode = "slow"
    n = [len(s.seen) for s in (a, b)]
    calls = [pool.submit(f.ask, "POST", "/v1/completions", dict(model="m", prompt=f"{i}"), key) for i in range(2)]
    running(f, 0, 1, 1)
    until(lambda: [len(s.seen) for s in (a, b)] == [x + 1 for x in n], "both have begun")  # before the mode changes
    a.mode = "hangs"
    until(lambda: f.states() == ["down", "up", "up"], f.get("/health"))
    expect("its engine hangs: for 9 s" in f.get("/health")[1], f.get("/health"))
    until(lambda: any("its engine hangs" in x for x in f.lines), f.lines)
    b.go.set()
    expect([json.loads(x.result()[1])["from"] for x in calls] == [b.port] * 2)
    a.go.set()
    f.end()


def weights():
    """Reloads that do not go well: all of a model have the new folder in the end, or none."""
    key = {"Authorization": "Bearer outer"}
    a, b = Fake("m"), Fake("m")
    flags = ("--api_key_file", "front.keys", "--reload_timeout", "2")
    f = Front("--upstream", a.url, b.url, *flags)

    def reload(at=f, **body):
        status, text, _ = at.ask("POST", "/v1/reload", body, key)
        return status, json.loads(text)

    def states(at=f):
        return [r["state"] for r in json.loads(at.get("/health")[1])["replicas"]]

    def served(at=f, n=6):
        got = [pool.submit(at.ask, "POST", "/v1/completions", dict(model="m", prompt=f"{i}"), key) for i in range(n)]
        return {json.loads(x.result()[1])["weights"] for x in got}

    # one loads it, and its answer is lost: no more than the limit, and it goes back, too, before it is asked
    b.lates = {"w2"}
    status, got = reload(model="w2", name="m")
    expect(status == 502 and "replica 1" in got["error"]["message"] and "within 2 s" in got["error"]["message"], got)
    expect(a.path == "first" and a.loads == ["w2", "first"] and served() == {"first"}, a.loads)
    until(lambda: b.path == "first" and states() == ["up", "up"], b.loads)
    expect(b.loads == ["w2", "first"], b.loads)
    b.go.set()
    status, got = reload(model="w3", name="m")
    expect(status == 200 and got["replicas"] == 2 and (a.path, b.path) == ("w3", "w3"), got)
    # one that cannot go back at once has the old folder in the end, not the new one again
    a.bad_once, b.bad_paths = {"w3"}, {"w4"}
    status, got = reload(model="w4", name="m")
    expect(status == 400 and "could not go back yet" in got["error"]["message"] and served() == {"w3"}, got)
    until(lambda: a.path == "w3" and states() == ["up", "up"], a.loads)
    expect(a.loads[-3:] == ["w4", "w3", "w3"], a.loads)
    # one that has loaded it is down when the others go back
    b.hold.clear()
    call = pool.submit(reload, model="w4", name="m")
    until(lambda: a.path == "w4", a.loads)
    a.sick.set()
    until(lambda: states()[0] == "down", f.get("/health"))
    b.hold.set()
    expect(call.result()[0] == 400 and a.path == "w4", call.result())
    a.sick.clear()
    until(lambda: states() == ["up", "up"], f.get("/health"))
    expect(a.path == "w3" and served() == {"w3"}, a.loads)
    # one that has loaded it is started again meanwhile, with what it had at first
    b.bad_paths = set()
    b.hold.clear()
    call = pool.submit(reload, model="w5", name="m")
    until(lambda: a.path == "w5", a.loads)
    a.shutdown()
    a.server_close()
    until(lambda: states()[0] == "down", f.get("/health"))
    again = Fake("m", port=a.port)
    time.sleep(0.3)
    b.hold.set()
    expect(call.result()[0] == 200 and served() == {"w5"}, call.result())
    until(lambda: states() == ["up", "up"], f.get("/health"))
    expect(again.loads == ["w5"] and served() == {"w5"}, again.loads)
    # nobody is up: nothing is loaded, then or later
    again.sick.set()
    b.sick.set()
    until(lambda: states() == ["down", "down"], f.get("/health"))
    status, got = reload(model="nowhere", name="m")
    expect(status == 503 and "no replica of this model is up" in got["error"]["message"], got)
    again.sick.clear()
    b.sick.clear()
    until(lambda: states() == ["up", "up"], f.get("/health"))
    expect((again.path, b.path) == ("w5", "w5"), again.loads, b.loads)
    f.end()
    # those that have not come up yet: one of this model gets it, one of another does not
    c, d, e = Fake("m"), Fake("m"), Fake("other")
    d.sick.set()
    e.sick.set()
    f = Front("--upstream", c.url, d.url, e.url, *flags, ready=False)
    until(lambda: states(f)[0] == "up", f.get("/health"))
    status, got = reload(f, model="w2")
    expect(status == 200 and got["replicas"] == 1 and c.path == "w2", got)
    d.sick.clear()
    e.sick.clear()
    until(lambda: states(f) == ["up"] * 3, f.get("/health"))
    expect((c.path, d.path, e.path) == ("w2", "w2", "first") and served(f) == {"w2"}, d.loads, e.loads)
    # one that does not say what it has could not go back
    e.says_path = False
    time.sleep(0.3)
    status, got = reload(f, model="w2", name="other")
    expect(status == 501 and "root" in got["error"]["message"] and e.path == "first", got)
    f.end()


def children(f):
    return [int(p) for p in subprocess.run(["pgrep", "-P", str(f.process.pid)], capture_output=True, text=True, check=True).stdout.split()]


def engine_hangs(f):
    """The engine's thread alone stops, as one that waits for a disk for ever: its HTTP thread goes on."""
    seize, interrupt = 0x4206, 0x4207
    c = ctypes.CDLL(None, use_errno=True)
    pid = children(f)[0]
    tid = [int(t) for t in os.listdir(f"/proc/{pid}/task") if open(f"/proc/{pid}/task/{t}/comm", encoding="utf8").read() == "engine\n"][0]
    if c.ptrace(seize, tid, None, None) != 0 or c.ptrace(interrupt, tid, None, None) != 0:
        print("ptrace is not allowed here: no engine was stopped")
        return
    n = len(f.lines)
    calls = [pool.submit(f.post, model="m", prompt=f"h{i}", max_tokens=5, temperature=0) for i in range(6)]
    until(lambda: any("its engine hangs" in x for x in f.lines[n:]), f.lines)
    got = [x.result() for x in calls]
    expect(all(status == 200 for status, _ in got), got)  # nothing of theirs had been sent
    until(lambda: any("is killed, for its engine hangs" in x for x in f.lines[n:]), f.lines)
    while os.waitpid(tid, 0x40000000)[1] & 0xff == 0x7f:  # __WALL: what is traced is first its tracer's to bury
        pass
    until(lambda: f.states() == ["up", "up"], f.get("/health"))
    expect(pid not in children(f))


def own():
    """Replicas that the front starts: texts as alone; one is killed under load; all end with it."""
    flags = ("--model", MODEL, "--served_model_name", "m", "--chat_template", "chatml", "--max_length", "2048", "--kv_tokens", "32768")
    f = Front("--replicas", "2", *flags, "--drain_seconds", "20", "--hang_seconds", "1", "--replica_restarts", "2")
    pids = children(f)
    expect(len(pids) == 2 and f.served == "m", pids, f.line)
    ports = [r["url"] for r in json.loads(f.get("/health")[1])["replicas"]]
    c = http.client.HTTPConnection(ports[0].removeprefix("http://"))
    c.request("GET", "/v1/models")
    expect(c.getresponse().status == 401, "a replica answers only who has its key")
    want = f.post(model="m", prompt="the quick", max_tokens=40, temperature=0)[1]["choices"][0]["text"]
    got = [x.result()[1]["choices"][0]["text"] for x in together(f, *[dict(model="m", prompt="the quick", max_tokens=40, temperature=0)] * 8)]
    expect("brown fox" in want and got == [want] * 8, want, got)
    expect(f.post("/tokenize", content="ab")[1] == {"tokens": [97, 98]})
    until(lambda: f.metric("vllm:generation_tokens_total") == 360, f.metric("vllm:generation_tokens_total"))
    # streams on both; one is killed: those on it are told, the others and what comes go on
    calls = [pool.submit(f.frames, model="m", prompt=f"the {i}", max_tokens=2000, temperature=0) for i in range(12)]
    until(lambda: f.metric("ds_front_requests") == 12, "12 run")
    time.sleep(0.1)
    os.kill(pids[0], signal.SIGKILL)
    later = together(f, *(dict(model="m", prompt=f"later {i}", max_tokens=5) for i in range(6)))
    ends = [c.result() for c in calls]
    told = sum("replica_lost" in frames[-1] for _, frames in ends)
    whole = sum(frames[-1] == "[DONE]" for _, frames in ends)
    expect(told + whole == 12 and 1 <= told <= 6, told, whole, [e[1][-1] for e in ends])
    expect(all(c.result()[0] == 200 for c in later), [c.result() for c in later])
    until(lambda: any("is out" in x and "SIGKILL" in x for x in f.lines), f.lines)
    # it is started again, and gives the same texts
    until(lambda: f.states() == ["up", "up"] and '"restarts":1' in f.get("/health")[1], f.get("/health"))
    until(lambda: any("is started again in 1 s (1 of 2)" in x for x in f.lines), f.lines)
    got = [x.result()[1]["choices"][0]["text"] for x in together(f, *[dict(model="m", prompt="the quick", max_tokens=40, temperature=0)] * 8)]
    expect(got == [want] * 8 and re.search(r'restarts_total{replica="\d",.*} 1\n', f.get("/metrics")[1]), got)
    pids += children(f)
    engine_hangs(f)
    # it ends again and again: not for ever
    os.rename(MODEL, MODEL + ".away")
    os.kill(children(f)[0], signal.SIGKILL)
    until(lambda: any("is not started again: it ended 3 times in a row" in x for x in f.lines), f.lines)
    expect(sorted(f.states()) == ["ended", "up"] and f.post(model="m", prompt="x", max_tokens=2)[0] == 200, f.get("/health"))
    os.rename(MODEL + ".away", MODEL)
    f.end()
    until(lambda: not any(os.path.exists(f"/proc/{p}") for p in pids), "a replica stays behind")
    print(f"told {told} of 12, whole {whole}")
    # the front is killed: so are they
    f = Front("--replica=" + " ".join(flags), "--replica=" + " ".join(flags).replace(" m ", " other "))
    expect(f.served == "m, other" and f.post(model="other", prompt="a", max_tokens=2)[1]["model"] == "other", f.line)
    pids = children(f)
    f.process.kill()
    until(lambda: not any(os.path.exists(f"/proc/{p}") and open(f"/proc/{p}/stat", encoding="utf8").read().split()[2] != "Z" for p in pids), "a replica stays behind")


def wrong():
    def refusal(code, what, *flags):
        got = subprocess.run([PROGRAM, *flags], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60)
        expect(got.returncode == code and what in got.stderr, flags, got)
    refusal(2, "--model", "--replicas", "2")
    refusal(2, "--threads would have no effect", "--upstream", "http://127.0.0.1:1", "--threads", "2")
    refusal(2, "--model would have no effect", "--replica=--model x", "--model", "y")
    refusal(2, "--include", "--model", MODEL, "--include", "a")
    for flags in (("--upstream_insecure",), ("--upstream_cacert", "x")):
        refusal(2, flags[0], "--upstream", "http://127.0.0.1:1", *flags)
        refusal(2, f"{flags[0]} goes with", "--model", MODEL, *flags)
    refusal(2, "without a path", "--upstream", "http://127.0.0.1:1/a")
    refusal(2, "nowhere.invalid", "--upstream", "http://nowhere.invalid:1")
    refusal(2, "--replicas 3, but --replica names 1", "--replicas", "3", "--replica=--model x")
    refusal(2, "give one of them", "--replicas", "3", "--hostfile", "x", "--model", "x")
    with open("hosts.bad", "w", encoding="utf8") as file:
        file.write("127.0.0.2 slots=2 junk\n")
    with open("hosts.mii", "w", encoding="utf8") as file:
        file.write("127.0.0.2 slots=2\n")
    with open("mii.json", "w", encoding="utf8") as file:
        json.dump(dict(model_name_or_path=MODEL, replica_num=3, hostfile="hosts.mii"), file)
    refusal(2, "replica_num is 3, but hostfile hosts.mii has 2 slots", "--deepspeed_config", "mii.json", "--port", "0")
    refusal(2, "--control", "--model", MODEL, "--control")
    refusal(1, "all replicas have ended", "--replicas", "2", "--model", "no_such_folder", "--port", "0")
    refusal(2, "--hostfile: cannot open nofile", "--hostfile", "nofile", "--model", "x")
    refusal(2, "--hostfile: hosts.bad:1", "--hostfile", "hosts.bad", "--model", "x")
    refusal(2, "--lora", "--replicas", "2", "--model", MODEL, "--lora", "x", "--port", "0")  # they refuse it
    for url in ("http://127.0.0.1:99999", "http://127.0.0.1:0", "http://[::1", "ftp://127.0.0.1:1"):
        refusal(2, "--upstream", "--upstream", url)
    for flag, value in (("probe_seconds", "1"), ("probe_timeout", "1"), ("reload_timeout", "1"), ("replica_restarts", "1"), ("replica_port", "0"), ("ssh_port", "0")):
        refusal(2, f"--{flag} goes with", "--model", MODEL, f"--{flag}", value)
    for flag in ("replica_restarts", "replica_port", "ssh_port"):
        refusal(2, f"--{flag} ", "--upstream", "http://127.0.0.1:1", f"--{flag}", "1")
    for flags in (("--lora_updates",), ("--max_lora_rank", "8"), ("--pooling", "mean", "--no_embeddings"), ("--tls_cert", "x"), ("--api_key_file", "nofile")):
        refusal(2, flags[0], "--replicas", "2", "--model", MODEL, *flags)
        refusal(2, flags[0], "--model", MODEL, *flags)


for part in (by_name, loads, losses, passing, hangs, at_each, weights, refused_early, refused, keys_and_drain, own, wrong):
    part()
print(f"{checks} checks")
