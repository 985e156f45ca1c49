# SPDX-License-Identifier: Apache-2.0
"""ds_serve takes other weights while it serves. Usage: serve_reload.py PROGRAM: models a and b, adapter lora1 of a."""
import atexit
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

PROGRAM = sys.argv[1]
PROMPT = "the quick brown fox jumps over the lazy dog. " * 4
KEY = {"Authorization": "Bearer k"}
checks = 0


def expect(holds, *what):
    global checks
    checks += 1
    if not holds:
        raise SystemExit(f"FAILED at line {sys._getframe(1).f_lineno}: {what}")


class Server:
    def __init__(self, *flags, shape=("--dtype", "f32", "--max_length", "2048")):
        self.process = subprocess.Popen([PROGRAM, "--served_model_name", "m", "--port", "0", "--threads", "2", *shape,
                                         *(() if "bert" in flags else ("--kv_tokens", "16384")), *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        self.lines = []
        threading.Thread(target=lambda: self.lines.extend(iter(self.process.stderr.readline, "")), daemon=True).start()
        line = self.process.stdout.readline()
        found = re.search(r":(\d+)\n", line)
        expect(found, line, self.lines)
        self.port = int(found.group(1))

    def post(self, path, headers=KEY, **body):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=100)
        c.request("POST", path, json.dumps(body), headers)
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, json.loads(text)

    def complete(self, **body):
        status, got = self.post("/v1/completions", **dict(dict(model="m", prompt=PROMPT, max_tokens=40, temperature=0), **body))
        expect(status == 200, status, got)
        return got

    def text(self, **body):
        return self.complete(**body)["choices"][0]["text"]

    def root(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=100)
        c.request("GET", "/v1/models", headers=KEY)
        return json.loads(c.getresponse().read())["data"][0]["root"]

    def reload(self, **body):
        """/v1/models says what is served then."""
        had = self.root()
        status, got = self.post("/v1/reload", **body)
        if status == 200:
            expect(got["was"] == had and self.root() == got["model"], got, had)
        elif status == 400:
            expect(self.root() == had, got, had)
        return status, got

    def metric(self, name):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=100)
        c.request("GET", "/metrics", headers=KEY)
        return float(re.search(rf"^{re.escape(name)} (\S+)$", c.getresponse().read().decode(), re.M).group(1))

    def until(self, name, value):
        for _ in range(1500):
            if self.metric(name) == value:
                return
            time.sleep(0.02)
        expect(False, name, value, self.lines)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        expect(self.process.wait(60) == 0, self.lines)


def alone(model, **body):
    s = Server("--model", model, "--api_key_file", "keys")
    got = s.text(**body)
    s.end()
    return got


