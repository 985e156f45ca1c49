# SPDX-License-Identifier: Apache-2.0
"""Random command lines of ds_serve and of its fronts, and random hostfiles: each starts, with the replicas that it should have, and answers
as one server does, or is refused with exit code 2 and a text that names the flag. Hosts are addresses of this machine behind an ssh of
ours, which runs what it is given. Usage: serve_flags.py PROGRAM MODEL [CASES [SEED]]"""
import atexit
import http.client
import json
import os
import random
import re
import signal
import ssl
import subprocess
import sys
import threading

PROGRAM, MODEL = sys.argv[1:3]
N = int(sys.argv[3]) if len(sys.argv) > 3 else 60
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else 1
OWN = ("--model", MODEL, "--served_model_name", "m", "--max_length", "256", "--kv_tokens", "1024", "--threads", "1")
ASK = json.dumps(dict(model="m", prompt="the quick", max_tokens=12, temperature=0))


def fail(*what):
    raise SystemExit(f"FAILED (seed {SEED}): {what}")


class Server:
    def __init__(self, *flags):
        env = dict(os.environ, PATH=os.getcwd() + "/bin:" + os.environ["PATH"])
        self.process = subprocess.Popen([PROGRAM, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        atexit.register(self.process.kill)
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(iter(self.process.stderr.readline, "")), daemon=True)
        self.reader.start()
        timer = threading.Timer(60, self.process.kill)
        timer.start()
        self.line = self.process.stdout.readline()
        timer.cancel()
        found = re.fullmatch(r"serving m on (https?)://[^ ]+:(\d+)\n", self.line)
        self.tls, self.port = (found.group(1) == "https", int(found.group(2))) if found else (False, 0)
        if not found:
            self.code = self.process.wait(60)
            self.reader.join(10)

    def ask(self, method, path, body=None, key=None):
        kind = (lambda *a, **k: http.client.HTTPSConnection(*a, context=ssl._create_unverified_context(), **k)) if self.tls else http.client.HTTPConnection
        c = kind("127.0.0.1", self.port, timeout=30)
        c.request(method, path, body, {"Authorization": f"Bearer {key}"} if key else {})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text

    def text(self, key=None):
        status, got = self.ask("POST", "/v1/completions", ASK, key)
        return json.loads(got)["choices"][0]["text"] if status == 200 else (status, got)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


# ---- hostfiles ----
def good_line(rng, host, slots):
    space = rng.choice((" ", "  ", "\t", " \t "))
    user = rng.choice(("", "", "", "me@"))
    return rng.choice(("", "", " ", "\t")) + user + host + space + f"slots={rng.choice(('', '', '0'))}{slots}" + rng.choice(("", "", " ", "\t", " # comment", " #", " max_slots=4", "\r"))


BAD = ("{h}", "{h} slots=", "{h} slots=x", "{h} slots=-1", "{h} slots=0", "{h} slots=1.5", "{h} slots = 2", "{h}slots=2", "{h} slot=2", "{h} slots=2 junk", "{h} slots=99999999999999999999",
       "{h} slots=1025", "slots=2", "-oProxyCommand=x slots=1", "{h}; slots=1", "a b slots=2", "{h}:slots=2", "@{h} slots=1", "-l@{h} slots=1", "{h}\0 slots=1", "$(id) slots=1", "\u00e9 slots=1",
       "{h} gpus=2", "{h},{h} slots=1", "{h} SLOTS=1", "{h} slots=1 slots=1", "x" * 254 + " slots=1", "[{h}] slots=1", "{h} slots=+1", "{h} slots=1#c", "{h} slots=\u0661")


def hostfile(rng):
    """Its text; (host, slots) of each line, or None where it is to be refused."""
    hosts = rng.sample(["127.0.0.2", "127.0.0.3", "localhost"], rng.randint(1, 2))
    pairs = [(h, rng.choice((1, 1, 2))) for h in hosts]
    lines = [good_line(rng, *p) for p in pairs]
    fate = rng.random()
    if fate < 0.35:
        lines.insert(rng.randint(0, len(lines)), rng.choice(BAD).format(h=rng.choice(("127.0.0.4", "node"))))
        pairs = None
    elif fate < 0.45:
        lines.append(good_line(rng, hosts[0], 1))
        pairs = None
    elif fate < 0.5:
        lines, pairs = rng.choice(([], ["", "# only this"], ["\t"])), None
    for _ in range(rng.randint(0, 3)):
        lines.insert(rng.randint(0, len(lines)), rng.choice(("", "  ", "# a comment slots=3", "\t# 127.0.0.9 slots=1", "\r", "#")))
    return "\n".join(lines) + rng.choice(("\n", "", "\n\n")), pairs


def choose(rng, pairs):
    """--include or --exclude of such hosts; how many slots are left, or the flag that is wrong."""
    way = rng.choice(("include", "exclude"))
    if rng.random() < 0.3:
        what = rng.choice(("nobody", "127.0.0.2:9", "127.0.0.2:x", "@", ":", "127.0.0.2:0@@localhost", "127.0.0.2:0:1", "", ",", "127.0.0.2:1-"))
        if what not in ("127.0.0.2:0",):
            return ["--" + way, what], way
    host, slots = rng.choice(pairs)
    some = rng.choice((host, f"{host}:{slots - 1}", f"{host}:" + ",".join(map(str, range(slots)))))
    n = slots if ":" not in some else some.count(",") + 1
    left = n if way == "include" else sum(s for _, s in pairs) - n
    return ["--" + way, some], left if left else way


# ---- command lines ----
CLIENTS = {"max_waiting": ((0, 1, 300), (-1, "x", "1e3")), "max_connections": ((4, 1000), (0, -1, 100001)), "max_body": ((1024, 1 << 20), (10, "1k")), "max_choices": ((1, 200), (0, 1025)),
           "timeout_seconds": ((1, 60), (0, "1s", 86401)), "drain_seconds": ((0, 5), (-1, 86401, ""))}
TIMES = {"probe_seconds": ((0.1, 1), (0, "nan", "inf", -1, 3601)), "probe_timeout": ((5, 30), (0, "-inf", "x")), "reload_timeout": ((1, 60), (0, "1e9"))}
ENGINE = {"max_sequences": ((1, 4), (0, 4097)), "max_batch_tokens": ((16, 64), (0, 65537)), "kv_type": (("f32", "int8"), ("f64", "")), "state_snapshots": ((0, "0"), (-1, 65537)), "hang_seconds": ((0, 60), (-1, "nan")),
          "draft": ((0, 3), (-1, 1000)), "pooling": (("last", "mean"), ("most",)), "dtype": (("f32",), ("f8",)), "rank_seconds": ((2, 7), (1,))}
UPSTREAMS = ("https://127.0.0.1:1/a", "https://", "http://127.0.0.1:1/a", "http://", "http://127.0.0.1:99999", "http://127.0.0.1:0", "http://127.0.0.1:x", "ftp://127.0.0.1:1", "http://nowhere.invalid:1", "http://[::1", "")


def command(rng, urls, pem):
    """Flags; the flags of which one must be named, or None and how many replicas there are, and the key."""
    kind = rng.choice(("plain", "replicas", "replicas", "replica", "hostfile", "hostfile", "hostfile", "upstream", "upstream", "both", "none", "two"))
    flags, wrong, n, key = ["--port", "0"], set(), 0, None
    model = list(OWN)
    own = kind in ("replicas", "hostfile", "both", "two")
    pairs = None
    if kind in ("replicas", "both", "two"):
        n = rng.randint(1, 2)
        flags += ["--replicas", str(n)]
    if kind == "replica":
        n = rng.randint(1, 2)
        flags += ["--replica=" + " ".join(OWN) for _ in range(n)]
        if rng.random() < 0.3:
            k = rng.choice((n, n + 1))
            flags += ["--replicas", str(k)]
            wrong |= {"replica"} if k != n else set()
        model = []
    if kind in ("hostfile", "two"):
        text, pairs = hostfile(rng)
        with open("hosts", "w", encoding="utf8") as f:
            f.write(text)
        n += sum(s for _, s in pairs or [])
        flags += ["--hostfile", "hosts"] if rng.random() < 0.95 else ["--hostfile", "nofile"]
        wrong |= {"hostfile"} if pairs is None or flags[-1] == "nofile" else set()
    if kind == "two":
        wrong = {"hostfile", "replicas"}
    if kind in ("upstream", "both"):
        keyed = rng.random() < 0.4
        tls = len(urls) > 2 and rng.random() < 0.3
        n += 1
        flags += ["--upstream", urls[2 if tls else keyed]]
        if keyed or tls:
            flags += ["--upstream_key_file", "upkey"]
        trust = rng.choice((["--upstream_insecure"], ["--upstream_cacert", "cert.pem"], ["--upstream_cacert", "cert.pem", "--upstream_insecure"], ["--upstream_cacert", "key.pem"], ["--upstream_cacert", "nofile"]))
        if tls or rng.random() < 0.05:
            flags += trust
            wrong |= {"upstream_"} if not tls or trust[-1] in ("key.pem", "nofile") or len(trust) > 2 else set()
        if rng.random() < 0.2:
            flags += ["--upstream", rng.choice(UPSTREAMS)]
            wrong.add("upstream")
        model = [] if kind == "upstream" else model
    if kind == "none":
        model = []
        wrong.add("model")
    flags += model
    front = kind not in ("plain", "none")

    def add(table, share, allowed):
        for name, (good, bad) in table.items():
            if rng.random() < share:
                value = rng.choice(good if rng.random() < 0.85 else bad)
                flags.extend([f"--{name}", str(value)] if rng.random() < 0.5 else [f"--{name}={value}"])
                if value not in good or not allowed:
                    wrong.add(name)

    add(CLIENTS, 0.06, kind not in ("none",))
    if kind in ("replica", "upstream") and any(f.startswith(("--max_waiting", "--max_choices")) for f in flags):
        wrong |= {"max_waiting", "max_choices"}
    add(TIMES, 0.06 if front else 0.02, front)
    add(ENGINE, 0.04, bool(model))
    add({"replica_restarts": ((0, 3), (-1, "x"))}, 0.06, front and kind != "upstream")
    add({"replica_port": ((0,), (-1, 65001))}, 0.05, front and kind != "upstream")
    if rng.random() < 0.08:
        flags += ["--replica_tls"]
        wrong |= {"replica_tls"} if not front or kind == "upstream" or not pem else set()
    add({"ssh_port": ((0, 22), (65536, "ssh"))}, 0.05, "hostfile" in flags or "--hostfile" in flags)
    if rng.random() < (0.3 if pairs else 0.03):
        if pairs and kind == "hostfile" and not wrong:
            more, n_or_wrong = choose(rng, pairs)
            flags += more
            if isinstance(n_or_wrong, str):
                wrong.add(n_or_wrong)
            else:
                n = n_or_wrong
            if rng.random() < 0.15:
                flags += ["--exclude" if more[0] == "--include" else "--include", pairs[0][0]]
                wrong |= {"include", "exclude"}
        elif not pairs:
            flags += ["--include", "a"]
            wrong.add("include" if kind not in ("hostfile", "two") else "hostfile")
    if rng.random() < 0.12:
        file, bad = rng.choice((("keys", False), ("keys", False), ("nofile", True), ("empty", True), (".", True)))
        flags += ["--api_key_file", file]
        key = "k1"
        wrong |= {"api_key_file"} if bad else set()
    if pem and rng.random() < 0.1:
        cert, secret = rng.choice((("cert.pem", "key.pem"), ("cert.pem", "key.pem"), ("cert.pem", None), (None, "key.pem"), ("key.pem", "cert.pem"), ("cert.pem", "keys"), ("nofile", "key.pem"), ("cert.pem", "cert.pem")))
        flags += (["--tls_cert", cert] if cert else []) + (["--tls_key", secret] if secret else [])
        wrong |= {"tls_"} if (cert, secret) != ("cert.pem", "key.pem") else set()
    if rng.random() < 0.03:
        flags += rng.choice((["--replicaz", "2"], ["word"], ["--upstream"], ["--control"] if front else ["--host", "nowhere.invalid"]))
        wrong.add({"--replicaz": "replicaz", "word": "word"}.get(flags[-1] if flags[-1] in ("word",) else flags[-2], flags[-1].strip("-") if flags[-1].startswith("-") else "host"))
    if rng.random() < 0.03 and model:
        flags += rng.choice((["--lora_updates"], ["--max_lora_rank", "8"], ["--no_embeddings", "--normalize", "no"]))
        wrong |= {"lora_updates", "max_lora_rank", "normalize", "pooling"}
    return flags, wrong, n if front else 0, key


def one(rng, urls, want, pem):
    flags, wrong, n, key = command(rng, urls, pem)
    s = Server(*flags)
    said = "".join(s.lines)
    if not s.port:
        if not wrong:
            fail("refused", flags, s.code, said)
        if s.code != 2 or not any(w in said for w in wrong):
            fail("refused, but not as it should be", flags, wrong, s.code, said)
        return False
    if wrong:
        fail("starts", flags, wrong, said)
    exact = any(f.startswith("--kv_type") for f in flags)
    got = s.text(key)
    if exact and not isinstance(got, str) or not exact and got != want:
        fail("another text", flags, got, want, said)
    if key and s.text("k2")[0] != 401:
        fail("a key is asked for", flags)
    health = json.loads(s.ask("GET", "/health")[1])
    if len(health.get("replicas", [])) != n:
        fail("replicas", flags, n, health, open("hosts", encoding="utf8").read() if "hosts" in flags else "")
    code = s.end()
    if code != 0:
        fail("its end", flags, code, s.lines)
    return True


def main():
    os.makedirs("bin", exist_ok=True)
    with open("bin/ssh", "w", encoding="utf8") as f:
        f.write('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    os.chmod("bin/ssh", 0o755)
    for name, text in (("keys", "k1\n"), ("upkey", "up\n"), ("empty", "\n\n")):
        with open(name, "w", encoding="utf8") as f:
            f.write(text)
    pem = subprocess.run("openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1", shell=True, capture_output=True, check=False).returncode == 0
    pem = pem and os.path.exists(os.path.join(os.path.dirname(PROGRAM), "libdeepspeed_tls.so"))
    servers = [Server("--port", "0", *OWN), Server("--port", "0", "--api_key_file", "upkey", *OWN)]
    servers += [Server("--port", "0", "--api_key_file", "upkey", "--tls_cert", "cert.pem", "--tls_key", "key.pem", *OWN)] if pem else []
    want = servers[0].text()
    if not isinstance(want, str):
        fail("no server", want, servers[0].lines)
    rng = random.Random(SEED)
    started = sum(one(rng, [f"{'https' if s.tls else 'http'}://127.0.0.1:{s.port}" for s in servers], want, pem) for _ in range(N))
    for s in servers:
        s.end()
    print(f"seed {SEED}: {N} command lines, {started} started")


main()
