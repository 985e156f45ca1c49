# SPDX-License-Identifier: Apache-2.0
"""Makes best_steps.txt: random series of a metric, and what Hugging Face's Trainer makes of each: its EarlyStoppingCallback
and its choice of the best step, called in the order of its loop. A line a series:

    GREATER PATIENCE THRESHOLD STOP BEST : VALUES : COUNTERS

STOP is the evaluation (from 1) that stops the run, 0: none; BEST the best one up to there, 0: none; COUNTERS the patience
counter after each of them. Series rise, fall, stand still, repeat values and hold inf and nan.

Needs: pip install torch transformers. Run in this folder.
"""
import math
import random
import types

from transformers import EarlyStoppingCallback, Trainer
from transformers.trainer_callback import TrainerControl, TrainerState
from transformers.trainer_utils import SaveStrategy

SERIES = 600


def series(rng):
    n, value, values = rng.randint(1, 24), rng.uniform(-3, 3), []
    drift, noise, steps = rng.uniform(-0.3, 0.3), rng.choice([0, 0.01, 0.3]), rng.choice([0, 0, 4, 64])
    odd = rng.choice([0, 0, 0, 0.2])
    for _ in range(n):
        value += drift + rng.gauss(0, 1) * noise
        drift += rng.uniform(-0.05, 0.05)
        shown = round(value * steps) / steps if steps else value
        values.append(rng.choice([math.nan, math.inf, -math.inf]) if rng.random() < odd else shown)
    return values


def judge(values, greater, patience, threshold):
    args = types.SimpleNamespace(metric_for_best_model="loss", greater_is_better=greater, save_strategy=SaveStrategy.STEPS)
    state, control = TrainerState(), TrainerControl()
    trainer = types.SimpleNamespace(args=args, state=state)
    stopper = EarlyStoppingCallback(patience, threshold)
    counters = []
    for at, value in enumerate(values, 1):
        state.global_step = at
        stopper.on_evaluate(args, state, control, {"eval_loss": value})
        Trainer._determine_best_metric(trainer, {"eval_loss": value}, None)
        counters.append(stopper.early_stopping_patience_counter)
        if control.should_training_stop:
            break
    return (len(counters) if control.should_training_stop else 0), state.best_global_step or 0, counters


def main():
    rng = random.Random(11)
    with open("best_steps.txt", "w", encoding="utf-8") as out:
        for _ in range(SERIES):
            values, greater, patience = series(rng), rng.random() < 0.5, rng.randint(1, 5)
            threshold = rng.choice([0.0, 0.0, 0.25, round(rng.uniform(0, 0.5), 3)])
            stop, best, counters = judge(values, greater, patience, threshold)
            out.write(f"{int(greater)} {patience} {threshold!r} {stop} {best} : {' '.join(map(repr, values))} : "
                      f"{' '.join(map(str, counters))}\n")


main()
