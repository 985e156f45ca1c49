# SPDX-License-Identifier: Apache-2.0
"""T5 by ds_serve: transformers' texts (test/golden/t5/served.json) by completions, streams, several of one source, searches (ds_generate's, too) and a reload;
a crowd has the texts of each alone; vectors of the encoder; weights in blocks; adapters by the request; a draft model; what is refused, by name. Usage: serve_t5.py BUILD MODELS OTHER_MODEL"""
import atexit
import http.client
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading

BUILD, MODELS, OTHER = sys.argv[1:4]
with open(f"{MODELS}/served.json", encoding="utf-8") as golden:
    ROWS = {row["base"]: row for row in json.load(golden) if row["scale"] is None}
with open(f"{MODELS}/blocks.json", encoding="utf-8") as golden:
    BLOCKS = json.load(golden)
with open(f"{MODELS}/adapted.json", encoding="utf-8") as golden:
    ADAPTED = [row for row in json.load(golden) if row["base"] == "t5"]
LENGTH = 128
KEYS = tempfile.NamedTemporaryFile("w", prefix="keys", encoding="utf-8")
KEYS.write("key\n")
KEYS.flush()


def expect(holds, *what):
    if not holds:
        raise SystemExit(f"FAILED at line {sys._getframe(1).f_lineno}: {what}")


def words(ids):
    return bytes(ids).decode(errors="replace")


