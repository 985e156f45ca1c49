# SPDX-License-Identifier: Apache-2.0
"""ds_serve as clients meet it. Usage: serve_http.py PROGRAM MODEL [loras]"""
import atexit
import base64
import http.client
import json
import math
import os
import re
import signal
import socket
import ssl
import struct
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


class Server:
    def __init__(self, *flags, template=("--chat_template", "chatml"), scheme="http"):
        self.process = subprocess.Popen(
            [PROGRAM, "--model", MODEL, "--served_model_name", "m", *template, "--port", "0",
             "--threads", "2", "--kv_tokens", "4096", *(() if "--max_length" in flags else ("--max_length", "512")), *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        line = self.process.stdout.readline()
        found = re.fullmatch(rf"serving m on {scheme}://127.0.0.1:(\d+)\n", line)
        if not found:
            raise SystemExit(f"FAILED: no server: {line!r} {self.process.stderr.read()}")
        self.port = int(found.group(1))

    def ask(self, method, path, body=None, headers=None, timeout=60):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        c.request(method, path, data, headers or {})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text, r.headers

    def post(self, path, **body):
        status, text, _ = self.ask("POST", path, body)
        return status, json.loads(text)

    def complete(self, prompt, **body):
        status, got = self.post("/v1/completions", model="m", prompt=prompt, **body)
        expect(status == 200, status, got)
        return got

    def stream(self, path, **body):
        """Frames of a stream, parsed."""
        status, text, headers = self.ask("POST", path, dict(model="m", stream=True, **body))
        expect(status == 200 and headers["Content-Type"] == "text/event-stream", status, text)
        frames = text.split("\n\n")
        expect(frames[-2:] == ["data: [DONE]", ""], text)
        return [json.loads(f.removeprefix("data: ")) for f in frames[:-2]]

    def metric(self, name):
        text = self.ask("GET", "/metrics")[1]
        return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.M).group(1))

    def settle(self):
        """Until nothing runs: the work of clients that are gone is dropped."""
        for _ in range(200):
            if self.metric("vllm:num_requests_running") == 0 and self.metric("ds_serve_jobs") == 0:
                break
            time.sleep(0.05)
        expect(self.metric("vllm:num_requests_running") == 0, "still running")
        expect(self.metric("vllm:kv_cache_usage_perc") == 0, "blocks are not free")

    def end(self, code=0):
        self.process.send_signal(signal.SIGTERM)
        expect(self.process.wait(30) == code, self.process.returncode, self.process.stderr.read())


def texts(s):
    """One text in all its forms."""
    one = s.complete("the quick", max_tokens=40, temperature=0)
    text = one["choices"][0]["text"]
    expect(one["object"] == "text_completion" and one["choices"][0]["finish_reason"] == "length", one)
    expect(one["usage"]["prompt_tokens"] == 9 and one["usage"]["completion_tokens"] == 40, one)
    expect("brown fox" in text, text)
    frames = s.stream("/v1/completions", prompt="the quick", max_tokens=40, temperature=0,
                      stream_options={"include_usage": True})
    expect("".join(f["choices"][0]["text"] for f in frames[:-1]) == text, frames)
    expect(frames[-1]["choices"] == [] and frames[-1]["usage"]["completion_tokens"] == 40, frames[-1])
    expect(all(f["usage"] is None for f in frames[:-1]) and len({f["id"] for f in frames}) == 1, frames)
    expect([f["choices"][0]["finish_reason"] for f in frames[:-1]] == [None] * (len(frames) - 2) + ["length"], frames)
    expect(s.complete("the quick", max_tokens=40, temperature=0, echo=True)["choices"][0]["text"] == "the quick" + text)
    ids = s.post("/tokenize", content="the quick")[1]["tokens"]
    expect(ids == list(b"the quick"), ids)
    expect(s.post("/detokenize", tokens=ids)[1] == {"content": "the quick"})
    expect(s.complete(ids, max_tokens=40, temperature=0)["choices"][0]["text"] == text)
    several = s.complete(["the quick", ids], max_tokens=40, temperature=0, n=2)["choices"]
    expect([c["text"] for c in several] == [text] * 4 and [c["index"] for c in several] == [0, 1, 2, 3], several)
    # as in vLLM, none ends a text before min_tokens; one that goes on over that edge does
    for stop, least in ((text[1:3], 10), (text[8:12], 10), ([text[3:5], text[20]], 15)):
        ends = [(at, part) for at in range(40) for part in ([stop] if isinstance(stop, str) else stop) if text.startswith(part, at) and at + len(part) > least]
        want = text[:min(at for at, _ in ends)] if ends else text
        ask = dict(prompt="the quick", max_tokens=40, temperature=0, stop=stop, min_tokens=least)
        expect(s.complete(ask.pop("prompt"), **ask)["choices"][0]["text"] == want, stop, least, text)
        got = s.stream("/v1/completions", prompt="the quick", **ask)
        expect("".join(f["choices"][0]["text"] for f in got) == want, stop, least, got)
    # stop strings over the edges of tokens, which are bytes here; never a part of them is sent
    for stop in (text[7:11], [text[12:20], "zzz"], text[20:21], "fo" + "y"):
        want = text if stop == "foy" else text[:text.index(stop if isinstance(stop, str) else stop[0])]
        for choice in (s.complete("the quick", max_tokens=40, temperature=0, stop=stop)["choices"][0],):
            expect(choice["text"] == want and choice["finish_reason"] == ("length" if stop == "foy" else "stop"), stop, choice)
        got = s.stream("/v1/completions", prompt="the quick", max_tokens=40, temperature=0, stop=stop)
        expect("".join(f["choices"][0]["text"] for f in got) == want, stop, got)
    return text


def chats(s):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "the "},
                                                                                 {"type": "text", "text": "quick"}]}]
    status, one = s.post("/v1/chat/completions", model="m", messages=messages, max_completion_tokens=30, temperature=0)
    expect(status == 200 and one["object"] == "chat.completion", one)
    message = one["choices"][0]["message"]
    expect(message["role"] == "assistant" and message["refusal"] is None, one)
    prompt = s.post("/apply-template", messages=messages)[1]["prompt"]
    expect("the quick<|im_end|>" in prompt and prompt.endswith("assistant\n"), prompt)
    expect(one["usage"]["prompt_tokens"] == len(prompt), one, prompt)
    expect(message["content"] == s.complete(prompt, max_tokens=30, temperature=0)["choices"][0]["text"], one)
    frames = s.stream("/v1/chat/completions", messages=messages, max_tokens=30, temperature=0, n=2)
    expect(frames[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}, frames[0])
    for index in (0, 1):
        own = [f["choices"][0] for f in frames if f["choices"][0]["index"] == index]
        expect("".join(c["delta"].get("content", "") for c in own) == message["content"], own)
        expect(own[-1]["delta"] == {} and own[-1]["finish_reason"] == "length", own[-1])
    with_names = dict(model="m", messages=[{"role": "user", "content": "a", "name": "x"}], max_tokens=2, user="u")
    _, _, headers = s.ask("POST", "/v1/chat/completions", with_names)
    expect(headers["X-Ignored-Fields"].split() == ["user", "messages.name"] or
           set(headers["X-Ignored-Fields"].split()) == {"user", "messages.name"}, headers)


