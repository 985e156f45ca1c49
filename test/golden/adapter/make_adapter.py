# SPDX-License-Identifier: Apache-2.0
"""Makes the folders of test_adapter: for each case CASE/start (an adapter that PEFT wrote, B not 0), CASE/end (the same after
STEPS steps of torch's AdamW), CASE/merged.safetensors (the model with the adapter of `end` merged, where it changes) and
steps.json (losses); models/FAMILY, the frozen models; rows.jsonl, all of which make up each step; combined, what
add_weighted_adapter makes of several, sparse, of parts of their elements; several, models into which several were merged, and one trained beside others that are frozen;
rows, several that are trained in one run, each on its own rows.

Needs: pip install torch transformers peft safetensors. Run in this folder. With names of cases: makes those anew, of the models
and rows that are there.
"""
import json
import os
import random
import shutil
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, GptOssConfig, GptOssForCausalLM, LlamaConfig,
                          LlamaForCausalLM, MixtralConfig, MixtralForCausalLM, OlmoeConfig, OlmoeForCausalLM, Qwen3MoeConfig,
                          Qwen3MoeForCausalLM)

STEPS, ROWS, SEQ_LENGTH, RATE, EPS = 10, 4, 48, 1e-2, 1e-5
LLAMA = dict(vocab_size=256, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=False, initializer_range=0.1,
             bos_token_id=None, eos_token_id=None, pad_token_id=None)
GPT2 = dict(vocab_size=256, n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=0.1, embd_pdrop=0.0,
            attn_pdrop=0.0, resid_pdrop=0.0, bos_token_id=None, eos_token_id=None, pad_token_id=None)
ROUTED = dict({**LLAMA, "intermediate_size": 12}, num_experts_per_tok=2)
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**ROUTED, num_local_experts=3)),
    "qwen3_moe": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**ROUTED, num_experts=4, moe_intermediate_size=10, head_dim=8)),
    "olmoe": lambda: OlmoeForCausalLM(OlmoeConfig(**ROUTED, num_experts=4)),
    "gpt_oss": lambda: GptOssForCausalLM(GptOssConfig(**ROUTED, num_local_experts=3, head_dim=8, sliding_window=16, rope_scaling=None)),
}
FIRST, LAST = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
CASES = {
    "lora": ("llama", dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"])),
    "rslora": ("llama", dict(r=4, lora_alpha=4, target_modules="all-linear", use_rslora=True,
                             rank_pattern={"mlp.up_proj": 2}, alpha_pattern={"layers.1.self_attn.k_proj": 16})),
    "saved": ("llama", dict(r=2, lora_alpha=6, target_modules=["o_proj", "gate_proj"], modules_to_save=["lm_head"],
                            layers_to_transform=[1], exclude_modules=["layers.0.mlp.gate_proj"])),
    "dora": ("llama", dict(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "down_proj"], use_dora=True)),
    "dora_conv1d": ("gpt2", dict(r=3, lora_alpha=6, target_modules=["c_attn", "mlp.c_proj"], fan_in_fan_out=True, use_dora=True)),
    "pissa": ("llama", dict(r=4, lora_alpha=6, target_modules=["q_proj", "up_proj"], init_lora_weights="pissa")),
    "pissa_conv1d": ("gpt2", dict(r=3, lora_alpha=6, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True,
                                  init_lora_weights="pissa")),
    "table": ("llama", dict(r=2, lora_alpha=4, target_modules=["v_proj"], modules_to_save=["embed_tokens", "lm_head"])),
    "untied": ("gpt2", dict(r=2, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True, modules_to_save=["wte"])),
    "untied_both": ("gpt2", dict(r=2, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True,
                                 modules_to_save=["wte", "lm_head"])),
    "resized": ("llama", dict(r=2, lora_alpha=4, target_modules=["v_proj"], modules_to_save=["embed_tokens", "lm_head"])),
    "lora_table": ("llama", dict(r=3, lora_alpha=6, target_modules=["embed_tokens", "q_proj"])),
    "lora_tables": ("gpt2", dict(r=3, lora_alpha=6, target_modules=["wte", "wpe", "c_attn"], fan_in_fan_out=True)),
    "experts_mixtral": ("mixtral", dict(r=2, lora_alpha=4, target_modules=["q_proj"], target_parameters=[FIRST, LAST])),
    "experts_qwen3_moe": ("qwen3_moe", dict(r=3, lora_alpha=4, target_modules=[], target_parameters=[LAST], use_rslora=True)),
    "experts_olmoe": ("olmoe", dict(r=2, lora_alpha=4, target_modules=["v_proj"], target_parameters=[FIRST],
                                    rank_pattern={"layers.1." + FIRST: 4}, alpha_pattern={"layers.0." + FIRST: 6})),
    "experts_gpt_oss": ("gpt_oss", dict(r=2, lora_alpha=4, target_modules=["o_proj"], target_parameters=[FIRST, LAST])),
    "head": ("llama", dict(r=3, lora_alpha=6, target_modules=["lm_head", "q_proj"])),
    "head_tied": ("gpt2", dict(r=2, lora_alpha=5, target_modules=["lm_head", "c_attn"], fan_in_fan_out=True)),
    "head_dora": ("llama", dict(r=3, lora_alpha=6, target_modules=["lm_head", "v_proj"], use_dora=True)),
    "router_mixtral": ("mixtral", dict(r=2, lora_alpha=4, target_modules=["v_proj"], target_parameters=["mlp.gate.weight", LAST])),
    "router_qwen3_moe": ("qwen3_moe", dict(r=3, lora_alpha=6, target_modules=["q_proj"], target_parameters=["gate.weight", "k_proj.weight"],
                                           rank_pattern={"layers.0.mlp.gate.weight": 2})),
    "router_gpt_oss": ("gpt_oss", dict(r=2, lora_alpha=4, target_modules=[], target_parameters=["router.weight"], use_rslora=True)),
    "conv1d": ("gpt2", dict(r=3, lora_alpha=6, target_modules=["c_attn", "c_fc", "mlp.c_proj"], fan_in_fan_out=True)),
}


