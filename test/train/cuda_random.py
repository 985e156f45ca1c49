# SPDX-License-Identifier: Apache-2.0
"""Runs of ds_train at random on the accelerator cuda, over the stand-ins of its libraries: cuda_random.py BUILD CASES SEED.

A case draws model, objective, optimizer, adapter, precision, ranks, ZeRO stage, residency, compression and quantized collectives. What
cpu trains cuda must train, to losses that differ by no more than the tolerance of products summed in another order, or refuse by the
name of an operator without a kernel; what cpu refuses cuda must refuse with the same words. Needs no package. Exit 1 when a case does
not hold."""
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

STEPS = 3
SIZES = {"vocab_size": 257, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 40,
         "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False}
MODELS = {
    "llama": {"model_type": "llama", **SIZES},
    "dynamic": {"model_type": "llama", **SIZES, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 16},
    "gpt2": {"model_type": "gpt2", "vocab_size": 257, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2},
    "t5": {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": 257, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2,
           "num_decoder_layers": 2, "num_heads": 2, "dropout_rate": 0.1, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": True, "pad_token_id": 0,
           "eos_token_id": 256, "decoder_start_token_id": 0},
}
OBJECTIVES = ["sft", "sft", "dpo", "dpo --loss_type ipo", "dpo --loss_type hinge", "dpo --label_smoothing 0.1", "dpo --reference_free", "orpo", "simpo", "reward",
              "kto", "kto --loss_type apo_zero_unpaired"]
OPTIMIZERS = {
    "AdamW": {}, "Adam": {}, "OneBitAdam": {"freeze_step": 2}, "OneBitLamb": {"freeze_step": 2}, "ZeroOneAdam": {"var_freeze_step": 2}, "Muon": {}, "AdamW8bit": {},
    "AdEMAMix": {}, "Adafactor": {"relative_step": False}, "Lamb": {}, "Lion": {}, "SGD": {}, "Adagrad": {}, "AdamWScheduleFree": {},
}
ADAPTERS = ["", "", "", "--lora 2", "--lora 2 --lora_method dora", "--lora 2 --load_in_4bit", "--lora 2 --load_in_8bit", "--lora 2 --load_in_fp8",
            "--lora 2 --lora_method rslora --load_in_4bit --bnb_4bit_use_double_quant"]
GROUPS = {
    "weight_quantization": ({"quantize_groups": 4, "schedule_offset": 1},
                            {"start_bits": 8, "target_bits": 4, "quantization_period": 1}, "mlp"),
    "sparse_pruning": ({"method": "l1", "schedule_offset": 1}, {"dense_ratio": 0.5}, "mlp"),
    "row_pruning": ({"method": "topk", "schedule_offset": 1}, {"dense_ratio": 0.5}, "mlp.gate_proj"),
    "head_pruning": ({"method": "topk", "num_heads": 2, "schedule_offset": 1}, {"dense_ratio": 0.5}, "o_proj"),
    "activation_quantization": ({"schedule_offset": 1}, {"bits": 8}, "mlp"),
}
# Rounding to whole numbers makes a step of a difference in the last bit; so does a sign.
COARSE = ("8bit", "OneBit", "ZeroOne", "Lion", "Muon", "compression", "quantized", "load_in")


def compression(rng):
    shared, params, module = GROUPS[(name := rng.choice(list(GROUPS)))]
    if name == "weight_quantization":
        shared = {**shared, "quantization_type": rng.choice(["symmetric", "asymmetric"]), "rounding": rng.choice(["nearest", "stochastic"])}
        params = {**params, "target_bits": rng.choice([1, 2, 3, 4])}
    return {name: {"shared_parameters": {"enabled": True, **shared}, "different_groups": {"g": {"params": params, "modules": [module]}}}}


class Case:
    def __init__(self, rng):
        self.model = rng.choice(list(MODELS))
        self.objective = "sft" if self.model == "t5" else rng.choice(OBJECTIVES)
        self.optimizer = rng.choice(list(OPTIMIZERS))
        self.adapter = rng.choice(ADAPTERS)
        self.ranks = rng.choice([1, 1, 2])
        own_exchange = self.optimizer in ("OneBitAdam", "OneBitLamb", "ZeroOneAdam")
        stage = 0 if own_exchange else rng.randrange(4)
        zero = {"stage": stage}
        if stage > 0 and rng.random() < 0.3:
            zero["offload_optimizer"] = {"device": "cpu"}
        if stage == 3 and self.ranks > 1 and rng.random() < 0.5:
            zero[rng.choice(["zero_quantized_weights", "zero_quantized_gradients"])] = True
        self.config = {"train_batch_size": 4, "gradient_clipping": 1.0, "zero_optimization": zero, "zero_allow_untested_optimizer": True,
                       "optimizer": {"type": self.optimizer, "params": {"lr": 1e-3, **OPTIMIZERS[self.optimizer]}}}
        if rng.random() < 0.4:
            self.config["bf16"] = {"enabled": True}
        if self.model == "llama" and self.adapter == "" and rng.random() < 0.4:
            self.config["compression_training"] = compression(rng)
        self.seed = rng.randrange(1, 1000)

    def tolerance(self):
        text = json.dumps(self.config) + self.adapter
        return (0.03 if "bf16" in self.config else 1e-4) * (20 if any(word in text for word in COARSE) and "bf16" not in self.config else 1)

    def __str__(self):
        return f"{self.model}, {self.objective}, {self.adapter or 'no adapter'}, {self.ranks} ranks, {json.dumps(self.config)}"


def write_data(folder):
    rows = range(32)
    (folder / "text.txt").write_text(" ".join(f"{i % 17} and {i % 5} make {i % 17 + i % 5}." for i in range(400)))
    pairs = [{"prompt": f"{i % 7} and {i % 5}", "chosen": f" make {i % 7 + i % 5}", "rejected": f" or {i}"} for i in rows]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(p) + "\n" for p in pairs))
    targets = [{"prompt": p["prompt"], "completion": p["chosen"]} for p in pairs]
    (folder / "targets.jsonl").write_text("".join(json.dumps(t) + "\n" for t in targets))
    for name, model in MODELS.items():
        (folder / f"{name}.json").write_text(json.dumps(model))


