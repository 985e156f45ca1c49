# SPDX-License-Identifier: Apache-2.0
"""Random fronts of ds_serve over two hosts: servers and their ssh connections are killed and stopped under load, all load anew. Each
answer is the text that one server alone gives, or an error that says what was lost; afterwards all are up again; at the end nothing is
left. Usage: serve_hosts.py PROGRAM MODEL SSH_PORT SEED SECONDS"""
import atexit
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

PROGRAM, MODEL, SSH_PORT = sys.argv[1:4]
SEED, SECONDS = int(sys.argv[4]), float(sys.argv[5])
OWN = ("--model", os.path.abspath(MODEL), "--served_model_name", "m", "--max_length", "256", "--kv_tokens", "2048", "--threads", "1", "--max_sequences", "8")
ASKS = [dict(model="m", prompt=p, max_tokens=n, temperature=t, seed=7, ignore_eos=True) for p in ("the king", "what say you, my lord? ", "x" * 130)
        for n, t in ((3, 0), (60, 0), (60, 1))]
counts = {}


def fail(*what):
    raise SystemExit(f"FAILED (seed {SEED}): {what}")


def count(what):
    counts[what] = counts.get(what, 0) + 1


class Server:
    def __init__(self, *flags):
        self.process = subprocess.Popen([PROGRAM, "--port", "0", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        self.lines = []
        threading.Thread(target=lambda: self.lines.extend(iter(self.process.stderr.readline, "")), daemon=True).start()
        found = re.fullmatch(r"serving m on http://127.0.0.1:(\d+)\n", self.process.stdout.readline())
        if not found:
            fail("no server", flags, self.lines)
        self.port = int(found[1])

    def ask(self, method, path, body=None, timeout=120):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        c.request(method, path, body and json.dumps(body), {"Authorization": "Bearer k"})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text


def servers():
    """The processes that the fronts of this test have started on the hosts."""
    out = subprocess.run(("pgrep", "-f", "--", f"^[^ ]*ds_serve .*{os.path.abspath(MODEL)} .*--control --host 0.0.0.0"), capture_output=True, text=True, check=False).stdout
    return [int(p) for p in out.split()]


def connections(front):
    out = subprocess.run(("pgrep", "-P", str(front.process.pid), "-x", "ssh"), capture_output=True, text=True, check=False).stdout
    return [int(p) for p in out.split()]


def text_of(answer):
    return json.loads(answer)["choices"][0]["text"]


def judge(ask, want, status, answer, stream):
    if status == 200 and stream:
        frames = answer.split("\n\n")[:-1]
        if frames[-1] == "data: [DONE]":
            if "".join(text_of(f[6:]) for f in frames[:-1]) != want:
                fail("another text", ask, want, answer)
            return "stream"
        got = "".join(text_of(f[6:]) for f in frames[:-1])
        if "replica_lost" not in frames[-1] or not want.startswith(got):
            fail("a stream's end", ask, want, answer)
        return "stream lost"
    if status == 200:
        if text_of(answer) != want:
            fail("another text", ask, want, answer)
        return "text"
    if status not in (502, 503) or not json.loads(answer)["error"]["message"]:
        fail("status", ask, status, answer)
    return f"status {status}"


def load(front, wants, rng, over, wrong):
    answer = None
    try:
        while not over.is_set() and not wrong:
            i, stream = rng.randrange(len(ASKS)), rng.random() < 0.5
            answer = front.ask("POST", "/v1/completions", dict(ASKS[i], stream=True) if stream else ASKS[i])
            count(judge(ASKS[i], wants[i], *answer, stream))
    except SystemExit as e:
        wrong.append(str(e))
    except Exception as e:
        wrong.append(f"FAILED (seed {SEED}): {e!r}; {answer}; {front.lines[-5:]}")


def event(front, rng):
    """What happens to one of the servers, or to all."""
    what = rng.choice(("kill", "stop", "end", "cut", "reload", "ask", "ask"))
    alive = servers()
    if what in ("kill", "end", "stop") and alive:
        pid = rng.choice(alive)
        try:
            os.kill(pid, {"kill": signal.SIGKILL, "end": signal.SIGTERM, "stop": signal.SIGSTOP}[what])
            if what == "stop":
                time.sleep(rng.uniform(0.2, 6))
                os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass
    elif what == "cut" and connections(front):
        try:
            os.kill(rng.choice(connections(front)), signal.SIGKILL)
        except ProcessLookupError:
            pass
    elif what == "reload":
        status, text = front.ask("POST", "/v1/reload", {} if rng.random() < 0.5 else {"model": os.path.abspath(MODEL)})
        if status not in (200, 409, 502, 503):
            fail("reload", status, text)
        what = f"reload {status}"
    else:
        for path in ("/health", "/metrics", "/slots", "/v1/models", "/ready"):
            status, text = front.ask("GET", path)
            if status not in (200, 503) or (path == "/health" and len(json.loads(text)["replicas"]) == 0):
                fail(path, status, text)
    count(what)


def all_up(front, n):
    status, text = front.ask("GET", "/health")
    return status == 200 and sum(r["state"] == "up" for r in json.loads(text)["replicas"]) == n


def until(condition, seconds, *what):
    end = time.time() + seconds
    while not condition():
        if time.time() > end:
            fail(*what)
        time.sleep(0.1)


def one(rng, wants, seconds):
    slots = [(h, rng.choice((1, 2))) for h in rng.sample(("127.0.0.2", "127.0.0.3"), rng.choice((1, 2, 2)))]
    if slots == [(slots[0][0], 1)]:
        slots = [(slots[0][0], 2)]
    n = sum(s for _, s in slots)
    with open("hosts", "w", encoding="utf-8") as f:
        f.write("".join(f"{h} slots={s}\n" for h, s in slots))
    flags = rng.choice(((), ("--replica_tls",)))
    if len(slots) == 1:  # both hosts are one machine here
        flags += rng.choice(((), ("--replica_port", str(rng.randrange(12000, 18000)))))
    front = Server("--hostfile", "hosts", "--ssh_port", SSH_PORT, "--api_key_file", "keys", "--replica_restarts", "100", "--probe_seconds", "0.2", "--probe_timeout",
                   rng.choice(("2", "5")), *flags, *OWN)
    until(lambda: all_up(front, n), 120, "not up", front.lines)
    over, wrong = threading.Event(), []
    threads = [threading.Thread(target=load, args=(front, wants, random.Random(rng.random()), over, wrong)) for _ in range(6)]
    for t in threads:
        t.start()
    end = time.time() + seconds
    try:
        while time.time() < end and not wrong:
            event(front, rng)
            time.sleep(rng.uniform(0, 1.5))
    finally:
        over.set()
        for t in threads:
            t.join()
    if wrong:
        raise SystemExit(wrong[0])
    until(lambda: all_up(front, n), 120, "not up again", front.ask("GET", "/health"), front.lines[-10:])
    for ask, want in zip(ASKS, wants):
        end = time.time() + 60  # on a busy machine one may be late to answer a probe even now
        status, text = front.ask("POST", "/v1/completions", ask)
        while status in (502, 503) and time.time() < end:
            time.sleep(0.2)
            status, text = front.ask("POST", "/v1/completions", ask)
        if status != 200 or text_of(text) != want:
            fail("afterwards", ask, want, status, text)
    kills = rng.random() < 0.3
    front.process.send_signal(signal.SIGKILL if kills else signal.SIGTERM)
    code = front.process.wait(60)
    if code != (-signal.SIGKILL if kills else 0):
        fail("exit code", code, front.lines)
    until(lambda: not servers(), 30, "left behind", servers())


def main():
    with open("keys", "w", encoding="utf-8") as f:
        f.write("k\n")
    alone = Server(*OWN)
    wants = [text_of(alone.ask("POST", "/v1/completions", a)[1]) for a in ASKS]
    alone.process.terminate()
    alone.process.wait(60)
    rng, begun, n = random.Random(SEED), time.time(), 0
    while n == 0 or time.time() - begun < SECONDS:
        one(rng, wants, min(25, SECONDS))
        n += 1
    print(f"seed {SEED}: {n} fronts: " + ", ".join(f"{v} {k}" for k, v in sorted(counts.items())))


main()
