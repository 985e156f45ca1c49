#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Universal folders of DeepSpeed (0.19.8) with experts of AutoEP (expert parallelism 2), and how it goes on from them.

    make_autoep.py OUT [FORM FOLDER]      needs deepspeed, torch, transformers

As make_experts.py, whose tiny Mixtral (experts.json) this is, with the experts that AutoEP makes of transformers' own: two ranks at
ZeRO 1 and 3, four ranks at ZeRO 2, of which two share each expert; each as its ds_to_universal converts it. losses.json is of the
job's own next five steps. With a form and the save folder of a universal one, written by others, that form goes on from it, and the
losses are printed: test/long/deepspeed_out.py.
"""
import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_deepspeed as made  # noqa: E402
import make_experts as sparse  # noqa: E402

EP = 2
FORMS = {"universal_autoep1": (2, 1), "universal_autoep2": (4, 2), "universal_autoep3": (2, 3)}


def train(form, out, resume):
    import deepspeed
    import torch
    import transformers
    from deepspeed.module_inject.auto_ep_presets import base
    base._retarget_transformers_output_recorders_for_modules = lambda **_: 0  # of router logits; transformers' registry is another since
    made.start()
    rank = torch.distributed.get_rank()
    ranks, stage = FORMS[form]
    torch.manual_seed(3)
    names = {k: v for k, v in sparse.CONFIG.items() if k not in ("model_type", "architectures")}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**names))
    per = made.RANKS * made.MICRO // ranks if ranks == 2 else 1
    rows_of = [[row for part in batch for row in part][:per * ranks] for batch in made.batches()]
    config = dict(made.ds_config("zero1"), train_micro_batch_size_per_gpu=per, zero_optimization={"stage": stage},
                  expert_parallel={"enabled": True, "autoep_size": EP, "preset_model": "mixtral", "use_grouped_mm": False})
    if resume is not None:
        config["checkpoint"] = {"load_universal": True}
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
    losses, start = [], 0
    if resume is not None:
        engine.load_checkpoint(resume)
        start = engine.global_steps
    for step, rows in list(enumerate(rows_of))[start:]:
        if step == made.BEFORE and resume is None:
            engine.save_checkpoint(out)
        ids = torch.tensor(rows[rank * per:(rank + 1) * per])
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        mean = loss.detach().float().clone()
        torch.distributed.all_reduce(mean)
        losses.append(mean.item() / ranks)
    if rank == 0 and resume is not None:
        print(json.dumps(losses))
    elif rank == 0:
        with open(os.path.join(out, "losses.json"), "w") as f:
            json.dump({"before": losses[:made.BEFORE], "after": losses[made.BEFORE:], "rows": per * ranks}, f)


def run(form, *more):
    subprocess.run([sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={FORMS[form][0]}", "--master_port=29637", __file__,
                    "--rank", form, *more], check=True, env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"})


def main():
    if sys.argv[1] == "--rank":
        return train(sys.argv[2], sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None)
    root = os.path.abspath(sys.argv[1])
    if len(sys.argv) > 2:
        return run(sys.argv[2], root, os.path.abspath(sys.argv[3]))
    for form in FORMS:
        saved = os.path.join(root, "saved_" + form)
        shutil.rmtree(os.path.join(root, form), ignore_errors=True)
        run(form, saved)
        made.convert(root, saved, form)


if __name__ == "__main__":
    main()
