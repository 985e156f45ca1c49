# SPDX-License-Identifier: Apache-2.0
"""Random requests of ds_serve: alone on one server, then all at once on another one with other limits, guesses, cache, neighbours that
vanish and adapters that come and go: the same answers to the bit, whole and as streams. Of T5, too, whose prompts are sources.
Usage: serve_random.py PROGRAM MODEL LORA1 LORA2 [REQUESTS [SEED [DRAFTER]]]"""
import atexit
import base64
import http.client
import json
import math
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

from tagged_tokenizer import make_tokenizer

PROGRAM, MODEL, *LORAS = sys.argv[1:5]
with open(f"{MODEL}/config.json", encoding="utf-8") as model_config:
    PAIRS = json.load(model_config)["model_type"] == "t5"
NAMES = "mmab"
LORA_FLAGS = ["--lora", f"a={LORAS[0]}", "--lora", f"b={LORAS[1]}", "--max_loras", "3", "--max_lora_rank", "4", "--lora_updates"]
N = int(sys.argv[5]) if len(sys.argv) > 5 else 60
SEED = int(sys.argv[6]) if len(sys.argv) > 6 else 1
DRAFTER = sys.argv[7] if len(sys.argv) > 7 else None  # of a model that carries a state, which cannot be its own
WORDS = "the quick brown fox jumps over lazy dog zigzag goes up and down 1 2 , . \n \" * : \u00e9 \u4e16".split(" ")
FORMS = (dict(structured_outputs={"regex": "[a-f]{3,9}( [0-9]+)?"}), dict(structured_outputs={"choice": ["the fox", "the dog", "a"]}),
         dict(structured_outputs={"grammar": 'root ::= "x" [a-c]* | "y" root "z"'}), dict(response_format={"type": "json_object"}),
         dict(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {
             "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
             "required": ["a"]}}}))


TEMPLATE = ("{% if tools %}<tools>{% for t in tools %}{{ t.function.name }} {% endfor %}<tool_call></tool_call>{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
            "{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}{{ m.tool_call_id or '' }}\n{% endfor %}<assistant>")
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["b"]}}}
         for name in ("look", "walk_to")]


def fail(*what):
    raise SystemExit(f"FAILED (seed {SEED}): {what}")


