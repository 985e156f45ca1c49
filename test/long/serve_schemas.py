# SPDX-License-Identifier: Apache-2.0
"""Random JSON schemas as response_format, structured_outputs and parameters of tools, whole and as streams, alone and in a crowd: what
ended is valid by the package jsonschema. Usage: serve_schemas.py BUILD MODEL FIRST SECONDS"""
import atexit
import concurrent.futures
import http.client
import json
import os
import random
import re
import subprocess
import sys
import time

import jsonschema

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
from tagged_tokenizer import make_tokenizer

BUILD, MODEL = sys.argv[1:3]
FIRST, SECONDS = int(sys.argv[3]), float(sys.argv[4])
TEMPLATE = ("{% if tools %}<tools>{% for t in tools %}{{ t.function.name }} {% endfor %}<tool_call></tool_call>{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>")
counts = {}


class Server:
    def __init__(self, *flags):
        self.process = subprocess.Popen([os.path.join(BUILD, "ds_serve"), "--model", MODEL, "--served_model_name", "m", "--port", "0", "--max_length", "2048",
                                         "--kv_tokens", "16384", "--threads", "2", *flags], stdout=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        self.port = int(re.search(r":(\d+)\n", self.process.stdout.readline())[1])

    def ask(self, path, body):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        c.request("POST", path, json.dumps(body))
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text


def request(rng, schema):
    """Path, body, and whether it is a call's."""
    body = dict(model="m", max_tokens=1200, temperature=rng.choice((0.7, 1, 1.5)), seed=rng.randrange(2**31))
    chat = dict(body, messages=[dict(role="user", content="go")])
    forms = [("/v1/completions", dict(body, prompt="go: ", structured_outputs={"json": schema}), False),
             ("/v1/chat/completions", dict(chat, response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}), False)]
    if schema.get("type") == "object":
        forms.append(("/v1/chat/completions", dict(chat, tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}], tool_choice="required",
                                                   parallel_tool_calls=False), True))
    path, body, calls = rng.choice(forms)
    return path, dict(body, stream=True) if rng.random() < 0.4 else body, calls


def whole(path, body, answer):
    """Text or arguments, and why it ended."""
    if not body.get("stream"):
        c = json.loads(answer)["choices"][0]
        calls = c.get("message", {}).get("tool_calls")
        return (calls[0]["function"]["arguments"] if calls else c["message"]["content"] if "message" in c else c["text"]), c["finish_reason"]
    frames = [json.loads(f.removeprefix("data: "))["choices"][0] for f in answer.split("\n\n")[:-2]]
    text = ""
    for f in frames:
        delta = f.get("delta", {})
        text += f.get("text") or delta.get("content") or "".join(t["function"].get("arguments", "") for t in delta.get("tool_calls", []))
    return text, frames[-1]["finish_reason"]


def one(server, rng, schema):
    path, body, calls = request(rng, schema)
    status, answer = server.ask(path, body)
    if status != 200:
        raise SystemExit(f"FAILED: {status} {body} {answer}")
    text, finish = whole(path, body, answer)
    counts[finish] = counts.get(finish, 0) + 1
    if finish == "length":
        return
    if finish != ("tool_calls" if calls else "stop"):
        raise SystemExit(f"FAILED: {finish} {body} {answer}")
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    errors = list(validator(schema, format_checker=validator.FORMAT_CHECKER).iter_errors(json.loads(text)))
    if errors:
        raise SystemExit(f"FAILED: {errors[0].message}: {body} {answer}")
    again = server.ask(path, body)[1] if rng.random() < 0.2 else None
    if again is not None and whole(path, body, again) != (text, finish):
        raise SystemExit(f"FAILED: another text: {body} {answer} {again}")


def main():
    make_tokenizer(TEMPLATE)
    server = Server("--tokenizer", "tagged")
    first, begun = FIRST, time.time()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        while first == FIRST or time.time() - begun < SECONDS:
            made = subprocess.run((os.path.join(BUILD, "guide_random"), "40", "1", str(first)), capture_output=True, text=True, check=True).stdout
            schemas = [row["schema"] for row in map(json.loads, made.split("\n")[:-1]) if "schema" in row]
            list(pool.map(lambda p: one(server, random.Random(first * 1000 + p[0]), p[1]), enumerate(schemas)))
            first += 40
    server.process.terminate()
    if server.process.wait(60) != 0:
        raise SystemExit(f"FAILED: exit code {server.process.returncode}")
    print(f"{first - FIRST} schemas by requests: {counts}")


main()
