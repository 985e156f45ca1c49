# SPDX-License-Identifier: Apache-2.0
"""Random reloads of ds_serve under load: folders that are whole, broken, or other than what is served, also by several at a time and through
a front. Each answer is that of one folder in force while it was asked, whole; no request is lost; what is refused changes nothing.
Usage: serve_reloads.py PROGRAM [RELOADS [SEED]]: models a and b, adapter lora1 of a"""
import atexit
import http.client
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

PROGRAM = sys.argv[1]
N = int(sys.argv[2]) if len(sys.argv) > 2 else 40
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
SAID = [{"role": "user", "content": "the quick"}]
ASKS = (("/v1/completions", dict(model="m", prompt="the quick brown", max_tokens=24, temperature=0)),
        ("/v1/completions", dict(model="m", prompt=["the ", "zigzag"], n=2, max_tokens=40, seed=5)),
        ("/v1/completions", dict(model="l", prompt="the quick brown", max_tokens=24, temperature=0, logprobs=1)),
        ("/v1/chat/completions", dict(model="m", messages=SAID, max_tokens=60, temperature=0, stream=True)),
        ("/v1/completions", dict(model="m", prompt="the ", max_tokens=40, seed=3, structured_outputs={"regex": "[a-e ]{10,40}"})),
        ("/v1/completions", dict(model="m", prompt="the quick", max_tokens=12, use_beam_search=True, n=2)),
        ("/v1/embeddings", dict(model="m", input=["the quick brown", "over the dog", "x" * 90])))


def fail(*what):
    raise SystemExit(f"FAILED (seed {SEED}): {what}")


class Server:
    def __init__(self, *flags):
        self.process = subprocess.Popen([PROGRAM, "--served_model_name", "m", "--port", "0", "--threads", "1", "--max_length", "256", "--kv_tokens", "8192", "--chat_template", "chatml",
                                         "--api_key_file", "keys", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        self.lines = []
        threading.Thread(target=lambda: self.lines.extend(iter(self.process.stderr.readline, "")), daemon=True).start()
        found = re.search(r":(\d+)\n", self.process.stdout.readline())
        self.port = int(found.group(1)) if found else 0

    def ask(self, path, body=None, timeout=60):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        c.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), {"Authorization": "Bearer k"})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text

    def answer(self, k):
        status, text = self.ask(*ASKS[k])
        if status != 200:
            return status, text
        frames = [json.loads(f.removeprefix("data: ")) for f in text.split("\n\n") if f.startswith("data: {")] if text.startswith("data:") else [json.loads(text)]
        if frames and "data" in frames[0]:
            return json.dumps([d["embedding"] for d in frames[0]["data"]])
        if text.startswith("data:") and (not text.endswith("data: [DONE]\n\n") or any("error" in f for f in frames)):
            return "a stream without its end", text
        return json.dumps(["".join(c["delta"].get("content") or "" for f in frames for c in f["choices"])] if "delta" in frames[0]["choices"][0] else
                          [[c["text"], c["logprobs"], c["finish_reason"]] for c in frames[0]["choices"]])

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


# ---- folders ----
def edit(path, change):
    with open(path, encoding="utf8") as f:
        value = json.load(f)
    change(value)
    with open(path, "w", encoding="utf8") as f:
        json.dump(value, f)


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def drop_tensor(folder, rename=None):
    path = f"{folder}/model.safetensors"
    with open(path, "rb") as f:
        data = f.read()
    n = int.from_bytes(data[:8], "little")
    head = json.loads(data[8:8 + n])
    name = sorted(k for k in head if k != "__metadata__")[-1]
    if rename:
        head[rename] = head.pop(name)
    else:
        head[name]["shape"].reverse()
        head[name]["shape"].append(1)
    new = json.dumps(head).encode()
    write(path, len(new).to_bytes(8, "little") + new + data[8 + n:])


def fifo(path):
    os.unlink(path)
    os.mkfifo(path)


