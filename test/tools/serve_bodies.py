# SPDX-License-Identifier: Apache-2.0
"""Random bodies of every path of ds_serve, and the same with one thing about them changed: an answer in time, never a status of 5xx, an
error that says what, and no member without effect: a member that nobody knows, and a value of another type, are refused, change the
answer, or are named in X-Ignored-Fields. Usage: serve_bodies.py PROGRAM MODEL LORA [BODIES [SEED]]"""
import atexit
import copy
import http.client
import json
import random
import re
import signal
import subprocess
import sys
import threading

from tagged_tokenizer import make_tokenizer

PROGRAM, MODEL, LORA = sys.argv[1:4]
N = int(sys.argv[4]) if len(sys.argv) > 4 else 300
SEED = int(sys.argv[5]) if len(sys.argv) > 5 else 1
TEMPLATE = ("{% if tools %}<tools>{{ tools | tojson }}<tool_call></tool_call>{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
            "{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}{{ m.tool_call_id or '' }}\n{% endfor %}"
            "{% if enable_thinking %}<think>{% endif %}<assistant>")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}, "b": {"enum": ["x", "y"]}}, "required": ["b"]}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
SAMPLING = {"temperature": (0.5, 1, 1.5), "top_p": (0.5, 0.9), "top_k": (3, 40), "min_p": (0.1,), "presence_penalty": (1, -1), "frequency_penalty": (1.5,),
            "repetition_penalty": (1.3,), "typical_p": (0.6,), "min_tokens": (2,), "logit_bias": ({"97": 5, "98": -3}, {"120": 9}), "stop": ("e", ["qq", "z"]),
            "stop_token_ids": ([101], [7, 110]), "ignore_eos": (True,), "n": (2,), "dry_multiplier": (1,), "lora": ("lo",), "user": ("u",)}
ODD = (None, True, False, 0, 1, -1, 2, 1.5, 1e300, -1e300, 2**31, 2**32, 2**53 + 1, 2**63 - 1, -2**63, "", "a", "m", "\u00e9\u4e16\U0001f600", "\ud800", "\u0000", "1",
       "true", "null", "x" * 3000, [], [0], [[]], [None], ["a"], {}, {"a": 1}, {"type": "text"}, [{}], [[0, 1], [2]], [{"role": "user", "content": "a"}])
KNOWN = dict(SAMPLING, temperature=(0, 1), stream=(True, False), stream_options=({"include_usage": True},), logprobs=(True, 0, 3), top_logprobs=(2,), echo=(True,), prompt_logprobs=(0, 3), best_of=(1, 4),
             suffix=("s",), mirostat=(1, 2), mirostat_tau=(3,), dry_base=(1.5,), dry_allowed_length=(1,), dry_sequence_breakers=(["."],), use_beam_search=(True,),
             length_penalty=(2,), early_stopping=("never",), tools=([TOOL], []), tool_choice=("auto", "none", "required"), parallel_tool_calls=(False,), lora=("lo", "x"),
             response_format=({"type": "text"}, {"type": "json_object"}), structured_outputs=({"regex": "(a|b)+"},), modalities=(["text"],), max_tokens=(0, 1, 440, 2**31 - 1),
             max_completion_tokens=(3,), max_output_tokens=(3,), instructions=("i",), input=("a", []), prompt=("a", []), messages=([],), content=("x",), tokens=([1],),
             dimensions=(1, 32, 33), encoding_format=("base64",), prompts=("a",), do_sample=(True, False), min_new_tokens=(20,), max_length=(2, 20), service_tier=("auto",))
NAMES = ("zz", "Temperature", "temperature ", "", "\u00e9", "k" * 70, "k" * 61 + "\u00e9" * 9, "prefix", "reasoning", "index", "cache_control", "\u0000", "__proto__", "max_token")
FREE = re.compile(r"\.(enum|const|properties|required|metadata|arguments|description|enable_thinking)\b|^\.stop\b")  # which may be anything
seen = {}


def fail(*what):
    raise SystemExit(f"FAILED (seed {SEED}): {what}")


