# SPDX-License-Identifier: Apache-2.0
"""Makes schedule.csv: learning rates and first betas of DeepSpeed's five schedules, from the real
package, stepped as its engine steps them.

Needs: pip install torch deepspeed==0.19.8. Run in this folder. A line a case and update:
case number, updates applied, lr, beta1. A case starts with a line "# type key=value …".
"""
import random

import torch
from deepspeed.runtime import lr_schedules

LR = 0.02


def run(kind, params, updates):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight], lr=LR, betas=(0.7, 0.95))
    schedule = getattr(lr_schedules, kind)(optimizer, **params)
    points = []
    for _ in range(updates):
        group = optimizer.param_groups[0]
        points.append((group["lr"], group["betas"][0]))
        schedule.step()
    return points


def cases(rng):
    yield "WarmupLR", {}
    yield "WarmupLR", dict(warmup_min_lr=0.001, warmup_max_lr=0.1, warmup_num_steps=4)
    yield "WarmupLR", dict(warmup_min_lr=0, warmup_max_lr=1, warmup_num_steps=4, warmup_type="linear")
    yield "WarmupLR", dict(warmup_num_steps=1)
    yield "WarmupLR", dict(warmup_max_lr=0.1, warmup_num_steps=8, last_batch_iteration=3)
    yield "WarmupDecayLR", dict(total_num_steps=8, warmup_num_steps=4, warmup_type="linear")
    yield "WarmupDecayLR", dict(total_num_steps=3, warmup_num_steps=4)
    yield "WarmupDecayLR", dict(total_num_steps=30, warmup_min_lr=1e-5, warmup_max_lr=3e-4,
                                warmup_num_steps=5)
    yield "WarmupCosineLR", dict(total_num_steps=8, warmup_num_steps=4, warmup_type="linear",
                                 warmup_min_ratio=0.1, cos_min_ratio=0.01)
    yield "WarmupCosineLR", dict(total_num_steps=40, warmup_num_steps=7)
    yield "WarmupCosineLR", dict(total_num_steps=3, warmup_num_steps=6)
    yield "LRRangeTest", dict(lr_range_test_min_lr=0.1, lr_range_test_step_size=2)
    yield "LRRangeTest", dict(lr_range_test_min_lr=0.1, lr_range_test_step_size=2,
                              lr_range_test_step_rate=0.5, lr_range_test_staircase=True)
    base = dict(cycle_min_lr=0.1, cycle_max_lr=1.1, cycle_first_step_size=4)
    yield "OneCycle", base
    yield "OneCycle", dict(base, decay_step_size=2, decay_lr_rate=0.5, decay_mom_rate=0.1)
    yield "OneCycle", dict(base, cycle_first_stair_count=2)
    yield "OneCycle", dict(base, cycle_second_step_size=7, cycle_second_stair_count=3)
    yield "OneCycle", dict(base, cycle_second_step_size=0)
    yield "OneCycle", dict(base, cycle_momentum=False, cycle_second_step_size=3)
    yield "OneCycle", dict(base, cycle_min_mom=0.6, cycle_max_mom=0.97, decay_step_size=3,
                           decay_lr_rate=0.2, last_batch_iteration=5)
    for _ in range(20):
        first = rng.randint(1, 12)
        yield "OneCycle", dict(
            cycle_min_lr=rng.random() * 1e-3, cycle_max_lr=rng.random() * 1e-2,
            cycle_first_step_size=first, cycle_second_step_size=rng.randint(1, 12),
            cycle_first_stair_count=rng.choice([0, 0, 2, 5]),
            cycle_second_stair_count=rng.choice([0, 3]), decay_step_size=rng.choice([0, 1, 4]),
            decay_lr_rate=rng.random(), decay_mom_rate=rng.random() * 0.01)
        warmup = rng.randint(1, 20)
        yield "WarmupDecayLR", dict(
            total_num_steps=rng.randint(1, 40), warmup_min_lr=rng.random() * 1e-4,
            warmup_max_lr=rng.random() * 1e-2, warmup_num_steps=warmup,
            warmup_type=rng.choice(["log", "linear"]))
        yield "WarmupCosineLR", dict(
            total_num_steps=rng.randint(1, 40), warmup_num_steps=warmup,
            warmup_min_ratio=rng.random() * 0.1, cos_min_ratio=rng.random() * 0.1,
            warmup_type=rng.choice(["log", "linear"]))


def main():
    with open("schedule.csv", "w", encoding="utf-8") as out:
        for number, (kind, params) in enumerate(cases(random.Random(3))):
            words = " ".join("%s=%s" % (k, {True: 1, False: 0}.get(v, v)
                                        if isinstance(v, bool) else v) for k, v in params.items())
            out.write("# %s %s\n" % (kind, words))
            for updates, (lr, beta) in enumerate(run(kind, params, 44)):
                out.write("%d,%d,%r,%r\n" % (number, updates, lr, beta))


main()