def instead(path, make):
    os.unlink(path)
    make(path)


BROKEN = {
    "cut": lambda d, r: os.truncate(f"{d}/model.safetensors", r.randrange(os.path.getsize(f"{d}/model.safetensors"))),
    "no weights": lambda d, r: os.unlink(f"{d}/model.safetensors"), "no config": lambda d, r: os.unlink(f"{d}/config.json"),
    "long header": lambda d, r: write(f"{d}/model.safetensors", (1 << r.choice((20, 40, 62, 63))).to_bytes(8, "little") + b"{}"),
    "one name": lambda d, r: drop_tensor(d, "model.other.weight"), "one shape": lambda d, r: drop_tensor(d),
    "config": lambda d, r: write(f"{d}/config.json", r.choice((b"", b"{", b"[]", b"null", b"{}", b"\xff", b'{"model_type":"llama"}', b'{"model_type":"none"}', b"[" * 9999))),
    "layers": lambda d, r: edit(f"{d}/config.json", lambda c: c.update(num_hidden_layers=r.choice((1, 3, 0, -1, 10**9, "2")))),
    "sizes": lambda d, r: edit(f"{d}/config.json", lambda c: c.update(r.choice(({"hidden_size": 64}, {"intermediate_size": 65}, {"vocab_size": 321}, {"num_attention_heads": 3}, {"num_attention_heads": 0},
                                                                                   {"hidden_size": 2**31}, {"rope_scaling": {"type": "none"}}, {"rms_norm_eps": "x"}, {"hidden_act": "none"})))),
    "fifo config": lambda d, r: fifo(f"{d}/config.json"), "fifo weights": lambda d, r: fifo(f"{d}/model.safetensors"),
    "folder for a file": lambda d, r: instead(f"{d}/{r.choice(('config.json', 'model.safetensors'))}", os.mkdir),
    "dangling": lambda d, r: instead(f"{d}/model.safetensors", lambda p: os.symlink("nowhere", p)),
    "an index": lambda d, r: (os.rename(f"{d}/model.safetensors", f"{d}/model-00001-of-00002.safetensors"), write(f"{d}/model.safetensors.index.json", json.dumps(
        {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}).encode())),
}
OTHER = {
    "tokenizer": lambda d, r: write(f"{d}/tokenizer.json", open(f"{d}/tokenizer.json", "rb").read() + b" \n"),
    "a template": lambda d, r: write(f"{d}/chat_template.jinja", b"{{ messages[0].content }}"),
    "ids that end": lambda d, r: write(f"{d}/generation_config.json", b'{"eos_token_id": [101]}'),
    "shorter": lambda d, r: edit(f"{d}/config.json", lambda c: c.update(max_position_embeddings=128)),
}
SAME = {
    "as it is": lambda d, r: None, "a note": lambda d, r: write(f"{d}/README.md", b"x"),
    "a link": lambda d, r: (os.rename(f"{d}/model.safetensors", f"{d}/weights"), os.symlink("weights", f"{d}/model.safetensors")),
    "an index": lambda d, r: (os.rename(f"{d}/model.safetensors", f"{d}/model-00001-of-00001.safetensors"), write(f"{d}/model.safetensors.index.json", json.dumps(
        {"weight_map": {k: "model-00001-of-00001.safetensors" for k in tensors(d + "/model-00001-of-00001.safetensors")}}).encode())),
}
PATHS = ("", ".", "/", "/dev/null", "nowhere", "a\nb", "nowhere.gguf", "x" * 5000, "org/name", "../" * 300 + "a", "keys", "lora1", "%n%s%d", "\u00e9", "bytes", "a/config.json")


def tensors(path):
    with open(path, "rb") as f:
        return [k for k in json.loads(f.read(int.from_bytes(f.read(8), "little"))) if k != "__metadata__"]


