# SPDX-License-Identifier: Apache-2.0
"""Clients of https: MII's in C, the front of replicas, ds_bench --serve. Against servers of Python's ssl (OpenSSL) whose conduct is
known, and against ds_serve's own (GnuTLS). Certificates are openssl's. Usage: serve_https.py BUILD MODEL"""
import atexit
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

BUILD, MODEL = sys.argv[1:3]
SERVE, BENCH, ASK = (os.path.join(BUILD, name) for name in ("ds_serve", "ds_bench", "mii_ask"))
KEY, checks = "s3cret", 0
OWN = ("--model", MODEL, "--served_model_name", "m", "--max_length", "256", "--kv_tokens", "1024", "--threads", "1")


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


def run(*words, **more):
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, **more)


# ---- certificates ----
def openssl(*words):
    made = run("openssl", *words)
    expect(made.returncode == 0, words, made.stderr)


def certificates():
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=a test's authority")
    openssl("req", "-x509", *curve, "-keyout", "self.key", "-out", "self.pem", "-days", "2", "-subj", "/CN=alone", "-addext", "subjectAltName=IP:127.0.0.1")
    for name, names, days in (("good", "DNS:localhost,IP:127.0.0.1", "2"), ("old", "DNS:localhost,IP:127.0.0.1", "-1"), ("other", "DNS:elsewhere.example,IP:10.1.2.3", "2")):
        openssl("req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-copy_extensions", "copy", "-days", days, "-out", f"{name}.pem")


# ---- a server of known conduct ----
class Peer:
    """Python's ssl with one certificate; `mode` says what it does with a connection."""

    def __init__(self, cert="good", mode="well"):
        self.mode, self.heads, self.go = mode, [], threading.Event()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(f"{cert}.pem", f"{cert}.key")
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            c, _ = self.listener.accept()
            threading.Thread(target=self.one, args=(c,), daemon=True).start()

    def one(self, c):
        try:
            if self.mode == "no handshake":
                self.go.wait(30)
            elif self.mode == "plain":
                c.recv(1000)
                c.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            elif self.mode == "banner":
                c.sendall(b"220 mail.example ESMTP\r\n")
                c.recv(1000)
            elif self.mode == "closes":
                c.recv(1000)
            else:
                self.answer(self.context.wrap_socket(c, server_side=True))
        except OSError:
            pass
        c.close()

    def answer(self, c):
        data = b""
        while b"\r\n\r\n" not in data:
            data += c.recv(65536)
        head, _, body = data.partition(b"\r\n\r\n")
        n = int((re.search(rb"Content-Length: (\d+)", head) or [0, 0])[1])
        while len(body) < n:
            body += c.recv(65536)
        self.heads.append(head.decode())
        text = json.dumps([{"generated_text": "né" * 20000, "prompt_length": 1, "generated_length": 2, "finish_reason": "stop"}], ensure_ascii=False).encode()
        if head.startswith(b"GET /health"):
            text = b'{"status":"ok"}'
        elif head.startswith(b"GET /v1/models"):
            text = b'{"object":"list","data":[{"id":"m","root":"r"}]}'
        elif head.startswith(b"GET"):
            text = b""
        whole = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(text) + text
        if self.mode == "stalls":
            c.sendall(whole[:200])
            self.go.wait(30)
        elif self.mode == "cut":  # no end of TLS, and no length
            c.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + text[:-1])
            os.close(c.detach())
            return
        elif self.mode == "dribbles":
            for i in range(0, 300):
                c.sendall(whole[i:i + 1])
            c.sendall(whole[300:])
        else:
            c.sendall(whole)
        c.unwrap()


