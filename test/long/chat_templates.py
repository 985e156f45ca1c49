# SPDX-License-Identifier: Apache-2.0
"""Compares our rendering of chat templates with transformers': every byte and every range of {% generation %}, or an error in both.

Usage: chat_templates.py TEST_JINJA [--edits N] [--seed S] FOLDER...
Each template (*.jinja, *.txt) renders 18 chats with and without a generation prompt; then N random edits of one token are rendered for
some of them. Fails on any difference, on a text of ours where transformers raises, on an error of the template's of ours where
transformers renders, and when more than one in twenty of transformers' texts is refused.
"""
import argparse
import collections
import copy
import json
import pathlib
import random
import re
import signal
import subprocess
import sys

import jinja2
from transformers.utils import chat_template_utils as chat

FORMAT = -21  # DS_ERR_FORMAT: jinja2 refuses it, too
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather \"now\" <b>", "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "The city, é"}, "unit": {"type": "string", "enum": ["C", "F"]},
        "days": {"type": ["integer", "null"], "default": 3}, "opts": {"type": "array", "items": {"type": "number"}}}, "required": ["city"]},
        "return": {"type": "number"}}},
    {"type": "function", "function": {"name": "noop", "description": "", "parameters": {"type": "object", "properties": {}}}}]
CALL = [{"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": {
    "city": "Paris", "days": 2, "f": 1.5, "n": None, "b": True, "l": [1, "x"]}}}]