VOCAB = {"resized": 261}  # of the model before it gets the adapter


def make_rows(rng):
    words = "the adapter learns to count one two three four five six seven eight nine ten".split()
    rows = []
    while len(rows) < ROWS:
        prompt = " ".join(rng.choice(words) for _ in range(4))
        row = {"prompt": prompt, "completion": " " + " ".join(rng.choice(words) for _ in range(rng.randint(2, 5)))}
        if SEQ_LENGTH // 2 < len(prompt + row["completion"]) <= SEQ_LENGTH:  # one a row: two are packed into none
            rows.append(row)
    return rows


def batch_of(rows):
    ids, labels, mask = [], [], []
    for row in rows:
        prompt, whole = row["prompt"].encode(), (row["prompt"] + row["completion"]).encode()
        rest = SEQ_LENGTH - len(whole)
        ids.append(list(whole) + [0] * rest)
        labels.append([-100] * len(prompt) + list(whole[len(prompt):]) + [-100] * rest)
        mask.append([1] * len(whole) + [0] * rest)
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels), "attention_mask": torch.tensor(mask)}


def precise_svd(matrix, svd=torch.linalg.svd, **how):
    """PiSSA's in double, since that of torch in fp32 is off by 1e-6, which ten steps of AdamW raise to 2e-5."""
    return tuple(t.float() for t in svd(matrix.double(), **how))


def save(model, folder):
    model.save_pretrained(folder)
    os.remove(folder + "/README.md")
    os.chmod(folder + "/adapter_model.safetensors", 0o644)


def is_routed(name):
    return CASES.get(name, ("llama",))[0] not in ("llama", "gpt2")


def base_model(name, base):
    how = {"experts_implementation": "eager"} if is_routed(name) else {}  # torch's own wants widths by 4
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, **how)
    if name in VOCAB:
        model.resize_token_embeddings(VOCAB[name])
    return model