class Server:
    def __init__(self, *flags):
        self.process = subprocess.Popen([PROGRAM, "--model", MODEL, "--served_model_name", "m", "--port", "0", "--max_length", "448", "--kv_tokens", "4096",
                                         "--lora", f"lo={LORA}", "--max_loras", "2", "--max_lora_rank", "4", "--lora_updates", "--api_key_file", "keys",
                                         "--threads", "1", "--max_choices", "16", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        self.lines = []
        threading.Thread(target=lambda: self.lines.extend(iter(self.process.stderr.readline, "")), daemon=True).start()
        found = re.search(r":(\d+)\n", self.process.stdout.readline())
        if not found:
            fail("no server", flags, self.lines)
        self.port = int(found.group(1))

    def ask(self, path, data):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request("POST", path, data, {"Authorization": "Bearer k"})
        r = c.getresponse()
        text = r.read()
        c.close()
        return r.status, text, (r.headers["X-Ignored-Fields"] or "").split()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(60) != 0:
            fail("exit code", self.process.returncode, self.lines)


# ---- bodies that are right ----
def some(rng, body, table, share):
    for name, values in table.items():
        if rng.random() < share:
            body[name] = rng.choice(values)
    return body


def message(rng):
    content = rng.choice(("the quick", "a \u00e9 b", [{"type": "text", "text": "the "}, {"type": "text", "text": "fox"}]))
    return {"role": rng.choice(("user", "system", "developer", "assistant")), "content": content}


def messages(rng, calls):
    out = [message(rng) for _ in range(rng.randint(1, 3))]
    if calls:
        out += [{"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"b":"x"}'}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "sunny"}]
    return out


def form(rng):
    return rng.choice(({"structured_outputs": {"regex": "[ab]{3,9}"}}, {"structured_outputs": {"choice": ["left", "right"]}},
                       {"structured_outputs": {"json": SCHEMA}}, {"structured_outputs": {"grammar": 'root ::= "x" [a-c]*'}},
                       {"structured_outputs": {"json_object": True}}, {"response_format": {"type": "json_object"}},
                       {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}}))


def generation(rng, chat):
    body = some(rng, dict(model=rng.choice(("m", "m", "lo")), seed=rng.randrange(2**31), max_tokens=12), SAMPLING, 0.12)
    if "lora" in body:
        body["model"] = "m"
    if chat:
        body["messages"] = messages(rng, rng.random() < 0.3)
        some(rng, body, {"logprobs": (True,), "chat_template_kwargs": ({"enable_thinking": True},), "metadata": ({"a": "b"},), "store": (True,)}, 0.1)
        if rng.random() < 0.25:
            body.update(tools=[TOOL], tool_choice=rng.choice(("auto", "required", "none", {"type": "function", "function": {"name": "f"}})))
    else:
        body["prompt"] = rng.choice(("the quick", ["the", "fox"], [116, 104], [[116], [104, 101]]))
        some(rng, body, {"logprobs": (2,), "echo": (True,), "best_of": (3,)}, 0.1)
    some(rng, body, {"prompt_logprobs": (0, 2)}, 0.1)
    if "tools" not in body and rng.random() < 0.2:
        body.update(form(rng))
    if "stop_token_ids" in body and ("tools" in body or "response_format" in body or "structured_outputs" in body):
        body.pop("min_tokens", None)  # a form may have no other id there
    if rng.random() < 0.15:
        body.update(stream=True, stream_options={"include_usage": True})
        body.pop("best_of", None)
        body.pop("prompt_logprobs", None)
    if rng.random() < 0.1:
        body = {k: v for k, v in body.items() if k in ("model", "messages", "prompt", "max_tokens", "min_tokens", "stop_token_ids")}
        body.update(use_beam_search=True, n=2, length_penalty=rng.choice((0.5, 2)), early_stopping=rng.choice((True, "never")))
    return body


def chat_body(rng):
    return "/v1/chat/completions", generation(rng, True)


def completion_body(rng):
    return "/v1/completions", generation(rng, False)


def response_body(rng):
    items = [dict(role=m["role"], content=m["content"] if isinstance(m["content"], str) else [{"type": "input_text", "text": "the fox"}]) for m in messages(rng, False)]
    body = dict(model="m", input=rng.choice(("the quick", items)), temperature=0, max_output_tokens=12)
    return "/v1/responses", some(rng, body, {"instructions": ("be brief",), "stream": (True,), "text": ({"format": {"type": "json_object"}}, {
        "format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}), "store": (True,), "metadata": ({"a": "b"},)}, 0.25)


def embedding_body(rng):
    body = dict(model="m", input=rng.choice(("the quick", ["the", "fox"], [116, 104], [[116], [104, 101]])))
    return "/v1/embeddings", some(rng, body, {"encoding_format": ("float", "base64"), "dimensions": (5,), "user": ("u",)}, 0.3)


def mii_body(rng):
    body = dict(prompts=rng.choice(("the quick", ["the", "fox"])), max_new_tokens=12, do_sample=False)
    some(rng, body, {"return_full_text": (True,), "stop": ("e", ["e"]), "ignore_eos": (True,), "min_new_tokens": (3,), "max_length": (200,)}, 0.3)
    return "/mii/m", dict(body, prompts="the quick", stream=True) if rng.random() < 0.3 else body


def token_body(rng):
    return rng.choice((("/tokenize", some(rng, dict(content="the \u00e9"), {"add_special": (True,), "parse_special": (False,)}, 0.4)),
                       ("/detokenize", dict(tokens=[116, 104, 101, 195])),
                       ("/apply-template", some(rng, dict(messages=messages(rng, rng.random() < 0.3)), {"tools": ([TOOL],), "chat_template_kwargs": (
                           {"enable_thinking": True},)}, 0.4))))


def admin_body(rng):
    return rng.choice((("/v1/reload", dict(model=MODEL)), ("/v1/load_lora_adapter", dict(lora_name="b", lora_path=LORA)),
                       ("/v1/unload_lora_adapter", dict(lora_name="c"))))


MAKERS = (chat_body, chat_body, chat_body, completion_body, completion_body, response_body, embedding_body, mii_body, token_body, token_body, admin_body)


# ---- one thing changed ----
def places(value, at=""):
    """All (path, container, key) of a body."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        here = f"{at}.{key}"
        yield here, value, key
        yield from places(value[key], here)


def objects(value, at=""):
    if isinstance(value, dict):
        yield at, value
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from objects(value[key], f"{at}.{key}")


def kind(v):
    return "number" if isinstance(v, (int, float)) and not isinstance(v, bool) else type(v).__name__


def change(rng, body):
    """The text of another body, and of a change that must be seen where it is: its path."""
    body = copy.deepcopy(body)
    what = rng.choice("rrriiimmdtbw")
    where = None
    if what == "r":
        where, container, key = rng.choice(list(places(body)))
        new = rng.choice(ODD)
        where = where if kind(new) != kind(container[key]) and not FREE.search(where) else None
        if where and where.count(".") == 1 and new is None:
            where = None  # as if it were not there
        if where == ".early_stopping" and isinstance(new, bool):
            where = None  # it takes both types, and what ends at its length ends alike
        if where and where.startswith((".prompt", ".messages")) and body.get("logit_bias") == {"120": 9}:
            where = None  # whatever is asked, the answer is x again and again
        container[key] = new
    elif what == "i":
        at, container = rng.choice(list(objects(body)))
        name = rng.choice(NAMES)
        where = f"{at}.{name}" if not FREE.search(at + ".") and name not in container else None
        container[name] = rng.choice(ODD[1:])
    elif what == "m":
        for name in rng.sample(sorted(KNOWN), rng.randint(1, 3)):
            body[name] = rng.choice(KNOWN[name])
    elif what == "d":
        _, container, key = rng.choice(list(places(body)))
        del container[key]
    text = json.dumps(body, ensure_ascii=rng.random() < 0.7).encode("utf-8", "surrogatepass")
    if what == "t":
        text = text[:rng.randrange(len(text) + 1)]
    elif what == "b":
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice((b"\xff", b"\0", b"\"", b"{", b"]", b"1e999", b"9" * 40, b"NaN", b"[" * 3000, b"/**/", b"\\u0000")) + text[at + rng.randint(0, 2):]
    elif what == "w":
        key = rng.choice(list(body))
        text = text[:-1] + b"," + json.dumps(key).encode() + b":" + json.dumps(body[key]).encode() + b"}"
        where = "twice"
    return text, where


def equal(path, old, body, where):
    """Values of other types that mean the same."""
    try:
        new = json.loads(body)
        for part in where.split(".")[1:]:
            old, new = ((v[int(part)] if isinstance(v, list) else v[part]) for v in (old, new))
    except (KeyError, IndexError, ValueError, TypeError):
        return False
    return old == new or [old] == new or old == [new] or (old is None and not new)


# ---- answers ----
def plain(path, text):
    """Without what differs from time to time."""
    if text.startswith((b"data: ", b"event: ")):
        frames = [line.split(b": ", 1)[1] for line in text.split(b"\n") if line.startswith(b"data: ")]
        if path == "/v1/chat/completions" and frames[-1] != b"[DONE]":
            fail("a stream without an end", text)
        return [strip(json.loads(f)) for f in frames if f != b"[DONE]"]
    return strip(json.loads(text))


def strip(v):
    if isinstance(v, dict):
        return {k: strip(x) for k, x in v.items() if k not in ("id", "created", "created_at", "item_id", "prompt_tokens_details", "input_tokens_details", "seconds", "was", "metadata")}
    return [strip(x) for x in v] if isinstance(v, list) else v


def check(path, sent, status, text, ignored):
    if status >= 500 or status < 200 or status in (413, 429):
        fail("status", path, sent, status, text)
    try:
        got = plain(path, text)
    except ValueError as e:
        fail("no JSON", path, sent, text, e)
    if status != 200:
        error = got.get("error", {}) if isinstance(got, dict) else {}
        if not isinstance(error.get("message"), str) or not error["message"] or not isinstance(error.get("type"), str):
            fail("an error that says nothing", path, sent, status, text)
    return got


def one(s, rng):
    path, body = rng.choice(MAKERS)(rng)
    text = json.dumps(body).encode()
    first = s.ask(path, text)
    want = check(path, text, *first)
    if first[0] != 200 and "lora_adapter" not in path and first[0] != 409:
        fail("a body that is right", path, body, first)
    for _ in range(3):
        sent, where = change(rng, body)
        status, got, ignored = s.ask(path, sent)
        answer = check(path, sent, status, got, ignored)
        seen[path, status] = seen.get((path, status), 0) + 1
        if status != 200 or first[0] != 200 or where is None:
            continue
        if where == "twice":
            fail("a member twice", path, sent)
        named = set(ignored) - set(first[2])
        top = where.split(".")[1]
        if answer == want and not named and top not in ignored and not equal(path, body, sent, where):
            fail("without effect", path, where, sent, body, got)


def fixed(s):
    """What random bodies have found: each is refused, or named."""
    said, part, text = {"role": "user", "content": "a"}, {"type": "text", "text": "a"}, {"type": "input_text", "text": "a"}
    chat, back = dict(model="m", messages=[said], max_tokens=2, temperature=0), {"role": "tool", "tool_call_id": "c", "content": "b"}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    after = lambda **members: [said, {"role": "assistant", "content": None, "tool_calls": [dict(call, **members)]}, back]
    for path, body, named in (
            ("/v1/chat/completions", dict(chat, messages=[dict(said, content=[dict(part, zz=1)])]), None),
            ("/v1/chat/completions", dict(chat, messages=[dict(said, content=[dict(part, cache_control={})])]), {"messages.content.cache_control"}),
            ("/v1/chat/completions", dict(chat, messages=[dict(said, name="n")] * 40, user="u"), {"messages.name", "user"}),
            ("/v1/chat/completions", dict(chat, chat_template_kwargs={"enable_thinking": True, "deep": 1}), {"chat_template_kwargs.deep"}),
            ("/v1/chat/completions", dict(chat, chat_template_kwargs={"a\r\nb": 1}), None),
            ("/v1/chat/completions", dict(chat, chat_template_kwargs={"": 1}), None),
            ("/v1/chat/completions", dict(chat, chat_template_kwargs={"k" * 60 + str(i): 1 for i in range(40)}), None),
            ("/v1/chat/completions", dict(chat, tools=[TOOL], tool_choice="none", parallel_tool_calls=False), {"tools", "parallel_tool_calls"}),
            ("/v1/chat/completions", dict(chat, tools=[TOOL], tool_choice="none", response_format={"type": "json_object"}), {"tools"}),
            ("/v1/chat/completions", dict(chat, tools=[TOOL], response_format={"type": "json_object"}), None),
            ("/v1/chat/completions", dict(chat, structured_outputs={"regex": ""}), None),
            ("/v1/chat/completions", dict(chat, structured_outputs={"regex": "(a{0})"}), None),
            ("/v1/chat/completions", dict(chat, structured_outputs={"grammar": 'root ::= ""'}), None),
            ("/v1/chat/completions", dict(chat, tools=[3], tool_choice="none"), None),
            ("/v1/chat/completions", dict(chat, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f", "zz": 1}}), None),
            ("/v1/chat/completions", dict(chat, messages=after()), set()),
            ("/v1/chat/completions", dict(chat, messages=after(index=0)), {"messages.tool_calls.index"}),
            ("/v1/chat/completions", dict(chat, messages=after(zz=0)), None),
            ("/v1/chat/completions", dict(chat, messages=after(type="x")), None),
            ("/v1/chat/completions", dict(chat, messages=after(function={"name": "f", "arguments": "{}", "zz": 1})), None),
            ("/v1/chat/completions", dict(chat, max_tokens=3, max_completion_tokens=2), {"max_tokens"}),
            ("/v1/responses", dict(model="m", input=[dict(said, content=[dict(text, zz=1)])], max_output_tokens=2), None),
            ("/v1/responses", dict(model="m", input=[dict(said, type=3)], max_output_tokens=2), None),
            ("/v1/responses", dict(model="m", input=[dict(said, id="i", status="completed", content=[dict(text, type="output_text", annotations=[], logprobs=[])])],
                                   max_output_tokens=2), {"input.id", "input.status", "input.content.annotations", "input.content.logprobs"}),
            ("/mii/m", dict(prompts="a", max_new_tokens=2, do_sample=False, temperature=0.5, top_p=0.5, top_k=3), {"temperature", "top_p", "top_k"}),
            ("/apply-template", dict(messages=[dict(said, name="n")], chat_template_kwargs={"deep": 1}), {"messages.name", "chat_template_kwargs.deep"})):
        status, got, ignored = s.ask(path, json.dumps(body))
        if (status, sorted(ignored)) != ((400, sorted(ignored)) if named is None else (200, sorted(named))):
            fail(path, body, named, status, got, ignored)


def main():
    with open("keys", "w", encoding="utf8") as f:
        f.write("k\n")
    make_tokenizer(TEMPLATE)
    s = Server("--tokenizer", "tagged")
    fixed(s)
    wrong, counter, lock = [], iter(range(N)), threading.Lock()

    def work():
        try:
            while not wrong:
                with lock:
                    i = next(counter, None)
                if i is None:
                    return
                one(s, random.Random(SEED * 1000003 + i))
        except SystemExit as e:
            wrong.append(str(e))
        except Exception as e:
            wrong.append(f"FAILED (seed {SEED}): {e!r}, of {i}; {s.lines[-5:]}")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if wrong:
        raise SystemExit(wrong[0])
    s.end()
    counts = {}
    for (_, status), n in seen.items():
        counts[status] = counts.get(status, 0) + n
    print(f"seed {SEED}: {N} bodies, three changes of each: {', '.join(f'{n} of status {k}' for k, n in sorted(counts.items()))}")


main()