def sampling(s):
    seeded = dict(max_tokens=30, temperature=1.5, seed=7)
    a = s.complete("the ", **seeded)["choices"][0]["text"]
    expect(a == s.complete("the ", **seeded)["choices"][0]["text"], a)
    expect(a != s.complete("the ", max_tokens=30, temperature=1.5, seed=8)["choices"][0]["text"], a)
    expect(s.complete("the ", **seeded, n=3)["choices"][0]["text"] == a)
    expect(len({c["text"] for c in s.complete("the ", **seeded, n=3)["choices"]}) == 3)
    # with enough to draw that three texts are hardly alike
    expect(len({s.complete("the ", max_tokens=200, temperature=2.0)["choices"][0]["text"] for _ in range(3)}) == 3)
    # nor the last text of one request and the first of the next
    expect(len({c["text"] for _ in range(2) for c in s.complete("the ", max_tokens=200, temperature=2.0, n=4)["choices"]}) == 8)
    greedy = s.complete("the ", max_tokens=9, temperature=0, logprobs=3)["choices"][0]
    for key in ("top_k", "min_p", "top_p"):
        value = 1 if key == "top_k" else 1.0 if key == "min_p" else 0.0
        expect(s.complete("the ", max_tokens=9, temperature=1.5, **{key: value})["choices"][0]["text"] == greedy["text"], key)
    lp = greedy["logprobs"]
    expect("".join(lp["tokens"]) == greedy["text"] and lp["text_offset"] == list(range(9)), lp)
    for token, logprob, top in zip(lp["tokens"], lp["token_logprobs"], lp["top_logprobs"]):
        expect(len(top) == 3 and top[token] == logprob == max(top.values()) <= 0, lp)
    first = ord(greedy["text"][0])
    banned = s.complete("the ", max_tokens=9, temperature=0, logit_bias={str(first): -100})["choices"][0]["text"]
    expect(chr(first) not in banned, banned)
    forced = s.complete("the ", max_tokens=5, temperature=0, logit_bias={"90": 100})["choices"][0]["text"]
    expect(forced == "ZZZZZ", forced)
    once = s.complete("the ", max_tokens=5, temperature=0, logit_bias={"90": 100, "89": 99}, presence_penalty=2)
    expect(once["choices"][0]["text"] == "ZYZYZ"[0] + "Y" + once["choices"][0]["text"][2:], once)
    ended = s.complete("the ", max_tokens=9, temperature=0, stop_token_ids=[first])["choices"][0]
    expect(ended["text"] == "" and ended["finish_reason"] == "stop", ended)
    late = s.complete("the ", max_tokens=9, temperature=0, stop_token_ids=[first], min_tokens=4)
    expect(late["usage"]["completion_tokens"] >= 4, late)
    status, chat = s.post("/v1/chat/completions", model="m", messages=[{"role": "user", "content": "é"}], max_tokens=3,
                          temperature=0, logprobs=True, top_logprobs=2)
    content = chat["choices"][0]["logprobs"]["content"]
    expect(status == 200 and len(content) == 3 and all(len(t["top_logprobs"]) == 2 for t in content), chat)
    expect(all(bytes(t["bytes"]).decode() == t["token"] for t in content), content)
    # a byte that is no character by itself
    half = s.complete("the ", max_tokens=1, logit_bias={"195": 100}, logprobs=1)["choices"][0]
    expect(half["text"] == "\ufffd" and half["logprobs"]["tokens"] == ["bytes:\\xc3"], half)


def samplers(s):
    """llama.cpp's: each has an effect, is seeded, or is an error."""
    hot = dict(max_tokens=40, temperature=1.5, seed=7)
    text = lambda **fields: s.complete("the ", **{**hot, **fields})["choices"][0]["text"]
    plain = text()
    for fields in (dict(typical_p=0.3), dict(mirostat=1, mirostat_tau=0.5), dict(mirostat=2, mirostat_tau=0.5, mirostat_eta=0.3)):
        expect(text(**fields) == text(**fields) != plain, fields)
    greedy = dict(max_tokens=60, temperature=0)
    loop = s.complete("the quick the quick the quick ", **greedy)["choices"][0]["text"]
    dry = s.complete("the quick the quick the quick ", **greedy, dry_multiplier=5.0, dry_base=2.0, dry_allowed_length=1, dry_sequence_breakers=[])
    expect(dry["choices"][0]["text"] != loop, loop)
    grams = [dry["choices"][0]["text"][i:i + 12] for i in range(48)]
    expect(len(set(grams)) == len(grams), dry)
    broken = s.complete("the quick the quick the quick ", **greedy, dry_multiplier=5.0, dry_base=2.0, dry_allowed_length=9, dry_sequence_breakers=[" "])
    expect(broken["choices"][0]["text"] == loop, broken)
    for fields in (dict(typical_p=0), dict(typical_p=2), dict(dry_base=2), dict(dry_multiplier=1, dry_base=0.5), dict(dry_multiplier=1, dry_allowed_length=0),
                   dict(dry_multiplier=1, dry_penalty_last_n=0), dict(dry_multiplier=1, dry_sequence_breakers=["ab"]), dict(mirostat=3),
                   dict(mirostat_tau=5), dict(mirostat=2, temperature=0), dict(mirostat=2, top_k=4)):
        status, got = s.post("/v1/completions", model="m", prompt="a", **fields)
        expect(status == 400 and got["error"]["param"], fields, got)


def beams(s):
    """Beam search (test_beams has transformers' texts): the best first, the same in a crowd; fields that it has no place for are errors."""
    ask = dict(max_tokens=12, use_beam_search=True, n=2, best_of=4)
    got = s.complete("the quick ", **ask)
    texts = [c["text"] for c in got["choices"]]
    expect(len(set(texts)) == 2 and got["usage"]["completion_tokens"] == 24, got)
    expect(s.complete(["the quick ", "lazy "], **ask)["choices"][0]["text"] == texts[0])
    wide = [c["text"] for c in s.complete("the quick ", **{**ask, "n": 4})["choices"]]
    expect(wide[:2] == texts and len(set(wide)) == 4, wide)
    frames = s.stream("/v1/completions", prompt="the quick ", **ask)
    expect("".join(f["choices"][0]["text"] for f in frames if f["choices"] and f["choices"][0]["index"] == 0) == texts[0], frames)
    for fields in (dict(length_penalty=2), dict(early_stopping=True), dict(use_beam_search=True), dict(use_beam_search=True, n=17),
                   dict(use_beam_search=True, n=3, best_of=2), dict(use_beam_search=True, n=2, temperature=1), dict(use_beam_search=True, n=2, stop="a"),
                   dict(use_beam_search=True, n=2, logprobs=1), dict(use_beam_search=True, n=2, early_stopping="soon")):
        status, got = s.post("/v1/completions", model="m", prompt="a", **fields)
        expect(status == 400 and got["error"]["param"], fields, got)