def case(name, family, fields, batch):
    base = "models/" + family
    shutil.rmtree(name, ignore_errors=True)
    torch.manual_seed(5)
    torch.linalg.svd = precise_svd
    config = LoraConfig(task_type="CAUSAL_LM", bias="none", **fields)
    model = get_peft_model(base_model(name, base), config)
    if fields.get("init_lora_weights") == "pissa":  # begins anew in each: only what comes out is kept
        os.makedirs(name)
        return train(name, base, model, batch)
    for key, value in model.named_parameters():
        if "lora_B" in key or "lora_embedding_A" in key:
            torch.nn.init.normal_(value, std=0.1)
    save(model, name + "/start")
    model = PeftModel.from_pretrained(base_model(name, base), name + "/start", is_trainable=True)
    return train(name, base, model, batch, name + "/end")


def train(name, base, model, batch, end=None):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, weight_decay=0.0, eps=EPS)
    losses = []
    for _ in range(STEPS):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if end:
        save(model, end)
    before = load_file(base + "/model.safetensors")
    if is_routed(name):  # by the names that transformers writes, an expert a tensor
        model.merge_and_unload().save_pretrained("merged.tmp")
        merged = {k: v for k, v in load_file("merged.tmp/model.safetensors").items() if not torch.equal(v, before[k])}
        shutil.rmtree("merged.tmp")
        save_file(merged, name + "/merged.safetensors")
        os.chmod(name + "/merged.safetensors", 0o644)
        return losses
    merged = {k: v.clone() for k, v in model.merge_and_unload().state_dict().items()  # of a tied head, which PEFT changes with
              if (k in before or v.data_ptr() != model.get_input_embeddings().weight.data_ptr())  # the embedding: ours stays
              and not torch.equal(v, before[k] if k in before else before["transformer.wte.weight"])}
    if name == "head_tied":  # PEFT merges into the one tensor; what it trained left the embedding as it was
        merged["lm_head.weight"] = merged.pop("transformer.wte.weight")
    save_file(merged, name + "/merged.safetensors")
    os.chmod(name + "/merged.safetensors", 0o644)
    return losses


def make_model(family):
    torch.manual_seed(3)
    MODELS[family]().save_pretrained("models/" + family)
    os.remove(f"models/{family}/generation_config.json")
    os.chmod(f"models/{family}/model.safetensors", 0o644)


# What add_weighted_adapter makes of adapters: NAME (way, adapters, weights). "more" and "lora" are of one rank.
COMBINED = {
    "linear": ("linear", ["lora/end", "more"], [0.75, -1.5]),
    "cat": ("cat", ["lora/end", "rslora_list", "more"], [0.75, 0.5, -1.5]),
    "tables": ("cat", ["lora_table/start", "lora/start"], [1.0, 2.0]),
    "svd": ("svd", ["lora/end", "rslora_list", "more"], [0.75, 0.5, -1.5]),
}
# The same of which a part of the elements stays: NAME (way, density, which sign). What PEFT draws at random is drawn anew each time.
SPARSE = {
    "prune": ("magnitude_prune", 0.4, "total"),
    "ties": ("ties", 0.7, "total"),
    "ties_frequency": ("ties", 0.7, "frequency"),
    "dare_linear": ("dare_linear", 0.6, "total"),
    "dare_ties": ("dare_ties", 0.6, "total"),
}
LENT = {
    "more": dict(r=4, lora_alpha=12, target_modules=["q_proj", "gate_proj"]),
    "rslora_list": dict(r=3, lora_alpha=5, target_modules=["v_proj", "up_proj"], use_rslora=True,
                        rank_pattern={"layers.1.mlp.up_proj": 2}, alpha_pattern={"v_proj": 7}),
}


