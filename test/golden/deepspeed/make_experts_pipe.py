#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of DeepSpeed's PipelineModule (0.19.8) whose layers have experts (deepspeed.moe): two stages, expert parallelism 2.

    make_experts_pipe.py OUT [FORM FOLDER]      needs deepspeed, torch, transformers

The Mixtral of make_experts.py as a list of layers on four processor ranks, ZeRO 1 (experts_pipe). With the form and a save folder of
it, written by others, it goes on from that, and the losses are printed: test/long/deepspeed_out.py.
"""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_deepspeed as made  # noqa: E402
import make_experts as experts  # noqa: E402
import make_pipe as pipe  # noqa: E402

RANKS, STAGES = 4, 2
FORM = "experts_pipe"
NAMES = """# DeepSpeed's MoE layer in the place of Mixtral's; layers of a pipeline
0.*  model.*
3.weight  model.norm.weight
4.*  *
{n}.mlp.deepspeed_moe.gate.wg.weight  model.layers.{n-1}.block_sparse_moe.gate.weight
{n}.mlp.deepspeed_moe.experts.deepspeed_experts.{e}.*  model.layers.{n-1}.block_sparse_moe.experts.{e}.*
{n}.*  model.layers.{n-1}.*
"""


def layers(config):
    import torch
    from deepspeed.pipe import LayerSpec
    from transformers.models.mixtral import modeling_mixtral as mixtral

    class Embedding(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = torch.nn.Embedding(config.vocab_size, config.hidden_size)
            self.embed_tokens.weight.data.normal_(0.0, config.initializer_range)

        def forward(self, ids):
            return self.embed_tokens(ids)

    class Layer(mixtral.MixtralDecoderLayer):
        def __init__(self, index):
            super().__init__(config, index)
            self.rotary = mixtral.MixtralRotaryEmbedding(config)
            self.mlp = experts.block(index)

        def forward(self, x):
            positions = torch.arange(x.shape[1])[None]
            mask = torch.full((x.shape[1], x.shape[1]), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)[None, None]
            return super().forward(x, attention_mask=mask, position_embeddings=self.rotary(x, positions))

    class Head(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.lm_head.weight.data.normal_(0.0, config.initializer_range)

        def forward(self, x):
            return self.lm_head(x)

    return [LayerSpec(Embedding), *(LayerSpec(Layer, i) for i in range(config.num_hidden_layers)),
            LayerSpec(mixtral.MixtralRMSNorm, config.hidden_size, config.rms_norm_eps), LayerSpec(Head)]


def train(out, resume):
    import deepspeed
    import torch
    import transformers
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
    from deepspeed.pipe import PipelineModule
    deepspeed.init_distributed("gloo")
    rank, data = torch.distributed.get_rank(), RANKS // STAGES
    torch.manual_seed(3)
    names = {k: v for k, v in experts.CONFIG.items() if k not in ("model_type", "architectures")}
    config = transformers.MixtralConfig(**names, attn_implementation="eager")
    module = PipelineModule(layers=layers(config), num_stages=STAGES, loss_fn=pipe.loss_of, partition_method="type:layer")
    groups = split_params_into_different_moe_groups_for_optimizer({"params": [p for p in module.parameters() if p.requires_grad],
                                                                   "name": "all"})
    micro = pipe.SEQUENCES // data // 3
    settings = dict(made.ds_config("zero1"), train_micro_batch_size_per_gpu=micro, gradient_accumulation_steps=3)
    engine, _, _, _ = deepspeed.initialize(model=module, model_parameters=groups, config=settings)
    place = engine.grid.get_data_parallel_rank()
    losses, start = [], 0
    if resume is not None:
        engine.load_checkpoint(resume)
        start = engine.global_steps
    for step, batch in list(enumerate(made.batches()))[start:]:
        if step == made.BEFORE and resume is None:
            engine.save_checkpoint(out)
        rows = [row for part in batch for row in part]
        own = torch.tensor(rows[place * len(rows) // data:(place + 1) * len(rows) // data])
        losses.append(engine.train_batch(iter([(own[i:i + micro], own[i:i + micro]) for i in range(0, len(own), micro)])).item())
    if rank == 0:
        if resume is not None:
            print(json.dumps(losses))
        else:
            with open(os.path.join(out, "losses.json"), "w") as f:
                json.dump({"before": losses[:made.BEFORE], "after": losses[made.BEFORE:], "rows": pipe.SEQUENCES}, f)


def run(out, *more):
    subprocess.run([sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={RANKS}", "--master_port=29637", __file__,
                    "--rank", out, *more], check=True, env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"})


def main():
    if sys.argv[1] == "--rank":
        return train(sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
    root = os.path.abspath(sys.argv[1])
    out = os.path.join(root, FORM)
    if len(sys.argv) > 2:
        return run(out, os.path.abspath(sys.argv[3]))
    os.makedirs(root, exist_ok=True)
    run(out)
    with open(os.path.join(out, "parameter_names.txt"), "w") as f:
        f.write(NAMES)
    for name in ("zero_to_fp32.py", "zero_to_torch.py"):
        if os.path.exists(os.path.join(out, name)):
            os.remove(os.path.join(out, name))
    made.tar(root, FORM)


if __name__ == "__main__":
    main()