def weights(want):
    s = Server("--model", "a", "--api_key_file", "keys")
    expect(s.text() == want["a"] and s.complete()["usage"]["prompt_tokens_details"]["cached_tokens"] >= 128)
    long = s.text(max_tokens=1500)
    # a text that runs ends on the old weights, what comes then is of the new ones, without a key of the old
    found = []
    t = threading.Thread(target=lambda: found.append(s.text(max_tokens=1500)))
    t.start()
    s.until("vllm:num_requests_running", 1)
    status, got = s.reload(model="b")
    expect(status == 200 and got["model"] == "b" and got["status"] == "ok", got)
    fresh = s.complete()
    expect(fresh["choices"][0]["text"] == want["b"] and fresh["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, fresh)
    t.join()
    expect(found == [long], "the running text changed")
    expect(s.text() == want["b"])
    # what cannot be loaded changes nothing
    for model, what in (("nowhere", "nowhere"), ("broken", "broken"), ("words", "tokenizer"), ("stops", "other ids"), ("shorter", "1024 positions"), ("piped", "pipe")):
        status, got = s.reload(model=model)
        expect(status == 400 and what in got["error"]["message"], model, got)
        expect(s.text() == want["b"], model)
    expect(s.metric("ds_serve_reloads_total") == 1 and s.metric("ds_serve_failed_reloads_total") == 6)
    for body in (dict(model=3), dict(what="a")):
        expect(s.reload(**body)[0] == 400, body)
    expect(s.post("/v1/reload", headers={}, model="a")[0] == 401)
    # {}: what is served, which others have replaced meanwhile
    os.rename("b", "b.old")
    shutil.copytree("a", "b")
    expect(s.reload()[0] == 200 and s.text() == want["a"])
    os.rename("b", "b.new")
    os.rename("b.old", "b")
    s.process.send_signal(signal.SIGHUP)
    s.until("ds_serve_reloads_total", 3)
    expect(s.text() == want["b"] and any("b is loaded anew" in x for x in s.lines), s.lines)
    os.rename("b", "b.old")
    s.process.send_signal(signal.SIGHUP)
    s.until("ds_serve_failed_reloads_total", 7)
    os.rename("b.old", "b")
    expect(s.text() == want["b"] and any("b is not loaded: " in x for x in s.lines), s.lines)
    load(s, want)
    s.end()
    s = Server("--model", "a")
    expect(s.reload()[0] == 403)
    s.end()
    with open("there.json", "w", encoding="utf8") as file:
        json.dump(dict(checkpoint_config=dict(checkpoint_dir="b"), dtype="fp32", max_out_tokens=2048), file)
    s = Server("--model", "a", "--api_key_file", "keys", "--deepspeed_config", "there.json", shape=())
    expect(s.text() == want["b"] and s.reload()[0] == 200 and s.text() == want["b"])
    status, got = s.reload(model="b")  # whose weights would not be served
    expect(status == 400 and "there.json says where the weights are" in got["error"]["message"], got)
    s.end()
    for flags in (("--deepspeed_config", "there.json"), ("--offload_param", "cpu"), ("--nvme_path", "."), ("--kv_type", "int8"), ("--offload_kv",)):
        got = subprocess.run([PROGRAM, "--model", "bert", "--port", "0", *flags], capture_output=True, text=True, check=False, timeout=60)
        expect(got.returncode == 2 and "is an encoder" in got.stderr and "--deepspeed_config" in got.stderr, got)


def load(s, want):
    """Clients see nothing of it but the texts."""
    stop, seen, bad, texts = threading.Event(), set(), [], set()

    def client():
        while not stop.is_set():
            status, got = s.post("/v1/completions", model="m", prompt=PROMPT, max_tokens=40, temperature=0)
            if status != 200:
                bad.append(got)
            else:
                seen.add(got["choices"][0]["text"])

    threads = [threading.Thread(target=client) for _ in range(6)]
    for t in threads:
        t.start()
    for i in range(200):
        if i >= 6 and len(seen) == 2:  # reloads may be much faster than texts
            break
        status, got = s.reload(model="ab"[i % 2])
        expect(status == 200, got)
        seen.clear()
        for _ in range(3000):  # what is asked from now on is of the new weights
            if want["ab"[i % 2]] in seen:
                break
            time.sleep(0.01)
        expect(want["ab"[i % 2]] in seen, i, seen)
        texts |= seen
    answers = []
    both = [threading.Thread(target=lambda: answers.append(s.reload(model="a")[0])) for _ in range(6)]
    for t in both:
        t.start()
    for t in both:
        t.join()
    expect(set(answers) <= {200, 409} and 200 in answers, answers)
    stop.set()
    for t in threads:
        t.join()
    expect(not bad and texts | seen == set(want.values()), bad[:1], texts, seen)
    s.until("ds_serve_jobs", 0)


def adapters():
    s = Server("--model", "a", "--api_key_file", "keys", "--lora", "l=lora1", "--max_loras", "2", "--max_lora_rank", "4", "--lora_updates")
    plain, adapted = s.text(), s.text(model="l")
    expect(plain != adapted)
    expect(s.post("/v1/load_lora_adapter", lora_name="k", lora_path="lora1")[0] == 200 and s.text(model="k") == adapted)
    status, got = s.post("/v1/load_lora_adapter", lora_name="p", lora_path="piped")  # which the engine would wait for
    expect(status == 400 and "pipe" in got["error"]["message"], got)
    expect(s.reload(model="b")[0] == 200)
    expect(s.text() not in (plain, adapted) and s.text(model="l") == s.text(model="k") != s.text())
    expect(s.reload(model="a")[0] == 200 and s.text() == plain and s.text(model="l") == adapted)
    expect(s.post("/v1/unload_lora_adapter", lora_name="l")[0] == 200 and s.text(model="k") == adapted)
    expect(s.post("/v1/completions", model="l", prompt="a")[0] == 404)
    os.rename("lora1", "lora2")  # one that is gone: the old server stays, with its slots
    status, got = s.reload(model="b")
    expect(status == 400 and "lora1" in got["error"]["message"], got)
    expect(s.text() == plain and s.text(model="k") == adapted)
    os.rename("lora2", "lora1")
    expect(s.reload()[0] == 200 and s.text(model="k") == adapted)  # in the new server it is another number
    s.end()


def while_it_loads():
    """A SIGHUP before it serves waits until it does."""
    os.mkfifo("late")
    process = subprocess.Popen([PROGRAM, "--model", "a", "--port", "0", "--threads", "1", "--dtype", "f32", "--api_key_file", "late"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    atexit.register(process.kill)
    with open("late", "w", encoding="utf8") as keys:  # it reads them first
        process.send_signal(signal.SIGHUP)
        time.sleep(0.1)
        keys.write("k\n")
    expect(process.stdout.readline().startswith("serving "), process.poll())
    expect(any("a is loaded anew" in line for line in process.stderr))
    process.send_signal(signal.SIGTERM)
    expect(process.wait(60) == 0)


def vectors():
    """A request has its vectors of one model, however many documents it has."""
    s = Server("--model", "bert", "--api_key_file", "keys", "--max_length", "64", "--max_choices", "1000")
    text = " ".join(["the quick brown fox jumps over the lazy dog"] * 6)

    def embed(n):
        status, got = s.post("/v1/embeddings", model="m", input=[text] * n)
        expect(status == 200, got)
        return {json.dumps(d["embedding"]) for d in got["data"]}

    first, seen, stop = embed(1), [], threading.Event()

    def client():
        while not stop.is_set():
            seen.append(embed(300))

    t = threading.Thread(target=client)
    t.start()
    for i in range(6):
        status, got = s.reload(model=("bert2", "bert")[i % 2])
        expect(status == 200, got)
        expect((embed(1) == first) == (i % 2 == 1), i)
    stop.set()
    t.join()
    expect([len(x) for x in seen] == [1] * len(seen), [len(x) for x in seen])
    s.end()


def replicas(want):
    shutil.copytree("a", "c")
    s = Server("--replicas", "2", "--model", "c", "--probe_seconds", "0.1")
    expect(s.text() == want["a"])
    os.rename("c", "c.old")
    shutil.copytree("b", "c")
    s.process.send_signal(signal.SIGHUP)
    s.until("ds_serve_reloads_total", 2)
    expect([s.text(prompt=PROMPT) for _ in range(4)] == [want["b"]] * 4)
    s.end()


with open("keys", "w", encoding="utf8") as out:
    out.write("k\n")
shutil.copytree("a", "broken")
os.truncate("broken/model.safetensors", 5000)
shutil.copytree("a", "piped")
os.unlink("piped/config.json")
os.mkfifo("piped/config.json")
shutil.copytree("a", "words")
with open("words/tokenizer.json", "a", encoding="utf8") as out:
    out.write("{}")
shutil.copytree("a", "shorter")
config = json.load(open("shorter/config.json", encoding="utf8"))
config["max_position_embeddings"] = 1024
json.dump(config, open("shorter/config.json", "w", encoding="utf8"))
shutil.copytree("a", "stops")
with open("stops/generation_config.json", "w", encoding="utf8") as out:
    out.write('{"eos_token_id": [101]}')
texts = {m: alone(m) for m in "ab"}
expect(texts["a"] != texts["b"], texts)
weights(texts)
adapters()
while_it_loads()
vectors()
replicas(texts)
print(f"{checks} checks")