class Server:
    def __init__(self, model, *flags):
        self.process = subprocess.Popen(self.command(model, *flags), stdout=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        self.port = int(re.search(r":(\d+)\n", self.process.stdout.readline()).group(1))

    @staticmethod
    def command(model, *flags):
        return [f"{BUILD}/ds_serve", "--model", model, "--tokenizer", "bytes", "--served_model_name", "m", "--port", "0", "--dtype", "f32",
                "--chat_template", "chatml", "--threads", "1", "--max_length", str(LENGTH),
                "--api_key_file", KEYS.name, *flags]

    def open(self, path="/v1/completions", **body):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request("POST", path, json.dumps(body if path.startswith(("/mii", "/v1/load_", "/v1/unload_")) else {"model": "m", **body}), {"Authorization": "Bearer key"})
        return c

    def ask(self, path="/v1/completions", **body):
        c = self.open(path, **body)
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text if body.get("stream") and r.status == 200 else json.loads(text)

    def complete(self, prompt, **body):
        status, got = self.ask(prompt=prompt, **body)
        expect(status == 200, status, got)
        return got

    def metrics(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request("GET", "/metrics", headers={"Authorization": "Bearer key"})
        lines = c.getresponse().read().decode().splitlines()
        c.close()
        return {line.split()[0]: float(line.split()[1]) for line in lines if line and line[0] != "#"}

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        expect(self.process.wait(30) == 0, self.process.returncode)


def refused(*flags, text, model=f"{MODELS}/t5"):
    got = subprocess.run(Server.command(model, *flags), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    expect(got.returncode != 0 and text in got.stderr, flags, got.returncode, got.stderr)


def check_greedy(s, row, **more):
    for text in row["texts"]:
        got = s.complete(text["source"], **more, max_tokens=len(text["ids"]), temperature=0, logprobs=1, ignore_eos=True)
        choice = got["choices"][0]
        expect(choice["text"] == words(text["ids"]) and choice["finish_reason"] == "length", choice, text)
        expect(all(abs(a - b) < 1e-4 for a, b in zip(choice["logprobs"]["token_logprobs"], text["logprobs"])), choice, text)
        expect(got["usage"]["prompt_tokens"] == len(text["source"]) and got["usage"]["completion_tokens"] == len(text["ids"]), got["usage"])


s = Server(f"{MODELS}/t5", "--kv_tokens", "1024")
check_greedy(s, ROWS["t5"])
long, ids = ROWS["t5"]["texts"][1]["source"], ROWS["t5"]["texts"][1]["ids"]

# a stream, and a stop string that ends in the midst of it
status, text = s.ask(prompt=long, max_tokens=len(ids), temperature=0, stream=True)
frames = [json.loads(f[6:])["choices"][0] for f in text.split("\n\n")[:-2]]
expect(status == 200 and "".join(f["text"] for f in frames) == words(ids) and len(frames) > 10, frames)
whole = words(ids)
got = s.complete(long, max_tokens=len(ids), temperature=0, stop=whole[7:9])["choices"][0]
expect(got["finish_reason"] == "stop" and got["text"] == whole[:whole.index(whole[7:9])], got)

# several of a source: the first is the one that the seed names, all read the source once
one = s.complete(long, max_tokens=30, temperature=1, seed=5)["choices"][0]["text"]
several = [c["text"] for c in s.complete(long, max_tokens=30, temperature=1, seed=5, n=4)["choices"]]
expect(several[0] == one and len(set(several)) == 4, several, one)
expect(several == [c["text"] for c in s.complete(long, max_tokens=30, temperature=1, seed=5, n=4)["choices"]], several)

# a search, echo, MII's path, a chat, vectors
search = ROWS["t5"]["search"]
got = s.complete(search["source"], max_tokens=20, use_beam_search=True, n=search["n"], stop_token_ids=search["stops"], length_penalty=search["penalty"])
for choice, want in zip(got["choices"], search["texts"]):
    expect(choice["text"] == words([i for i in want["ids"] if i not in search["stops"]]), choice, want)
got = s.complete("turn: abc", max_tokens=5, temperature=0)["choices"][0]["text"]
expect(s.complete("turn: abc", max_tokens=5, temperature=0, echo=True)["choices"][0]["text"] == "turn: abc" + got, got)
beams = s.complete("turn: abc", max_tokens=5, use_beam_search=True, n=1, best_of=3)["choices"][0]["text"]
made = subprocess.run([f"{BUILD}/ds_generate", "--model", f"{MODELS}/t5", "--tokenizer", "bytes", "--dtype", "f32", "--num_beams", "3", "--no_echo",
                       "--prompt", "turn: abc", "--max_new_tokens", "5"], capture_output=True, timeout=60, check=False)
expect(made.returncode == 0 and made.stdout.decode().removesuffix("\n") == beams, made, beams)
status, mii = s.ask("/mii/m", prompts="turn: abc", max_new_tokens=5, do_sample=False)
expect(status == 200 and mii[0]["generated_text"] == got and mii[0]["prompt_length"] == 9, mii)
status, chat = s.ask("/v1/chat/completions", messages=[{"role": "user", "content": "a"}], max_tokens=3, temperature=0)
expect(status == 200 and chat["usage"]["completion_tokens"] <= 3, chat)
status, vectors = s.ask("/v1/embeddings", input=["turn: abc", [7, 8, 9]])
expect(status == 200 and [len(v["embedding"]) for v in vectors["data"]] == [36, 36], vectors)

# limits: a source may be as long as --max_length, and what is made of it, less the id that it begins with
most = s.complete([9] * LENGTH, max_tokens=LENGTH - 1, temperature=0)
expect(most["usage"]["prompt_tokens"] == LENGTH, most)
for body, param in ((dict(prompt=[9] * (LENGTH + 1), max_tokens=1), "prompt"), (dict(prompt=[9], max_tokens=LENGTH), "prompt"),
                    (dict(prompt=[9], echo=True, logprobs=1), "echo"), (dict(prompt=[9], prompt_logprobs=1), "prompt_logprobs"),
                    (dict(prompt=[], max_tokens=1), "prompt")):
    status, error = s.ask(**body)
    expect(status == 400 and error["error"]["param"] == param, body, status, error)

# a client that goes away costs no further step
c = s.open(prompt=[11] * 90, max_tokens=120, temperature=1, ignore_eos=True, stream=True, n=3)
c.getresponse().read(40)
c.close()
for _ in range(10000):
    now = s.metrics()
    left = now["vllm:num_requests_running"] + now["vllm:num_requests_waiting"]
    if left == 0:
        break
expect(left == 0, now)

# a reload: the other model's texts; one that is no T5 is refused
status, got = s.ask("/v1/reload", **{"model": f"{MODELS}/t5_untied"})
expect(status == 200, got)
check_greedy(s, ROWS["t5_untied"])
status, got = s.ask("/v1/reload", **{"model": OTHER})
expect(status != 200 and "makes texts of sources" in got["error"]["message"], got)
check_greedy(s, ROWS["t5_untied"])
s.end()


def crowd(*flags):
    server = Server(f"{MODELS}/t5_start", *flags)
    wrong = []

    def one(k):
        text = ROWS["t5_start"]["texts"][k % 4]
        got = server.complete(text["source"], max_tokens=len(text["ids"]), temperature=0, ignore_eos=True)["choices"][0]["text"]
        if got != words(text["ids"]):
            wrong.append((k, got))

    threads = [threading.Thread(target=one, args=(k,)) for k in range(24)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    expect(not wrong, flags, wrong)
    server.end()


crowd("--max_sequences", "8", "--max_batch_tokens", "8", "--kv_tokens", "256")
crowd("--draft", "3", "--kv_type", "f32")
with tempfile.TemporaryDirectory() as disk:
    crowd("--offload_param", "nvme", "--nvme_path", disk)
    crowd("--offload_param", "nvme", "--nvme_path", disk, "--offload_kv", "--max_sequences", "5", "--kv_tokens", "256")
    crowd("--offload_param", "nvme", "--nvme_path", disk, "--offload_kv", "--draft", "2", "--kv_type", "f32")

crowd("--draft_model", f"{MODELS}/t5_start", "--draft", "3", "--max_sequences", "5")

# weights in blocks
for row in BLOCKS:
    if row["type"] in ("q8_0", "q4_1"):
        s = Server(f"{MODELS}/{row['base']}", "--quantize", row["type"])
        check_greedy(s, row)
        s.end()

# adapters by the request, at the start and while it runs; a source is not another adapter's
NAMED = {row["adapter"].split("/")[-1]: row for row in ADAPTED if row["adapter"] is not None}
FOLDERS = {name: f"{MODELS}/../{row['adapter']}" for name, row in NAMED.items()}
s = Server(f"{MODELS}/t5", "--lora", f"encoder={FOLDERS['encoder']}", "--lora", f"cross={FOLDERS['cross']}", "--max_loras", "3", "--max_lora_rank", "4",
           "--lora_updates")
status, got = s.ask("/v1/load_lora_adapter", lora_name="decoder", lora_path=FOLDERS["decoder"])
expect(status == 200, got)
for _ in range(2):
    check_greedy(s, ADAPTED[0])
    for name in ("encoder", "cross", "decoder"):
        check_greedy(s, NAMED[name], model=name)
        check_greedy(s, NAMED[name], lora=name)
status, got = s.ask("/v1/load_lora_adapter", lora_name="end", lora_path=FOLDERS["end"])
expect(status == 400 and "slots" in got["error"]["message"], status, got)
status, got = s.ask("/v1/unload_lora_adapter", lora_name="cross")
expect(status == 200, got)
status, got = s.ask("/v1/load_lora_adapter", lora_name="end", lora_path=FOLDERS["end"])
expect(status == 200, got)
check_greedy(s, NAMED["end"], model="end")
status, got = s.ask("/v1/load_lora_adapter", lora_name="other", lora_path=f"{MODELS}/../adapter/lora/end")
expect(status == 400, got)
s.end()

refused("--draft_model", OTHER, text="reads no sources")
print("PASS")