def objects(s):
    """JSON objects, whatever is drawn."""
    whole = 0
    asked = [dict(response_format={"type": "json_object"}, max_tokens=80, temperature=temperature, seed=seed, logit_bias=bias)
             for seed in range(6) for temperature in (0.5, 2)
             for bias in ({}, {"34": 9, "125": 7, "58": 5}, {"91": 9, "93": 8, "125": 9}, {"123": 4, "92": 8, "34": 8, "125": 8})]
    got = [None] * len(asked)

    def one(k):
        got[k] = s.complete("the ", **asked[k])["choices"][0]

    threads = [threading.Thread(target=one, args=(k,)) for k in range(len(asked))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for ask, choice in zip(asked, got):
        if choice["finish_reason"] == "stop":
            whole += 1
            expect(isinstance(json.loads(choice["text"]), dict), ask, choice)
        else:
            expect(choice["finish_reason"] == "length" and choice["text"].lstrip().startswith("{"), ask, choice)
    expect(whole >= len(asked) // 4, whole, len(asked))
    frames = s.stream("/v1/chat/completions", messages=[{"role": "user", "content": "a"}], max_tokens=300, seed=1,
                      response_format={"type": "json_object"}, logit_bias={"34": 12, "125": 14, "58": 9})
    text = "".join(f["choices"][0]["delta"].get("content", "") for f in frames)
    expect(frames[-1]["choices"][0]["finish_reason"] == "stop" and isinstance(json.loads(text), dict), text)


def forms(s):
    """Structured outputs, whatever is drawn."""
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}, "n": {"type": "integer", "minimum": 1, "maximum": 30},
              "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}}, "required": ["name", "n"], "additionalProperties": False}
    asked = [dict(schema={"name": "f", "schema": schema, "strict": True})]
    whole = 0
    for seed in range(12):
        status, got = s.post("/v1/chat/completions", model="m", messages=[{"role": "user", "content": "a"}], max_tokens=120, seed=seed,
                             response_format={"type": "json_schema", "json_schema": asked[0]["schema"]}, logit_bias={"34": 5})
        choice = got["choices"][0]
        expect(status == 200, got)
        if choice["finish_reason"] == "stop":
            value = json.loads(choice["message"]["content"])
            whole += 1
            expect(set(value) <= {"name", "n", "tags"} and 1 <= value["n"] <= 30 and len(value["name"]) <= 5, value)
    expect(whole >= 9, whole)
    for form, pattern in (({"regex": "[ab]{3}-\\d+x"}, r"[ab]{3}-\d+x"), ({"choice": ["left", "right", "righteous"]}, "left|right|righteous"),
                          ({"grammar": 'root ::= "<" [0-9]{2} ">" | "(" root ")"'}, r"\(*<\d\d>\)*"), ({"json": {"const": [1, "é"]}}, r'\s*\[1,"é"\]'),
                          ({"json": '{"type":"null"}'}, r"\s*null"), ({"json_object": True}, r"(?s)\s*\{.*\}")):
        for seed in range(4):
            choice = s.complete("the ", structured_outputs=form, max_tokens=60, seed=seed, logit_bias={"120": 3, "125": 9, "34": 5})["choices"][0]
            expect(choice["finish_reason"] == "length" or re.fullmatch(pattern, choice["text"]), form, choice)
            expect(choice["finish_reason"] == "stop" or "json_object" in form or "regex" in form or "grammar" in form, form, choice)
    # a number may end, or go on: the end of the text is one of the tokens then
    both = {s.complete("the ", structured_outputs={"regex": "1{1,9}"}, max_tokens=20, seed=k, logit_bias={"49": -2})["choices"][0]["text"]
            for k in range(12)}
    expect(all(re.fullmatch("1{1,9}", t) for t in both), both)
    several = s.complete(["a", "b"], n=3, structured_outputs={"choice": ["no", "yes"]}, seed=3, max_tokens=5)["choices"]
    expect(all(c["text"] in ("no", "yes") for c in several) and len(several) == 6, several)
    got = s.stream("/v1/completions", prompt="a", structured_outputs={"choice": ["yes, and no"]}, max_tokens=30)
    expect("".join(f["choices"][0]["text"] for f in got) == "yes, and no" and got[-1]["choices"][0]["finish_reason"] == "stop", got)
    ok = dict(model="m", messages=[{"role": "user", "content": "a"}], max_tokens=2)
    for form, says in (({"not": {}}, "not"), ({"type": "array", "items": {"uniqueItems": True}}, "uniqueItems"), ({"type": 3}, "type"),
                       ({"type": "string", "pattern": "(?=a)"}, "pattern")):
        status, got = s.post("/v1/chat/completions", **ok, response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": form}})
        expect(status == 400 and says in got["error"]["message"] and got["error"]["param"] == "response_format", form, got)
    for wrong in ({"type": "json_schema"}, {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}, {"type": "text", "x": 1},
                  {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "x": 1}}, {"type": "json_schema", "json_schema": {"name": "a"}}):
        expect(s.post("/v1/chat/completions", **ok, response_format=wrong)[0] == 400, wrong)
    status, got = s.post("/v1/completions", model="m", prompt="a", max_tokens=9, min_tokens=2, stop_token_ids=[101], structured_outputs={"choice": ["left"]})
    expect(status == 400 and "min_tokens" in got["error"]["message"], got)
    for wrong in ({}, {"regex": "("}, {"regex": "a", "choice": ["b"]}, {"choice": []}, {"choice": [""]}, {"grammar": "root ::= root"}, {"x": 1},
                  {"json": "{"}, {"json_object": False}, 3):
        expect(s.post("/v1/completions", model="m", prompt="a", structured_outputs=wrong)[0] == 400, wrong)
    _, _, headers = s.ask("POST", "/v1/chat/completions", dict(ok, response_format={"type": "json_schema", "json_schema": {
        "name": "a", "schema": {"type": "null"}, "strict": False, "description": "d"}}))
    expect(set(headers["X-Ignored-Fields"].split()) == {"response_format.json_schema.strict", "response_format.json_schema.description"}, headers)


def refusals(s):
    ok = dict(model="m", prompt="a", max_tokens=2)
    said = dict(model="m", messages=[{"role": "user", "content": "a"}], max_tokens=2)
    wrong = [("foo", 1), ("temperature", 3), ("temperature", "hot"), ("top_p", -1), ("n", 0), ("n", 1000), ("n", 1.5),
             ("max_tokens", 0), ("max_tokens", 10**9), ("stop", ""), ("stop", [1]), ("seed", "x"), ("logit_bias", {"a": 1}),
             ("logit_bias", {"999": 1}), ("logit_bias", {"1": 101}), ("stream", 1), ("best_of", "2"), ("suffix", "b"),
             ("presence_penalty", 2.5), ("logprobs", 6), ("stream_options", {"include_usage": True}), ("top_k", -5),
             ("min_p", 2), ("repetition_penalty", 0), ("stop_token_ids", [99999]), ("prompt", []), ("prompt", ""),
             ("prompt", [[]]), ("prompt", [-1]), ("prompt", [320]), ("prompt", {"a": 1}), ("prompt", None), ("model", None), ("min_tokens", 3)]
    for key, value in wrong:
        status, got = s.post("/v1/completions", **{**ok, key: value})
        error = got.get("error", {})
        expect(status == (404 if key == "model" and value else 400) and error["message"] and
               error["type"] == "invalid_request_error", key, value, status, got)
    for key, value in [("tools", [{"type": "function"}]), ("response_format", {"type": "json_schema"}), ("echo", True),
                       ("modalities", ["audio"]), ("top_logprobs", 2), ("messages", []), ("messages", "a"),
                       ("messages", [{"role": "tool", "content": "a"}]), ("messages", [{"role": "user"}]),
                       ("messages", [{"role": "user", "content": [{"type": "image_url"}]}]),
                       ("messages", [{"role": "user", "content": "a", "tool_calls": []}])]:
        status, got = s.post("/v1/chat/completions", **{**said, key: value})
        expect(status == 400 and got["error"]["param"] in (key, None, ""), key, value, status, got)
    status, got = s.post("/v1/completions", **ok, n=2, best_of=1)
    expect(status == 400 and got["error"]["param"] == "best_of", got)
    status, got = s.post("/v1/completions", **{**ok, "model": "other"})
    expect(status == 404 and got["error"]["code"] == "model_not_found", got)
    status, got = s.post("/v1/completions", **{**ok, "max_tokens": 511, "prompt": "aa"})
    expect(status == 400 and got["error"]["code"] == "context_length_exceeded", got)
    for body in (b"", b"{", b"[]", b"\xff\xfe", b'{"model":"m","model":"m"}', b"[" * 100000, b'{"model":' * 50000):
        status, text, _ = s.ask("POST", "/v1/completions", body)
        expect(status == 400 and json.loads(text)["error"]["message"], body[:20], status, text)
    for n in range(50, 70):  # names that are cut between the bytes of a letter
        status, got = s.post("/v1/completions", **{**ok, "a" * n + "é" * 40: 1})
        expect(status == 400 and got["error"]["code"] == "unknown_field", got)
    expect(s.ask("GET", "/v1/completions")[0] == 405 and s.ask("GET", "/nothing")[0] == 404)
    expect(s.ask("POST", "/v1/completions", "x", {"Content-Length": str(1 << 40)})[0] == 413)
    expect(s.ask("GET", "/v1/models/m")[0] == 200 and s.ask("GET", "/v1/models/x")[0] == 404)
    expect(json.loads(s.ask("GET", "/v1/models")[1])["data"][0]["id"] == "m")


def crowd(s, alone):
    """Twelve at once, each as alone; the prefix cache says what it kept."""
    asked = [dict(prompt="the quick brown fox jumps over the lazy dog. " * (1 + k % 4), max_tokens=20 + k,
                  temperature=k % 2 * 1.2, seed=k) for k in range(12)]
    want = [alone.complete(**a)["choices"][0]["text"] for a in asked]
    got = [None] * len(asked)

    def one(k):
        got[k] = s.complete(**asked[k])["choices"][0]["text"]

    threads = [threading.Thread(target=one, args=(k,)) for k in range(len(asked))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    expect(got == want, got, want)
    again = s.complete(**asked[3])
    expect(again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64 and again["choices"][0]["text"] == want[3], again)


def drafts(s):
    """A hundred texts with guesses and without: not a byte differs, and some guesses hold."""
    fast = Server("--draft", "7", "--max_batch_tokens", "128")
    small = Server("--draft_model", MODEL, "--max_batch_tokens", "128")
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"enum": ["the quick", "brown"]}, "maxItems": 4}}, "required": ["a"]}
    extra = [{}, {"stop": ["dog", "q"]}, {"logprobs": 2}, {"presence_penalty": 0.5, "frequency_penalty": 0.3}, {"n": 2},
             {"structured_outputs": {"json": schema}}, {"response_format": {"type": "json_object"}}, {"logit_bias": {"97": 3}, "top_k": 9},
             {"repetition_penalty": 1.2, "min_p": 0.02}, {"structured_outputs": {"regex": "(the quick brown fox. ){2,6}end"}}]
    asked = [dict(prompt="the quick brown fox jumps over the lazy dog. " * (1 + k % 3) + "abc"[:k % 4], max_tokens=10 + k,
                  temperature=k // 10 % 2 * 0.8, seed=k, **extra[k % 10]) for k in range(100)]
    got = {}

    def run(server, first):
        for k in range(first, len(asked), 4):
            got[server, k] = server.complete(**asked[k])["choices"]

    threads = [threading.Thread(target=run, args=(server, first)) for server in (s, fast, small) for first in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k, ask in enumerate(asked):
        expect(got[s, k] == got[fast, k], ask, got[s, k], got[fast, k])
        expect(got[s, k] == got[small, k], ask, got[s, k], got[small, k])
    expect(small.metric("vllm:spec_decode_num_accepted_tokens_total") > 300, small.metric("vllm:spec_decode_num_accepted_tokens_total"))
    small.end()
    guessed, held = (fast.metric(f"vllm:spec_decode_num_{x}_tokens_total") for x in ("draft", "accepted"))
    expect(guessed > held > 500, guessed, held)
    expect(fast.metric("ds_serve_steps_total") < s.metric("ds_serve_steps_total"))
    fast.settle()
    fast.end()


def raw(s, data):
    c = socket.create_connection(("127.0.0.1", s.port), timeout=30)
    c.sendall(data)
    return c


def hostile(s):
    before = s.metric("vllm:generation_tokens_total")
    body = json.dumps(dict(model="m", prompt="the", max_tokens=500, stream=True, ignore_eos=True)).encode()
    quiet = json.dumps(dict(model="m", prompt="the", max_tokens=500, ignore_eos=True)).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
    for _ in range(4):  # gone at once, in the middle of a body, while a text is made
        raw(s, head % len(body) + body).close()
        raw(s, head % len(body) + body[:20]).close()
        raw(s, head % len(quiet) + quiet).close()
    c = raw(s, head % len(body) + body)
    c.recv(200)
    c.close()
    s.settle()
    expect(s.metric("vllm:generation_tokens_total") - before < 12 * 500, "texts of clients that are gone went on")
    for garbage in (b"\0" * 1000, b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", os.urandom(5000), b"GET /" + b"a" * 100000,
                    b"GET /health HTTP/1.1\r\n" + b"X-A: b\r\n" * 20000 + b"\r\n",
                    b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"):
        c = None
        try:
            c = raw(s, garbage)
            c.settimeout(5)
            c.recv(1000)
        except OSError:
            pass
        finally:
            if c:
                c.close()
    idle = [raw(s, b"POST /v1/completions HTTP/1.1\r\nContent-Le") for _ in range(300)]
    expect(s.ask("GET", "/health")[0] == 200, "health beside slow clients")
    expect(s.complete("the", max_tokens=3)["usage"]["completion_tokens"] == 3)
    for c in idle:
        c.close()
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (quiet[:9], quiet[9:].replace(b"500", b"5"))) + b"0\r\n\r\n"
    c = raw(s, b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked)
    expect(b"200 OK" in c.recv(4000), "a chunked body")
    c.close()


SLOW = json.dumps(dict(model="m", prompt="the", max_tokens=400, n=2, stream=True, ignore_eos=True)).encode()


def slots(s):
    """What runs, seen from beside; readiness."""
    expect(s.ask("GET", "/ready")[0] == 200)
    idle = json.loads(s.ask("GET", "/slots")[1])
    expect(len(idle) == 16 and not any(x["is_processing"] for x in idle) and idle[0]["n_ctx"] == 512, idle)
    got = []
    for _ in range(50):  # the texts may not have begun yet, or have ended
        c = raw(s, b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(SLOW) + SLOW)
        c.recv(100)
        for _ in range(20):
            got = got if len(got) == 2 else [x for x in json.loads(s.ask("GET", "/slots")[1]) if x["is_processing"]]
        if len(got) == 2:
            break
        c.close()
    expect(len(got) == 2 and {x["index"] for x in got} == {0, 1} and got[0]["prompt_tokens"] == 3 and got[0]["max_tokens"] == 400, got)
    c.close()


def answers(s):
    """/v1/responses: the text of a chat, whole and as events."""
    said = [{"role": "system", "content": "s"}, {"role": "user", "content": "the quick"}]
    want = s.post("/v1/chat/completions", model="m", messages=said, max_tokens=30, temperature=0)[1]["choices"][0]["message"]["content"]
    ask = dict(model="m", instructions="s", input="the quick", max_output_tokens=30, temperature=0)
    status, got = s.post("/v1/responses", **ask)
    expect(status == 200 and got["object"] == "response" and got["status"] == "incomplete", got)
    expect(got["incomplete_details"] == {"reason": "max_output_tokens"} and got["instructions"] == "s" and got["temperature"] == 0, got)
    expect(got["output"][0]["content"][0]["text"] == want and got["usage"]["output_tokens"] == 30, got, want)
    parts = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "the "}, {"type": "input_text", "text": "quick"}]}]
    expect(s.post("/v1/responses", **{**ask, "input": parts})[1]["output"][0]["content"][0]["text"] == want)
    schema = {"type": "json_schema", "name": "f", "schema": {"enum": [["a", 1]]}, "strict": True}
    status, got = s.post("/v1/responses", model="m", input="a", text={"format": schema}, max_output_tokens=60)
    expect(status == 200 and got["status"] == "completed" and json.loads(got["output"][0]["content"][0]["text"]) == ["a", 1], got)
    status, text, headers = s.ask("POST", "/v1/responses", dict(ask, stream=True, store=True))
    expect(headers["Content-Type"] == "text/event-stream" and headers["X-Ignored-Fields"].split() == ["store"], headers)
    events = [(e.split("\n")[0], json.loads(e.split("\n")[1].removeprefix("data: "))) for e in text.split("\n\n")[:-1]]
    names = [n.removeprefix("event: ") for n, _ in events]
    expect([e["type"] for _, e in events] == names and [e["sequence_number"] for _, e in events] == list(range(len(events))), events)
    deltas = names.count("response.output_text.delta")
    expect(names == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
                     *["response.output_text.delta"] * deltas, "response.output_text.done", "response.content_part.done",
                     "response.output_item.done", "response.incomplete"] and deltas > 5, names)
    expect("".join(e["delta"] for _, e in events if "delta" in e) == want == events[-1][1]["response"]["output"][0]["content"][0]["text"], events)
    for field in (dict(previous_response_id="a"), dict(tools=[{"type": "function"}]), dict(input=[]), dict(input=[{"type": "image"}]), dict(x=1),
                  dict(text={"format": {"type": "x"}}), dict(text=3), dict(input=None), dict(max_output_tokens=0), dict(instructions=3),
                  dict(model=None)):
        status, got = s.post("/v1/responses", **{**ask, **field})
        expect(status == 400 and got["error"]["message"], field, got)


