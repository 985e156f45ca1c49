# SPDX-License-Identifier: Apache-2.0
"""Makes the folders of test_fp8_experts: models with experts in FP8, an expert a tensor (`each`) or stacked as transformers' classes
have them (`stacked`, with blocks that gate and up share; `mixtral`, with Mixtral's names; `powers`, whose scales are exponents in
plain bytes; `real`, stacked and not in FP8), each with `plain`, the same as transformers dequantizes it, in fp32; and of `each` an adapter of PEFT's with merged.safetensors, what
merge_and_unload makes of the dequantized model.

Needs: pip install torch transformers peft safetensors. Run in this folder."""
import json
import os
import shutil
import types

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

FIELDS = dict(vocab_size=48, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, num_experts_per_tok=2,
              max_position_embeddings=64, tie_word_embeddings=False, initializer_range=0.2, bos_token_id=None, eos_token_id=None, pad_token_id=None)
torch.set_num_threads(1)


def quantizer(block, form):
    return Fp8Quantize(types.SimpleNamespace(quantization_config=types.SimpleNamespace(weight_block_size=block, scale_fmt=form)))


def quantize(tensors, block, form="float"):
    """Every matrix but embedding, head and routers."""
    out = {}
    for name, value in tensors.items():
        kept = value.ndim < 2 or "embed_tokens" in name or "lm_head" in name or name.endswith(".gate.weight")
        out.update({name: value} if kept else quantizer(block, form)._quantize_one(name, value.float()))
    if form == "ue8m0":
        out = {k: v.view(torch.uint8) if v.dtype == torch.float8_e8m0fnu else v for k, v in out.items()}
    return {k: v.contiguous() for k, v in out.items()}


def write(folder, config, tensors):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    save_file(tensors, folder + "/model.safetensors", metadata={"format": "pt"})
    with open(folder + "/config.json", "w", encoding="utf-8") as out:
        json.dump(config, out, indent=1)
        out.write("\n")


def fp8(config, block, **more):
    return config | {"quantization_config": dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=block, **more)}


def plain_of(tensors, names):
    """What transformers' operator makes of stored tensors; experts by the names of an expert each."""
    out = {}
    for name, value in tensors.items():
        if name.endswith("scale_inv"):
            continue
        scale = tensors.get(name + "_scale_inv")
        value = value.float() if scale is None else Fp8Dequantize(None)._dequantize_one(value, scale, torch.float32)
        if value.ndim == 3 and "experts" in name:
            base, first = name.split(".experts.")
            for e, one in enumerate(value):
                parts = one.chunk(2) if first == "gate_up_proj" else [one]
                for end, part in zip(names[first], parts):
                    out[f"{names['scope'](base)}.experts.{e}.{end}.weight"] = part.contiguous()
        else:
            out[names["other"](name)] = value
    return out


QWEN = dict(gate_up_proj=("gate_proj", "up_proj"), down_proj=("down_proj",), scope=lambda s: s, other=lambda n: n)
MIXTRAL = dict(gate_up_proj=("w1", "w3"), down_proj=("w2",), scope=lambda s: s.replace(".mlp", ".block_sparse_moe"),
               other=lambda n: n.replace(".mlp.gate.", ".block_sparse_moe.gate."))


def adapter():
    model = AutoModelForCausalLM.from_pretrained("each", dtype=torch.float32, experts_implementation="eager")
    plain = load_file("each/plain/model.safetensors")
    for name, value in model.state_dict().items():
        if name in plain:  # transformers reads the folder so
            assert torch.equal(value, plain[name]), name
    assert torch.equal(model.state_dict()["model.layers.1.mlp.experts.gate_up_proj"][2],
                       torch.cat([plain[f"model.layers.1.mlp.experts.2.{n}.weight"] for n in ("gate_proj", "up_proj")]))
    half = AutoModelForCausalLM.from_pretrained("each", dtype=torch.bfloat16, experts_implementation="eager").state_dict()
    assert all(torch.equal(half[k], v.bfloat16()) for k, v in model.state_dict().items())  # rounded once
    model = AutoModelForCausalLM.from_pretrained("each/plain", dtype=torch.float32, experts_implementation="eager")
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=3, lora_alpha=6, target_modules=["q_proj", "o_proj"],
                                             target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]))
    torch.manual_seed(2)
    for key, value in model.named_parameters():
        if "lora_B" in key:
            torch.nn.init.normal_(value, std=0.1)
    model.save_pretrained("adapter")
    os.remove("adapter/README.md")
    os.chmod("adapter/adapter_model.safetensors", 0o644)
    model.merge_and_unload().save_pretrained("merged.tmp")
    shutil.copy("merged.tmp/model.safetensors", "merged.safetensors")
    shutil.rmtree("merged.tmp")


def main():
    torch.manual_seed(1)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**FIELDS, num_experts=3, moe_intermediate_size=24, intermediate_size=24, head_dim=16))
    config = model.config.to_dict() | {"architectures": ["Qwen3MoeForCausalLM"], "dtype": "bfloat16"}
    model.save_pretrained("saved.tmp")  # an expert each
    each, classes = load_file("saved.tmp/model.safetensors"), {k: v.clone() for k, v in model.state_dict().items()}
    shutil.rmtree("saved.tmp")
    for folder, tensors, block, form, more in (("each", each, [8, 8], "float", {}), ("stacked", classes, [16, 8], "float", {}),
                                               ("powers", classes, [8, 8], "ue8m0", dict(scale_fmt="ue8m0"))):
        stored = quantize(tensors, block, form)
        write(folder, fp8(config, block, **more), stored)
        write(folder + "/plain", config, plain_of(stored, QWEN))
    write("real", config, classes)
    write("real/plain", config, plain_of(classes, QWEN))
    model = MixtralForCausalLM(MixtralConfig(**FIELDS, num_local_experts=3, intermediate_size=24, head_dim=16))
    config = model.config.to_dict() | {"architectures": ["MixtralForCausalLM"], "dtype": "bfloat16"}
    stored = quantize(dict(model.state_dict()), [16, 8])
    write("mixtral", fp8(config, [16, 8]), stored)
    write("mixtral/plain", config, plain_of(stored, MIXTRAL))
    adapter()


main()
