# SPDX-License-Identifier: Apache-2.0
"""Writes chat_mutations.json: edits of one token of the templates beside it, and what transformers' apply_chat_template makes of
each for a few conversations: a digest (FNV-1a, 64 bits) of the text, null where it raises. An edit is [offset, bytes taken out,
text put in] of templates/NAME.jinja. A reader of templates may refuse an edit; what it renders must have the digest."""
import json
import pathlib
import random

import jinja2
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
EDITS = 24  # of each template


def m(*pairs):
    return [{"role": r, "content": c} for r, c in pairs]


U, A, S, T = "user", "assistant", "system", "tool"
CONVERSATIONS = [
    m((U, "Hello!")),
    m((S, " Be brief. "), (U, " Hi\n"), (A, "\nHello "), (U, "And?"), (A, "<think>\na\n</think>\n\nb")),
    m((U, "a"), (A, "b"), (T, "c"), (T, "d"), (A, "e")),
    m((A, "I begin."), (U, "Fine."), (S, "late")),
]


def tokens_of(text):
    """Tokens of tags with their place, white space left out."""
    at, out = 0, []
    for _, kind, value in jinja2.Environment(keep_trailing_newline=True).lex(text):
        start = text.index(value, at)
        at = start + len(value)
        if value.strip() and kind != "data":
            out.append((start, value, kind))
    return out


def edit_of(text, rng):
    tokens = tokens_of(text)
    at, value, kind = rng.choice(tokens)
    way = rng.randrange(8)
    if way == 0:
        return [at, len(value), ""]
    if way == 1:
        return [at, 0, value + " "]
    if way == 2:
        return [at, 0, rng.choice(tokens)[1] + " "]
    if way == 3:
        return [at, len(value), rng.choice(tokens)[1]]
    return [at, len(value), rng.choice([t for t in tokens if t[2] == kind])[1]]


def digest(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return "%016x" % h


def answer(tok, template, conversation, prompt):
    try:
        return digest(tok.apply_chat_template(conversation, chat_template=template, tokenize=False, add_generation_prompt=prompt))
    except Exception:
        return None


def main():
    tok = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<BOS>", eos_token="<EOS>")
    rng = random.Random(7)
    edits = []
    for path in sorted((HERE / "templates").glob("*.jinja")):
        text = path.read_text()
        if "strftime_now" in text or path.name == "other-broken.jinja":
            continue  # today's date is no constant; the broken one has no tokens
        assert text.isascii()
        made = 0
        while made < EDITS:
            at, gone, put = edit_of(text, rng)
            template = text[:at] + put + text[at + gone:]
            if template == text:
                continue
            want = [answer(tok, template, c, p) for c in CONVERSATIONS for p in (False, True)]
            if not any(want) and rng.random() < 0.8:
                continue  # most edits are errors: a few of them are enough
            made += 1
            edits.append({"file": path.name, "edit": [at, gone, put], "want": want})
    out = ",\n".join(json.dumps(e, ensure_ascii=False) for e in edits)
    head = json.dumps(CONVERSATIONS, ensure_ascii=False)
    (HERE / "chat_mutations.json").write_text('{"conversations": %s,\n"edits": [\n%s\n]}\n' % (head, out))
    print(len(edits), "edits,", sum(w is not None for e in edits for w in e["want"]), "texts")


main()