def secure():
    """https: texts and streams; a pair that is none."""
    made = subprocess.run("openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost "
                          "-addext subjectAltName=IP:127.0.0.1", shell=True, capture_output=True, check=False)
    if made.returncode != 0:
        print("no openssl: https is not tested")
        return
    s = Server("--tls_cert", "cert.pem", "--tls_key", "key.pem", scheme="https")
    context = ssl.create_default_context(cafile="cert.pem")
    for stream in (False, True):
        c = http.client.HTTPSConnection("127.0.0.1", s.port, timeout=60, context=context)
        for _ in range(2):  # the connection is used again
            c.request("POST", "/v1/completions", json.dumps(dict(model="m", prompt="the quick", max_tokens=40, temperature=0, stream=stream)))
            text = c.getresponse().read().decode()
            expect("brown" in text or stream and text.endswith("data: [DONE]\n\n"), text)
        c.close()
    try:
        expect(s.ask("GET", "/health")[0] != 200, "http where https is served")
    except (OSError, http.client.HTTPException):
        pass
    s.end()
    for flags in (("--tls_cert", "cert.pem"), ("--tls_cert", "key.pem", "--tls_key", "cert.pem"), ("--tls_cert", "none", "--tls_key", "key.pem")):
        bad = subprocess.run([PROGRAM, "--model", MODEL, "--port", "0", *flags], capture_output=True, text=True, check=False, timeout=60)
        expect(bad.returncode == 2 and "--tls_" in bad.stderr, flags, bad)


