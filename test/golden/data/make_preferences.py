# SPDX-License-Identifier: Apache-2.0
"""Writes preferences.json: random rows of preferences, and the batches that TRL's trainers make of them: make_preferences.py [FILE [ROWS [SEED]]].

DPOTrainer, KTOTrainer and RewardTrainer prepare the rows, their collators the batches: prompts and answers as texts and as messages, prompts
within both answers, pairs and labels, rows too long for a batch in each truncation mode. Rows and tokenizers are make_schemas.py's.
"""
import contextlib
import io
import json
import pathlib
import random
import sys
import tempfile
import types

import make_schemas as ms
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer
from trl.trainer.dpo_trainer import DataCollatorForPreference
from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference
from trl.trainer.reward_trainer import DataCollatorForPreference as RewardCollator

BATCH = 3
QUIET = {"output_dir": tempfile.gettempdir(), "report_to": [], "bf16": False}


def rows_of(rng, kind, n):
    """(line, row for TRL) of one kind."""
    if kind == "labelled":
        # Not empty: a row without a target is left out here.
        made = [{"prompt": ms.words(rng), "completion": ms.words(rng), "label": i % 3 != 0} for i in range(n)]
        return [(r, r) for r in made]
    if kind.endswith("_tools"):
        return [row_tools(rng, kind, i) for i in range(n)]
    return [getattr(ms, "row_" + kind)(rng) for _ in range(n)]


def row_tools(rng, kind, i):
    """Chats beside tools and what the template is given, an answer that calls one; labelled or pairs, the prompt within both or not."""
    same = ms.chat(rng, "user")
    answers = [[{"role": "assistant", "content": v + ms.said(rng)}] for v in "yz"]
    if rng.random() < 0.7:
        side = rng.randrange(2)
        answers[side] = ms.with_calls(rng, answers[side], ms.calls(rng))
    row = {"tools": json.dumps([ms.TOOL]), "chat_template_kwargs": {"thinks": rng.random() < 0.6}}
    if kind == "labelled_tools":
        row |= {"prompt": same, "completion": answers[0], "label": i % 3 != 0}
    elif kind == "implicit_tools":
        row |= {"chosen": same + answers[0], "rejected": same + answers[1]}
    else:
        row |= {"prompt": same, "chosen": answers[0], "rejected": answers[1]}
    line = json.loads(json.dumps(row))
    if rng.random() < 0.5:
        line["tools"] = [ms.TOOL]
    return line, row


def trimmed(ids, mask):
    return [[i for i, m in zip(r, k) if m] for r, k in zip(ids.tolist(), mask.tolist())]


def targets(ids, mask):
    """The next token where it counts."""
    return [[ids[r][t + 1] if mask[r][t + 1] else -100 for t in range(len(ids[r]) - 1)] + [-100] for r in range(len(ids))]


def batch_of(found, prefix=""):
    seen = found[prefix + "attention_mask"]
    ids = trimmed(found[prefix + "input_ids"], seen)
    if prefix + "completion_mask" not in found:  # of scores
        return {"ids": ids, "targets": [[-100] * (len(r) - 1) + [r[-1]] for r in ids]}
    return {"ids": ids, "targets": targets(ids, trimmed(found[prefix + "completion_mask"], seen))}


def prepared(tok, loss, length, mode, rows):
    trainer = types.SimpleNamespace(_tokenizer=tok, chat_template=None, calculate_KL=loss == "kto", desirable_weight=1.0, undesirable_weight=1.0)
    data = ms.load(rows)
    if loss == "reward":
        return RewardTrainer._prepare_dataset(trainer, data, tok, RewardConfig(**QUIET, max_length=length), "rows"), RewardCollator(pad_token_id=0)
    if loss == "sigmoid":
        args = DPOConfig(**QUIET, max_length=length, truncation_mode=mode)
        return (DPOTrainer._prepare_dataset(trainer, data, tok, args, "rows"),
                DataCollatorForPreference(pad_token_id=0, max_length=length, truncation_mode=mode))
    args = KTOConfig(**QUIET, max_length=length, per_device_train_batch_size=BATCH)
    return KTOTrainer._prepare_dataset(trainer, data, tok, args, "rows"), DataCollatorForUnpairedPreference(pad_token_id=0, max_length=length)


def case(rng, name, loss, kind, length, mode, n):
    tok, bos, eos = ms.tokenizer(name)
    made = rows_of(rng, kind, n)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        data, collate = prepared(tok, loss, length, mode, [json.loads(json.dumps(r)) for _, r in made])
    batches = []
    for at in range(0, len(data), BATCH):
        found = collate([data[i] for i in range(at, min(at + BATCH, len(data)))])
        batch = batch_of(found)
        if "label" in found:
            batch["labels"] = [int(x) for x in found["label"].tolist()]
        if "KL_input_ids" in found:
            batch["mismatched"] = batch_of(found, "KL_")
        batches.append(batch)
    return {"tokenizer": name, "bos": bos, "eos": eos, "loss": loss, "length": length, "mode": mode, "lines": [line for line, _ in made],
            "batches": batches}


def main():
    target = sys.argv[1] if len(sys.argv) > 1 else str(ms.HERE / "preferences.json")
    n = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 5)
    cases = []
    for name in ms.TOKENIZERS:
        for kind in ("preference", "implicit", "preference_chat", "implicit_chat"):
            for mode in ("keep_start", "keep_end"):
                cases.append(case(rng, name, "sigmoid", kind, rng.choice([12, 20, 32]), mode, n))
            cases.append(case(rng, name, "reward", kind, rng.choice([24, 40]), "drop", n))
        cases.append(case(rng, name, "apo_zero_unpaired", "labelled", rng.choice([12, 20]), "keep_start", n))
        cases.append(case(rng, name, "kto", "labelled", 400, "keep_start", n))
    for name in ms.TOKENIZERS if len(sys.argv) > 2 else list(ms.TOKENIZERS)[:1]:
        for kind in ("preference_tools", "implicit_tools"):
            cases.append(case(rng, name, "sigmoid", kind, rng.choice([40, 90]), rng.choice(["keep_start", "keep_end"]), 3))
            cases.append(case(rng, name, "reward", kind, 400, "drop", 3))
        cases.append(case(rng, name, "kto", "labelled_tools", 2000, "keep_start", 3))
    text = json.dumps({"template": ms.OWN_TEMPLATE, "batch": BATCH, "cases": cases}, ensure_ascii=False, separators=(",", ":"))
    pathlib.Path(target).write_text(text.replace('{"tokenizer"', '\n{"tokenizer"') + "\n")
    print(f"{len(cases)} cases, {sum(len(c['batches']) for c in cases)} batches")


if __name__ == "__main__":
    main()
