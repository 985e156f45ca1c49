#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of DeepSpeed's PipelineModule (0.19.8, two stages on two or four processor ranks), and how it goes on from them.

    make_pipe.py OUT [FORM FOLDER]      needs deepspeed, torch, transformers

The tiny Llama of make_deepspeed.py (tied) or one with a head of its own, as a list of layers: embedding, decoder layers, norm, head.
Training, files and losses.json are as there. With a form and the save folder of one, written by others, that form goes on from it,
and the losses are printed: test/long/deepspeed_out.py.
"""
import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_deepspeed as base  # noqa: E402

# name: ranks, tied, configuration
FORMS = {
    "pipe": (2, False, {"zero_optimization": {"stage": 1}}),
    "pipe_tied": (4, True, {"zero_optimization": {"stage": 1}}),
    "pipe_plain": (2, False, {}),
    "pipe_bf16": (2, False, {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}),
}
STAGES, SEQUENCES = 2, base.MICRO * base.RANKS


def layers(config, tied):
    import torch
    from deepspeed.pipe import LayerSpec, TiedLayerSpec
    from transformers.models.llama import modeling_llama as llama

    class Embedding(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = torch.nn.Embedding(config.vocab_size, config.hidden_size)
            self.embed_tokens.weight.data.normal_(0.0, config.initializer_range)

        @property
        def weight(self):
            return self.embed_tokens.weight

        def forward(self, ids):
            return self.embed_tokens(ids)

    class Layer(llama.LlamaDecoderLayer):
        def __init__(self, index):
            super().__init__(config, index)
            self.rotary = llama.LlamaRotaryEmbedding(config)

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

    first = TiedLayerSpec("embed", Embedding, tied_weight_attr=["embed_tokens.weight"]) if tied else LayerSpec(Embedding)
    last = (TiedLayerSpec("embed", Embedding, forward_fn=lambda m, x: torch.nn.functional.linear(x, m.weight),
                          tied_weight_attr=["embed_tokens.weight"]) if tied else LayerSpec(Head))
    return [first, *(LayerSpec(Layer, i) for i in range(config.num_hidden_layers)),
            LayerSpec(llama.LlamaRMSNorm, config.hidden_size, config.rms_norm_eps), last]


def loss_of(logits, labels):
    import torch
    return torch.nn.functional.cross_entropy(logits[:, :-1].float().reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1))


def train(form, out, resume):
    import deepspeed
    import torch
    import transformers
    from deepspeed.pipe import PipelineModule
    ranks, tied, extra = FORMS[form]
    deepspeed.init_distributed("gloo")
    rank, data = torch.distributed.get_rank(), ranks // STAGES
    torch.manual_seed(3)
    config = {k: v for k, v in base.CONFIG.items() if k not in ("model_type", "architectures")}
    config = transformers.LlamaConfig(**config, attn_implementation="eager")
    module = PipelineModule(layers=layers(config, tied), num_stages=STAGES, loss_fn=loss_of, partition_method="uniform")
    settings = {**base.ds_config("zero1"), **extra}
    if "zero_optimization" not in extra:
        settings.pop("zero_optimization")
    micro = SEQUENCES // data // 3
    settings.update(train_micro_batch_size_per_gpu=micro, gradient_accumulation_steps=3)
    engine, _, _, _ = deepspeed.initialize(model=module, model_parameters=[p for p in module.parameters() if p.requires_grad], config=settings)
    place = engine.grid.get_data_parallel_rank()
    losses = []
    start = 0
    if resume is not None:
        engine.load_checkpoint(resume)
        start = engine.global_steps
    for step, batch in list(enumerate(base.batches()))[start:]:
        if step == base.BEFORE and resume is None:
            engine.save_checkpoint(out)
        rows = [row for part in batch for row in part]
        own = torch.tensor(rows[place * len(rows) // data:(place + 1) * len(rows) // data])
        micros = iter([(own[i:i + micro], own[i:i + micro]) for i in range(0, len(own), micro)])
        losses.append(engine.train_batch(micros).item())
    if rank == 0:
        result = {"before": losses[:base.BEFORE], "after": losses[-base.AFTER:], "lr": engine.get_lr()[0]}
        if resume is not None:
            print(json.dumps(result["after"]))
        else:
            with open(os.path.join(out, "losses.json"), "w") as f:
                json.dump(result, f)


def run(form, out, *more):
    env = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={FORMS[form][0]}", "--master_port=29633",
                    __file__, "--rank", form, out, *more], check=True, env=env)


def universal(root):
    """Of the untied form: ds_to_universal of 0.19.8 writes a tied layer twice at once."""
    out = os.path.join(root, "pipe_universal")
    os.makedirs(out, exist_ok=True)
    subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state",
                    "--input_folder", os.path.join(root, "pipe", "global_step3"),
                    "--output_folder", os.path.join(out, "global_step3_universal")], check=True, env={**os.environ, "DS_ACCELERATOR": "cpu"})
    shutil.copy(os.path.join(root, "pipe", "losses.json"), out)
    base.tar(root, "pipe_universal")


def main():
    if sys.argv[1] == "--rank":
        return train(sys.argv[2], sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None)
    root = os.path.abspath(sys.argv[1])
    if len(sys.argv) > 2:
        return run(sys.argv[2], root, os.path.abspath(sys.argv[3]))
    os.makedirs(root, exist_ok=True)
    for form in FORMS:
        run(form, os.path.join(root, form))
        for name in ("zero_to_fp32.py", "zero_to_torch.py"):
            if os.path.exists(os.path.join(root, form, name)):
                os.remove(os.path.join(root, form, name))
        base.tar(root, form)
    universal(root)


if __name__ == "__main__":
    main()
