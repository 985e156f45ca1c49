# SPDX-License-Identifier: Apache-2.0
"""Reloads of ds_serve over ranks that share the layers. Usage: serve_reload_ranks.py BUILD FOLDER_A FOLDER_B FOLDER_WITH_OTHER_ENDS ADAPTER"""
import atexit
import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time

BUILD = pathlib.Path(sys.argv[1])
A, B, OTHER, LORA = (str(pathlib.Path(p).resolve()) for p in sys.argv[2:6])
PROMPTS = ["the quick brown ", "zigzag goes", "q" * 70]
LONG = 200
KEY = tempfile.NamedTemporaryFile("w")
KEY.write("secret\n")
KEY.flush()
checks = 0


def expect(holds, *what):
    global checks
    checks += 1
    if not holds:
        raise SystemExit(f"FAILED at line {sys._getframe(1).f_lineno}: {what}")


class Server:
    all = []

    def __init__(self, n, model, *flags):
        launcher = [BUILD / "deepspeed", "--num_gpus", str(n)] if n > 1 else []
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [*launcher, BUILD / "ds_serve", "--model", model, "--served_model_name", "m", "--port", "0", "--threads", "1",
             "--api_key_file", KEY.name, "--dtype", "f32", "--kv_tokens", "4096", "--max_length", "512", *flags], stdout=subprocess.PIPE, stderr=self.errors, text=True)
        Server.all.append(self.process)
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
        c.request(method, path, None if body is None else json.dumps(body), {"Authorization": "Bearer secret"})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text

    def complete(self, prompt, n=16, model="m"):
        status, text = self.ask("POST", "/v1/completions", {"model": model, "prompt": prompt, "max_tokens": n, "temperature": 0})
        expect(status == 200, status, text)
        return json.loads(text)["choices"][0]["text"]

    def texts(self, model="m"):
        return [self.complete(p, model=model) for p in PROMPTS] + [self.complete(PROMPTS[0], LONG, model)]

    def reload(self, folder):
        return self.ask("POST", "/v1/reload", {"model": folder} if folder else {})

    def ranks(self):
        return [r["process"] for r in json.loads(self.ask("GET", "/health")[1])["ranks"]]

    def metric(self, name):
        return float(re.search(rf"^{name} (\S+)$", self.ask("GET", "/metrics")[1], re.M).group(1))

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        expect(self.process.wait(60) == 0, self.said())


def texts_of(folder, *flags, model="m"):
    server = Server(1, folder, *flags)
    got = server.texts(model)
    server.end()
    return got


@atexit.register
def end_all():
    for process in Server.all:
        process.terminate()


want = {A: texts_of(A), B: texts_of(B)}
expect(want[A] != want[B], "the models are alike")


def two_run(server, pool, model="m"):
    """Two long texts, both under way; where one is over before the other begins, two others."""
    while True:
        running = [pool.submit(server.complete, PROMPTS[0], LONG, model) for _ in range(2)]
        while server.ask("GET", "/slots")[1].count('"text"') < 2 and not any(r.done() for r in running):
            time.sleep(0.01)
        if not any(r.done() for r in running):
            return running


def swaps(n, times):
    """Texts that run end on the old weights, those that come are made of the new ones; again and again."""
    server = Server(n, A)
    expect(server.texts() == want[A], n)
    served = A
    for i in range(times):
        other = B if served == A else A
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            running = two_run(server, pool)
            status, text = server.reload(other)
            expect(status == 200 and json.loads(text)["was"] == served, status, text)
            new = [pool.submit(server.complete, p) for p in PROMPTS]
            expect([r.result() for r in running] == [want[served][-1]] * 2, n, i, "texts that ran")
            expect([r.result() for r in new] == want[other][:-1], n, i, "texts that came")
        served = other
    expect(server.texts() == want[served], n)
    expect(server.metric("ds_serve_reloads_total") == times, "reloads")
    return server