class Server:
    def __init__(self, *flags):
        self.process = subprocess.Popen([PROGRAM, "--model", MODEL, "--served_model_name", "m", "--tokenizer", "tagged", "--port", "0",
                                         "--max_length", "448", *LORA_FLAGS, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        found = re.fullmatch(r"serving m on http://127.0.0.1:(\d+)\n", self.process.stdout.readline())
        if not found:
            fail("no server", flags, self.process.stderr.read())
        self.port = int(found.group(1))

    def ask(self, path, body):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        c.request("POST", path, json.dumps(body))
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(60) != 0:
            fail("exit code", self.process.returncode, self.process.stderr.read())


def prompt(rng, most=60):
    return " ".join(rng.choices(WORDS, k=rng.choice((1, 3, 12, most))))[:150]


def behind(rng):
    """A prompt that may begin as others do, for whole blocks of keys."""
    return ("to be or not to be, that is the question " * 4)[:rng.choice((0, 64, 100, 130))] + prompt(rng, 30)


def sampling(rng, body):
    """What draws, some of it."""
    body.update(temperature=rng.choice((0.3, 1, 1.5)), seed=rng.randrange(2**31))
    if rng.random() < 0.25:
        body.update(mirostat=rng.choice((1, 2)), mirostat_tau=rng.uniform(1, 8), mirostat_eta=rng.uniform(0.05, 0.5))
    else:
        for name, value in (("top_k", rng.randint(1, 40)), ("top_p", rng.uniform(0.1, 1)), ("min_p", rng.uniform(0, 0.2)), ("typical_p", rng.uniform(0.2, 1))):
            if rng.random() < 0.4:
                body[name] = value


def text_request(rng):
    chat = rng.random() < 0.3
    body = dict(model=rng.choice(NAMES), max_tokens=rng.randint(1, 60), temperature=0)
    if chat:
        body["messages"] = [dict(role=r, content=prompt(rng, 30)) for r in rng.choice((("user",), ("system", "user"), ("user", "assistant", "user")))]
    else:
        body["prompt"] = rng.choice((behind(rng), [behind(rng), behind(rng)], list(behind(rng).encode())))
    for name, value in (("stop_token_ids", rng.sample(range(32, 127), 2)), ("min_tokens", rng.randint(0, body["max_tokens"])), ("ignore_eos", True)):
        if rng.random() < 0.2:
            body[name] = value
    if rng.random() < 0.2:
        best = rng.randint(2, 4)
        body.update(use_beam_search=True, n=rng.randint(1, best), max_tokens=min(body["max_tokens"], 16))
        body["min_tokens"] = min(body.get("min_tokens", 0), body["max_tokens"])
        if chat:
            body["n"] = best
        else:
            body["best_of"] = best
        body.update(rng.choice(({}, {"length_penalty": rng.uniform(-1, 2)}, {"early_stopping": rng.choice((True, False, "never"))})))
        return "chat/completions" if chat else "completions", body
    if rng.random() < 0.7:
        sampling(rng, body)
    for name, value in (("presence_penalty", rng.uniform(-2, 2)), ("frequency_penalty", rng.uniform(-2, 2)), ("repetition_penalty", rng.uniform(0.7, 1.5)),
                        ("stop", rng.choice(("fo", [" ", "zz"], "e j"))), ("n", rng.randint(2, 3)), ("dry_multiplier", rng.uniform(0.1, 2)),
                        ("logit_bias", {str(rng.randrange(256)): rng.uniform(-5, 5) for _ in range(3)})):
        if rng.random() < 0.15:
            body[name] = value
    if "dry_multiplier" in body and rng.random() < 0.5:
        body.update(dry_base=rng.uniform(1, 2), dry_allowed_length=rng.randint(1, 4), dry_penalty_last_n=rng.choice((-1, 5, 50)))
    if chat and rng.random() < 0.3:
        body["messages"] = [dict(role="user", content=prompt(rng, 5))]
        body.update(tools=TOOLS, tool_choice=rng.choice(("auto", "required", {"type": "function", "function": {"name": "look"}})), max_tokens=rng.choice((20, 100)))
        body.update(rng.choice(({}, {"parallel_tool_calls": False}, {"parallel_tool_calls": True})))
        if "min_tokens" in body:
            body["min_tokens"] = min(body["min_tokens"], body["max_tokens"])
        if rng.random() < 0.3:
            body.update(logprobs=True, top_logprobs=rng.randint(0, 3))
        if rng.random() < 0.3:
            body["messages"] += [{"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {
                "name": "look", "arguments": '{"b":"x"}'}}]}, {"role": "tool", "tool_call_id": "c", "content": prompt(rng, 5)}]
        if "stop_token_ids" in body:
            body.pop("min_tokens", None)  # a form may have no other id there
    elif rng.random() < 0.25:
        body.update(rng.choice(FORMS))
        if "stop_token_ids" in body:
            body.pop("min_tokens", None)
        if rng.random() < 0.3:
            body.update(dict(logprobs=True, top_logprobs=rng.randint(0, 5)) if chat else dict(logprobs=rng.randint(0, 5)))
    elif rng.random() < 0.2:
        body.update(dict(logprobs=True, top_logprobs=rng.randint(0, 5)) if chat else dict(logprobs=rng.randint(0, 5)))
    if not chat and rng.random() < 0.1 and not (PAIRS and "logprobs" in body):
        body["echo"] = True
    if not PAIRS and rng.random() < 0.05:
        body["prompt_logprobs"] = rng.randint(0, 3)
    elif not chat and rng.random() < 0.05:
        body["best_of"] = body.get("n", 1) + rng.randint(0, 2)
    return "chat/completions" if chat else "completions", body


def vector_request(rng):
    several = [rng.choice((behind(rng), "x" * rng.randint(1, 150))) for _ in range(rng.randint(1, 5))]
    body = dict(model=rng.choice(NAMES), input=rng.choice((several, several[0], [list(t.encode()) for t in several], list(several[0].encode()))))
    body.update(rng.choice(({}, {"encoding_format": "base64"}, {"encoding_format": "float"})))
    if rng.random() < 0.3:
        body["dimensions"] = rng.randint(1, 32)
    return "embeddings", body


