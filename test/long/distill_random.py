# SPDX-License-Identifier: Apache-2.0
"""Random distillations of ds_train against transformers' models with TRL's divergence: the loss of the first step, and what one step
of SGD makes of the weights. Usage: distill_random.py BUILD SCRATCH CASES SEED"""
import json
import os
import random
import shutil
import subprocess
import sys

import torch
import transformers
from trl.experimental.gkd import GKDTrainer

BUILD, SCRATCH, CASES, SEED = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
T = transformers
ENDS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)


def config(rng, vocab):
    heads = rng.choice((2, 4))
    width = heads * rng.choice((8, 16))
    common = dict(vocab_size=vocab, hidden_size=width, intermediate_size=rng.choice((32, 48)), num_hidden_layers=rng.randint(1, 3), num_attention_heads=heads,
                  num_key_value_heads=heads // rng.choice((1, 2)), max_position_embeddings=128, initializer_range=0.25, tie_word_embeddings=rng.random() < 0.5, **ENDS)
    kind = rng.choice(("llama", "qwen2", "qwen3", "gemma2", "granite", "cohere", "olmo2", "gpt2", "opt", "mixtral", "gemma3"))
    if kind == "gpt2":
        return T.GPT2Config(vocab_size=vocab, n_positions=128, n_embd=width, n_layer=common["num_hidden_layers"], n_head=heads, initializer_range=0.25,
                            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None)
    if kind == "opt":
        return T.OPTConfig(vocab_size=vocab, hidden_size=width, ffn_dim=48, num_hidden_layers=2, num_attention_heads=heads, max_position_embeddings=128,
                           word_embed_proj_dim=width, init_std=0.25, dropout=0.0, attention_dropout=0.0, **ENDS)
    if kind == "granite":
        return T.GraniteConfig(**common, logits_scaling=rng.choice((2.0, 8.0)), embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.2)
    if kind == "cohere":
        return T.CohereConfig(**{**common, "tie_word_embeddings": True}, logit_scale=rng.choice((0.25, 2.0)))
    if kind == "gemma2":
        return T.Gemma2Config(**common, head_dim=16, query_pre_attn_scalar=16, sliding_window=8, final_logit_softcapping=rng.choice((3.0, 30.0)))
    if kind == "gemma3":
        return T.Gemma3TextConfig(**common, head_dim=16, query_pre_attn_scalar=16, sliding_window=8)
    if kind == "qwen3":
        return T.Qwen3Config(**common, head_dim=16)
    if kind == "mixtral":
        return T.MixtralConfig(**common, num_local_experts=4, num_experts_per_tok=2)
    return {"llama": T.LlamaConfig, "qwen2": T.Qwen2Config, "olmo2": T.Olmo2Config}[kind](**common)


def save(cfg, folder, seed):
    torch.manual_seed(seed)
    model = T.AutoModelForCausalLM.from_config(cfg, attn_implementation="eager", experts_implementation="eager").eval()
    model.save_pretrained(folder)
    return model


def case(number):
    rng = random.Random(SEED * 100003 + number)
    root = os.path.join(SCRATCH, str(number))
    os.makedirs(root)
    vocab = rng.choice((256, 256, 300))
    student_config, teacher_config = config(rng, vocab), config(rng, vocab)
    student = save(student_config, f"{root}/student", number)
    teacher = save(teacher_config, f"{root}/teacher", number + 1)
    n = rng.choice((2, 4, 6))
    rows = []
    with open(f"{root}/data.jsonl", "w") as f:
        for _ in range(n):
            a, b = ("".join(rng.choices("abcdefgh ", k=rng.randint(1, 20))) for _ in range(2))
            f.write(json.dumps({"prompt": a, "completion": b}) + "\n")
            rows.append((a, b))
    weight, mix = rng.choice((0.0001, 0.3, 0.7, 1.0)), rng.choice((0, 1, 0.5, 1e-3, 0.999, round(rng.random(), 3)))
    temperature = rng.choice((1, 2, 0.1, 0.5, 7, 50, round(rng.uniform(0.3, 4), 3)))
    steps = rng.choice((1, 1, 2)) if n % 2 == 0 else 1
    micro = n // steps
    ranks = rng.choice((1, 1, 2)) if micro % 2 == 0 else 1
    average = "targets" if steps > 1 or ranks > 1 else rng.choice(("targets", "micro_batches"))
    stage = rng.choice((0, 1, 2, 3))
    lr = 0.5
    with open(f"{root}/ds.json", "w") as f:
        json.dump({"train_batch_size": n, "train_micro_batch_size_per_gpu": micro // ranks, "gradient_clipping": 0.0, "optimizer": {"type": "SGD", "params": {"lr": lr}},
                   "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True, **({"activation_checkpointing": {"recompute": "full"}} if rng.random() < 0.3 else {})}, f)
    command = [f"{BUILD}/deepspeed", "--num_gpus", str(ranks), f"{BUILD}/ds_train", "--model", f"{root}/student", "--teacher", f"{root}/teacher", "--tokenizer", "bytes",
               "--data", f"{root}/data.jsonl", "--seq_length", "64", "--steps", "1", "--lr_scheduler_type", "none", "--deepspeed_config", f"{root}/ds.json",
               "--distill_weight", str(weight), "--distill_temperature", str(temperature), "--distill_mix", str(mix), "--loss_average", average, "--packing", "false",
               "--threads", "1", "--output", f"{root}/out", "--metrics", f"{root}/metrics.jsonl"]
    said = f"case {number}: {student_config.model_type} of {teacher_config.model_type} V {vocab} w {weight} T {temperature} b {mix} rows {n} in {steps} on {ranks}, stage {stage}, {average}"
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return said + " REFUSED: " + "\n".join((done.stderr + done.stdout).splitlines()[-3:])
    with open(f"{root}/metrics.jsonl") as f:
        lines = [json.loads(line) for line in f]
    got = next(line["loss"] for line in lines if "loss" in line)
    student, teacher = student.double(), teacher.double()
    total, count = 0.0, 0
    for a, b in rows:
        ids = torch.tensor([list((a + b).encode())])
        labels = ids.clone()
        labels[0, :len(a)] = -100
        labels = labels[:, 1:]
        z = student(ids).logits[:, :-1]
        with torch.no_grad():
            t = teacher(ids).logits[:, :-1]
        z, t = z[..., :vocab], t[..., :vocab]
        kept = int((labels != -100).sum())
        hard = torch.nn.functional.cross_entropy(z[0], labels[0], ignore_index=-100, reduction="sum")
        soft = GKDTrainer.generalized_jsd_loss(z, t, labels, beta=mix, temperature=temperature, reduction="sum")
        total = total + (1 - weight) * hard + weight * temperature**2 * soft
        count += kept
    loss = total / count
    loss.backward()
    # in fp32 a divergence is off by some 1e-7, which counts the temperature's square times
    worst = abs(got - loss.item()) / max(1.0, abs(loss.item()))
    subprocess.run([f"{BUILD}/ds_checkpoint", "export", f"{root}/out", f"{root}/model"], check=True, capture_output=True)
    after = T.AutoModelForCausalLM.from_pretrained(f"{root}/model", attn_implementation="eager", experts_implementation="eager")
    grads = dict(student.named_parameters())
    err, norm = 0.0, 0.0
    for name, p in after.named_parameters():
        if name not in grads or grads[name].grad is None:
            continue
        step = (grads[name].detach() - p.detach().double()) / lr
        err += float((step - grads[name].grad).square().sum())
        norm += float(grads[name].grad.square().sum())
    off = (err / max(norm, 1e-30)) ** 0.5
    state = "WRONG" if worst > 2e-5 + 1e-7 * temperature**2 or (off > 2e-3 and err**0.5 > 1e-5) else "ok"
    shutil.rmtree(root)
    return f"{said}: loss {got:.6g} {loss.item():.6g}, gradient off by {off:.1e} of {norm**0.5:.2g} {state}"


os.makedirs(SCRATCH, exist_ok=True)
bad = 0
for i in range(CASES):
    line = case(i)
    print(line, flush=True)
    bad += "WRONG" in line
print(f"{CASES} cases, {bad} wrong")
sys.exit(bad > 0)