class Server:
    """ds_serve, of a model or as a front."""

    def __init__(self, *flags, tls=False, ready=False):
        self.process = subprocess.Popen([SERVE, "--port", "0", *flags], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        atexit.register(self.process.kill)
        self.lines, self.tls = [], tls
        threading.Thread(target=lambda: self.lines.extend(iter(self.process.stderr.readline, "")), daemon=True).start()
        line = self.process.stdout.readline()
        found = re.search(rf" on {'https' if tls else 'http'}://127.0.0.1:(\d+)\n", line)
        expect(found, line, self.lines)
        self.port = int(found[1])
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        if ready:
            until(lambda: self.ask("GET", "/ready")[0] == 200, self.lines)

    def ask(self, method, path, body=None, key=KEY):
        kind = http.client.HTTPConnection
        more = {}
        if self.tls:
            kind, more = http.client.HTTPSConnection, {"context": ssl.create_default_context(cafile="ca.pem")}
        c = kind("127.0.0.1", self.port, timeout=60, **more)
        c.request(method, path, body and json.dumps(body), {"Authorization": f"Bearer {key}"})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        expect(self.process.wait(60) == 0, self.lines)


# What is wrong with a server, and words of each client's error.
FAULTS = (("old", "well", "expired"), ("other", "well", "is for elsewhere.example, 10.1.2.3, not for 127.0.0.1"), ("self", "well", "self-signed"),
          ("good", "plain", "plain HTTP"), ("good", "banner", "does not speak TLS"), ("good", "closes", "does it speak https"))


# ---- MII's client ----
def ask(address, trust="ca.pem", key=KEY, seconds="20", prompt="the quick"):
    return run(ASK, address, "m", key, trust, seconds, prompt)


def client():
    p = Peer()
    for trust in ("ca.pem", "insecure"):
        for address in (p.url, p.url + "/", p.url.upper().replace("HTTPS", "https"), f"https://localhost:{p.port}"):
            got = ask(address, trust)
            expect(got.returncode == 0 and got.stdout == "né" * 20000 + "\n", address, got.stderr)
    expect(all(f"Authorization: Bearer {KEY}" in h and h.startswith("POST /mii/m ") for h in p.heads), p.heads)
    p.mode = "dribbles"
    expect(ask(p.url).returncode == 0)
    n = len(p.heads)
    for cert, mode, words in FAULTS:
        bad = Peer(cert, mode)
        got = ask(bad.url)
        expect(got.returncode == 1 and words in got.stderr and bad.url in got.stderr, cert, mode, got.stderr)
        expect(("ca_file" in got.stderr) == (mode == "well"), "what can be done", got.stderr)
        expect(not bad.heads, "a key went to a server that is not trusted")
        if mode == "well":
            expect(ask(bad.url, "insecure").returncode == 0, cert)
    expect(ask(Peer("self").url, "self.pem").returncode == 0, "the certificate itself")
    got = ask(p.url, "")
    expect(got.returncode == 1 and ("not trusted" in got.stderr or "ca-certificates" in got.stderr), got.stderr)
    p.mode = "cut"
    got = ask(p.url)
    expect(got.returncode == 1 and "without the end of TLS" in got.stderr, got.stderr)
    for mode in ("no handshake", "stalls"):
        bad = Peer("good", mode)
        got = ask(bad.url, seconds="0.5")
        expect(got.returncode == 1 and "within 0.5 s" in got.stderr, mode, got.stderr)
        bad.go.set()
    p.mode = "well"
    got = ask(f"127.0.0.1:{p.port}", "")
    expect(got.returncode == 1 and "https://" in got.stderr, "http where https is spoken", got.stderr)
    for address, trust, words in (("ftp://a", "", "expected HOST:PORT"), ("127.0.0.1", "", "expected HOST:PORT"), ("https://", "", "expected"), ("https://a/b", "", "expected"),
                                  ("http://127.0.0.1:1", "ca.pem", "ca_file goes with"), ("http://127.0.0.1:1", "insecure", "insecure goes with"), (p.url, "none.pem", "none.pem"),
                                  (p.url, "good.key", "no certificate in PEM"), ("https://127.0.0.1:1", "ca.pem", "refused"), ("https://nowhere.invalid", "ca.pem", "nowhere.invalid")):
        got = ask(address, trust)
        expect(got.returncode == 1 and words in got.stderr, address, trust, got.stderr)
    expect(len(p.heads) > n)


def mutated(rng):
    """An answer with something wrong about it, most times; and whether the text may still be there."""
    text = json.dumps([{"generated_text": "good", "prompt_length": 1, "generated_length": 2, "finish_reason": "stop"}]).encode()
    head = [b"HTTP/1.1 200 OK", b"Content-Type: application/json", b"Content-Length: %d" % len(text)]
    if rng.random() < 0.5:
        head[rng.randrange(3)] = rng.choice((b"", b"HTTP/1.1", b"HTTP/9.9 abc", b"HTTP/1.1 500 Oh", b"Content-Length: -5", b"Content-Length: 99999999999999999999999", b"Content-Length: x",
                                             b"\0\0\0", b"X: " + b"y" * 70000, b"HTTP/1.1 200", b"Content-Length: 3"))
    if rng.random() < 0.5:
        text = rng.choice((b"", b"[]", b"{}", b"[1]", b'[{"generated_text": 5}]', text[:-2], b"[" * 5000, b"\xff\xfe", text + text, b'{"error":{"message":"no"}}', b"null", text + b"\0"))
    whole = b"\r\n".join(head) + b"\r\n\r\n" + text
    if rng.random() < 0.4:
        at = rng.randrange(len(whole) + 1)
        whole = rng.choice((whole[:at], whole[:at] + rng.randbytes(rng.randint(1, 9)) + whole[at:], whole.replace(b"\r\n", b"\n"), rng.randbytes(50)))
    return whole


def hostile(n):
    """Random answers: the text, or an error in words; no crash, no wait."""
    rng, answers = random.Random(int(os.environ.get("SEED", "5"))), []
    listener = socket.create_server(("127.0.0.1", 0))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("good.pem", "good.key")

    def serve():
        while True:
            c, _ = listener.accept()
            try:
                c = context.wrap_socket(c, server_side=True) if tls[0] else c
                c.recv(65536)
                c.sendall(answers[-1])
                if tls[0]:
                    c.unwrap()
            except OSError:
                pass
            c.close()

    tls = [False]
    threading.Thread(target=serve, daemon=True).start()
    for _ in range(n):
        answers.append(mutated(rng))
        tls[0] = rng.random() < 0.5
        got = run(ASK, f"{'https' if tls[0] else 'http'}://127.0.0.1:{listener.getsockname()[1]}", "m", KEY, "ca.pem" if tls[0] else "", "5", "a")
        expect((got.returncode, got.stdout) == (0, "good\n") or got.returncode == 1 and got.stderr.startswith("http") and not re.search(r"within \d", got.stderr), answers[-1], got)


# ---- ds_bench and the front, against ds_serve ----
def bench(url, *flags):
    return run(BENCH, "--serve", url, "--requests", "6", "--clients", "3", "--output_tokens", "9", "--prompt_tokens", "20", "--warmups", "0", "--json", *flags)


def load(s):
    for endpoint in ("completions", "chat"):
        got = bench(s.url, "--cacert", "ca.pem", "--api_key_file", "key", "--endpoint", endpoint)
        expect(got.returncode == 0, got.stderr, got.stdout[-500:])
        report = json.loads(got.stdout)
        expect(report["done"] == 6 and all(r["output"] == 9 for r in report["each"]) and report["itl_ms"]["n"] > 6, report)
    expect(bench(s.url, "--insecure", "--api_key_file", "key").returncode == 0)
    for flags, words in (((s.url, "--api_key_file", "key"), ""), ((s.url, "--cacert", "ca.pem"), "status 401"), ((s.url, "--cacert", "none"), "none"),
                         ((s.url.replace("https", "http"), "--api_key_file", "key"), "https://"), ((s.url, "--cacert", "ca.pem", "--insecure"), "--cacert has no effect"),
                         ((s.url.replace("https", "http"), "--insecure"), "--insecure goes with"), ((s.url.replace("https", "http"), "--cacert", "ca.pem"), "--cacert goes with")):
        got = bench(*flags)
        expect(got.returncode in (1, 2) and words in got.stderr and got.stderr, flags, got.returncode, got.stderr)
    for cert, mode, words in FAULTS:
        bad = Peer(cert, mode)
        got = bench(bad.url, "--cacert", "ca.pem")
        expect(got.returncode == 1 and words in got.stderr and not bad.heads, cert, mode, got.stderr)
        expect(("--insecure" in got.stderr) == (mode == "well"), got.stderr)
    shutil.copy(BENCH, "alone")
    got = run("./alone", "--serve", s.url, env=dict(os.environ, DS_MODULE_PATH=""))
    expect(got.returncode == 1 and "libgnutls28-dev" in got.stderr, "without the module", got.stderr)


TEXT = dict(model="m", prompt="the quick", max_tokens=24, temperature=0)


def front(s):
    want = json.loads(s.ask("POST", "/v1/completions", TEXT)[1])["choices"][0]["text"]
    fast = ("--probe_seconds", "0.1", "--probe_timeout", "2")
    f = Server("--upstream", s.url, "--upstream_key_file", "key", "--upstream_cacert", "ca.pem", *fast, ready=True)
    for _ in range(3):
        expect(json.loads(f.ask("POST", "/v1/completions", TEXT)[1])["choices"][0]["text"] == want)
    status, text = f.ask("POST", "/v1/completions", dict(TEXT, stream=True))
    frames = [json.loads(t[6:]) for t in text.split("\n\n")[:-2]]
    expect(status == 200 and "".join(x["choices"][0]["text"] for x in frames) == want and text.endswith("data: [DONE]\n\n") and len(frames) > 5, text)
    long = json.loads(f.ask("POST", "/v1/completions", dict(TEXT, n=16, logprobs=5, max_tokens=200))[1])
    expect(len(long["choices"]) == 16, "an answer of many records")
    expect(s.url in f.ask("GET", "/health")[1])
    f.end()
    f = Server("--upstream", s.url, "--upstream_key_file", "key", "--upstream_insecure", *fast, ready=True)
    f.end()
    faults = FAULTS + (("good", "no handshake", "within 0.3 s"),)
    bad = [Peer(cert, mode) for cert, mode, _ in faults]
    f = Server(*(w for p in bad for w in ("--upstream", p.url)), "--upstream_cacert", "ca.pem", "--probe_seconds", "0.1", "--probe_timeout", "0.3")
    until(lambda: all(words in f.ask("GET", "/health")[1] for _, _, words in faults), lambda: f.ask("GET", "/health"))
    why = {r["url"]: r["why"] for r in json.loads(f.ask("GET", "/health")[1])["replicas"]}
    expect(all(words in why[p.url] for p, (_, _, words) in zip(bad, faults)), why)
    status, text = f.ask("POST", "/v1/completions", TEXT)
    expect(status == 503 and bad[-1].url in text and not any(p.heads for p in bad), text)
    for p in bad:
        p.go.set()
    f.end()
    for flags, words in ((("--upstream", "http://127.0.0.1:1", "--upstream_cacert", "ca.pem"), "--upstream_cacert goes with"), (("--upstream_insecure", *OWN), "--upstream_insecure goes with"),
                         (("--upstream", s.url, "--upstream_insecure", "--upstream_cacert", "ca.pem"), "no effect"), (("--upstream", s.url, "--upstream_cacert", "none"), "none"),
                         (("--upstream", s.url, "--replica_tls"), "--replica_tls"), (("--replica_tls", *OWN), "--replica_tls goes with"),
                         (("--replica=--model x --tls_cert good.pem --tls_key good.key",), "refuse their flags")):
        bad = run(SERVE, "--port", "0", *flags)
        expect(bad.returncode == 2 and words in bad.stderr, flags, bad.returncode, bad.stderr)


def replicas(want):
    """Of its own: a certificate for the run, which is the only one that is taken."""
    f = Server("--replicas", "2", "--replica_tls", "--tls_cert", "good.pem", "--tls_key", "good.key", "--api_key_file", "key", *OWN, tls=True, ready=True)
    for _ in range(4):
        expect(json.loads(f.ask("POST", "/v1/completions", TEXT)[1])["choices"][0]["text"] == want)
    urls = [r["url"] for r in json.loads(f.ask("GET", "/health")[1])["replicas"]]
    expect(all(u.startswith("https://127.0.0.1:") for u in urls), urls)
    seen = {ssl.get_server_certificate(("127.0.0.1", int(u.rsplit(":", 1)[1]))) for u in urls}
    expect(len(seen) == 1, "one certificate")
    with open("theirs.pem", "w", encoding="utf-8") as file:
        file.write(seen.pop())
    got = ask(urls[0], "theirs.pem")
    expect(got.returncode == 1 and "is for replica.ds-serve.invalid" in got.stderr, "of nobody's name", got.stderr)
    expect("401" in ask(urls[0], "insecure").stderr, "and their key is the front's")
    f.end()


def main():
    certificates()
    with open("key", "w", encoding="utf-8") as f:
        f.write(KEY + "\n")
    client()
    hostile(int(os.environ.get("CASES", "25")))
    s = Server(*OWN, "--chat_template", "chatml", "--tls_cert", "good.pem", "--tls_key", "good.key", "--api_key_file", "key", tls=True)
    want = json.loads(s.ask("POST", "/v1/completions", TEXT)[1])["choices"][0]["text"]
    expect(ask(s.url).stdout.startswith(want[:5]), "MII's client and ds_serve")
    load(s)
    front(s)
    s.end()
    replicas(want)
    print(f"https: {checks} checks")


main()
