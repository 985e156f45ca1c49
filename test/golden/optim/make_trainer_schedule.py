# SPDX-License-Identifier: Apache-2.0
"""Makes trainer_schedule.csv: learning rates of the schedules of Hugging Face's Trainer, from
transformers' get_scheduler, stepped as the Trainer steps them.

Needs: pip install torch transformers. Run in this folder. A case starts with a line
"# type key=value …" (names of ds_schedule_params); then a line an update: updates applied, the
rates of three groups of parameters. The first group has the optimizer's default rate.
"""
import math
import random

import torch
from transformers import get_scheduler

RATES = (0.02, 0.003, 1e-5)
NAMES = {"warmup_type": "warmup_ramp", "decay_type": "decay_ramp"}
RAMPS = ("linear", "cosine", "1-sqrt")
UPDATES = 23


def run(kind, warmup, total, kwargs):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in RATES]
    optimizer = torch.optim.AdamW(groups, lr=RATES[0])
    schedule = get_scheduler(kind, optimizer, num_warmup_steps=warmup, num_training_steps=total,
                             scheduler_specific_kwargs=kwargs)
    points = []
    for update in range(UPDATES):
        points.append([group["lr"] for group in optimizer.param_groups])
        if update == total:  # the Trainer ends here, and some schedules divide by zero beyond
            break
        optimizer.step()
        try:
            schedule.step()
        except ZeroDivisionError:
            break
    return points


def extras(rng):
    """Each type with the parameters that it takes."""
    yield "linear", {}
    yield "cosine", {}
    yield "cosine", dict(num_cycles=1.25)
    yield "cosine_with_restarts", {}
    yield "cosine_with_restarts", dict(num_cycles=3)
    yield "cosine_with_min_lr", dict(min_lr=0.0004)
    yield "cosine_with_min_lr", dict(min_lr_rate=0.1, num_cycles=0.75)
    yield "cosine_warmup_with_min_lr", dict(min_lr=0.0004)
    yield "cosine_warmup_with_min_lr", dict(min_lr_rate=0.1, warmup_lr_rate=0.01)
    yield "polynomial", {}
    yield "polynomial", dict(lr_end=2e-4, power=2.5)
    yield "constant", {}
    yield "constant_with_warmup", {}
    yield "inverse_sqrt", {}
    yield "inverse_sqrt", dict(timescale=4)
    yield "warmup_stable_decay", dict(num_decay_steps=5)
    yield "warmup_stable_decay", dict(num_decay_steps=30, min_lr_ratio=0.05)
    yield "warmup_stable_decay", dict(num_decay_steps=0, num_stable_steps=4)
    yield "warmup_stable_decay", dict(num_decay_steps=6, num_stable_steps=4, num_cycles=1.5)
    for rise in RAMPS:
        for fall in RAMPS:
            yield "warmup_stable_decay", dict(num_decay_steps=rng.randint(1, 9), warmup_type=rise,
                                              decay_type=fall, min_lr_ratio=rng.choice([0, 0.1]))


def cases(rng):
    for kind, kwargs in extras(rng):
        ratio = math.ceil(20 * 0.07)  # of a fractional warm-up, as TrainingArguments rounds it
        for warmup, total in ((0, 20), (ratio, 20), (1, 20), (25, 20), (20, 20), (0, 1), (3, 50)):
            yield kind, warmup, total, kwargs


def word(name, value):
    value = RAMPS.index(value) if value in RAMPS else value
    return "%s=%s" % (NAMES.get(name, name), value)


def main():
    with open("trainer_schedule.csv", "w", encoding="utf-8") as out:
        for kind, warmup, total, kwargs in cases(random.Random(5)):
            params = dict(kwargs, default_lr=RATES[0])
            if kind != "constant":
                params["warmup_num_steps"] = warmup
            if kind not in ("constant", "constant_with_warmup", "inverse_sqrt"):
                params["total_num_steps"] = total
            out.write("# %s %s\n" % (kind, " ".join(word(k, v) for k, v in params.items())))
            for updates, rates in enumerate(run(kind, warmup, total, kwargs)):
                out.write("%d,%s\n" % (updates, ",".join(repr(float(r)) for r in rates)))


main()