def run(build, folder, case, on):
    """The losses, or None and what was said."""
    data = "targets.jsonl" if case.model == "t5" else "text.txt" if case.objective == "sft" else "pairs.jsonl"
    (folder / "ds.json").write_text(json.dumps(case.config))
    metrics = folder / f"{on}.jsonl"
    metrics.unlink(missing_ok=True)
    command = [f"{build}/ds_train", "--model_config", f"{case.model}.json", "--tokenizer", "bytes", "--data", data, "--seq_length", "24", "--steps", str(STEPS),
               "--threads", "1", "--seed", str(case.seed), "--lr_scheduler_type", "none", "--deepspeed_config", "ds.json", "--metrics", str(metrics),
               "--objective", *case.objective.split(), *case.adapter.split(), "--accelerator", on]
    if case.ranks > 1:
        command = [f"{build}/deepspeed", "--num_gpus", str(case.ranks), "--prefix", "none", *command]
    env = {k: v for k, v in os.environ.items() if not k.startswith("DS_")}
    if on == "cuda":
        env.update(DS_MODULE_PATH=f"{build}/standin", LD_LIBRARY_PATH=f"{build}/standin", DS_CUDA_STANDIN=f"seed={case.seed},turn=200")
    try:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False, errors="replace")
    except subprocess.TimeoutExpired:
        return None, "it did not end"
    if done.returncode < 0:
        return None, f"killed by signal {-done.returncode}: {done.stderr[-1500:]}"
    if done.returncode != 0:
        return None, done.stdout + done.stderr
    return [json.loads(line)["loss"] for line in metrics.read_text().splitlines() if '"loss"' in line], ""


def error_of(text):
    lines = [line for line in text.splitlines() if "ds_train: " in line or "error" in line.lower()]
    return lines[0].split("ds_train: ")[-1] if lines else text[-300:]


def judge(build, folder, case):
    """(what came of it, complaint or None)"""
    want, said = run(build, folder, case, "cpu")
    got, error = run(build, folder, case, "cuda")
    ended = [x for x in (said, error) if x.startswith(("it did not end", "killed by signal"))]
    if ended:
        return "failed", "; ".join(ended)
    if want is None:
        same = got is None and error_of(error) == error_of(said)
        return "refused", None if same else f"cpu: {said[-800:]}\ncuda: {got or error[-800:]}"
    if got is None:
        named = re.search(r"no kernel of (\w+)", error)
        return (f"refused: {named.group(1)}", None) if named else ("failed", error[-1500:])
    if None in want + got:
        return "failed", f"not finite: cpu {want}, cuda {got}"
    far = max(abs(a - b) for a, b in zip(want, got)) if len(want) == len(got) == STEPS else float("inf")
    return "trained", None if far <= case.tolerance() * max(1.0, max(want)) else f"cpu {want}, cuda {got}"


def main():
    build, cases, seed = os.path.realpath(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    counts, bad = {}, 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        write_data(folder)
        for i in range(cases):
            case = Case(rng)
            outcome, complaint = judge(build, folder, case)
            counts[outcome] = counts.get(outcome, 0) + 1
            if complaint is not None:
                bad += 1
                print(f"FAIL seed {seed} case {i}: {case}: {outcome}\n{complaint}", flush=True)
    print(f"{cases} runs on cuda, seed {seed}: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())) + f"; {bad} wrong")
    sys.exit(bad != 0 or counts.get("trained", 0) == 0)


main()