def one_port():
    """Two servers do not share a port: the second is refused; one comes behind one that has ended at once."""
    s = Server()
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)  # which its end closes
    c.request("GET", "/health")
    c.getresponse().read()
    again = [PROGRAM, "--model", MODEL, "--port", str(s.port)]
    bad = subprocess.run(again, capture_output=True, text=True, check=False, timeout=60)
    expect(bad.returncode == 1 and "it is taken" in bad.stderr, bad)
    s.end()
    next_one = subprocess.Popen(again, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    expect(next_one.stdout.readline().endswith(f":{s.port}\n"), "the port is free")
    next_one.send_signal(signal.SIGTERM)
    expect(next_one.wait(60) == 0)
    c.close()


def keys_and_limits():
    with open("keys", "w", encoding="utf-8") as f:
        f.write("first\nsecond\n")
    s = Server("--api_key_file", "keys", "--max_waiting", "0", "--max_sequences", "2", "--max_batch_tokens", "8")
    expect(s.ask("GET", "/v1/models")[0] == 401 and s.ask("GET", "/health")[0] == 200 and s.ask("GET", "/ready")[0] == 200)
    for header, status in (({"Authorization": "Bearer second"}, 200), ({"x-api-key": "first"}, 200),
                           ({"Authorization": "Bearer secon"}, 401), ({"Authorization": "Bearer "}, 401),
                           ({"Authorization": "second"}, 401), ({"Authorization": "Bearer secondsecond"}, 401)):
        expect(s.ask("GET", "/v1/models", headers=header)[0] == status, header)
    key = {"Authorization": "Bearer first"}
    body = json.dumps(dict(model="m", prompt="the", max_tokens=500, stream=True, ignore_eos=True))
    running = []
    for _ in range(2):
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
        c.request("POST", "/v1/completions", body, key)
        running.append((c, c.getresponse()))
    status, text, headers = s.ask("POST", "/v1/completions", body, key)
    expect(status == 429 and headers["Retry-After"] and json.loads(text)["error"]["code"] == "queue_full", status, text)
    expect(s.ask("GET", "/ready")[0] == 503 and s.ask("GET", "/slots")[0] == 401)
    # SIGTERM: what runs ends, nothing new begins
    s.process.send_signal(signal.SIGTERM)
    for _ in range(100):
        if s.ask("GET", "/health")[0] == 503:
            break
        time.sleep(0.02)
    expect(s.ask("POST", "/v1/completions", body, key)[0] == 503)
    for c, r in running:
        text = r.read().decode()
        expect(text.endswith("data: [DONE]\n\n") and text.count('"text"') >= 400, text[-200:])
        c.close()
    expect(s.process.wait(30) == 0, s.process.returncode)


def write_tokenizer(folder, template):
    """A tokenizer of bytes, as the model's, with a chat template."""
    os.makedirs(folder, exist_ok=True)
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in plain} | {b: chr(256 + k) for k, b in enumerate(b for b in range(256) if b not in plain)}
    vocab = {letters[b]: b for b in range(256)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    with open(f"{folder}/tokenizer.json", "w", encoding="utf-8") as f:
        json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": level,
                   "post_processor": None, "decoder": level, "model": {"type": "BPE", "dropout": None, "unk_token": None,
                   "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                   "ignore_merges": False, "vocab": vocab, "merges": []}}, f)
    with open(f"{folder}/tokenizer_config.json", "w", encoding="utf-8") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}, f)


def call_of(choice):
    calls = choice["message"]["tool_calls"]
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]


def joined(frames):
    """The message that a stream's frames make, with its finish."""
    content, calls, finish = "", [], None
    for choice in (f["choices"][0] for f in frames):
        finish = choice["finish_reason"]
        content += choice["delta"].get("content") or ""
        for part in choice["delta"].get("tool_calls", []):
            if part["index"] == len(calls):
                expect(part["type"] == "function" and part["id"].startswith("call_") and part["function"]["arguments"] == "", part)
                calls.append([part["function"]["name"], ""])
            calls[part["index"]][1] += part["function"]["arguments"]
    return content, calls, finish