def combined():
    """Folders combined/NAME: adapters that no case has, and what PEFT makes of several."""
    shutil.rmtree("combined", ignore_errors=True)
    base = "models/llama"
    for i, (name, fields) in enumerate(LENT.items()):
        torch.manual_seed(17 + i)
        model = get_peft_model(base_model(name, base), LoraConfig(task_type="CAUSAL_LM", bias="none", **fields))
        for key, value in model.named_parameters():
            if "lora_B" in key:
                torch.nn.init.normal_(value, std=0.1)
        save(model, "combined/" + name)
    for name, (way, folders, weights) in COMBINED.items():
        folders = [f if "/" in f else "combined/" + f for f in folders]
        model = PeftModel.from_pretrained(base_model(name, base), folders[0], adapter_name="a0")
        for i, folder in enumerate(folders[1:], 1):
            model.load_adapter(folder, adapter_name=f"a{i}")
        model.add_weighted_adapter([f"a{i}" for i in range(len(folders))], weights, "made", combination_type=way)
        model.save_pretrained("combined", selected_adapters=["made"])
        os.rename("combined/made", "combined/" + name)
        os.chmod(f"combined/{name}/adapter_model.safetensors", 0o644)
    os.remove("combined/README.md")


def sparse():
    """Folders sparse/NAME: of three adapters of one rank, two with q_proj and two with v_proj."""
    shutil.rmtree("sparse", ignore_errors=True)
    folders = ["lora/end", "combined/more", "lora/start"]
    for name, (way, density, sign) in SPARSE.items():
        torch.manual_seed(23)
        model = PeftModel.from_pretrained(base_model(name, "models/llama"), folders[0], adapter_name="a0")
        for i, folder in enumerate(folders[1:], 1):
            model.load_adapter(folder, adapter_name=f"a{i}")
        model.add_weighted_adapter([f"a{i}" for i in range(3)], [0.75, -1.5, 0.5], "made", combination_type=way, density=density,
                                   majority_sign_method=sign)
        model.save_pretrained("sparse", selected_adapters=["made"])
        os.rename("sparse/made", "sparse/" + name)
        os.chmod(f"sparse/{name}/adapter_model.safetensors", 0o644)
        os.remove(f"sparse/{name}/adapter_config.json")
    os.remove("sparse/README.md")


# Models into which merge_and_unload merges several active adapters: NAME (family, adapters in their order).
MERGED = {
    "lora_more_dora": ("llama", ["lora/end", "combined/more", "dora/end"]),
    "dora_saved": ("llama", ["dora/end", "saved/end"]),
    "table_head": ("llama", ["lora_table/end", "head/end", "rslora/end"]),
    "conv1d": ("gpt2", ["conv1d/end", "dora_conv1d/end"]),
    "experts": ("mixtral", ["experts_mixtral/end", "experts_mixtral/start"]),
}
# One that is trained, then those that are active beside it and frozen.
BESIDE = {
    "beside_lora": ("llama", ["lora/start", "combined/more", "rslora/end"]),
    "beside_dora": ("llama", ["dora/start", "combined/more"]),
    "beside_table": ("llama", ["head/start", "lora_table/end", "head/end"]),
    "beside_conv1d": ("gpt2", ["conv1d/start", "conv1d/end"]),
    "beside_experts": ("mixtral", ["experts_mixtral/start", "experts_mixtral/end"]),
}


def with_several(family, folders):
    how = {} if family in ("llama", "gpt2") else {"experts_implementation": "eager"}
    base = AutoModelForCausalLM.from_pretrained("models/" + family, dtype=torch.float32, **how)
    model = PeftModel.from_pretrained(base, folders[0], adapter_name="a0", is_trainable=True)
    for i, folder in enumerate(folders[1:], 1):
        model.load_adapter(folder, adapter_name=f"a{i}")
    model.base_model.set_adapter([f"a{i}" for i in range(len(folders))])
    for key, value in model.named_parameters():
        value.requires_grad_(".a0" in key)
    return model


