#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed for Python loads the folders that ds_checkpoint writes, and goes on.

    deepspeed_out.py GOLDEN BUILD WORK [NUMBER…]      needs deepspeed, torch, transformers

GOLDEN is test/golden/deepspeed: checkpoints of DeepSpeed at step 3, the batches, and the losses of its
own next five steps. Each is written anew for other stages and other numbers of ranks; DeepSpeed loads it there,
makes the five steps, and has the losses of its own continuation.
"""
import json
import os
import subprocess
import sys

RANKS, BEFORE, AFTER, SEQUENCES = 3, 3, 5, 6
# golden form, stage (0: universal), stage and ranks of the run that loads it. Universal at stage 3 has one sub-group: with several,
# DeepSpeed 0.19.8 gives all of them one tensor as step, which each update then counts once for each of them.
CASES = [("zero1", 2, 2, 2), ("zero2", 3, 3, 3), ("zero3", 1, 1, 1), ("zero3", 0, 1, 2), ("zero2", 0, 3, 2), ("universal3", 2, 2, 2),
         ("bf16", 1, 1, 2), ("bf16", 3, 3, 2), ("bf16", 0, 1, 2)]


def load(golden, folder, form, stage, universal, out):
    """A rank of the job that loads and goes on."""
    import deepspeed
    import torch
    import transformers
    sys.path.insert(0, golden)
    import make_deepspeed as made
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # an all-reduce for inference that would be compiled for minutes, by one of the ranks
    deepspeed.init_distributed("gloo")
    rank, n = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(99)
    config = made.ds_config("bf16" if form == "bf16" else "zero1")
    config["train_micro_batch_size_per_gpu"] = SEQUENCES // n
    config["zero_optimization"] = {"stage": stage, "stage3_param_persistence_threshold": 10, "sub_group_size": 300 if not universal else 10**9}
    config["checkpoint"] = {"load_universal": universal}
    names = {k: v for k, v in made.CONFIG.items() if k not in ("model_type", "architectures")}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**names))
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    path, _ = engine.load_checkpoint(folder)
    assert path is not None and engine.global_steps == BEFORE, (path, engine.global_steps)
    losses = []
    for batch in made.batches()[BEFORE:]:
        rows = [row for part in batch for row in part][rank * SEQUENCES // n:(rank + 1) * SEQUENCES // n]
        ids = torch.tensor(rows)
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        mean = loss.detach().float().clone()
        torch.distributed.all_reduce(mean)
        losses.append(mean.item() / n)
    if rank == 0:
        with open(out, "w") as f:
            json.dump(losses, f)


def case(golden, build, work, number, form, stage, run_stage, ranks):
    source = os.path.join(work, form)
    if not os.path.exists(source):
        subprocess.run(["tar", "-xzf", os.path.join(golden, form + ".tar.gz"), "-C", work], check=True)
    folder, out = os.path.join(work, f"out{number}"), os.path.join(work, f"losses{number}.json")
    command = ["universal", source, folder, "--ranks", str(ranks)] if stage == 0 else [
        "deepspeed", source, folder, "--zero_stage", str(stage), "--ranks", str(ranks)] + (["--sub_group_size", "300"] if stage == 3 else [])
    subprocess.run([os.path.join(build, "ds_checkpoint")] + command, check=True)
    env = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}", f"--master_port={29650 + number}",
                           __file__, "load", golden, folder, form, str(run_stage), str(int(stage == 0)), out], env=env, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        print(done.stdout[-6000:])
        sys.exit(f"{form} as {stage or 'universal'}: DeepSpeed did not load it")
    with open(out) as f:
        losses = json.load(f)
    with open(os.path.join(source, "losses.json")) as f:
        want = json.load(f)["after"]
    worst = max(abs(a - b) / abs(b) for a, b in zip(losses, want))
    limit = 1e-3 if form == "bf16" else 1e-5
    print(f"{form:11} -> {('stage ' + str(stage)) if stage else 'universal':9} loaded at stage {run_stage} on {ranks}: "
          f"{worst:.1e} from DeepSpeed's own losses", flush=True)
    if len(losses) != AFTER or not worst < limit:
        sys.exit(f"beyond {limit}: {losses} for {want}")


def like(golden, build, work, source, other, stage, ranks, script, ours):
    """A checkpoint of `source` as a folder like that of `other`: `script` loads it as `source` and makes its losses. ours: the source is
    first a checkpoint of this library."""
    for form in {source, other}:
        subprocess.run(["tar", "-xzf", os.path.join(golden, form + ".tar.gz"), "-C", work], check=True)
    folder, start = os.path.join(work, f"{source}_as_{other}"), os.path.join(work, source)
    tool = os.path.join(build, "ds_checkpoint")
    if ours:
        subprocess.run([tool, "consolidate", start, start + "_ours"], check=True, stdout=subprocess.DEVNULL)
        start += "_ours"
    command = ["universal", start, folder, "--ranks", str(ranks)] if stage == 0 else ["deepspeed", start, folder, "--zero_stage", str(stage),
                                                                                       "--ranks", str(ranks)]
    if "autoep" in other or stage > 0:
        command += ["--like", os.path.join(work, other)]
    subprocess.run([tool] + command, check=True, stdout=subprocess.DEVNULL)
    form = other if script == "make_pipe" else source
    done = subprocess.run([sys.executable, os.path.join(golden, script + ".py"), work, form, folder], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("[0.", "[1.", "[2.", "[3.", "[4."))]
    if done.returncode != 0 or not lines:
        print(done.stdout[-6000:])
        sys.exit(f"{source} as {other}: DeepSpeed did not load it")
    losses = json.loads(lines[-1])
    with open(os.path.join(work, source, "losses.json")) as f:
        want = json.load(f)["after"]
    worst = max(abs(a - b) / abs(b) for a, b in zip(losses, want))
    print(f"{source:12} -> like {other:12} stage {stage} on {ranks}: {worst:.1e} from DeepSpeed's own losses", flush=True)
    if len(losses) != AFTER or not worst < 1e-5:
        sys.exit(f"beyond 1e-5: {losses} for {want}")


# source, the folder that it becomes like, stage, data-parallel ranks, what loads it, whether by way of a checkpoint of ours
LIKE = [("pipe", "pipe", 1, 1, "make_pipe", False), ("pipe_tied", "pipe_tied", 1, 2, "make_pipe", False),
        ("zero3", "pipe_tied", 1, 2, "make_pipe", False),
        ("experts1", "experts2", 1, 2, "make_experts", True), ("experts2", "experts1", 2, 4, "make_experts", False),
        ("tensor1", "tensor2", 1, 2, "make_tensor", True), ("tensor2", "tensor1", 2, 2, "make_tensor", False),
        ("experts_pipe", "experts_pipe", 1, 2, "make_experts_pipe", True),
        # universal, loaded at the stage and on the ranks of the first
        ("universal_autoep1", "universal_autoep2", 0, 2, "make_autoep", True),
        ("universal_autoep2", "universal_autoep3", 0, 4, "make_autoep", False),
        ("universal_tensor2", "universal_tensor2", 0, 2, "make_tensor_universal", True),
        ("universal_tensor1", "universal_tensor3", 0, 2, "make_tensor_universal", False)]
TYPES = ["gpt2", "llama", "mistral", "qwen2", "qwen3", "olmo2", "granite", "smollm3", "starcoder2", "stablelm", "phi3", "glm", "glm4",
         "cohere"]


def order(build, work, model_type):
    """Names, order and groups of a run of ours are those of the module and of the Trainer; weights too."""
    import torch
    import transformers
    torch.manual_seed(5)
    fields = dict(vocab_size=300, hidden_size=32, intermediate_size=24, num_hidden_layers=12, num_attention_heads=4,
                  num_key_value_heads=2, head_dim=8, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    if model_type == "gpt2":
        fields = dict(vocab_size=300, n_embd=16, n_layer=12, n_head=4, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(model_type, **fields))
    at = os.path.join(work, model_type)
    model.save_pretrained(os.path.join(at, "model"))
    with open(os.path.join(at, "data.txt"), "w") as f:
        f.write("the quick brown fox jumps over the lazy dog\n" * 20)
    with open(os.path.join(at, "ds.json"), "w") as f:
        json.dump({"train_micro_batch_size_per_gpu": 2,
                   "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}}}, f)
    train = [os.path.join(build, "ds_train"), "--model", os.path.join(at, "model"), "--tokenizer", "bytes", "--data",
             os.path.join(at, "data.txt"), "--steps", "1", "--seq_length", "12", "--threads", "1", "--deepspeed_config",
             os.path.join(at, "ds.json")]
    decay = transformers.Trainer.get_decay_parameter_names(None, model)
    named = [name for name, _ in model.named_parameters()]
    groups = {"one": [named], "two": [[n for n in named if n in decay], [n for n in named if n not in decay]]}
    for kind, want in groups.items():
        out, ds = os.path.join(at, kind), os.path.join(at, kind + "_ds")
        subprocess.run(train + ["--output", out] + (["--decay_all"] if kind == "one" else []), check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        subprocess.run([os.path.join(build, "ds_checkpoint"), "deepspeed", out, ds, "--zero_stage", "1", "--ranks", "2"], check=True,
                       stdout=subprocess.DEVNULL)
        state = torch.load(os.path.join(ds, "global_step1", "mp_rank_00_model_states.pt"), weights_only=True)
        got = [list(group) for group in state["param_shapes"]]
        if got != want:
            sys.exit(f"{model_type}, {kind}: {got} for {want}")
        shapes = {name: p.shape for name, p in model.named_parameters()}
        assert all(group[name] == shapes[name] for group in state["param_shapes"] for name in group)
        model.load_state_dict(state["module"], strict=True)
        trained = transformers.AutoModelForCausalLM.from_pretrained(out).state_dict()
        assert all(torch.equal(value, trained[name]) for name, value in model.state_dict().items())
        parts = [torch.load(os.path.join(ds, "global_step1", f"zero_pp_rank_{r}_mp_rank_00_optim_states.pt"), weights_only=True)
                 ["optimizer_state_dict"]["single_partition_of_fp32_groups"] for r in range(2)]
        for g, names in enumerate(want):
            flat = torch.cat([parts[r][g] for r in range(2)])
            assert torch.equal(flat, torch.cat([trained[name].float().flatten() for name in names])), (model_type, kind, g)
    print(f"{model_type}: order, groups and weights are the module's and the Trainer's", flush=True)


def main():
    if sys.argv[1] == "load":
        golden, folder, form, stage, universal, out = sys.argv[2:]
        return load(golden, folder, form, int(stage), universal == "1", out)
    golden, build, work, *only = sys.argv[1:]
    for number, one in enumerate(CASES):
        if not only or str(number) in only:
            case(os.path.abspath(golden), build, work, number, *one)
    for one in LIKE:
        if not only or "like" in only or f"{one[0]}:{one[1]}" in only:
            like(os.path.abspath(golden), build, work, *one)
    for model_type in TYPES:
        if not only or model_type in only:
            order(build, work, model_type)


if __name__ == "__main__":
    main()
