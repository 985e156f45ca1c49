# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of prompts: those of transformers (test/golden/serve), in the forms of OpenAI's echo and vLLM's prompt_logprobs, the
same bits alone and in a crowd, whatever the budget. Usage: serve_prompt_logprobs.py PROGRAM MODEL GOLDEN"""
import atexit
import http.client
import json
import re
import signal
import subprocess
import sys
import threading

PROGRAM, MODEL, GOLDEN = sys.argv[1:4]
with open(GOLDEN, encoding="utf-8") as golden:
    ROWS = json.load(golden)


def expect(holds, *what):
    if not holds:
        raise SystemExit(f"FAILED at line {sys._getframe(1).f_lineno}: {what}")


class Server:
    def __init__(self, *flags):
        self.process = subprocess.Popen([PROGRAM, "--model", MODEL, "--tokenizer", "bytes", "--served_model_name", "m", "--port", "0", "--dtype", "f32",
                                         "--chat_template", "chatml", "--threads", "1", "--no_embeddings", "--kv_tokens", "2048", *flags], stdout=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        self.port = int(re.search(r":(\d+)\n", self.process.stdout.readline()).group(1))

    def ask(self, path="/v1/completions", **body):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request("POST", path, json.dumps(dict(model="m", **body)))
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text if body.get("stream") and r.status == 200 else json.loads(text)

    def complete(self, prompt, **body):
        status, got = self.ask(prompt=prompt, **body)
        expect(status == 200, status, got)
        return got

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        expect(self.process.wait(30) == 0, self.process.returncode)


def near(a, b):
    return abs(a - b) < 2e-5 * max(1, abs(b))


def check_row(row, got):
    """An answer to echo, logprobs 3, prompt_logprobs 3 and max_tokens 0."""
    ids, scores, choice = row["ids"], row["scores"], got["choices"][0]
    columns = choice["logprobs"]
    expect(choice["text"] == bytes(ids).decode() and choice["finish_reason"] == "length", choice)
    expect(got["usage"]["completion_tokens"] == 0 and got["usage"]["prompt_tokens"] == len(ids), got["usage"])
    expect(columns["tokens"] == [chr(i) for i in ids] and columns["text_offset"] == list(range(len(ids))), columns)
    expect(len(columns["token_logprobs"]) == len(ids) == len(columns["top_logprobs"]) == len(choice["prompt_logprobs"]), columns)
    expect(columns["token_logprobs"][0] is columns["top_logprobs"][0] is choice["prompt_logprobs"][0] is None, columns)
    for i in range(1, len(ids)):
        want, ranked = scores[i], choice["prompt_logprobs"][i]
        expect(near(columns["token_logprobs"][i], want["logprob"]), i, want, columns)
        own = ranked[str(ids[i])]
        expect(own["logprob"] == columns["token_logprobs"][i] and own["rank"] == want["rank"] and own["decoded_token"] == chr(ids[i]), i, want, own)
        expect(list(ranked)[0] == str(ids[i]) and set(ranked) == {str(ids[i])} | {str(k) for k, _ in want["top"]}, i, want, ranked)
        for rank, (k, logprob) in enumerate(want["top"], 1):
            expect(near(ranked[str(k)]["logprob"], logprob) and ranked[str(k)]["rank"] == rank, i, want, ranked)
        top = columns["top_logprobs"][i]
        expect(len(top) == 3 and all(near(a, b) for a, (_, b) in zip(top.values(), want["top"])), i, want, top)
    return choice


FULL = dict(echo=True, logprobs=3, prompt_logprobs=3, max_tokens=0, temperature=0)
s = Server()
alone = [check_row(row, s.complete(row["ids"], **FULL)) for row in ROWS]
long = ROWS[-2]["ids"]

# with a text behind it: the columns of both, and the text without them
want = s.complete(long, max_tokens=6, temperature=0, logprobs=2)["choices"][0]
got = s.complete(long, max_tokens=6, temperature=0, logprobs=2, echo=True)["choices"][0]
expect(got["text"] == bytes(long).decode() + want["text"], got)
for name in ("tokens", "token_logprobs", "top_logprobs"):
    expect(got["logprobs"][name][len(long):] == want["logprobs"][name], name, got)
expect(got["logprobs"]["token_logprobs"][1:len(long)] == alone[-2]["logprobs"]["token_logprobs"][1:], got)
expect(got["logprobs"]["text_offset"][len(long):] == [len(long) + k for k in want["logprobs"]["text_offset"]], got)
expect("prompt_logprobs" not in got and all(len(t) == 2 for t in got["logprobs"]["top_logprobs"][1:]), got)
both = s.complete(long, max_tokens=6, temperature=0, logprobs=0, echo=True, prompt_logprobs=1, n=2)["choices"]
for choice in both:
    expect(choice["logprobs"]["token_logprobs"] == got["logprobs"]["token_logprobs"] and choice["logprobs"]["top_logprobs"][1] == {}, choice)
    expect(all(1 <= len(p) <= 2 for p in choice["prompt_logprobs"][1:]), choice)

# streams: the prompt's columns come with its text
status, text = s.ask(prompt=long, max_tokens=6, temperature=0, logprobs=2, echo=True, stream=True)
frames = [json.loads(f[6:])["choices"][0] for f in text.split("\n\n")[:-2]]
for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
    expect([x for f in frames for x in f["logprobs"][name]] == got["logprobs"][name], name, frames)
expect(len(frames[0]["logprobs"]["tokens"]) == len(long) and "".join(f["text"] for f in frames) == got["text"], frames)

# a chat: at the top of its answer
status, chat = s.ask("/v1/chat/completions", messages=[{"role": "user", "content": "a"}], max_tokens=2, temperature=0, prompt_logprobs=0)
expect(status == 200 and len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"] and chat["prompt_logprobs"][0] is None, chat)
prompt = s.ask("/apply-template", messages=[{"role": "user", "content": "a"}])
expect(prompt[0] == 400, prompt)  # it takes no model

# what evaluation harnesses send: continuations of contexts, by their ids, with one id drawn
context, goes_on = ROWS[2]["ids"], ROWS[3]["ids"]
asked = [context + goes_on[:k] for k in (1, 4, 9)]
got = s.complete(asked, echo=True, logprobs=1, max_tokens=1, temperature=0, seed=1234)["choices"]
for ids, choice in zip(asked, got):
    columns = choice["logprobs"]
    expect(len(columns["token_logprobs"]) == len(ids) + 1 and all(isinstance(x, float) for x in columns["token_logprobs"][len(context):-1]), columns)
    for own, top in zip(columns["token_logprobs"][1:], columns["top_logprobs"][1:]):
        expect(len(top) == 1 and own <= max(top.values()), columns)
    expect(columns["token_logprobs"][-1] == max(columns["top_logprobs"][-1].values()), columns)

# refused, by name
for param, body in (("max_tokens", dict(max_tokens=0)), ("max_tokens", dict(max_tokens=0, logprobs=1)), ("prompt_logprobs", dict(prompt_logprobs=1, stream=True)),
                    ("prompt_logprobs", dict(prompt_logprobs=21)), ("prompt_logprobs", dict(prompt_logprobs=-1)), ("prompt_logprobs", dict(prompt_logprobs=True)),
                    ("min_tokens", dict(max_tokens=0, echo=True, min_tokens=1)), ("prompt_logprobs", dict(use_beam_search=True, n=2, prompt_logprobs=1)),
                    ("logprobs", dict(use_beam_search=True, n=2, logprobs=1, echo=True))):
    status, error = s.ask(prompt=long, **body)
    expect(status == 400 and error["error"]["param"] == param, body, status, error)
s.end()


def crowd(*flags):
    """All at once, between texts that are made: each as alone."""
    server = Server(*flags)
    got = [None] * (3 * len(ROWS))

    def one(k):
        row = ROWS[k % len(ROWS)]
        if k >= 2 * len(ROWS):
            server.complete(row["ids"][:30], max_tokens=20, temperature=1, seed=k)
        got[k] = server.complete(row["ids"], **(FULL if k < 2 * len(ROWS) else dict(FULL, max_tokens=1)))["choices"][0]

    threads = [threading.Thread(target=one, args=(k,)) for k in range(len(got))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k, choice in enumerate(got):
        expect(choice is not None, k)
        expect(choice["prompt_logprobs"] == alone[k % len(ROWS)]["prompt_logprobs"], flags, k)
    server.end()


crowd("--max_batch_tokens", "16", "--max_sequences", "2")
crowd("--max_sequences", "3", "--draft", "4", "--kv_tokens", "128")
crowd("--prompt_rows", "100")
print("PASS")