def folder(rng, i):
    """A path to reload, and which base it has; None: it is to be refused."""
    fate = rng.random()
    base = rng.choice("ab")
    if fate < 0.15:
        return rng.choice(PATHS), None
    if fate < 0.25:
        return rng.choice((base, f"./{base}/", os.path.abspath(base))), base
    table, base_then = (SAME, base) if fate < 0.55 else (OTHER, None) if fate < 0.65 else (BROKEN, None)
    path = f"made{i}"
    shutil.copytree(base, path)
    table[rng.choice(sorted(table))](path, rng)
    return path, base_then


def main():
    rng = random.Random(SEED)
    with open("keys", "w", encoding="utf8") as f:
        f.write("k\n")
    flags = ["--lora", "l=lora1", "--max_loras", "2", "--max_lora_rank", "4", "--dtype", rng.choice(("f32", "bf16"))]
    flags += rng.choice(([], [], ["--draft", "3"], ["--draft_model", "a"], ["--kv_type", "int8"], ["--quantize", "q8_0"], ["--no_prefix_cache"], ["--offload_param", "nvme", "--nvme_path", "."]))
    want = {}
    for base in "ab":
        s = Server("--model", base, *flags)
        if not s.port:
            fail("no server", flags, s.lines)
        want[base] = [s.answer(k) for k in range(len(ASKS))]
        s.end()
    if any(not isinstance(x, str) for w in want.values() for x in w) or want["a"][0] == want["b"][0]:
        fail("the bases", want)
    front = rng.random() < 0.3
    s = Server("--model", "a", *flags, *(("--replicas", "2", "--probe_seconds", "0.1") if front else ()))
    if not s.port:
        fail("no server", flags, s.lines)
    history, lock, over, wrong, counts = [[0.0, 0.0, "a"]], threading.Lock(), threading.Event(), [], {}

    def client(seed):
        mine = random.Random(seed)
        while not over.is_set() and not wrong:
            k = mine.randrange(len(ASKS))
            begin = time.time()
            try:
                got = s.answer(k)
            except Exception as e:
                got = repr(e), ""
            end = time.time()
            with lock:
                known = [list(h) for h in history]
            may = {known[max(i for i, h in enumerate(known) if h[1] is not None and h[1] <= begin)][2]} | {b for t, u, b in known if t < end and (u is None or u > begin)}
            if got not in [want[b][k] for b in may]:
                wrong.append((ASKS[k], got, {b: want[b][k] for b in want}, may))
            counts[k] = counts.get(k, 0) + 1

    threads = [threading.Thread(target=client, args=(SEED * 100 + i,)) for i in range(5)]
    for t in threads:
        t.start()
    made = loaded = 0
    for i in range(N):
        path, base = folder(rng, i)
        hidden = base and not front and rng.random() < 0.1
        if hidden:
            os.rename("lora1", "away")
            base = None
        with lock:
            if base:
                history.append([time.time(), None, base])
        try:
            status, text = s.ask("/v1/reload", dict(model=path) if rng.random() < 0.97 or base != history[-1][2] else dict(model=path))
        except Exception as e:
            status, text = repr(e), ""
        if hidden:
            os.rename("away", "lora1")
        with lock:
            if base and status == 200:
                history[-1][1] = time.time()
                loaded += 1
        if (status == 200) != (base is not None) or status not in (200, 400) or status != 200 and not json.loads(text)["error"]["message"]:
            wrong.append(("reload", path, base, hidden, status, text, s.lines[-5:]))
        made += 1
        if wrong:
            break
        if rng.random() < 0.5:
            time.sleep(rng.uniform(0, 0.15))
        shutil.rmtree(f"made{i - 3}", ignore_errors=True)
    over.set()
    for t in threads:
        t.join()
    if wrong:
        fail(flags, front, *wrong[0])
    if s.end() != 0:
        fail("its end", s.lines)
    print(f"seed {SEED}: {made} reloads{' through a front' if front else ''}, {loaded} loaded, {sum(counts.values())} answers ({' '.join(flags[6:])})")


main()
