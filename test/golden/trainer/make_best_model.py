# SPDX-License-Identifier: Apache-2.0
"""Makes best_model.json: runs of Hugging Face's Trainer with load_best_model_at_end and its EarlyStoppingCallback on model/
and rows.jsonl: the loss of every evaluation, the best step, the step where the run ended, and the evaluation loss of the
model that was loaded at the end. Rows come as make_trainer_steps.py has them; the last rows are held out, as one batch, so
that the Trainer's mean over batches is the mean over tokens.

Needs: pip install torch transformers accelerate safetensors. Run in this folder.
"""
import json
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from transformers import EarlyStoppingCallback, LlamaForCausalLM, TrainerCallback, TrainingArguments

# Of the other script only its functions: all but the call at its end.
source = open("make_trainer_steps.py", encoding="utf-8").read().rsplit("\nmain()", 1)[0]
exec(compile(source, "make_trainer_steps.py", "exec"))

TRAIN, MOST, BATCH = 8, 60, 2
RUNS = {  # eval_steps, save_steps, patience, threshold, greater_is_better, learning rate
    "patient": (2, 2, 3, 0.0, False, 1e-2),
    "threshold": (2, 4, 2, 0.02, False, 1e-2),
    "to_the_end": (5, 10, 100, 0.0, False, 1e-2),
    "greater": (3, 3, 2, 0.0, True, 1e-2),
}


class Evals(TrainerCallback):
    def __init__(self):
        self.values = []

    def on_evaluate(self, args, state, control, metrics=None, **_):
        self.values.append([state.global_step, metrics["eval_loss"]])


def best(rows, every, save, patience, threshold, greater, rate):
    torch.manual_seed(0)
    model = LlamaForCausalLM.from_pretrained("model", dtype=torch.float32)
    train, held = rows[:TRAIN], rows[TRAIN:]
    data = [example(train[permute(k % TRAIN, TRAIN, k // TRAIN)]) for k in range(MOST * BATCH)]
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder, max_steps=MOST, per_device_train_batch_size=BATCH, per_device_eval_batch_size=len(held),
            learning_rate=rate, lr_scheduler_type="constant", eval_strategy="steps", save_strategy="steps", eval_steps=every,
            save_steps=save, load_best_model_at_end=True, metric_for_best_model="loss", greater_is_better=greater,
            save_total_limit=1, report_to=[], use_cpu=True, disable_tqdm=True, logging_steps=1000)
        evals = Evals()
        trainer = InOrder(model=model, args=args, train_dataset=data, eval_dataset=[example(row) for row in held],
                          data_collator=pad, callbacks=[EarlyStoppingCallback(patience, threshold), evals])
        trainer.train()
        state = trainer.state
        seen = {"best": state.best_global_step, "end": state.global_step, "evals": list(evals.values)}
        seen["loaded"] = trainer.evaluate()["eval_loss"]
        return seen


def write():
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in open("rows.jsonl", encoding="utf-8")]
    with open("best_train.jsonl", "w", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows[:TRAIN])
    with open("best_eval.jsonl", "w", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows[TRAIN:])
    golden = {name: best(rows, *run) for name, run in RUNS.items()}
    with open("best_model.json", "w", encoding="utf-8") as out:
        out.write("{\n" + ",\n".join('"%s": %s' % (name, json.dumps(run)) for name, run in golden.items()) + "\n}\n")


write()
