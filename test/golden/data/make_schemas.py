# SPDX-License-Identifier: Apache-2.0
"""Writes schemas.json: rows of training data in every schema, and the ids and loss mask that TRL's preparation makes of them.

The rows are random. Each comes as two: the line that is read here, and the row of `datasets` that stands for it where TRL knows
another form (roles of ShareGPT, Alpaca's prompt, tools as a text). SFTTrainer._prepare_dataset and DPOTrainer._prepare_dataset of
the installed TRL do the rest: assistant_only_loss on messages, by {% generation %} in the template, which also leaves out turns that
are not trained on; completion_only_loss on prompts. test/long/data_schemas.py takes its rows from here, too.
"""
import contextlib
import io
import json
import logging
import os
import pathlib
import random
import sys
import tempfile
import types
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HOME", tempfile.mkdtemp())

import datasets  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer  # noqa: E402

datasets.disable_progress_bars()
logging.disable(logging.WARNING)
warnings.simplefilter("ignore")
HERE = pathlib.Path(__file__).parent
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}<|im_start|>assistant
{% if message.train is not defined and message.weight is not defined or message.train or message.weight %}{% generation %}{{ said(message) }}{% endgeneration %}{% else %}{{ said(message) }}{% endif %}
{% else %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if thinks is defined and not thinks %}<think></think>{% endif %}{% endif %}"""
SAID = ("{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
        "{% if message.content is string %}{{ message.content }}{% elif message.content %}{% for part in message.content %}{{ part.text }}"
        "{% endfor %}{% endif %}{% for call in message.tool_calls or [] %}<call>{{ call.function | tojson }}</call>{% endfor %}<|im_end|>")
ORACLE_TEMPLATE = TEMPLATE.replace("{{ said(message) }}", SAID)
# What is read here has no turn's flags in the template: they are the reader's.
OWN_TEMPLATE = ORACLE_TEMPLATE.replace("{% if message.train is not defined and message.weight is not defined or message.train or message.weight %}", "").replace(
    "{% endgeneration %}{% else %}" + SAID + "{% endif %}", "{% endgeneration %}")
ROLES = {"user": ["human", "user"], "assistant": ["gpt", "assistant"], "system": ["system"], "tool": ["observation", "tool"]}
WORDS = ["a", "the sky", "is", "blue", ".", "?", "\n", "\n\n", " ", "été", "日本", "👍🏽", "1234", "def f(x):\n\treturn x", "<|im_end|>", "</s>", "Yes",
         "don't", "\t", "  ", "\\", "\"", "### Response:", "ab", "abc"]


def words(rng, least=1):
    return "".join(rng.choice(WORDS) + rng.choice(["", " "]) for _ in range(rng.randrange(least, 8)))


def said(rng):
    return "so " + words(rng)


# ---- rows: the line that is read here, and the one for TRL ----

def parts(rng, text):
    if rng.random() < 0.8 or not text:
        return text
    cut = rng.randrange(len(text))
    return [{"type": "text", "text": t} for t in (text[:cut], text[cut:])]


def chat(rng, last="assistant"):
    """Messages; the members that stand for turns left out of the loss are TRL's template's."""
    out = []
    if rng.random() < 0.3:
        out.append({"role": "system", "content": words(rng)})
    for _ in range(rng.randrange(1, 4)):
        out.append({"role": "user", "content": words(rng)})
        out.append({"role": "assistant", "content": said(rng)})
    return out if last == "assistant" else out[:-1]


TOOL = {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}


def calls(rng):
    return [{"name": "weather", "arguments": {"city": words(rng)}} for _ in range(rng.randrange(1, 3))]


def with_calls(rng, messages, made):
    return messages[:-1] + [{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": c} for c in made]},
                            {"role": "tool", "content": words(rng)}, messages[-1]]


def row_messages(rng):
    messages = chat(rng)
    row = {"messages": [{**m, "content": parts(rng, m["content"])} if m["role"] != "tool" else m for m in messages]}
    if rng.random() < 0.3:
        row["messages"][-1]["reasoning_content"] = words(rng)
    if rng.random() < 0.3:
        row["messages"] = with_calls(rng, row["messages"], calls(rng))
        row["messages"][-3]["content"] = rng.choice([None, "", words(rng)])
        row["tools"] = [TOOL]
    line = json.loads(json.dumps(row))
    if "tools" in row and rng.random() < 0.5:
        line["tools"] = json.dumps(row["tools"])
    if rng.random() < 0.2:
        line["messages"] = json.dumps(line["messages"])
    if rng.random() < 0.2:
        line["conversations"] = line.pop("messages")
    return line, row


def row_turns(rng):
    """Turns that say whether they count."""
    key = rng.choice(["train", "weight"])
    row = {"messages": chat(rng)}
    assistants = [m for m in row["messages"] if m["role"] == "assistant"]
    chosen = rng.randrange(len(assistants))
    for i, m in enumerate(assistants):
        flag = i == chosen or rng.random() < 0.5
        m[key] = flag if key == "train" else int(flag)
    return json.loads(json.dumps(row)), row


def row_sharegpt(rng):
    messages = chat(rng)
    row = {"conversations": [{"from": m["role"], "value": m["content"]} for m in messages]}
    line = {"conversations": [{"from": rng.choice(ROLES[m["role"]]), "value": m["content"]} for m in messages]}
    if rng.random() < 0.3 and messages[0]["role"] != "system":
        line["system"] = words(rng)
        row["conversations"].insert(0, {"from": "system", "value": line["system"]})
    return line, row


def row_sharegpt_calls(rng):
    messages, made = chat(rng), calls(rng)
    row = {"messages": with_calls(rng, messages, made), "tools": [TOOL]}
    value = json.dumps(made[0]) if len(made) == 1 else json.dumps(made)
    line = {"conversations": [{"from": "function_call", "value": value} if "tool_calls" in m else
                              {"from": ROLES[m["role"]][0], "value": m["content"]} for m in row["messages"]],
            "tools": json.dumps([TOOL])}
    return line, row


def row_text(rng):
    row = {"text": words(rng)}
    return row, row


def row_pair(rng):
    row = {"prompt": words(rng, 0), "completion": words(rng, 0)}
    return row, row


def as_texts(rng, row):
    """Its lists as JSON texts, as in a .csv, or as they are."""
    return {k: json.dumps(v) for k, v in row.items()} if rng.random() < 0.3 else row


def row_pair_chat(rng):
    row = {"prompt": chat(rng, "user"), "completion": [{"role": "assistant", "content": said(rng)}]}
    row["chat_template_kwargs"] = {"thinks": rng.random() < 0.6}
    return as_texts(rng, row), row


ALPACA = ("Below is an instruction that describes a task, paired with an input that provides further context. Write a response that appropriately completes the request.",
          "Below is an instruction that describes a task. Write a response that appropriately completes the request.")


def row_alpaca(rng):
    line = {"instruction": words(rng), "input": rng.choice(["", None, words(rng), words(rng)]), "output": words(rng)}
    if rng.random() < 0.2:
        line["system"] = words(rng)
    head = line.get("system") or ALPACA[0 if line["input"] else 1]
    middle = f"\n\n### Input:\n{line['input']}" if line["input"] else ""
    return line, {"prompt": f"{head}\n\n### Instruction:\n{line['instruction']}{middle}\n\n### Response:\n", "completion": line["output"]}


def row_history(rng):
    """TRL has no such rows: the texts one after another, of which every second counts."""
    history = [[words(rng), said(rng)] for _ in range(rng.randrange(1, 3))]
    line, row = row_alpaca(rng)
    head = line.get("system") or ALPACA[0 if line["input"] else 1]
    last = row["prompt"][len(head):].removeprefix("\n\n### Instruction:\n")
    pieces = [head]
    for question, answer in history:
        pieces[-1] += f"\n\n### Instruction:\n{question}\n\n### Response:\n"
        pieces += [(answer, True), ""]
    pieces[-1] += "\n\n### Instruction:\n" + last
    line["history"] = json.dumps(history) if rng.random() < 0.3 else history
    return line, {"pieces": pieces + [(line["output"], False)]}


def row_preference(rng):
    same = words(rng)
    row = {"prompt": same, "chosen": words(rng), "rejected": words(rng)}
    return row, row


def row_implicit(rng):
    same = words(rng) + rng.choice(["", " "])
    row = {"chosen": same + "y" + words(rng), "rejected": same + "z" + words(rng)}
    return row, row


def row_preference_chat(rng):
    row = {"prompt": chat(rng, "user")} | {k: [{"role": "assistant", "content": said(rng)}] for k in ("chosen", "rejected")}
    return as_texts(rng, row), row


def row_implicit_chat(rng):
    same = chat(rng, "user")
    row = {k: same + [{"role": "assistant", "content": v + said(rng)}] for k, v in (("chosen", "y"), ("rejected", "z"))}
    line = {**row, "prompt": same[0]["content"]} if rng.random() < 0.3 else row
    return line, row


SCHEMAS = {  # rows: what they are called here
    "messages": (row_messages, "messages"), "turns": (row_turns, "messages"), "sharegpt": (row_sharegpt, "messages"),
    "sharegpt calls": (row_sharegpt_calls, "messages"), "text": (row_text, "text"), "pair": (row_pair, "prompt-completion"),
    "pair chat": (row_pair_chat, "prompt-completion"), "alpaca": (row_alpaca, "Alpaca"), "alpaca history": (row_history, "Alpaca"),
    "preference": (row_preference, "preference"),
    "implicit": (row_implicit, "preference"), "preference chat": (row_preference_chat, "preference"),
    "implicit chat": (row_implicit_chat, "preference"),
}


# ---- what TRL makes of them ----

TOKENIZERS = {"tokenizer-qwen2.json": (None, "<|im_end|>"), "tokenizer-llama2.json": ("<s>", "</s>"),
              "masks/tokenizer-llama3-chat.json": ("<|begin_of_text|>", "<|eot_id|>")}


def load(rows):
    """As a user's file comes to TRL."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "rows.jsonl")
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
        return datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=folder, keep_in_memory=True)


