# SPDX-License-Identifier: Apache-2.0
"""Random requests of ds_serve against what one answer says of another: log-probabilities against a second scoring of the same ids as a prompt, usage
against the tokenizer, a text with stop strings against the text without, streams against whole answers, responses against chats, prompts at the
longest length, and another process. Usage: serve_scores.py PROGRAM MODEL [REQUESTS [SEED]]"""
import atexit
import http.client
import json
import random
import re
import signal
import subprocess
import sys

from tagged_tokenizer import make_tokenizer

PROGRAM, MODEL = sys.argv[1:3]
N = int(sys.argv[3]) if len(sys.argv) > 3 else 25
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else 1
LENGTH = 256
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
LETTERS = "abc eiou th\n.,é世界\U0001f600ñß"


def fail(*what):
    raise SystemExit(f"FAILED (seed {SEED}): {what}")


class Server:
    def __init__(self, *flags):
        self.process = subprocess.Popen([PROGRAM, "--model", MODEL, "--served_model_name", "m", "--tokenizer", "tagged", "--port", "0", "--max_length",
                                         str(LENGTH), *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        found = re.search(r":(\d+)\n", self.process.stdout.readline())
        if not found:
            fail("no server", flags, self.process.stderr.read())
        self.port = int(found.group(1))

    def raw(self, path, body):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=100)
        c.request("POST", path, json.dumps(body))
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text

    def ask(self, path, body):
        status, text = self.raw(path, body)
        if status != 200:
            fail(path, body, status, text)
        return json.loads(text)

    def frames(self, path, body):
        status, text = self.raw(path, dict(body, stream=True))
        if status != 200:
            fail(path, body, status, text)
        return [json.loads(line.removeprefix("data: ")) for line in text.split("\n") if line.startswith("data: ") and line != "data: [DONE]"]

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(60) != 0:
            fail("exit code", self.process.returncode)


def byte_of(token):
    """The id of a token of the tokenizer of bytes, by its text in an answer; None: one that it has not, and no text."""
    if not token:
        return None
    return int(token[8:], 16) if token.startswith("bytes:\\x") else token.encode()[0]


def text_of(rng, most=40):
    return "".join(rng.choices(LETTERS, k=rng.randint(1, most)))


def sampling(rng):
    body = dict(max_tokens=rng.choice((1, 2, 10, 40)))
    if rng.random() < 0.7:
        body.update(temperature=rng.choice((0.2, 1, 2)), seed=rng.randrange(2**31))
    else:
        body["temperature"] = 0
    for name, value in (("top_k", rng.randint(1, 60)), ("top_p", rng.uniform(0.1, 1)), ("n", rng.randint(2, 3)), ("repetition_penalty", rng.uniform(0.8, 1.4)),
                        ("logit_bias", {str(rng.randrange(256)): rng.choice((-100, 3, 100)) for _ in range(3)}), ("ignore_eos", True)):
        if rng.random() < 0.15:
            body[name] = value
    return body


def check_scores(s, rng, prompt, body):
    """What was drawn, scored as a prompt: the same numbers."""
    top = rng.randint(0, 3)
    got = s.ask("/v1/completions", dict(body, model="m", prompt=prompt, logprobs=top))
    made = 0
    if len(got["choices"]) != body.get("n", 1):
        fail("choices", prompt, body, got)
    for c in got["choices"]:
        lp = c["logprobs"]
        ids = [byte_of(t) for t in lp["tokens"]]
        made += len(ids)
        if len(lp["token_logprobs"]) != len(ids) or len(lp["text_offset"]) != len(ids) or \
                bytes(i for i in ids if i is not None).decode(errors="replace") != c["text"]:
            fail("columns", prompt, body, c)
        if c["finish_reason"] == "length" and len(ids) != body["max_tokens"]:
            fail("length", prompt, body, c)
        if None in ids:
            continue
        again = s.ask("/v1/completions", dict(model="m", prompt=prompt + ids, echo=True, logprobs=top, max_tokens=1, temperature=0))["choices"][0]["logprobs"]
        n = len(prompt)
        if [byte_of(t) for t in again["tokens"][:n + len(ids)]] != prompt + ids:
            fail("echoed ids", prompt, body, again)
        plain = not {"logit_bias", "repetition_penalty", "top_k", "top_p"} & set(body) and body["temperature"] in (0, 1)
        for k in range(len(ids) if plain else 0):
            if abs(again["token_logprobs"][n + k] - lp["token_logprobs"][k]) > 1e-4 or set(again["top_logprobs"][n + k]) != set(lp["top_logprobs"][k]):
                fail("scores", k, prompt, body, again["token_logprobs"][n:], lp["token_logprobs"], again["top_logprobs"][n + k], lp["top_logprobs"][k])
    usage = got["usage"]
    ended = sum(c["finish_reason"] == "stop" for c in got["choices"])
    if usage["prompt_tokens"] != len(prompt) or not made <= usage["completion_tokens"] <= made + ended or \
            usage["total_tokens"] != usage["prompt_tokens"] + usage["completion_tokens"]:
        fail("usage", prompt, body, made, ended, usage)
    return got


def check_stops(s, rng, prompt, body, free):
    """Cut where the stop string begins that is whole first, wherever tokens part."""
    texts = [c["text"] for c in free["choices"]]
    source = rng.choice(texts)
    stops = [text_of(rng, 2)] if rng.random() < 0.3 else []
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(len(source) + 1)
        stops.append(source[at:at + rng.choice((1, 2, 3, 5, 9))] + rng.choice(("", "", "", "q")))
    stops = [x for x in stops if x and not {"\ufffd", "\0"} & set(x)]  # the half of a character that the length cut; no JSON here has zeros
    if not stops:
        return
    for stream in (False, True):
        asked = dict(body, model="m", prompt=prompt, stop=stops)
        if stream:
            got = {}
            for f in s.frames("/v1/completions", asked):
                for c in f["choices"]:
                    mine = got.setdefault(c["index"], ["", None])
                    mine[0] += c["text"]
                    mine[1] = c["finish_reason"] or mine[1]
            got = [tuple(got[i]) for i in sorted(got)]
        else:
            got = [(c["text"], c["finish_reason"]) for c in s.ask("/v1/completions", asked)["choices"]]
        if len(got) != len(texts):
            fail("choices", stream, prompt, asked, got)
        for (text, why), whole, c in zip(got, texts, free["choices"]):
            places = [(whole.find(x) + len(x), whole.find(x)) for x in stops if x in whole]
            want = (whole[:min(places)[1]], "stop") if places else (whole, c["finish_reason"])
            if (text, why) != want:
                fail("stops", stream, prompt, asked, (text, why), want)


def check_chat(s, rng, body):
    """A chat's prompt is the template's text; a response is the same answer."""
    messages = [dict(role=rng.choice(("user", "system", "assistant")), content=text_of(rng, 15)) for _ in range(rng.randint(1, 3))]
    body = {k: v for k, v in body.items() if k in ("max_tokens", "temperature", "top_p", "seed")}
    got = s.ask("/v1/chat/completions", dict(body, model="m", messages=messages))
    prompt = s.ask("/apply-template", dict(messages=messages))["prompt"]
    ids = s.ask("/tokenize", dict(content=prompt))["tokens"]
    if ids != list(prompt.encode()) or got["usage"]["prompt_tokens"] != len(ids):
        fail("the chat's prompt", messages, prompt, ids, got)
    text = got["choices"][0]["message"]["content"]
    same = s.ask("/v1/completions", dict(body, model="m", prompt=ids))
    if same["choices"][0]["text"] != text or same["usage"]["completion_tokens"] != got["usage"]["completion_tokens"]:
        fail("a completion of the chat's prompt", messages, body, text, same)
    streamed = "".join(c["delta"].get("content") or "" for f in s.frames("/v1/chat/completions", dict(body, model="m", messages=messages)) for c in f["choices"])
    if streamed != text:
        fail("a stream", messages, body, streamed, text)
    if body["temperature"] == 0:
        asked = dict(model="m", input=messages, max_output_tokens=body["max_tokens"], temperature=0)
        whole = s.ask("/v1/responses", asked)
        pieces = "".join(f["delta"] for f in s.frames("/v1/responses", asked) if f["type"] == "response.output_text.delta")
        said = whole["output"][0]["content"][0]["text"]
        if said != text or pieces != text or (whole["usage"]["input_tokens"], whole["usage"]["output_tokens"]) != (len(ids), got["usage"]["completion_tokens"]):
            fail("a response", messages, asked, said, pieces, text, whole["usage"], got["usage"])


def check_limits(s, rng):
    """Prompts at the longest length."""
    for n in (LENGTH - 2, LENGTH - 1, LENGTH, LENGTH + 1):
        ids = [rng.randrange(97, 123) for _ in range(n)]
        for more in (1, 2, None):
            body = dict(model="m", prompt=ids, temperature=0, ignore_eos=True, **({} if more is None else {"max_tokens": more}))
            status, text = s.raw("/v1/completions", body)
            got = json.loads(text)
            fits = n + (more or 16) <= LENGTH  # a completion is of 16 where it does not say
            if (status == 200) != fits or (status != 200 and (status != 400 or not got["error"]["message"])):
                fail("limits", n, more, status, text)
            if status == 200:
                drawn = got["usage"]["completion_tokens"]
                if drawn != (more or 16) or got["choices"][0]["finish_reason"] != "length":
                    fail("limits", n, more, got)


def main():
    rng = random.Random(SEED)
    make_tokenizer(TEMPLATE)
    flags = [*rng.choice(((), ("--kv_type", "int8"), ("--kv_type", "f16"))), "--dtype", rng.choice(("f32", "bf16")), *rng.choice(((), ("--quantize", "q4_0"))),
             "--max_batch_tokens", rng.choice(("16", "64", "512")), *rng.choice(((), ("--draft", "3"), ("--no_prefix_cache",))), "--threads", "1"]
    s = Server(*flags)
    kept = []
    for _ in range(N):
        prompt, body = list(text_of(rng).encode()), sampling(rng)
        free = check_scores(s, rng, prompt, body)
        for _ in range(3):
            check_stops(s, rng, prompt, body, free)
        check_chat(s, rng, sampling(rng))
        kept.append((prompt, body, [c["text"] for c in free["choices"]]))
    check_limits(s, rng)
    s.end()
    s = Server(*flags)
    for prompt, body, texts in kept:
        got = [c["text"] for c in s.ask("/v1/completions", dict(body, model="m", prompt=prompt))["choices"]]
        if got != texts:
            fail("another process", prompt, body, got, texts)
    s.end()
    print(f"seed {SEED}: {N} requests agree with what others say of them ({' '.join(flags)})")


main()