def several():
    """several/NAME.safetensors of MERGED; several/NAME/end of BESIDE and its losses in several/steps.json."""
    os.makedirs("several", exist_ok=True)
    for name, (family, folders) in MERGED.items():
        before = load_file(f"models/{family}/model.safetensors")
        with_several(family, folders).merge_and_unload().save_pretrained("merged.tmp")
        after = load_file("merged.tmp/model.safetensors")
        save_file({k: v for k, v in after.items() if not torch.equal(v, before[k])}, f"several/{name}.safetensors")
        os.chmod(f"several/{name}.safetensors", 0o644)
        shutil.rmtree("merged.tmp")
    batch = batch_of([json.loads(line) for line in open("rows.jsonl", encoding="utf-8")])
    steps = {}
    for name, (family, folders) in BESIDE.items():
        model = with_several(family, folders)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, weight_decay=0.0, eps=EPS)
        steps[name] = []
        for _ in range(STEPS):
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            steps[name].append(loss.item())
        model.save_pretrained("several/" + name, selected_adapters=["a0"])
        shutil.rmtree(f"several/{name}/end", ignore_errors=True)
        os.rename(f"several/{name}/a0", f"several/{name}/end")
        os.chmod(f"several/{name}/end/adapter_model.safetensors", 0o644)
        os.remove(f"several/{name}/README.md")
    with open("several/steps.json", "w", encoding="utf-8") as out:
        out.write("{\n" + ",\n".join('"%s": %s' % item for item in ((k, json.dumps(v)) for k, v in steps.items())) + "\n}\n")


# Several that are trained, each on the rows that name it (None: the model alone): NAME (family, adapters, the rows' adapters).
OF_ROWS = {
    "linear": ("llama", ["lora/start", "rslora/start", "combined/more"], [1, 0, None, 1]),
    "table_head": ("llama", ["head/start", "lora_table/start"], [0, 1, 1, 0]),
    "conv1d": ("gpt2", ["conv1d/start", "conv1d/end"], [1, 0, 0, None]),
}


def of_rows():
    """rows/NAME/aK, the adapters behind STEPS steps, and the losses in rows/steps.json. PEFT takes adapter_names in evaluation alone."""
    torch.set_num_threads(1)
    shutil.rmtree("rows", ignore_errors=True)
    batch = batch_of([json.loads(line) for line in open("rows.jsonl", encoding="utf-8")])
    steps = {}
    for name, (family, folders, rows) in OF_ROWS.items():
        model = with_several(family, folders).eval()
        for key, value in model.named_parameters():
            value.requires_grad_("lora_" in key)
        names = ["__base__" if row is None else f"a{row}" for row in rows]
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, weight_decay=0.0, eps=EPS)
        steps[name] = []
        for _ in range(STEPS):
            loss = model(**batch, adapter_names=names).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            steps[name].append(loss.item())
        model.save_pretrained("rows/" + name, selected_adapters=[f"a{i}" for i in range(len(folders))])
        for i in range(len(folders)):
            os.chmod(f"rows/{name}/a{i}/adapter_model.safetensors", 0o644)
        os.remove(f"rows/{name}/README.md")
    with open("rows/steps.json", "w", encoding="utf-8") as out:
        out.write("{\n" + ",\n".join('"%s": %s' % item for item in ((k, json.dumps(v)) for k, v in steps.items())) + "\n}\n")


def some(names):
    torch.set_num_threads(1)
    for family in {CASES[name][0] for name in names}:
        if not os.path.exists("models/" + family):
            make_model(family)
    batch = batch_of([json.loads(line) for line in open("rows.jsonl", encoding="utf-8")])
    steps = json.load(open("steps.json", encoding="utf-8"))
    steps.update({name: case(name, *CASES[name], batch) for name in names})
    write_steps(steps)


def write_steps(steps):
    with open("steps.json", "w", encoding="utf-8") as out:
        out.write("{\n" + ",\n".join('"%s": %s' % (name, json.dumps(losses)) for name, losses in steps.items()) + "\n}\n")


def main():
    torch.set_num_threads(1)
    rows = make_rows(random.Random(1))
    with open("rows.jsonl", "w", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
    shutil.rmtree("models", ignore_errors=True)
    for family in MODELS:
        make_model(family)
    batch = batch_of(rows)
    steps = {name: case(name, family, fields, batch) for name, (family, fields) in CASES.items()}
    write_steps(steps)
    combined()
    sparse()
    several()
    of_rows()


if sys.argv[1:] == ["combined"]:
    combined()
elif sys.argv[1:] == ["sparse"]:
    sparse()
elif sys.argv[1:] == ["several"]:
    torch.set_num_threads(1)
    several()
elif sys.argv[1:] == ["rows"]:
    of_rows()
elif sys.argv[1:]:
    some(sys.argv[1:])
else:
    main()