def tools():
    """Calls of tools: forced, chosen by the model, in a row, in streams, and what messages say of them."""
    golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/data/templates")
    with open(f"{golden}/qwen2.5.jinja", encoding="utf-8") as f:
        write_tokenizer("tagged", f.read())
    with open(f"{golden}/llama3.2.jinja", encoding="utf-8") as f:
        write_tokenizer("bare", f.read())
    some = [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": {
                "type": "object", "properties": {"city": {"enum": ["Rome", "Zürich \"x\""]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
                "required": ["city"], "additionalProperties": False}}},
            {"type": "function", "function": {"name": "stop"}}]
    said = [{"role": "user", "content": "a"}]
    for folder in ("tagged", "bare"):
        s = Server("--tokenizer", folder, "--max_length", "2048", template=())
        ask = dict(model="m", messages=said, tools=some, max_tokens=300)
        seen = set()
        for seed in range(6):
            body = dict(ask, tool_choice="required", parallel_tool_calls=False, seed=seed)
            status, got = s.post("/v1/chat/completions", **body)
            expect(status == 200, got)
            choice = got["choices"][0]
            expect(choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None, got)
            calls = call_of(choice)
            expect(len(calls) == 1, calls)
            for name, arguments in calls:
                seen.add(name)
                expect(name == "stop" and arguments == {} or name == "weather" and arguments["city"] in ("Rome", 'Zürich "x"')
                       and 1 <= arguments.get("days", 1) <= 7, name, arguments)
            content, streamed, finish = joined(s.stream("/v1/chat/completions", **{k: v for k, v in body.items() if k != "model"}))
            expect((content, finish) == ("", "tool_calls") and [(n, json.loads(a)) for n, a in streamed] == calls, streamed, calls)
        expect(seen == {"stop", "weather"}, seen)
        choice = s.post("/v1/chat/completions", **ask, tool_choice={"type": "function", "function": {"name": "stop"}})[1]["choices"][0]
        expect(call_of(choice) == [("stop", {})], choice)
        # the model's own choice: a text; and a call, where it writes how one begins
        choice = s.post("/v1/chat/completions", **dict(ask, max_tokens=20), seed=1, logit_bias={"60": -100, "123": -100})[1]["choices"][0]
        expect("tool_calls" not in choice["message"] and choice["finish_reason"] == "length", choice)
        begin = "<tool_call>" if folder == "tagged" else "{"
        forced = {str(b): 60 + k for k, b in enumerate(sorted(set(begin.encode())))} if folder == "bare" else {"60": 100}
        choice = s.post("/v1/chat/completions", **ask, seed=1, logit_bias=forced)[1]["choices"][0]
        if folder == "bare":
            expect(choice["finish_reason"] == "tool_calls" and len(call_of(choice)) == 1, choice)
        else:
            expect(set(choice["message"]["content"]) == {"<"}, choice)  # "<<<<": never the begin of a call
        # a text that may call, in a stream: whole characters, no more frames than tokens; the text of one answer
        high = {str(b): 100 for b in (*"é日😀".encode(), *b"<tool")}
        for seed in range(6):
            body = dict(messages=said, tools=some, max_tokens=40, seed=seed, temperature=2, logit_bias=high if seed < 4 else {"195": 100, "169": 100})
            frames = s.stream("/v1/chat/completions", **body)
            whole = s.post("/v1/chat/completions", model="m", **body)[1]["choices"][0]
            expect(joined(frames) == (whole["message"]["content"], [], "length"), frames, whole)
            n = sum(bool(f["choices"][0]["delta"].get("content")) for f in frames)
            expect(n <= 40, n)
        choice = s.post("/v1/chat/completions", **ask, tool_choice="none", seed=1, logit_bias={"123": 9})[1]["choices"][0]
        expect("tool_calls" not in choice["message"], choice)
        # a call cut by its length is no whole one
        choice = s.post("/v1/chat/completions", **dict(ask, max_tokens=25), tool_choice="required")[1]["choices"][0]
        expect(choice["finish_reason"] == "length", choice)
        # so is one cut by a stop string, unless its arguments are there; in a stream, too
        for stop, cut in (("}", True), ('"', True), ("ty", True), ("ather", True), (":", True), ("</tool_call>", False), ("\n</", False)):
            body = dict(ask, tool_choice={"type": "function", "function": {"name": "weather"}}, parallel_tool_calls=False, stop=stop, seed=3)
            choice = s.post("/v1/chat/completions", **body)[1]["choices"][0]
            content, streamed, finish = joined(s.stream("/v1/chat/completions", **{k: v for k, v in body.items() if k != "model"}))
            expect(finish == choice["finish_reason"] and content == (choice["message"]["content"] or ""), finish, choice)
            expect(finish == ("stop" if cut else "tool_calls"), stop, choice)
            if finish == "tool_calls":
                expect([(n, json.loads(a)) for n, a in streamed] == call_of(choice), streamed, choice)
        # several calls, where the form has them; this model has no token that ends a text
        several = s.post("/v1/chat/completions", **ask, tool_choice="required", seed=5)[1]["choices"][0]["message"]["tool_calls"]
        expect(len(several) > 1 if folder == "tagged" else len(several) == 1, several)
        expect(len({c["id"] for c in several}) == len(several) and all(json.loads(c["function"]["arguments"]) is not None for c in several[:-1]))
        # what comes back from a tool
        back = said + [{"role": "assistant", "content": None, "refusal": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}]
        status, got = s.post("/v1/chat/completions", model="m", messages=back, max_tokens=3, tools=some)
        expect(status == 200, got)
        prompt = s.post("/apply-template", messages=back, tools=some)[1]["prompt"]
        expect('"city": "Rome"' in prompt and "sunny" in prompt and '"name": "stop"' in prompt, prompt)
        for field in (dict(tools=3), dict(tools=[3]), dict(tools=[{"type": "function", "function": {"name": "a b"}}]),
                      dict(tools=[{"type": "function", "function": {"name": "a", "x": 1}}]), dict(tool_choice="maybe"),
                      dict(tool_choice={"type": "function", "function": {"name": "other"}}), dict(tools=None, tool_choice="required"),
                      dict(tools=None, parallel_tool_calls=True), dict(response_format={"type": "json_object"}), dict(parallel_tool_calls=1),
                      dict(tools=[{"type": "function", "function": {"name": "a", "parameters": {"type": "object", "minProperties": 1}}}]),
                      dict(messages=[{"role": "tool", "content": "a"}]), dict(messages=[{"role": "user", "content": "a", "tool_call_id": "b"}]),
                      dict(messages=[{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{"}}]}])):
            status, got = s.post("/v1/chat/completions", **{**ask, **field})
            expect(status == 400 and got["error"]["message"], field, got)
        s.end()


def head_of(folder):
    """The output projection of a small model, as rows of numbers."""
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        data = f.read()
    size = int.from_bytes(data[:8], "little")
    names = json.loads(data[8:8 + size])
    at = names.get("lm_head.weight") or names["model.embed_tokens.weight"]
    begin, end = (8 + size + x for x in at["data_offsets"])
    rows, width = at["shape"]
    wide = {"F32": data[begin:end], "BF16": b"".join(b"\0\0" + data[i:i + 2] for i in range(begin, end, 2))}[at["dtype"]]  # as ds_train's machine computes
    flat = struct.unpack(f"<{rows * width}f", wide)
    return [flat[i * width:(i + 1) * width] for i in range(rows)]


def embeddings(s):
    """A vector is the hidden state that the logits are of; alone and among texts the same."""
    raw = Server("--normalize", "no", "--max_batch_tokens", "32", "--max_sequences", "3", "--dtype", "f32", template=())
    prompts = ["the quick brown fox ju", "x", "over the lazy dog. " * 15]
    status, got = raw.post("/v1/embeddings", model="m", input=prompts)
    expect(status == 200 and [d["index"] for d in got["data"]] == [0, 1, 2] and got["object"] == "list", got)
    expect(got["usage"] == {"prompt_tokens": sum(map(len, prompts)), "total_tokens": sum(map(len, prompts))}, got["usage"])
    vectors = [d["embedding"] for d in got["data"]]
    head = head_of(MODEL)
    for vector, prompt in zip(vectors, prompts):
        z = [sum(a * b for a, b in zip(row, vector)) for row in head]
        below = math.log(sum(map(math.exp, z)))
        top = raw.complete(prompt, max_tokens=1, logprobs=5, temperature=0)["choices"][0]["logprobs"]["top_logprobs"][0]
        for piece, logprob in top.items():
            expect(len(piece) != 1 or abs(z[ord(piece)] - below - logprob) < 1e-4, piece, z[ord(piece[0])] - below, logprob)
    _, coded = raw.post("/v1/embeddings", model="m", input=[list(p.encode()) for p in prompts], encoding_format="base64")
    for vector, d in zip(vectors, coded["data"]):
        found = struct.unpack(f"<{len(vector)}f", base64.b64decode(d["embedding"]))
        expect(all(a == struct.unpack("<f", struct.pack("<f", b))[0] for a, b in zip(found, vector)))
    _, crowd = s.post("/v1/embeddings", model="m", input=prompts * 20)
    for i, d in enumerate(crowd["data"]):
        expect(abs(sum(x * x for x in d["embedding"]) - 1) < 1e-6, i)
        expect(d["embedding"] == crowd["data"][i % 3]["embedding"], i)
    for prompt, d in zip(prompts, crowd["data"]):
        expect(s.post("/v1/embeddings", model="m", input=prompt)[1]["data"][0]["embedding"] == d["embedding"], prompt)
    _, short = s.post("/v1/embeddings", model="m", input="x", dimensions=3)
    expect(len(short["data"][0]["embedding"]) == 3 and abs(sum(x * x for x in short["data"][0]["embedding"]) - 1) < 1e-6, short)
    for fields in (dict(), dict(input=None), dict(input=""), dict(input=["a", 3]), dict(input=[999]), dict(input="x" * 513), dict(input="a", dimensions=33),
                   dict(input="a", encoding_format="int8"), dict(input="a", what=1)):
        status, got = s.post("/v1/embeddings", model="m", **fields)
        expect(status == 400 and got["error"]["message"], fields, got)
    raw.end()
    off = Server("--no_embeddings", template=())
    expect(off.post("/v1/embeddings", model="m", input="a")[0] == 400)
    off.end()


def bests(s):
    """best_of: the likeliest a token of those that n has, by the log-probabilities that it says."""
    asked = dict(max_tokens=12, temperature=1.5, seed=5)
    every = s.complete(["the ", "fox"], **asked, n=6, logprobs=0)["choices"]
    mean = lambda c: sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"])
    got = s.complete(["the ", "fox"], **asked, n=2, best_of=6)
    want = [c["text"] for i in (0, 6) for c in sorted(every[i:i + 6], key=mean, reverse=True)[:2]]
    expect([c["text"] for c in got["choices"]] == want and [c["index"] for c in got["choices"]] == [0, 1, 2, 3], got, want)
    expect(got["usage"]["completion_tokens"] == 2 * 6 * 12 and got["choices"][0]["logprobs"] is None, got)
    expect(len({c["text"] for c in every}) > 4, every)
    one = s.complete("the ", **asked, best_of=1)["choices"]
    expect([c["text"] for c in one] == [every[0]["text"]], one)
    for fields, what in ((dict(best_of=1, n=2), "below n"), (dict(best_of=2, stream=True), "stream"), (dict(best_of=0), "best_of"), (dict(best_of=1000), "max_choices")):
        status, got = s.post("/v1/completions", model="m", prompt="a", **fields)
        expect(status == 400 and what in got["error"]["message"], fields, got)


def mii(s):
    """DeepSpeed-MII's REST gateway: the texts of /v1/completions in its form."""
    def ask(**body):
        status, text, _ = s.ask("POST", "/mii/m", body)
        return status, json.loads(text)
    want = s.complete(["the quick", "fox"], max_tokens=20, temperature=0)["choices"]
    status, got = ask(prompts=["the quick", "fox"], max_new_tokens=20, do_sample=False)
    expect(status == 200 and got == [dict(generated_text=c["text"], prompt_length=n, generated_length=20, finish_reason="length")
                                     for c, n in zip(want, (9, 3))], got)
    status, got = ask(prompts=["the quick", "fox"], max_length=29, do_sample=False)  # with the prompt
    expect(status == 200 and [r["generated_length"] for r in got] == [20, 26] and got[0]["generated_text"] == want[0]["text"], got)
    status, got = ask(prompts="the quick", max_length=20, max_new_tokens=40, do_sample=False, return_full_text=True)
    expect(status == 200 and got[0]["generated_text"] == "the quick" + want[0]["text"][:11], got)
    stop = want[0]["text"][7:11]
    status, got = ask(prompts=["the quick"], do_sample=False, stop=[stop])
    expect(got[0]["finish_reason"] == "stop" and got[0]["generated_text"] == want[0]["text"][:want[0]["text"].index(stop)], got)
    for fields in (dict(prompts="the quick"), dict(prompts=["the quick"], return_full_text=True), dict(prompts="the quick", stop=stop)):
        whole = ask(**fields, max_new_tokens=20, do_sample=False)[1]
        status, text, headers = s.ask("POST", "/mii/m", dict(fields, max_new_tokens=20, do_sample=False, stream=True))
        frames = text.split("\n\n")
        expect(status == 200 and headers["Content-Type"] == "text/event-stream" and frames[-2:] == ["data: [DONE]", ""], text)
        parts = [json.loads(f.removeprefix("data: ")) for f in frames[:-2]]
        expect(all(len(p) == 1 for p in parts) and len(parts) > 3, parts)
        expect("".join(p[0]["generated_text"] for p in parts) == whole[0]["generated_text"], parts, whole)
        expect([p[0]["finish_reason"] for p in parts] == ["none"] * (len(parts) - 1) + [whole[0]["finish_reason"]], parts)
        expect({k: v for k, v in parts[-1][0].items() if k != "generated_text"} == {k: v for k, v in whole[0].items() if k != "generated_text"}, parts, whole)
        lengths = [p[0]["generated_length"] for p in parts]
        expect(lengths == sorted(lengths), lengths)
    expect(s.ask("GET", "/healthz")[:2] == (200, "ok"))
    for fields, what in ((dict(), "prompts"), (dict(prompts=[]), "prompts"), (dict(prompts=["a", "b"], stream=True), "one text beside stream"), (dict(prompts="a", stream=1), "stream"), (dict(prompts="a", seed=1), "seed"),
                         (dict(prompts="a", max_length=1), "max_length"), (dict(prompts="a", max_length=10**6), "512"), (dict(prompts="abc", max_length=3), "context")):
        status, got = ask(**fields)
        expect(status == 400 and what in got["error"]["message"], fields, got)
    expect(s.ask("POST", "/mii/other", dict(prompts="a"))[0] == 404)


def page(s):
    """The chat page: whole, of its own, allowed to ask this server alone. test/long/serve_page.sh has it in a browser."""
    status, text, headers = s.ask("GET", "/")
    expect(status == 200 and headers["Content-Type"] == "text/html; charset=utf-8", headers.items())
    expect(text.startswith("<!doctype html>\n") and text.endswith("</script></body></html>\n"), text[:50], text[-50:])
    expect("default-src 'none'" in headers["Content-Security-Policy"] and "connect-src 'self'" in headers["Content-Security-Policy"], headers.items())
    expect(not re.search(r"(src|href)=\"(?!data:,)|https?://|@import|url\(", text), "it needs something from elsewhere")
    script = text[text.index("<script>"):]
    ids = set(re.findall(r"\$\(\"(\w+)\"\)", script)) | set(re.findall(r"\"(\w+)\"", re.search(r"for \(const name of \[(.*?)\]", script).group(1)))
    expect(len(ids) > 12 and all(f'id="{i}"' in text for i in ids), ids)
    for open_, close in ("{}", "()", "[]", "``"):
        expect(text.count(open_) == text.count(close), open_)
    for path in re.findall(r"fetch\(\"([^\"]+)\"", script):
        expect(s.ask("GET", "/" + path)[0] in (200, 405), path)


def loras():
    """Adapters by the request: the texts of the merged models; one's keys are not another's; loaded and unloaded."""
    prompt = "the quick brown fox jumps over the lazy dog. zigzag " * 2
    many = dict(max_tokens=24, temperature=0)

    def of(s, adapter, field="model"):
        body = dict(many, prompt=prompt, model="m", **{}) if adapter is None or field == "lora" else dict(many, prompt=prompt, model=adapter)
        if field == "lora":
            body["lora"] = adapter
        status, got = s.post("/v1/completions", **body)
        expect(status == 200 and got["model"] == (adapter or "m"), got)
        return got["choices"][0]["text"]

    def generated(folder):
        return subprocess.run([PROGRAM.replace("ds_serve", "ds_generate"), "--model", folder, "--dtype", "f32", "--prompt", prompt, "--no_echo",
                               "--max_new_tokens", "24"], capture_output=True, check=True, text=True).stdout[:-1]

    want = {None: generated(MODEL), "a": generated("merged1"), "b": generated("merged2")}
    expect(len(set(want.values())) == 3, want)
    s = Server("--dtype", "f32", "--lora", "a=lora1", "--lora", "b=lora2", "--max_loras", "3", "--max_lora_rank", "4", "--lora_updates", template=())
    for name in (None, "a", "b", "a", None):
        expect(of(s, name) == want[name], name, want[name])
    expect(of(s, "b", "lora") == want["b"])
    status, got = s.post("/v1/responses", model="a", input="a", max_output_tokens=2)
    expect(status == 400 or got["model"] == "a", got)  # 400: no chat template
    found = {}
    threads = [threading.Thread(target=lambda k=k, n=n: found.update({(k, n): of(s, n)})) for k in range(6) for n in want]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    expect(len(found) == 18 and all(text == want[n] for (_, n), text in found.items()), found)
    models = json.loads(s.ask("GET", "/v1/models")[1])["data"]
    expect([m["id"] for m in models] == ["m", "a", "b"] and models[1]["parent"] == "m", models)
    expect(s.post("/v1/completions", model="c", prompt="a")[0] == 404)
    expect(s.post("/v1/completions", model="m", lora="c", prompt="a")[0] == 404)
    expect(s.post("/v1/completions", model="a", lora="b", prompt="a")[0] == 400)
    vectors = {n: s.post("/v1/embeddings", model=n, input=[prompt, "the quick"])[1] for n in ("m", "a", "b")}
    expect(all(v["model"] == n for n, v in vectors.items()), vectors)
    own = {n: v["data"][0]["embedding"] for n, v in vectors.items()}
    expect(len({str(v) for v in own.values()}) == 3)
    expect(s.post("/v1/embeddings", model="a", input=["the quick", prompt])[1]["data"][1]["embedding"] == own["a"])
    expect(s.post("/v1/embeddings", model="c", input="a")[0] == 404)
    expect(s.post("/v1/load_lora_adapter", lora_name="c", lora_path="lora1")[0] == 200)
    expect(of(s, "c") == want["a"])
    for fields, what in ((dict(lora_name="c", lora_path="lora1"), "there already"), (dict(lora_name="d", lora_path="lora1"), "slots"), (dict(lora_name="d"), "folder"),
                         (dict(lora_name="d", lora_path="lora1", more=1), "no field")):
        status, got = s.post("/v1/load_lora_adapter", **fields)
        expect(status == 400 and what in got["error"]["message"], fields, got)
    expect(s.post("/v1/unload_lora_adapter", lora_name="a")[0] == 200)
    expect(s.post("/v1/unload_lora_adapter", lora_name="a")[0] == 404 and s.post("/v1/completions", model="a", prompt="a")[0] == 404)
    status, got = s.post("/v1/load_lora_adapter", lora_name="d", lora_path="nowhere")
    expect(status == 400 and "nowhere" in got["error"]["message"], got)
    expect(s.post("/v1/load_lora_adapter", lora_name="d", lora_path="lora2")[0] == 200)
    expect(of(s, "d") == want["b"] and of(s, "c") == want["a"] and of(s, None) == want[None])
    expect(s.post("/v1/unload_lora_adapter", lora_name="c")[0] == 200)  # a name that is used again is not the old one, whose keys are cached
    expect(s.post("/v1/load_lora_adapter", lora_name="c", lora_path="lora2")[0] == 200 and of(s, "c") == want["b"])
    s.end()
    whole = Server("--dtype", "f32", "--adapter", "lora1", template=())  # one for all that is served, vectors too
    expect(of(whole, None) == want["a"])
    vector = whole.post("/v1/embeddings", model="m", input=prompt)[1]["data"][0]["embedding"]
    expect(max(abs(x - y) for x, y in zip(vector, own["a"])) < 1e-5 < max(abs(x - y) for x, y in zip(vector, own["b"])))
    merged = subprocess.run([PROGRAM, "--model", MODEL, "--adapter", "lora1", "--lora", "b=lora2"], capture_output=True, text=True, check=False)
    expect(merged.returncode == 2 and "--adapter" in merged.stderr and "--lora" in merged.stderr, merged)
    plain = Server("--dtype", "f32", template=())
    expect(vector != plain.post("/v1/embeddings", model="m", input=prompt)[1]["data"][0]["embedding"])
    plain.end()
    whole.end()
    shut = Server("--lora", "a=lora1", template=())
    expect(shut.post("/v1/load_lora_adapter", lora_name="b", lora_path="lora2")[0] == 403)
    shut.end()


def main():
    alone = Server("--max_sequences", "1", "--max_batch_tokens", "32", "--no_prefix_cache")
    s = Server()
    expect(texts(s) == texts(alone))
    chats(s)
    sampling(s)
    samplers(s)
    beams(s)
    objects(s)
    forms(s)
    refusals(s)
    crowd(s, alone)
    drafts(s)
    slots(s)
    answers(s)
    embeddings(s)
    bests(s)
    mii(s)
    page(s)
    s.settle()
    hostile(s)
    s.settle()
    expect(s.ask("GET", "/metrics")[1].count('status="5xx"} 0') == 1, "5xx")
    s.end()
    alone.end()
    for _ in range(10):  # a signal that comes as soon as the port is told ends it as later ones do
        Server().end()
    tools()
    secure()
    one_port()
    keys_and_limits()
    bad = subprocess.run([PROGRAM, "--model", MODEL, "--kv_tokens", "64"], capture_output=True, text=True, check=False)
    expect(bad.returncode == 2 and "kv_tokens" in bad.stderr, bad)
    bad = subprocess.run([PROGRAM], capture_output=True, text=True, check=False)
    expect(bad.returncode == 2 and "--model" in bad.stderr, bad)
    print(f"{checks} checks")


if sys.argv[3:] == ["loras"]:
    loras()
    print(f"{checks} checks")
else:
    main()