def refused(server):
    """The old weights stay on all ranks where one rank cannot load, or rank 0 says no."""
    for folder, word in (("/nowhere", "nowhere"), (OTHER, "other ids")):
        status, text = server.reload(folder)
        expect(status == 400 and word in text, status, text)
    expect(server.texts() == want[A], "after folders that are refused")
    one = server.ranks()[1]
    failed = 0
    files = len(os.listdir(f"/proc/{one}/fd"))
    for kind, more in ((resource.RLIMIT_NOFILE, 0), (resource.RLIMIT_AS, 0), (resource.RLIMIT_AS, 1 << 20), (resource.RLIMIT_AS, 8 << 20)):
        memory = int(pathlib.Path(f"/proc/{one}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        usual = resource.prlimit(one, kind)
        resource.prlimit(one, kind, ((files if kind == resource.RLIMIT_NOFILE else memory) + more, usual[1]))
        status, text = server.reload(B)
        resource.prlimit(one, kind, usual)
        if status == 200:  # it was enough
            expect(server.reload(A)[0] == 200, "and back")
        else:
            failed += 1
            expect("rank 1" in text and status == 400, status, text)
        expect(server.texts() == want[A], more, "after a rank that could not")
    expect(failed > 1, "rank 1 failed", failed)
    print(f"rank 1 alone failed {failed} times", flush=True)
    before = server.metric("ds_serve_reloads_total")
    os.kill(server.ranks()[0], signal.SIGHUP)
    while server.metric("ds_serve_reloads_total") == before:
        time.sleep(0.01)
    expect(server.texts() == want[A], "after SIGHUP")
    server.end()


def killed(stopped):
    server = Server(2, A)
    one = server.ranks()[1]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        if stopped:  # so that rank 0 waits for it in the middle
            os.kill(one, signal.SIGSTOP)
        answer = pool.submit(server.reload, B)
        if stopped:
            expect(server.ask("GET", "/health")[0] in (200, 503), "health")
        os.kill(one, signal.SIGKILL)
        try:
            status, text = answer.result()
        except OSError as e:
            status, text = 0, str(e)
    begin = time.monotonic()
    code = server.process.wait(60)
    said = server.said()
    # with its coordinates where the communicator of the mesh finds it first
    named = any(f"rank 1 {at}(process {one}" in said for at in ("", "(dp 0, tp 1) "))
    expect(code != 0 and named, code, said)
    expect(status != 200, status, text)
    print(f"killed: {status} {text[:150].strip()}; over after {time.monotonic() - begin:.1f} s", flush=True)


def adapters():
    """The slots of the new server have the adapters of those in force, on every rank; where one cannot read them nothing changes."""
    flags = ("--lora", f"lo={LORA}", "--max_loras", "3", "--max_lora_rank", "4", "--lora_updates")
    lora = {folder: texts_of(folder, *flags, model="lo") for folder in (A, B)}
    expect(lora[A] != lora[B] and all(lora[f] != want[f] for f in (A, B)), "the adapter changes nothing")
    server = Server(2, A, *flags)
    expect(server.ask("POST", "/v1/load_lora_adapter", {"lora_name": "more", "lora_path": LORA})[0] == 200, "one more")

    def served(folder, names):
        expect(server.texts() == want[folder], folder, "without an adapter")
        for name in names:
            expect(server.texts(name) == lora[folder], folder, name)

    served(A, ("lo", "more"))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = two_run(server, pool, "lo")
        status, text = server.reload(B)
        expect(status == 200, status, text)
        expect([r.result() for r in running] == [lora[A][-1]] * 2, "texts of an adapter that ran")
    served(B, ("lo", "more"))
    expect(server.ask("POST", "/v1/unload_lora_adapter", {"lora_name": "more"})[0] == 200, "unload")
    expect(server.reload(A)[0] == 200, "back")
    served(A, ("lo",))
    os.rename(LORA, LORA + ".away")
    status, text = server.reload(B)
    expect(status == 400 and LORA in text, status, text)
    os.rename(LORA + ".away", LORA)
    served(A, ("lo",))
    one = server.ranks()[1]
    usual = resource.prlimit(one, resource.RLIMIT_NOFILE)
    failed = set()
    for more in range(12):  # rank 1 alone can open the weights, but none of the adapter's files
        resource.prlimit(one, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{one}/fd")) + more, usual[1]))
        status, text = server.reload(B)
        resource.prlimit(one, resource.RLIMIT_NOFILE, usual)
        if status == 200:
            served(B, ("lo",))
            break
        expect(status == 400 and "rank 1" in text, status, text)
        failed.add(LORA in text or LORA in server.said())
        served(A, ("lo",))
    expect(True in failed, "rank 1 never failed at the adapter", failed)
    expect(server.ask("POST", "/v1/load_lora_adapter", {"lora_name": "more", "lora_path": LORA})[0] == 200, "one more behind it")
    served(B, ("lo", "more"))
    server.end()


adapters()
refused(swaps(2, 2))
swaps(3, 1).end()
killed(False)
killed(True)
print(f"{checks} checks")
