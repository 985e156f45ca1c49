# SPDX-License-Identifier: Apache-2.0
"""Compares the token ids of chats, and which of them count in the loss, with transformers' return_assistant_tokens_mask.

Usage: chat_masks.py CHAT_MASKS TOKENIZER... -- FOLDER...
Each template of the folders (*.jinja, *.txt) that has {% generation %}, with each tokenizer.json, for the chats of chat_templates.py.
What a template does not read (tools, calls, reasoning, documents) and images are refused here on purpose: they would be lost.
Fails on any difference, when nothing was compared, and when more than one in twenty of the other samples is refused.
"""
import collections
import copy
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from chat_templates import CHATS
from transformers import PreTrainedTokenizerFast

BOS, EOS = "<s>", "</s>"
ON_PURPOSE = ("would be lost", "only text is supported")


def theirs(tok, text, messages, more):
    """(ids, mask), or None where transformers raises or nothing counts."""
    more = copy.deepcopy(more)
    try:
        out = tok.apply_chat_template(copy.deepcopy(messages), chat_template=text, tokenize=True, return_dict=True,
                                      return_assistant_tokens_mask=True, **more)
    except Exception:
        return None
    ids, mask = list(out["input_ids"]), list(out["assistant_masks"])
    return (ids, [0] + mask[1:]) if any(mask[1:]) else None


def line_of(messages, more):
    named = {k: v for k, v in more.items() if k in ("tools", "documents")}
    others = {k: v for k, v in more.items() if k not in named}
    return {"messages": messages, **named, **({"chat_template_kwargs": others} if others else {})}


def ours(program, folder, text, paths):
    (folder / "chat_template.jinja").write_text(text)
    done = subprocess.run([program, folder, *paths], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def verdict(want, got):
    if want is None:
        return "without a sample there" if "error" in got else "a sample for us alone"
    if "error" in got:
        return "refused on purpose" if any(text in got["error"] for text in ON_PURPOSE) else "refused"
    return "equal" if want == (got["ids"], got["mask"]) else "different"


def compare(program, tokenizer, templates, tally, reasons, shown):
    tok = PreTrainedTokenizerFast(tokenizer_file=tokenizer, bos_token=BOS, eos_token=EOS)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        (folder / "tokenizer.json").write_bytes(pathlib.Path(tokenizer).read_bytes())
        (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": BOS, "eos_token": EOS}))
        paths = [folder / f"{i}.jsonl" for i in range(len(CHATS))]
        for path, chat in zip(paths, CHATS):
            path.write_text(json.dumps(line_of(*chat)) + "\n")
        for name, text in templates:
            for chat, got in zip(CHATS, ours(program, folder, text, paths)):
                want = theirs(tok, text, *chat)
                kind = verdict(want, got)
                tally[kind] += 1
                if kind.startswith("refused"):
                    reasons[re.sub(r"\d+", "N", got["error"].replace(scratch, ""))[:110]] += 1
                if kind in ("different", "a sample for us alone") and len(shown) < 5:
                    shown.append(f"{kind}: {name}, {json.dumps(chat[0]):.200}\n  transformers: {want!r:.600}\n  ours: {got!r:.600}")


def main():
    cut = sys.argv.index("--")
    program, tokenizers, folders = sys.argv[1], sys.argv[2:cut], sys.argv[cut + 1:]
    paths = [p for folder in folders for p in sorted(pathlib.Path(folder).iterdir()) if p.suffix in (".jinja", ".txt")]
    templates = [(p.name, p.read_text()) for p in paths]
    templates = [(name, text) for name, text in templates if re.search(r"{%[-+]?\s*generation\b", text)]
    tally, reasons, shown = collections.Counter(), collections.Counter(), []
    for tokenizer in tokenizers:
        compare(program, tokenizer, templates, tally, reasons, shown)
    print(f"chat_masks: {len(templates)} templates, {len(tokenizers)} tokenizers: " + ", ".join(f"{n} {kind}" for kind, n in sorted(tally.items())))
    for line in [f"  {n} refused: {reason}" for reason, n in reasons.most_common()] + shown:
        print(line)
    good = tally["equal"] > 0 and tally["different"] + tally["a sample for us alone"] == 0
    sys.exit(0 if good and tally["refused"] * 20 <= tally["equal"] + tally["refused"] else 1)


main()