def joined(tok, pieces):
    """One text of which the pairs count, each with the end token, as transformers' assistant mask."""
    text, spans = "", []
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
            continue
        said_text, always = piece
        begin = len(text)
        text += said_text + (tok.eos_token if always or not said_text.endswith(tok.eos_token) else "")
        spans.append((begin, len(text) - 1))
    done = tok(text)
    mask = [0] * len(done["input_ids"])
    for begin, last in spans:
        for i in range(done.char_to_token(begin), done.char_to_token(last) + 1):
            mask[i] = 1
    return done["input_ids"], mask, 0


def prepare(tok, rows):
    """[(ids, mask, n_chosen)]."""
    if "pieces" in rows[0]:
        return [joined(tok, r["pieces"]) for r in rows]
    quiet = {"output_dir": tempfile.gettempdir(), "max_length": None, "report_to": [], "bf16": False}
    first = rows[0]
    trainer = types.SimpleNamespace(_tokenizer=tok, chat_template=None, completion_only_loss="prompt" in first)
    with contextlib.redirect_stdout(io.StringIO()):
        if "chosen" in first:
            done = DPOTrainer._prepare_dataset(trainer, load(rows), tok, DPOConfig(**quiet), "rows")
            out = []
            for r in done:
                sides = [r["prompt_ids"] + r["chosen_ids"], r["prompt_ids"] + r["rejected_ids"]]
                n = len(r["prompt_ids"])
                mask = [0] * n + [1] * (len(sides[0]) - n) + [0] * n + [1] * (len(sides[1]) - n)
                out.append((sides[0] + sides[1], mask, len(sides[0])))
            return out
        args = SFTConfig(**quiet, assistant_only_loss="messages" in first or "conversations" in first)
        done = SFTTrainer._prepare_dataset(trainer, load(rows), tok, args, False, None, "rows")
        return [(r["input_ids"], [int(x != -100) for x in r["labels"]], 0) for r in done]