def check_alone(kind, body, got):
    """What holds of every answer."""
    if kind == "embeddings":
        inputs = body["input"]
        n = 1 if isinstance(inputs, str) or isinstance(inputs[0], int) else len(inputs)
        if [d["index"] for d in got["data"]] != list(range(n)):
            fail("order", body, got)
        for d in got["data"]:
            v = d["embedding"]
            v = list(struct.unpack(f"<{len(base64.b64decode(v)) // 4}f", base64.b64decode(v))) if isinstance(v, str) else v
            if len(v) != body.get("dimensions", 32) or abs(math.fsum(x * x for x in v) - 1) > 1e-5:
                fail("vector", body, d)
        return
    n = body.get("n", 1) * (len(body["prompt"]) if isinstance(body.get("prompt"), list) and isinstance(body["prompt"][0], str) else 1)
    if [c["index"] for c in got["choices"]] != list(range(n)):
        fail("choices", body, got)
    for c in got["choices"]:
        text = (c["message"]["content"] or "") if kind.startswith("chat") else c["text"]
        calls = c["message"].get("tool_calls", []) if kind.startswith("chat") else []
        check_calls(body, c, calls)
        for stop in [body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop", []):
            if "echo" not in body and "min_tokens" not in body and stop in text:
                fail("a stop string", body, got)
        if c["finish_reason"] not in (("stop", "length", "tool_calls") if "tools" in body else ("stop", "length")):
            fail("finish", body, got)
        if c["finish_reason"] == "stop" and "response_format" in body and "stop" not in body and "stop_token_ids" not in body:
            try:
                json.loads(text if "echo" not in body else text[text.index("{"):] if isinstance(body["prompt"], str) else "{}")
            except ValueError:
                fail("no JSON", body, got)
    made = n // body.get("n", 1) * max(body.get("n", 1), body.get("best_of", 1))
    if got["usage"]["completion_tokens"] > made * body["max_tokens"] and "use_beam_search" not in body:
        fail("usage", body, got)


def check_calls(body, c, calls):
    """Calls are of the request's tools, whole unless the length or a stop ended them."""
    if calls and "tools" not in body or (c["finish_reason"] == "tool_calls") != bool(calls) and c["finish_reason"] == "tool_calls":
        fail("calls", body, c)
    if len({x["id"] for x in calls}) != len(calls) or len(calls) > 1 and body.get("parallel_tool_calls") is False:
        fail("calls", body, c)
    if c["finish_reason"] == "tool_calls":
        for x in calls:
            value = json.loads(x["function"]["arguments"])
            if x["function"]["name"] not in ("look", "walk_to") or value["b"] not in ("x", "y") or not set(value) <= {"a", "b"} or not isinstance(value.get("a", 0), int):
                fail("a call", body, c)


def likelihoods(lp):
    """Of a chat's or a completion's token."""
    return [] if not lp else lp["content"] if "content" in lp else lp["token_logprobs"]


def whole(kind, frames):
    """A stream's frames as the answer that is not one: text, reasons, log-probabilities."""
    out = {}
    for f in frames:
        for c in f["choices"]:
            mine = out.setdefault(c["index"], {"text": "", "finish_reason": None, "logprobs": [], "calls": []})
            mine["text"] += c["delta"].get("content") or "" if kind.startswith("chat") else c["text"]
            mine["finish_reason"] = c["finish_reason"] or mine["finish_reason"]
            mine["logprobs"] += likelihoods(c.get("logprobs"))
            for x in c["delta"].get("tool_calls", []) if kind.startswith("chat") else ():
                if x["index"] == len(mine["calls"]):
                    mine["calls"].append([x["function"]["name"], ""])
                mine["calls"][x["index"]][1] += x["function"]["arguments"]
    return [out[i] for i in sorted(out)]


def parts(kind, got):
    """The same of an answer."""
    out = []
    for c in got["choices"]:
        calls = c["message"].get("tool_calls", []) if kind.startswith("chat") else []
        out.append({"text": c["message"]["content"] or "" if kind.startswith("chat") else c["text"], "finish_reason": c["finish_reason"],
                    "logprobs": likelihoods(c.get("logprobs")), "calls": [[x["function"]["name"], x["function"]["arguments"]] for x in calls]})
    return out


def plain(got):
    """Without what may differ."""
    got = {k: v for k, v in got.items() if k not in ("id", "created")}
    for c in got.get("choices", []):
        for x in c.get("message", {}).get("tool_calls", []):
            x["id"] = ""
    if "usage" in got:
        got["usage"] = {k: v for k, v in got["usage"].items() if k != "prompt_tokens_details"}
    return got


def vanish(s, rng, over):
    """A client that goes before its answer is there, again and again."""
    while not over.is_set():
        c = socket.create_connection(("127.0.0.1", s.port))
        body = json.dumps(dict(model=rng.choice(NAMES), prompt=prompt(rng), max_tokens=80, stream=rng.random() < 0.5)).encode()
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:rng.choice((len(body), len(body), 9))])
        time.sleep(rng.uniform(0, 0.1))
        c.close()


