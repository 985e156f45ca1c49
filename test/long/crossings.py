#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every family of the parity goldens, trained on stages of a pipeline, shared layers, sequences and experts, whole and with
adapters, against one rank (or the same data-parallel run). Usage: crossings.py BUILD SOURCE [FAMILY …]

Pipelines and experts on several ranks have the bits of the data-parallel run: the losses printed are the same. Layers and
sequences that are shared differ by the order of sums: within 3e-5 of the loss. Refusals are printed with their message and are
failures unless EXPECTED has them.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

STEPS, NEAR = 3, 3e-5
EXPECTED = {  # family, variant: part of the message
    ("olmoe", "tp"): "no rule of the operator fits",  # norms of whole q and k behind clip_qkv
    ("olmoe", "lora tp"): "no rule of the operator fits",
    ("olmoe", "ep pp tp"): "no rule of the operator fits",
    # states of linear attention go on from position to position
    **{(family, variant): "linear attention, whose state goes on" for family in ("qwen3_next", "packed_qwen3_next")
       for variant in ("sp", "ep pp sp", "lora sp", "qlora sp")},
}
PP, TP, SP = {"pipeline": {"stages": 2}}, {"tensor_parallel": {"autotp_size": 2}}, {"sequence_parallel_size": 2}
EP = {"expert_parallel": {"enabled": True, "autoep_size": 2}}
LORA, DORA, QLORA = ["--lora", "4"], ["--lora", "4", "--lora_method", "dora"], ["--lora", "4", "--load_in_4bit"]
# name, ranks, stage of ZeRO, keys, flags, what it is compared with (None: nothing), whether bit for bit
ROWS = [
    ("dp", 2, 3, {}, [], "one", False), ("pp", 2, 1, PP, [], "one", True), ("pp dp", 4, 3, PP, [], "dp", True),
    ("tp", 2, 1, TP, [], "one", False), ("sp", 2, 2, SP, [], "one", False), ("ep", 2, 3, EP, [], "dp", True),
    ("ep pp", 4, 1, {**EP, **PP}, [], "dp", True), ("ep pp sp", 8, 2, {**EP, **PP, **SP}, [], "sp", False),
    ("ep pp tp", 8, 3, {**EP, **PP, **TP}, [], "tp", False),
    ("lora", 1, 1, {}, LORA, None, False), ("lora pp", 2, 1, PP, LORA, "lora", True), ("lora tp", 2, 2, TP, LORA, "lora", False),
    ("lora sp", 2, 2, SP, LORA, "lora", False), ("dora", 1, 1, {}, DORA, None, False), ("dora pp", 2, 2, PP, DORA, "dora", True),
    ("qlora", 1, 1, {}, QLORA, None, False), ("qlora pp", 2, 1, PP, QLORA, "qlora", True),
    ("qlora sp", 2, 2, SP, QLORA, "qlora", False),
]
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def train(build: pathlib.Path, ranks: int, stage: int, keys: dict, flags: list):
    """The losses, or the message of a refusal."""
    config = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "deterministic": True,
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **keys}
    pathlib.Path("ds.json").write_text(json.dumps(config))
    subprocess.run(["rm", "-rf", "out", "metrics.jsonl"], check=True)
    done = subprocess.run(
        [build / "deepspeed", "--num_gpus", str(ranks), build / "ds_train", "--tokenizer", "bytes", "--data", "text.txt",
         "--threads", "1", "--seq_length", "32", "--seed", "7", "--lr_scheduler_type", "none", "--deepspeed_config", "ds.json",
         "--output", "out", "--metrics", "metrics.jsonl", "--model_config", "model.json", "--steps", str(STEPS), *flags],
        capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "ds_train: " in line]
        return lines[0] if lines else (done.stdout + done.stderr)[-300:]
    return [float(x) for x in re.findall(r'"loss":([0-9.]+)', pathlib.Path("metrics.jsonl").read_text())]


def write_model(folder: pathlib.Path) -> bool:
    """Its configuration with an odd vocabulary and eight experts; whether it has experts."""
    config = json.loads((folder / "config.json").read_text())
    config["vocab_size"] = 301
    for key in ("bos_token_id", "eos_token_id"):
        if key in config:
            config[key] = None
    for key in EXPERTS:
        if key in config:
            config[key] = 8
    pathlib.Path("model.json").write_text(json.dumps(config))
    return any(key in config for key in EXPERTS)


def adapted() -> list:
    """Layers of a family with experts that get adapters."""
    latent = "kv_lora_rank" in json.loads(pathlib.Path("model.json").read_text())
    return ["kv_a_proj_with_mqa", "kv_b_proj"] if latent else ["q_proj", "v_proj"]


def judge(name: str, row: tuple, got: dict) -> str:
    variant, _, _, _, _, against, exact = row
    losses, base = got[variant], got.get(against)
    if isinstance(losses, str):
        return "refused" if EXPECTED.get((name, variant), "\n") in losses else f"REFUSED: {losses}"
    if len(losses) != STEPS:
        return f"WRONG: {len(losses)} losses"
    if against is None:
        return "ran"
    if not isinstance(base, list):
        return "nothing to compare with"
    far = max(abs(a - b) / abs(b) for a, b in zip(losses, base))
    return f"{far:.1e}" if far <= (0.0 if exact else NEAR) else f"WRONG: {losses}, {against} {base}"


def main() -> int:
    build, source = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    parity = source / "test/golden/parity"
    names = sys.argv[3:] or sorted(path.parent.name for path in parity.glob("*/config.json"))
    bad = 0
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        pathlib.Path("text.txt").write_text((source / "data/tinyshakespeare.txt").read_text()[:20000])
        for name in names:
            experts = write_model(parity / name)
            got = {"one": train(build, 1, 0, {}, [])}
            said = []
            for row in ROWS:
                variant, ranks, stage, keys, flags, _, _ = row
                if "ep" in variant.split() and not experts:
                    continue
                targets = ["--lora_targets", *adapted()] if flags and experts else []
                got[variant] = train(build, ranks, stage, keys, flags + targets)
                said.append(f"{variant}: {judge(name, row, got)}")
                bad += said[-1].count("WRONG") + said[-1].count("REFUSED")
            bad += isinstance(got["one"], str)
            print(name, "; ".join(said) if isinstance(got["one"], list) else got["one"], flush=True)
        os.chdir("/")
    print(f"{len(names)} families, {bad} wrong")
    return 1 if bad else 0


sys.exit(main())