def tokenizer(name):
    """A tokenizer beside this script with the template of the oracle; its bos and eos."""
    bos, eos = TOKENIZERS[name]
    tok = PreTrainedTokenizerFast(tokenizer_file=str(HERE / name), eos_token=eos, bos_token=bos)
    tok.chat_template = ORACLE_TEMPLATE
    return tok, bos, eos


def cases(rng, tok, n):
    """n rows of each schema: {"line", "schema", "ids", "mask", "n_chosen"}."""
    for name, (make, schema) in SCHEMAS.items():
        lines, rows = zip(*(make(rng) for _ in range(n)))
        for line, (ids, mask, n_chosen) in zip(lines, prepare(tok, rows), strict=True):
            yield {"of": name, "line": line, "schema": schema, "ids": ids, "mask": mask, "n_chosen": n_chosen}


def main():
    out = {"template": OWN_TEMPLATE, "families": []}
    for name in TOKENIZERS:
        tok, bos, eos = tokenizer(name)
        out["families"].append({"tokenizer": name, "bos": bos, "eos": eos, "rows": list(cases(random.Random(17), tok, 2))})
    text = json.dumps(out, ensure_ascii=False, separators=(",", ":")).replace("{\"of\"", "\n{\"of\"")
    (HERE / "schemas.json").write_text(text + "\n")
    print(len(text), "bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