TEXT_CALL = [{"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}}]
U, A, S, T = "user", "assistant", "system", "tool"


def m(role, content, **more):
    return {"role": role, "content": content, **more}


def part(text):
    return {"type": "text", "text": text}


CHATS = [
    ([m(U, "Hello!")], {}),
    ([m(S, "Be brief."), m(U, "Hello!")], {}),
    ([m(U, "Hi"), m(A, "Hello <b>"), m(U, "And?\n"), m(A, " fine ")], {}),
    ([m(S, "You are a pirate.\n"), m(U, "  Who\tare you? "), m(A, " Arr! \n"), m(U, "\nAnd I?\n\n"), m(A, "\u3000\x1cThe captain.\x85\u00a0")], {}),
    ([m(U, ""), m(A, "")], {}),
    ([m(U, "1+1?"), m(A, "<think>\nOne.\n</think>\n\nTwo."), m(U, "2+2?"), m(A, "<think>\n\nfour\n</think>\n\n\nFour.")], {}),
    ([m(U, "q"), m(A, "a", reasoning_content="because\n"), m(U, "r"), m(A, "b", reasoning_content="thus")], {}),
    ([m(U, "w?"), m(A, "", tool_calls=CALL), m(T, "sunny \"25\"", tool_call_id="abcdefghi", name="get_weather"), m(A, "Sunny.")], {"tools": TOOLS}),
    ([m(S, "s"), m(U, "w?"), m(A, "let me", tool_calls=TEXT_CALL + TEXT_CALL), m(T, "{\"t\": 1}", tool_call_id="call_1"),
      m(T, "windy", tool_call_id="call_1"), m(A, "ok")], {"tools": TOOLS}),
    ([m(U, "w?")], {"tools": TOOLS}),
    ([m(U, [part("look"), {"type": "image", "image": "x.png"}, part(" here")]), m(A, [part("nice")])], {}),
    ([m(U, "日本語 👍🏽 <|im_end|> [INST] </s>"), m(A, "c'est ça — d'accord"), m(U, "ok"), m(A, "fin")], {}),
    ([m(U, "u"), m(A, "a"), m(A, "b"), m(A, "c")], {}),
    ([m(A, "I begin."), m(U, "Fine.")], {}),
    ([m(U, "a"), m(U, "b"), m(S, "late")], {}),
    ([m(U, "u"), {"role": A, "tool_calls": CALL}, m(T, "22")], {"tools": TOOLS, "documents": [{"title": "T", "text": "doc é"}]}),
    ([m("developer", "dev"), m(U, "u"), m(A, "a")], {"enable_thinking": False, "documents": [{"title": "T", "text": "x"}]}),
    ([m(U, "u"), m(A, "x", tool_calls=CALL), m("ipython", "out"), m(A, "y")], {"enable_thinking": True, "tools": []}),
]


def variables(messages, more, prompt):
    messages = chat._alias_reasoning_fields([{k: v for k, v in x.items() if v is not None} for x in copy.deepcopy(messages)])
    return {"bos_token": "<s>", "eos_token": "</s>", "messages": messages, "tools": None, "documents": None, "add_generation_prompt": prompt, **more}


ALL = [variables(messages, more, prompt) for messages, more in CHATS for prompt in (False, True)]
SOME = [ALL[i] for i in (1, 3, 7, 11, 15, 19, 20, 27, 31)]


class Slow(Exception):
    pass


def slow(*_):
    raise Slow()


def theirs(text, cases):
    """A (text, ranges) or None for each."""
    try:
        template = chat._compile_jinja_template.__wrapped__(text)
    except Exception:
        return [None] * len(cases)
    out = []
    for case in cases:
        signal.setitimer(signal.ITIMER_REAL, 5)
        try:
            blocks, ranges = [], []
            with template.environment.activate_tracker(blocks, ranges):
                for block in template.generate(**copy.deepcopy(case)):
                    blocks.append(block)
            out.append(("".join(blocks), ranges))
        except Exception:
            out.append(None)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return out


class Ours:
    def __init__(self, program):
        self.process = subprocess.Popen([program, "--lines"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, text, cases):
        self.process.stdin.write((json.dumps({"template": text, "variables": cases}) + "\n").encode())
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"chat_templates: the renderer ended at:\n{text}")
        return json.loads(line)


def verdict(want, got):
    if want is None:
        return "rendered by us alone" if "text" in got else "error in both"
    if "text" not in got:
        return "error by us alone" if got["status"] == FORMAT else "refused"
    text = got["text"].encode()
    ranges = [text[a:b].decode() for a, b in got["generated"]]
    if got["text"] != want[0]:
        return "different"
    return "equal" if got["hidden"] or ranges == [want[0][a:b] for a, b in want[1]] else "different ranges"


BAD = ("different", "different ranges", "rendered by us alone", "error by us alone")


def place_free(error):
    return re.sub(r"^line \d+, column \d+: ", "", error)[:110]


def compare(name, text, cases, ours, tally, shown):
    for i, (want, got) in enumerate(zip(theirs(text, cases), ours(text, cases))):
        kind = verdict(want, got)
        tally[kind] += 1
        if kind == "refused":
            tally["refused: " + place_free(got["error"])] += 1
        if kind in BAD and len(shown) < 10 and not any(name in line for line in shown):
            shown.append(f"{kind}: {name}, chat {i}\n  transformers: {want!r:.400}\n  ours: {got!r:.400}")


def tokens_of(text):
    at, out = 0, []
    for _, kind, value in jinja2.Environment(keep_trailing_newline=True).lex(text):
        start = text.index(value, at)
        at = start + len(value)
        if value.strip() and kind != "data":
            out.append((start, value, kind))
    return out


def edit(text, tokens, pool, rng):
    at, value, kind = rng.choice(tokens)
    way = rng.randrange(8)
    other = rng.choice(tokens)[1]
    if way == 0:
        return text[:at] + text[at + len(value):]
    if way == 1:
        return text[:at] + value + " " + text[at:]
    if way == 2:
        return text[:at] + other + " " + text[at:]
    if way == 3:
        return text[:at] + other + text[at + len(value):]
    if way == 4:
        return text[:at] + rng.choice(pool)[1] + text[at + len(value):]
    return text[:at] + rng.choice([t for t in tokens if t[2] == kind])[1] + text[at + len(value):]


def parses(text):
    try:
        chat._compile_jinja_template.__wrapped__(text)
        return True
    except Exception:
        return False


def edits_of(templates, n, seed):
    rng = random.Random(seed)
    known = []
    for name, text in templates:
        try:
            known.append((name, text, tokens_of(text)))
        except Exception as error:
            print(f"chat_templates: {name} is not edited: {error}")
    pool = [token for _, _, tokens in known for token in tokens]
    while n > 0:
        name, text, tokens = rng.choice([k for k in known if k[2]])
        changed = edit(text, tokens, pool, rng)
        if changed != text and (parses(changed) or rng.random() < 0.15):
            n -= 1
            yield name, changed


def report(what, tally, shown):
    kinds = sorted(tally.items())
    print(f"chat_templates: {what}: " + ", ".join(f"{n} {kind}" for kind, n in kinds if ": " not in kind))
    for kind, n in kinds:
        if ": " in kind:
            print(f"  {n} {kind}")
    print("\n".join(shown), end="\n" if shown else "")
    rendered = tally["equal"] + tally["refused"]
    return not any(tally[kind] for kind in BAD) and rendered > 0 and tally["refused"] * 20 <= rendered


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("program")
    arguments.add_argument("folders", nargs="+")
    arguments.add_argument("--edits", type=int, default=10000)
    arguments.add_argument("--seed", type=int, default=1)
    args = arguments.parse_args()
    signal.signal(signal.SIGALRM, slow)
    paths = [p for folder in args.folders for p in sorted(pathlib.Path(folder).iterdir()) if p.suffix in (".jinja", ".txt")]
    templates = [(p.name, p.read_text()) for p in paths]
    ours = Ours(args.program)
    good = True
    for what, texts, cases in ((f"{len(templates)} templates", templates, ALL),
                               (f"{args.edits} edits, seed {args.seed}", edits_of(templates, args.edits, args.seed), SOME)):
        tally, shown = collections.Counter(), []
        for name, text in texts:
            compare(name, text, cases, ours, tally, shown)
        good = report(what, tally, shown) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