def swap(s, rng, over):
    """An adapter of one name, now this one, now that, asked while it goes: its own text, or that it is not there."""
    texts = {}
    while not over.is_set():
        which = rng.randrange(2)
        status, got = s.ask("/v1/load_lora_adapter", dict(lora_name="c", lora_path=LORAS[which]))
        if status != 200 and "slots" not in got:
            fail("loading", got)
        late = []
        body = dict(model="c", prompt="the quick brown", max_tokens=12, temperature=0)
        t = threading.Thread(target=lambda: late.append(s.ask("/v1/completions", body)))
        t.start()
        time.sleep(rng.uniform(0, 0.03))
        s.ask("/v1/unload_lora_adapter", dict(lora_name="c"))
        t.join()
        if late[0][0] == 200:
            text = json.loads(late[0][1])["choices"][0]["text"]
            if status == 200 and texts.setdefault(which, text) != text:
                fail("another adapter's text", which, text, texts)
        elif late[0][0] != 404:
            fail("an adapter that goes", late)


def main():
    rng = random.Random(SEED)
    make_tokenizer(TEMPLATE)
    kv = rng.choice(((), (), ("--kv_type", "f32"), ("--kv_type", "bf16"), ("--kv_type", "f16"), ("--kv_type", "int8")))
    dtype = ("--dtype", rng.choice(("f32", "bf16")), *rng.choice(((), (), ("--quantize", "q8_0"), ("--quantize", "q4_1"))))
    requests = [(vector_request if rng.random() < 0.25 else text_request)(rng) for _ in range(N)]
    alone = Server("--no_prefix_cache", "--kv_tokens", "4096", *dtype, *kv)
    want = []
    for kind, body in requests:
        status, text = alone.ask("/v1/" + kind, body)
        if status != 200:
            fail(kind, body, text)
        want.append(json.loads(text))
        check_alone(kind, body, want[-1])
    alone.end()
    tight = SEED % 2 == 0  # all at once: room for few texts, a drafter, few states
    flags = ["--max_batch_tokens", rng.choice(("16", "64", "512")), "--kv_tokens", rng.choice(("1536", "1536" if tight else "2048", "1536" if tight else "8192")),
             "--max_sequences", rng.choice(("4", "7", "16"))]
    drafts = (["--draft", "3"], ["--draft_model", DRAFTER or MODEL, "--draft", "2"], [])
    flags += drafts[1] if tight else rng.choice(drafts)
    keeps = (["--no_prefix_cache"], ["--state_snapshots", rng.choice(("1", "3", "40"))] if DRAFTER else [], [])
    flags += keeps[1] if tight else rng.choice(keeps)
    flags += ["--threads", rng.choice(("1", "2"))]
    crowd = Server(*flags, *dtype, *kv)
    over = threading.Event()
    wrong = []
    todo = list(range(N)) * 2
    rng.shuffle(todo)
    streams = [rng.random() < 0.4 for _ in todo]

    def work():
        try:
            while not wrong:
                one()
        except IndexError:  # all is done
            pass
        except Exception as e:
            wrong.append((repr(e),))

    def one():
        stream, i = streams.pop(), todo.pop()
        kind, body = requests[i]
        stream = stream and kind != "embeddings" and not {"use_beam_search", "prompt_logprobs", "best_of"} & set(body)
        usage = i % 2 == 1
        status, text = crowd.ask("/v1/" + kind, dict(body, stream=True, stream_options={"include_usage": usage}) if stream else body)
        if status != 200:
            wrong.append((body, text))
        elif stream:
            frames = [json.loads(f.removeprefix("data: ")) for f in text.split("\n\n")[:-2]]
            last = frames.pop() if usage else None
            if not text.endswith("data: [DONE]\n\n") or usage and (last["choices"] or plain(last)["usage"] != plain(want[i])["usage"]):
                wrong.append((body, "usage", text[-600:], want[i]["usage"]))
            if whole(kind, frames) != parts(kind, want[i]):
                wrong.append((body, whole(kind, frames), parts(kind, want[i])))
        elif plain(json.loads(text)) != plain(want[i]):
            wrong.append((body, plain(json.loads(text)), plain(want[i])))

    noise = [threading.Thread(target=f, args=(crowd, random.Random(SEED + 1 + i), over)) for i, f in enumerate((vanish, swap))]
    threads = [threading.Thread(target=work) for _ in range(12)]
    for t in noise + threads:
        t.start()
    for t in threads:
        t.join()
    over.set()
    for t in noise:
        t.join()
    if wrong:
        fail(flags, dtype, kv, *wrong[0])
    crowd.end()
    print(f"seed {SEED}: {N} requests alone and in a crowd ({' '.join([*flags, *dtype, *kv])})")


main()
