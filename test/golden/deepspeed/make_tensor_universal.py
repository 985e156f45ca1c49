#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Universal folders of DeepSpeed (0.19.8) whose ranks share layers (AutoTP 2 on four processor ranks).

    make_tensor_universal.py OUT [FORM FOLDER]      needs deepspeed, torch, transformers

What ds_to_universal makes of make_tensor.py's runs: universal_tensor1 by its affine_map (ZeRO 1), universal_tensor2 by the patterns
of universal_checkpoint_info alone, as versions before 0.19 wrote it (ZeRO 2), universal_views by patterns of sub-parameters too, which
leave views of more dims (those of heads), universal_tensor3 of ZeRO 3. losses.json is of the job's own next five steps. With a form and
the save folder of a universal one, written by others, that form goes on from it, and the losses are printed: test/long/deepspeed_out.py.
"""
import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_deepspeed as made  # noqa: E402
import make_tensor as tensor  # noqa: E402

FORMS = {"universal_tensor1": 1, "universal_tensor2": 2, "universal_views": 2, "universal_tensor3": 3}


def train(form, out, resume):
    import deepspeed
    import torch
    import transformers
    made.start()
    rank = torch.distributed.get_rank()
    torch.manual_seed(3)
    config = dict(made.ds_config("zero1"), tensor_parallel={"autotp_size": tensor.TP}, zero_optimization={"stage": FORMS[form]},
                  train_micro_batch_size_per_gpu=made.RANKS * made.MICRO * tensor.TP // tensor.RANKS)
    if resume is not None:
        config["checkpoint"] = {"load_universal": True}
    names = {k: v for k, v in tensor.CONFIG.items() if k not in ("model_type", "architectures")}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**names))
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    losses, start = [], 0
    if resume is not None:
        engine.load_checkpoint(resume)
        start = engine.global_steps
    for step, batch in list(enumerate(made.batches()))[start:]:
        if step == made.BEFORE and resume is None:
            engine.save_checkpoint(out)
        rows = [row for part in batch for row in part]
        n = len(rows) * tensor.TP // tensor.RANKS
        ids = torch.tensor(rows[rank // tensor.TP * n:(rank // tensor.TP + 1) * n])
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        mean = loss.detach().float().clone()
        torch.distributed.all_reduce(mean)
        losses.append(mean.item() / tensor.RANKS)
    if rank == 0 and resume is not None:
        print(json.dumps(losses))
    elif rank == 0:
        with open(os.path.join(out, "losses.json"), "w") as f:
            json.dump({"before": losses[:made.BEFORE], "after": losses[made.BEFORE:]}, f)


def edit(folder, views):
    """Without affine_map the patterns are left; views: heads of queries, and of what the output projection takes, as sub-parameters."""
    import torch
    for name in os.listdir(folder):
        if not name.startswith("mp_rank_"):
            continue
        path = os.path.join(folder, name)
        state = torch.load(path, weights_only=False)
        info = state["universal_checkpoint_info"]
        info.pop("affine_map", None)
        if views:
            rows = "parameter_with_row_parallelism_patterns"
            info[rows] = [p for p in info[rows] if "o_proj" not in p]
            queries, outputs = r"^model\.layers\.\d+\.self_attn\.q_proj\.weight$", r"^model\.layers\.\d+\.self_attn\.o_proj\.weight$"
            info["parameter_with_sub_params"] = [{"patterns": [queries], "shape": ((2, ), 4, 8), "partition_dim": 0},
                                                 {"patterns": [outputs], "shape": (8, (2, ), 4), "partition_dim": 1}]
            info["sub_param_shard_widths"] = {queries: [[1, 1]], outputs: [[1, 1]]}
        torch.save(state, path)


def run(form, *more):
    subprocess.run([sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={tensor.RANKS}", "--master_port=29639", __file__,
                    "--rank", form, *more], check=True, env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"})


def main():
    if sys.argv[1] == "--rank":
        return train(sys.argv[2], sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None)
    root = os.path.abspath(sys.argv[1])
    if len(sys.argv) > 2:
        return run(sys.argv[2], root, os.path.abspath(sys.argv[3]))
    os.makedirs(root, exist_ok=True)
    for form in FORMS:
        saved = os.path.join(root, "saved_" + form)
        shutil.rmtree(saved, ignore_errors=True)
        run(form, saved)
        if FORMS[form] == 2:
            edit(os.path.join(saved, "global_step3"), "views" in form)
        made.convert(root, saved, form)


if __name__ == "__main__":
    main()
