# SPDX-License-Identifier: Apache-2.0
"""Makes read.jsonl: texts, and what hjson-py 3.1.0 reads from them (null: it refuses the text).

Needs: pip install hjson==3.1.0. Run in this folder. The texts are pieced together from the dialect's
features with a fixed seed, and some are written by hand. Left out are texts on which we differ on
purpose: duplicate keys, a root that is no object, integers beyond 64 bits, "\\u0000" and half
surrogates.
"""
import json
import random

import hjson

HAND = [
    "", "# only a comment\n", "{}", "a: 1\nb: 2", "{a: 1, b: 2}", "{a: 1 b: 2}", "{a: 1\nb: 2}",
    '{"a": "x" "b": "y"}', '{"a": {} "b": [] c: 1}', "{a: true, b: false, c: null}",
    "{a: True,\nb: None,\n}", "{a: 5e8, b: 1000.0, c: 1e10, d: -0.0, e: 1.5e-3}",
    "{a: .5\nb: +1\nc: 1.\nd: 01\n}", "{a: .5}", "{a: 1,}", "{a: 1,,}", "{,a: 1}", "[1, 2]",
    "{a: [1, 2,]}", "{a: [1 2]}", "{a: [1\n2]}", "{a: [,]}", "{a: x # y\n}", "{a: 1 # y\n}",
    "{a: 1 // y\n}", "{a: 1 /* y */, b: 2}", "{a: 1 /* y", "/* x */ {a: 1}", "{a: 'x'}",
    "{'a': 'x\\'y'}", '{a: "\\u00e9\\n\\t\\/"}', '{a: "x\ty"}', '{a: "x\ny"}', '{a: "\\x"}',
    "{\n  a: '''\n     one\n       two\n     '''\n}", "a:\n  '''\n  x\n  y\n  '''\nb: 2",
    "{a: '''x''}", "{a b: 1}", "{a : 1}", "{: 1}", "{a: }", "{a: :}", "{a: {}}}",
    "{a: 1} x", "{a: 1} # x", "\ufeff{a: 1}", "{a: 1", "{a: [1", '{"a": "x', "{a\n: 1}",
    "{a: 1e400}", "{a: 123456789012}", "{a: 9223372036854775807}", "{a: 12345.678901234567}",
    "{a: text with spaces, and a comma\n}", "{a: text}", "{a: nullx\n}", "{a: null x\n}",
    "{a: -1, b: -1.5, c: -}", "{a: -\n}", "{a: 1e5\n b: 1E+5\n c: 1e-5\n}", "{a: 0x10\n}",
    "{\"a\": 1\r\n, \"b\": 2\r\n}", "{a: x\r\nb: y\r\n}", "{é: ü\n}", "{a: http://x.y/z\n}",
    "{a: 1 2\n}", "{a: 'x' # c\n b: 2}", "{a: [[[[[]]]]]}", "{a: {b: {c: {d: 1}}}}",
]
SCALARS = ["1", "-2.5", "1e3", "true", "false", "null", '"x y"', "'y'", "1e10", "0.125",
           "5e8", "-0.0", '"\\u00fc"', "12345678901"]
LINES = ["text", "text, more", ".5", "01", "True,", "None", "1 2", "x # y", "http://a/b", "-", "nullx"]
BLANKS = [" ", "", "\n", "  ", "\t", " # c\n", " // c\n", " /* c */ ", "\r\n"]
SMALL = list("{}[],:'\"# \n1a")


def blank(rng):
    return rng.choice(BLANKS) if rng.random() < 0.3 else rng.choice([" ", "", "\n"])


def compose(rng, depth):
    """A value in the dialect, mostly a right one."""
    kind = rng.random()
    if depth > 3 or kind < 0.4:
        return rng.choice(SCALARS)
    if kind < 0.5:
        return rng.choice(LINES) + "\n"
    if kind < 0.65:
        items = [compose(rng, depth + 1) for _ in range(rng.randint(0, 3))]
        return "[" + blank(rng) + rng.choice([",", ", ", "\n"]).join(items) + blank(rng) + "]"
    return "{" + members(rng, depth + 1) + "}"


def members(rng, depth):
    parts = []
    for i in range(rng.randint(0, 4)):
        key = rng.choice(["{}", '"{}"', "'{}'"]).format("k%d" % i)
        parts.append(blank(rng) + key + blank(rng) + ":" + blank(rng) + compose(rng, depth) +
                     blank(rng))
    return rng.choice([",", ",", "\n"]).join(parts) + blank(rng)


def mutate(rng, text):
    at = rng.randint(0, len(text))
    if rng.random() < 0.5:
        return text[:at] + rng.choice(SMALL) + text[at:]
    return text[:at] + text[at + 1:]


def read(text):
    seen = []

    def pairs(items):
        keys = [k for k, _ in items]
        if len(set(keys)) != len(keys):
            seen.append("duplicate")
        return dict(items)

    try:
        value = hjson.loads(text, object_pairs_hook=pairs)
    except Exception:
        return None, False
    return value, bool(seen) or not isinstance(value, dict)


def main():
    rng = random.Random(7)
    texts = list(HAND)
    while len(texts) < 1000:
        body = members(rng, 0)
        text = "{" + body + "}" if rng.random() < 0.7 else body
        texts.append(mutate(rng, text) if rng.random() < 0.4 else text)
    done = set()
    with open("read.jsonl", "w", encoding="utf-8") as out:
        for text in texts:
            value, differs = read(text)
            if differs or text in done:
                continue
            done.add(text)
            out.write(json.dumps({"text": text, "value": value}) + "\n")


main()
