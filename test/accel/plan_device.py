# SPDX-License-Identifier: Apache-2.0
"""What ds_plan --device plans, without a GPU and without --accelerator, against what the accelerator cuda executes over the
stand-in of its driver: random configurations; every step by its number: operator, stream, phase, module, bytes, operations; and
how many steps each stream has. Kernels and their workspace are the accelerator's own, and so are waits for memory that another
step had before: with --accelerator cuda, waits and events of each stream as well.
Usage: plan_device.py BUILD SEED COUNT, in an empty folder"""
import json
import os
import random
import re
import subprocess
import sys

build, seed, count = os.path.abspath(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
NEVER = ("undo", "redo")  # phases that a step without clipping does not run
STANDIN = dict(os.environ, DS_MODULE_PATH=build + "/standin", LD_LIBRARY_PATH=build + "/standin")
# What drivers report of each device, and a profile of it.
NAMES = {"a100-80g": "NVIDIA A100-SXM4-80GB", "h100-sxm": "NVIDIA H100 80GB HBM3", "h200": "NVIDIA H200", "b200": "NVIDIA B200",
         "rtx-4090": "NVIDIA GeForce RTX 4090"}
MODELS = {
    "gpt2": {"model_type": "gpt2", "vocab_size": 257, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2,
             "resid_pdrop": 0.1, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "llama": {"model_type": "llama", "vocab_size": 257, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
              "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32, "rms_norm_eps": 1e-5},
}
OPTIMIZERS = ["Adam", "AdamW", "Lion", "Adagrad", "SGD", "Lamb", "Muon"]
ELEMENTWISE = OPTIMIZERS[:5]


class Differs(Exception):
    pass


def configuration(r):
    stage = r.randrange(4)
    optimizer = r.choice(OPTIMIZERS)
    zero = {"stage": stage, "stage3_param_persistence_threshold": r.choice([0, 200]), "overlap_comm": r.random() < 0.7}
    config = {"train_micro_batch_size_per_gpu": r.choice([1, 2]), "gradient_accumulation_steps": r.choice([1, 1, 2]),
              "optimizer": {"type": optimizer, "params": {"lr": 1e-3}}, "zero_optimization": zero,
              "gradient_clipping": r.choice([0, 1e6]), "device_memory": 100000000, "steps_per_print": 1000, "zero_allow_untested_optimizer": True}
    dtype = r.choice(["bf16", "bf16", "fp16", None])
    if dtype == "bf16":
        config["bf16"] = {"enabled": True, "check_grad_overflow": r.random() < 0.7}
    elif dtype == "fp16":
        config["fp16"] = {"enabled": True, "loss_scale": 128}
    where = r.choice(["cpu", "cpu", "cpu", "nvme", None]) if stage > 0 else None
    if where is not None:
        states = zero["offload_optimizer"] = {"device": where}
        if where == "nvme":
            states["nvme_path"] = os.getcwd()
            config["aio"] = {"use_gds": True}
        elif r.random() < 0.2:
            states["cpuadam_cores_perc"] = 0
        elif stage == 3 and optimizer in ELEMENTWISE and r.random() < 0.6:
            states["super_offload"] = True
            config["gradient_accumulation_steps"] = 1
        if stage == 3 and r.random() < 0.4:
            zero["offload_param"] = {"device": "cpu"}
        if stage == 3 and r.random() < 0.4:
            states["ratio"] = 0.5
    if r.random() < 0.3:
        zero["sub_group_size"] = 600
    return config


def run(args, env):
    done = subprocess.run(args, env=env, capture_output=True, text=True, check=False, timeout=600)
    return done.returncode, done.stdout + done.stderr


def steps(path):
    """Of a trace: the spans of rank 0, by number of step; what the host did in order to begin one apart."""
    found = {}
    for event in json.load(open(path, encoding="utf-8"))["traceEvents"]:
        args = event.get("args", {})
        if event["ph"] == "X" and "node" in args and event["cat"] not in ("start", "stall") and event["pid"] in (100, 1000):
            what = (event["name"], event["cat"], args.get("phase"), args.get("scope"), args.get("bytes"), args.get("flops"))
            found.setdefault(args["node"], set()).add(what)
    if not found:
        raise Differs(f"no step in {path}")
    return found


def streams_of_plan(text):
    rows = re.search(r"streams of the plan.*\n((?:  .*\n)+)", text).group(1)
    return {name.strip(): tuple(map(int, numbers)) for name, *numbers in re.findall(r"^  (.{30}) +(\d+) +(\d+) +(\d+)$", rows, re.M)}


def streams_of_run(text):
    found = {}
    plan = text.split("operator/kernel operands", 1)[1].split(" steps, ", 1)[0]
    for stream, waits, event in re.findall(r"^ *\d+ \w+ +(\S+(?: \S+)*?) +(-|e[\de,*]+) +(-|e\d+) +\S", plan, re.M):
        row = found.setdefault(stream, [0, 0, 0])
        row[0] += 1
        row[1] += 0 if waits == "-" else waits.count(",") + 1
        row[2] += event != "-"
    return {name: tuple(row) for name, row in found.items()}


def differences(planned, executed):
    for node in sorted(set(planned) | set(executed)):
        here, there = planned.get(node), executed.get(node)
        if here == there:
            continue
        if here is None and {w[1] for w in there} == {"view"}:
            continue  # takes no time, so that a plan's timeline does not show it
        if there is None and {w[2] for w in here} <= set(NEVER):
            continue
        yield f"step {node}: planned {here}, executed {there}"


def one(number):
    r = random.Random(seed * 1000003 + number)
    kind = r.choice(sorted(MODELS))
    ranks = r.choice([1, 1, 1, 2])
    config = configuration(r)
    device = r.choice(["h100-sxm", "a100-80g", "h200", "b200", "rtx-4090"])
    with open("model.json", "w", encoding="utf-8") as out:
        json.dump(MODELS[kind], out)
    case = f"case {number}: {kind}, {ranks} ranks, {device}, {json.dumps(config)}"
    standin = dict(STANDIN, DS_CUDA_STANDIN=f"seed={seed},mib=200000,name={NAMES[device]}")
    with open("ds.json", "w", encoding="utf-8") as out:
        json.dump(config, out)
    common = ["--model_config", "model.json", "--deepspeed_config", "ds.json", "--seq_length", "16", "--threads", "1"]
    code, plan = run([build + "/ds_plan", *common, "--world_size", str(ranks), "--device", device, "--trace", "plan.json",
                      "--overwrite"], os.environ)
    if code != 0:
        raise Differs(f"{case}\nds_plan: exit {code}: {plan}")
    launch = [build + "/deepspeed", "--num_gpus", "2", build + "/ds_train"] if ranks == 2 else [build + "/ds_train"]
    code, text = run([*launch, *common, "--tokenizer", "bytes", "--data", "text.txt", "--accelerator", "cuda", "--steps", "3",
                      "--trace", "run.json", "--trace_steps", "2:3", "--print_plan", "--overwrite"], standin)
    if code != 0:
        raise Differs(f"{case}\nds_train: exit {code}: {text}")
    split = r"super_offload: optimizer states of .* offload_optimizer.ratio \S+"
    chosen = [re.findall(split, of) for of in (plan, text)]
    if set(chosen[0]) != set(chosen[1]):
        raise Differs(f"{case}\nplanned {chosen[0]}, executed {chosen[1]}")
    planned, executed = steps("plan.json"), steps("run.json")
    found = list(differences(planned, executed))
    executes = streams_of_run(text)
    if {n: s[0] for n, s in streams_of_plan(plan).items()} != {n: s[0] for n, s in executes.items()}:
        found.append(f"streams: planned {streams_of_plan(plan)}, executed {executes}")
    code, named = run([build + "/ds_plan", *common, "--world_size", str(ranks), "--device", device, "--accelerator", "cuda"], standin)
    if code != 0 or streams_of_plan(named) != executes:
        found.append(f"--accelerator cuda: exit {code}, streams: planned {streams_of_plan(named)}, executed {executes}")
    if found:
        raise Differs(case + "\n" + "\n".join(found[:10]))
    return "host" in streams_of_plan(plan)


with open("text.txt", "w", encoding="utf-8") as text_file:
    text_file.writelines(f"line {i}: the quick brown fox jumps over the lazy dog\n" for i in range(200))
on_host = wrong = 0
for i in range(count):
    try:
        on_host += one(i)
    except (Differs, subprocess.TimeoutExpired) as difference:
        wrong += 1
        print(f"FAIL seed {seed}, case {i}: {difference}", flush=True)
    if (i + 1) % 25 == 0:
        print(f"{i + 1} of {count}, {wrong} wrong", flush=True)
print(f"{count - wrong} of {count} plans are what the accelerator executes, {on_host} with updates on the host")
if wrong > 0 or (count >= 6 and on_host == 0):
    raise SystemExit("plans differ" if wrong > 0 else "no plan had an update on the host")
