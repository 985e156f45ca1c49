# SPDX-License-Identifier: Apache-2.0
"""Makes the folders of test_adapter_pairs: LoRA on T5 (PEFT's SEQ_2_SEQ_LM) on the models and batches of ../t5. For each case
CASE/start (written by PEFT, B not 0), CASE/end (after STEPS steps of torch's AdamW), CASE/merged.safetensors, and CASE/golden.json:
the losses, and what greedy decoding makes of a source with the adapter of `end`.

Needs: pip install torch transformers peft safetensors. Run in this folder.
"""
import json
import os
import shutil
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "t5"))
import make_t5 as t5  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

STEPS, RATE, EPS, N_NEW, PROMPT = 10, 1e-3, 1e-5, 12, 13
CASES = {
    "t5_lora": ("t5", dict(r=3, lora_alpha=6, target_modules=["q", "v", "wo"])),
    "t5_all": ("t5_untied", dict(r=2, lora_alpha=5, target_modules="all-linear", use_rslora=True, rank_pattern={"EncDecAttention.k": 4})),
    "t5_saved": ("t5_untied", dict(r=2, lora_alpha=4, target_modules=r"decoder\..*\.(q|wi_0)", modules_to_save=["lm_head"])),
    "t5_dora": ("t5", dict(r=2, lora_alpha=4, target_modules=["q", "wi"], layers_to_transform=[0, 2], use_dora=True)),
    "t5_shared": ("t5_shared", dict(r=2, lora_alpha=4, target_modules="all-linear")),
}


def save(model, folder):
    model.save_pretrained(folder)
    os.remove(folder + "/README.md")
    os.chmod(folder + "/adapter_model.safetensors", 0o644)


def train(folder, name, batch, noise=0):
    model = PeftModel.from_pretrained(t5.load(folder), name + "/start", is_trainable=True).eval()
    if noise:
        g = torch.Generator().manual_seed(noise)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 + 1e-7 * torch.randn(p.shape, generator=g))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, weight_decay=0.0, eps=EPS)
    losses = []
    for _ in range(STEPS):
        loss = t5.loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses


def case(name, base, fields):
    folder = os.path.join("..", "t5", base)
    batch = {k: v.long() for k, v in load_file(folder + "/golden.safetensors").items() if k in ("tokens", "targets", "source_13")}
    shutil.rmtree(name, ignore_errors=True)
    torch.manual_seed(7)
    model = get_peft_model(t5.load(folder), LoraConfig(task_type="SEQ_2_SEQ_LM", bias="none", **fields))
    for key, value in model.named_parameters():
        if "lora_B" in key:
            torch.nn.init.normal_(value, std=0.1)
    save(model, name + "/start")
    model, losses = train(folder, name, batch)
    for seed in (1, 2):  # a golden that hangs on roundings would say nothing
        other = train(folder, name, batch, seed)[1]
        assert max(abs(a - b) / a for a, b in zip(losses, other)) < 5e-6, (name, losses, other)
    save(model, name + "/end")
    source = batch[f"source_{PROMPT}"][None]
    ids = model.generate(input_ids=source, attention_mask=torch.ones_like(source), max_new_tokens=N_NEW, do_sample=False, use_cache=False,
                         num_beams=1, eos_token_id=None, pad_token_id=model.config.pad_token_id,
                         decoder_start_token_id=model.config.decoder_start_token_id)
    before = load_file(folder + "/model.safetensors")
    merged = {k: v.contiguous() for k, v in model.merge_and_unload().state_dict().items() if k in before and not torch.equal(v, before[k])}
    save_file(merged, name + "/merged.safetensors")
    with open(name + "/golden.json", "w") as f:
        json.dump({"losses": losses, "source": source[0].tolist(), "greedy": ids[0, 1:].tolist()}, f)
    print(name, losses[0], losses[-1], len(merged))


if __name__ == "__main__":
    for name, (base, fields) in CASES.items():
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            case(name, base, fields)
