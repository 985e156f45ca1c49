#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random adapter configurations, one or several at once: what PEFT makes of them, merged into the model, beside what ds_checkpoint
merge makes, and unmerge gives the stored bytes back; some models are in FP8, and PEFT's what transformers dequantizes. None may
differ; what we refuse is refused by the name of a field. Usage: adapter_random.py BUILD SCRATCH [N [SEED [SECONDS]]]"""
import collections
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import time
import types
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Quantize
from transformers import (GPT2Config, GPT2LMHeadModel, GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM, MixtralConfig,
                          MixtralForCausalLM, OlmoeConfig, OlmoeForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM, logging)

logging.set_verbosity_error()
logging.disable_progress_bar()
build, scratch = os.path.realpath(sys.argv[1]), sys.argv[2]
count = int(sys.argv[3]) if len(sys.argv) > 3 else 300
seed = int(sys.argv[4]) if len(sys.argv) > 4 else 1
until = time.monotonic() + (float(sys.argv[5]) if len(sys.argv) > 5 else 1e9)
os.chdir(scratch)
rng = random.Random(seed)
torch.set_num_threads(1)
torch.manual_seed(seed)
common = dict(vocab_size=64, bos_token_id=None, eos_token_id=None, pad_token_id=None)
LlamaForCausalLM(LlamaConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1,
                             max_position_embeddings=32, tie_word_embeddings=False, **common)).save_pretrained("llama")
LlamaForCausalLM(LlamaConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
                             max_position_embeddings=32, tie_word_embeddings=True, **common)).save_pretrained("tied")
GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=3, n_head=2, n_positions=32, **common)).save_pretrained("gpt2")
ROUTED = dict(hidden_size=16, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
              num_experts_per_tok=2, max_position_embeddings=32, tie_word_embeddings=False, **common)
MixtralForCausalLM(MixtralConfig(num_local_experts=3, **ROUTED)).save_pretrained("mixtral")
Qwen3MoeForCausalLM(Qwen3MoeConfig(num_experts=4, moe_intermediate_size=10, **ROUTED)).save_pretrained("qwen3_moe")
OlmoeForCausalLM(OlmoeConfig(num_experts=5, **{k: v for k, v in ROUTED.items() if k != "head_dim"})).save_pretrained("olmoe")
GptOssForCausalLM(GptOssConfig(num_local_experts=3, rope_scaling=None, **ROUTED)).save_pretrained("gpt_oss")
EXPERTS = {"mixtral": MixtralForCausalLM, "qwen3_moe": Qwen3MoeForCausalLM, "olmoe": OlmoeForCausalLM, "gpt_oss": GptOssForCausalLM}
CLASSES = {**EXPERTS, "llama": LlamaForCausalLM, "tied": LlamaForCausalLM, "gpt2": GPT2LMHeadModel}
NAMES = {
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "gpt2": ["c_attn", "c_fc", "attn.c_proj", "mlp.c_proj", "c_proj"],
}
NAMES["tied"] = NAMES["llama"]
NAMES |= dict.fromkeys(EXPERTS, ["q_proj", "k_proj", "v_proj", "o_proj"])
PARAMETERS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "experts.gate_up_proj", "down_proj", "gate_up_proj",
              "layers.1.mlp.experts.down_proj", "model.layers.0.mlp.experts.gate_up_proj"]
ODD_PARAMETERS = ["mlp.gate.weight", "q_proj.weight", "no_such", "experts", "proj", "norm.weight", "gate_up_proj_bias"]
ODD = ["lm_head", "embed_tokens", "norm", "mlp", "self_attn", "wte", "input_layernorm", "no_such", "proj", "layers.1.mlp.up_proj",
       "model.layers.0.self_attn.q_proj", "transformer.h.1.attn.c_attn", "ln_f", "h.0.mlp.c_fc", "0.mlp.up_proj"]
PATTERNS = [r".*(q|v)_proj", r"model\.layers\.[01]\..*_proj", r".*\.h\.\d+\.attn\.c_attn", r".*c_(fc|proj)", r"(?!.*layers\.0).*up_proj",
            r".*attn.*", r"layers", "q_proj", r".*\.(?:self_attn)\.o_proj$", "all-linear", "All-Linear"]


def names(family, most):
    pool = NAMES[family] * 3 + ODD if rng.random() < 0.3 else NAMES[family]
    return rng.sample(sorted(set(pool)), rng.randint(1, min(most, len(set(pool)))))


def random_config(family):
    c = {"r": rng.randint(1, 6), "lora_alpha": rng.choice([1, 4, 8, 16, 0.5, 3.7])}
    c["target_modules"] = rng.choice(PATTERNS) if rng.random() < 0.35 else names(family, 4)
    if rng.random() < 0.3:
        c["use_rslora"] = True
    if rng.random() < 0.3:
        c["lora_dropout"] = 0.1
    if rng.random() < 0.25:
        c["exclude_modules"] = rng.choice([names(family, 2), r".*layers\.1\..*", r".*\.h\.2\..*", "q_proj"])
    if rng.random() < 0.3:
        c["rank_pattern"] = {rng.choice(NAMES[family] + [r"layers\.\d+\.mlp\.up_proj", "h.1.mlp.c_fc", ".*_proj"]): rng.randint(1, 5)
                             for _ in range(rng.randint(1, 3))}
    if rng.random() < 0.3:
        c["alpha_pattern"] = {rng.choice(NAMES[family] + [r"layers\.[02]\..*", "h.1.attn.c_attn", "^model.*"]): rng.choice([2, 5, 32])
                              for _ in range(rng.randint(1, 3))}
    if rng.random() < 0.3:
        c["layers_to_transform"] = rng.choice([0, 1, [0, 2], [1], [], 7])
        if rng.random() < 0.4:
            c["layers_pattern"] = rng.choice(["layers", "h", ["h", "layers"], "blocks", []])
    if rng.random() < 0.2:
        c["modules_to_save"] = rng.choice([["lm_head"], ["norm"], ["embed_tokens"], ["wte"], ["ln_f", "ln_1"], ["mlp"], ["no_such"],
                                           ["q_proj"], ["proj"], ["0.mlp"], ["model.norm"], ["layers.1"]])
    if rng.random() < 0.1:
        c["init_lora_weights"] = rng.choice(["gaussian", "pissa", "olora", "orthogonal", False])
    if rng.random() < 0.3:
        c["use_dora"] = True
    if rng.random() < 0.05:
        c["lora_bias"] = True
    if rng.random() < 0.1:
        c["bias"] = rng.choice(["all", "lora_only"])
    if rng.random() < 0.05:
        c["trainable_token_indices"] = [1, 2]
    if rng.random() < 0.05:
        c["layer_replication"] = [(0, 2), (1, 3)]
    return c


def with_parameters(c):
    """Experts, without what PEFT does not do to them most of the time."""
    pool = PARAMETERS + (ODD_PARAMETERS if rng.random() < 0.2 else [])
    c["target_parameters"] = rng.sample(pool, rng.randint(1, 3))
    if rng.random() < 0.9:
        for key in ("lora_dropout", "use_dora", "lora_bias", "init_lora_weights", "modules_to_save", "trainable_token_indices",
                    "layer_replication"):
            c.pop(key, None)
    if rng.random() < 0.3:
        c["target_modules"] = []
    elif c["target_modules"] in ("all-linear", "All-Linear"):
        c["target_modules"] = ["v_proj"]
    if rng.random() < 0.4:
        c["rank_pattern"] = {rng.choice(PARAMETERS + [".*experts.*", "q_proj"]): rng.randint(1, 4)}
    if rng.random() < 0.4:
        c["alpha_pattern"] = {rng.choice(PARAMETERS + [".*experts.*", r"layers\.1\..*"]): rng.choice([2, 5, 32])}
    return c


def to_fp8(family):
    """FAMILY_fp8: its matrices, but embedding, head and routers, with a scale a block; experts one by one or stacked, as is drawn."""
    folder, stacked = family + "_fp8", family in EXPERTS and rng.random() < 0.5
    shutil.rmtree(folder, ignore_errors=True)
    model = CLASSES[family].from_pretrained(family)
    model.save_pretrained(folder)
    tensors = {k: v.clone() for k, v in (model.state_dict() if stacked else load_file(folder + "/model.safetensors")).items()}
    block = rng.choice([[8, 8], [4, 4], [2, 8]])
    quantize = Fp8Quantize(types.SimpleNamespace(quantization_config=types.SimpleNamespace(weight_block_size=block, scale_fmt="float")))
    out = {}
    for name, value in tensors.items():
        kept = value.ndim < 2 or any(part in name for part in ("embed_tokens", "lm_head")) or name.endswith((".gate.weight", "_bias"))
        out.update({name: value} if kept else quantize._quantize_one(name, value))
    save_file({k: v.contiguous() for k, v in out.items()}, folder + "/model.safetensors", metadata={"format": "pt"})
    config = json.load(open(folder + "/config.json", encoding="utf-8"))
    config["quantization_config"] = dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=block)
    json.dump(config, open(folder + "/config.json", "w", encoding="utf-8"))
    plain = {}
    for name, value in out.items():  # by hand: each element times its block's scale
        scale = out.get(name[:-6] + "weight_scale_inv" if name.endswith("weight") else name + "_scale_inv")
        if not name.endswith("_scale_inv"):
            plain[name] = value if scale is None else value.float() * scale.repeat_interleave(block[0], -2).repeat_interleave(block[1], -1)
    if not stacked:
        save_file({k: v.contiguous() for k, v in plain.items()}, "plain.safetensors", metadata={"format": "pt"})
        shutil.copytree(family, "plain", dirs_exist_ok=True)
        shutil.move("plain.safetensors", "plain/model.safetensors")
        return folder, CLASSES[family].from_pretrained("plain")
    model.load_state_dict(plain)
    return folder, model


def theirs(family, folder, base, several):
    """base: makes the model anew."""
    folders = [f"adapter{i}" for i in range(len(several))]
    try:
        for name, fields in zip(folders, several):
            shutil.rmtree(name, ignore_errors=True)
            model = get_peft_model(base(), LoraConfig(task_type="CAUSAL_LM", **fields))
            for key, value in model.named_parameters():
                if value.requires_grad:
                    torch.nn.init.normal_(value, std=0.1)
            model.save_pretrained(name)
        model = PeftModel.from_pretrained(base(), folders[0], adapter_name=folders[0])
        for name in folders[1:]:
            model.load_adapter(name, adapter_name=name)
        model.base_model.set_adapter(folders)
        merged = model.merge_and_unload()
        if family not in EXPERTS:
            state = dict(merged.state_dict())
            stored = [key for f in folders for key in load_file(f + "/adapter_model.safetensors")]
            table, head = (any(part in key for key in stored) for part in ("lora_embedding", "lm_head.lora_A"))
            if table and head and family != "llama":
                return "both are merged into the one tensor"
            # PEFT trained one of embedding and head, which are tied, but merges into both: ours is left as it was
            if table and family != "llama":
                state["lm_head.weight"] = base().state_dict()["lm_head.weight"]
            if head and family != "llama":
                name = "transformer.wte.weight" if family == "gpt2" else "model.embed_tokens.weight"
                state[name] = base().state_dict()[name]
            return state
        shutil.rmtree("theirs", ignore_errors=True)
        merged.save_pretrained("theirs")  # by the names of stored tensors, an expert each
        return load_file("theirs/model.safetensors")
    except Exception as error:  # pylint: disable=broad-except
        return str(error)


def ours(folder, n):
    shutil.rmtree("merged", ignore_errors=True)
    shutil.rmtree("again", ignore_errors=True)
    more = ["--dtype", "fp32"] if folder.endswith("_fp8") else []
    command = [build + "/ds_checkpoint", "merge", folder, *(f"adapter{i}" for i in range(n)), "merged", "--reversible", *more]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode in (0, 1, 2), run
    if run.returncode:
        return run.stderr.strip()
    subprocess.run([build + "/ds_checkpoint", "unmerge", "merged", "again"], capture_output=True, check=True)
    was, now = (open(f + "/model.safetensors", "rb").read() for f in (folder, "again"))
    if was != now:  # the order of tensors may be another
        a, b = load_file(folder + "/model.safetensors"), load_file("again/model.safetensors")
        assert set(a) == set(b) and all(a[k].dtype == b[k].dtype and torch.equal(a[k].view(torch.uint8), b[k].view(torch.uint8)) for k in a), folder
    return load_file("merged/model.safetensors")


seen = collections.Counter()
why = collections.Counter()

def draw(family):
    """One configuration, or two or three; of experts with the same parameters, as PEFT wants it."""
    several = []
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        fields = random_config(family)
        several.append(with_parameters(fields) if family in EXPERTS else fields)
    if len(several) > 1:
        for fields in several[1:]:
            for key in ("target_parameters", "bias"):
                fields.pop(key, None)
                if key in several[0]:
                    fields[key] = several[0][key]
            if rng.random() < 0.8:
                fields.pop("modules_to_save", None)
    return several


for i in range(count):
    if time.monotonic() > until:
        break
    family = rng.choice(["llama", "tied", "gpt2"] + list(EXPERTS)[i % len(EXPERTS):][:1] * 2)
    several = draw(family)
    folder, base = family, lambda: CLASSES[family].from_pretrained(family)
    if family not in ("gpt2", "gpt_oss") and rng.random() < 0.3:
        folder, dequantized = to_fp8(family)
        base = lambda: copy.deepcopy(dequantized)
    want = theirs(family, folder, base, several)
    if isinstance(want, str):
        seen["refused by PEFT"] += 1
        continue
    got = ours(folder, len(several))
    if isinstance(got, str):
        seen["refused by us"] += 1
        why[got.split(":", 2)[-1].strip()[:100]] += 1
        continue
    seen["the same"] += 1
    seen["of them with experts"] += family in EXPERTS
    seen["of several"] += len(several) > 1
    seen["of FP8"] += folder != family
    for name, value in got.items():
        other = want.get(name)
        if other is None or not torch.allclose(value, other, rtol=1e-5, atol=1e-6):
            sys.exit(f"DIFFERS: case {i} of seed {seed}: {folder} {json.dumps(several)}: {name}")
print(dict(seen))
for text, n in why.most_common(20):
    print(n, text)
if seen["the same"] < sum(seen[k] for k in ("the same", "refused by PEFT", "refused by us")) // 6:
    sys.exit("too few are compared")
# A field that no version of PEFT here knows, or that is not available, is named.
theirs("llama", "llama", lambda: LlamaForCausalLM.from_pretrained("llama"), [{"r": 2, "target_modules": ["q_proj"]}])
fields = json.load(open("adapter0/adapter_config.json", encoding="utf-8"))
for key, value in (("new_field", 1), ("use_qalora", True), ("megatron_config", {"a": 1}), ("kasa_config", {"beta": 1}), ("kasa_config", {}), ("alora_invocation_tokens", []), ("use_bdlora", {"a": 1})):
    json.dump({**fields, key: value}, open("adapter0/adapter_config.json", "w", encoding="utf-8"))
    got = ours("llama", 1)
    assert isinstance(got, str) and f'"{key}"' in got, (key, got)
print("all right")
