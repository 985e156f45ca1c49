#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of DeepSpeed (0.19.8) with experts (deepspeed.moe, expert parallelism 2), and how it goes on from them.

    make_experts.py OUT [FORM FOLDER]      needs deepspeed, torch, transformers

As make_deepspeed.py, whose batches these are: a tiny Mixtral (experts.json) whose expert blocks are deepspeed.moe.layer.MoE, which
routes as Mixtral does (top 2 of 4, weights renormalized, nothing dropped); two ranks, ZeRO 1, and four ranks, ZeRO 2, of which two
share each expert. parameter_names.txt in the folder maps the names. With a form and the save folder of one, written by others, that
form goes on from it, and the losses are printed: test/long/deepspeed_out.py.
"""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_deepspeed as made  # noqa: E402

EXPERTS, EP = 4, 2
CONFIG = dict(model_type="mixtral", architectures=["MixtralForCausalLM"], vocab_size=35, hidden_size=8, intermediate_size=12,
              num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32, rms_norm_eps=1e-5,
              tie_word_embeddings=False, hidden_act="silu", rope_theta=10000.0, num_local_experts=EXPERTS, num_experts_per_tok=2,
              output_router_logits=False, router_aux_loss_coef=0.0, router_jitter_noise=0.0, sliding_window=None)
FORMS = {"experts1": (2, {"zero_optimization": {"stage": 1}}), "experts2": (4, {"zero_optimization": {"stage": 2}})}
NAMES = """# DeepSpeed's MoE layer in the place of Mixtral's
model.layers.{n}.mlp.deepspeed_moe.gate.wg.weight  model.layers.{n}.block_sparse_moe.gate.weight
model.layers.{n}.mlp.deepspeed_moe.experts.deepspeed_experts.{e}.*  model.layers.{n}.block_sparse_moe.experts.{e}.*
*  *
"""


def block(index):
    """The experts of a layer, in the place of Mixtral's."""
    import torch
    from deepspeed.moe.layer import MoE

    class Expert(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w1 = torch.nn.Linear(CONFIG["hidden_size"], CONFIG["intermediate_size"], bias=False)
            self.w2 = torch.nn.Linear(CONFIG["intermediate_size"], CONFIG["hidden_size"], bias=False)
            self.w3 = torch.nn.Linear(CONFIG["hidden_size"], CONFIG["intermediate_size"], bias=False)

        def forward(self, x):
            return self.w2(torch.nn.functional.silu(self.w1(x)) * self.w3(x))

    class Block(MoE):
        def forward(self, x):
            return super().forward(x)[0]

    made_block = Block(CONFIG["hidden_size"], Expert(), num_experts=EXPERTS, ep_size=EP, k=2, min_capacity=0, drop_tokens=False,
                       use_rts=False, top2_2nd_expert_sampling=False)
    # experts of their own: the layer copies one
    for e, expert in enumerate(made_block.deepspeed_moe.experts.deepspeed_experts):
        rank = torch.distributed.get_rank() % EP
        torch.manual_seed(1000 * index + rank * EXPERTS // EP + e)
        for p in expert.parameters():
            p.data.normal_(0.0, 0.2)
    return made_block


def build():
    import transformers
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
    names = {k: v for k, v in CONFIG.items() if k not in ("model_type", "architectures")}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**names))
    for index, layer in enumerate(model.model.layers):
        layer.mlp = block(index)
    groups = split_params_into_different_moe_groups_for_optimizer({"params": list(model.parameters()), "name": "all"})
    return model, groups


def train(form, out, resume):
    import deepspeed
    import torch
    deepspeed.init_distributed("gloo")
    rank = torch.distributed.get_rank()
    ranks, extra = FORMS[form]
    torch.manual_seed(3)
    model, groups = build()
    per = made.RANKS * made.MICRO // ranks if ranks == 2 else 1
    rows_of = [[row for part in batch for row in part][:per * ranks] for batch in made.batches()]
    config = dict(made.ds_config("zero1"), **extra, train_micro_batch_size_per_gpu=per)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=groups, config=config)
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
    subprocess.run([sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={FORMS[form][0]}", "--master_port=29635", __file__,
                    "--rank", form, *more], check=True, env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"})


def main():
    if sys.argv[1] == "--rank":
        return train(sys.argv[2], sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None)
    root = os.path.abspath(sys.argv[1])
    if len(sys.argv) > 2:
        return run(sys.argv[2], root, os.path.abspath(sys.argv[3]))
    os.makedirs(root, exist_ok=True)
    with open(os.path.join(root, "experts.json"), "w") as f:
        json.dump(CONFIG, f, indent=1)
    for form in FORMS:
        out = os.path.join(root, form)
        run(form, out)
        with open(os.path.join(out, "parameter_names.txt"), "w") as f:
            f.write(NAMES)
        for name in ("zero_to_fp32.py", "zero_to_torch.py"):
            os.remove(os.path.join(out, name))
        made.tar(root, form)


if __name__ == "__main__":
    main()
