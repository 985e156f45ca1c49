#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random adapters trained by ds_train beside PEFT: heads, routers, experts, classes of texts and words, T5, with LoRA, rsLoRA, DoRA
and PiSSA. Each begins in a folder that PEFT wrote (PiSSA: anew in both); the losses of three steps are equal to 1e-5, and PEFT loads
what ds_train saves: the tensors that PEFT's own three steps make, or of PiSSA the same change of each weight. Some are trained beside
one or two others that are active and frozen. None may differ; what is refused is counted by its words. Usage: adapter_train.py BUILD SCRATCH [N [SEED [FIRST [SECONDS]]]]"""
import collections
import json
import os
import random
import shutil
import subprocess
import sys
import time
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")
import torch
import transformers as T
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict

T.logging.set_verbosity_error()
T.logging.disable_progress_bar()
BUILD, SCRATCH = os.path.realpath(sys.argv[1]), sys.argv[2]
COUNT, SEED, FIRST = (int(sys.argv[i]) if len(sys.argv) > i else d for i, d in ((3, 200), (4, 1), (5, 0)))
UNTIL = time.monotonic() + (float(sys.argv[6]) if len(sys.argv) > 6 else 1e9)
torch.set_num_threads(1)
STEPS, ROWS, LENGTH, RATE, EPS = 3, 4, 48, 3e-3, 1e-4
LETTERS = "abcdefghijklmnopqrst"
LESS = dict(vocab_size=256, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
            max_position_embeddings=64, initializer_range=0.15, bos_token_id=None, eos_token_id=None, pad_token_id=None)
ROUTED = {**LESS, "intermediate_size": 12, "num_experts_per_tok": 2}
SMALL = dict(vocab_size=25, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, max_position_embeddings=64, initializer_range=0.2,
             hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=0)
MODERN = dict(vocab_size=25, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, max_position_embeddings=64, initializer_range=0.2,
              local_attention=9, pad_token_id=0, bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3)
SOURCES = dict(vocab_size=257, d_model=16, d_kv=8, d_ff=20, num_layers=2, num_decoder_layers=2, num_heads=2, dropout_rate=0.0, pad_token_id=0, eos_token_id=256,
               decoder_start_token_id=0, relative_attention_num_buckets=8, relative_attention_max_distance=12)


def tied(kind, fields, rng):
    return kind(**fields, tie_word_embeddings=rng.random() < 0.3)


DECODERS = {
    "llama": lambda r: tied(T.LlamaConfig, LESS, r), "qwen2": lambda r: tied(T.Qwen2Config, LESS, r), "qwen3": lambda r: tied(T.Qwen3Config, LESS, r),
    "gemma3": lambda r: T.Gemma3TextConfig(**LESS, query_pre_attn_scalar=8, sliding_window=16),
    "gpt2": lambda r: T.GPT2Config(vocab_size=256, n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=0.15, embd_pdrop=0.0, attn_pdrop=0.0,
                                   resid_pdrop=0.0, bos_token_id=None, eos_token_id=None, pad_token_id=None),
    "mixtral": lambda r: tied(lambda **f: T.MixtralConfig(**f, num_local_experts=3), ROUTED, r),
    "qwen3_moe": lambda r: tied(lambda **f: T.Qwen3MoeConfig(**f, num_experts=4, moe_intermediate_size=10, norm_topk_prob=r.random() < 0.5), ROUTED, r),
    "qwen2_moe": lambda r: tied(lambda **f: T.Qwen2MoeConfig(**f, num_experts=4, moe_intermediate_size=10, shared_expert_intermediate_size=14),
                                {k: v for k, v in ROUTED.items() if k != "head_dim"}, r),
    "olmoe": lambda r: tied(lambda **f: T.OlmoeConfig(**f, num_experts=4), {k: v for k, v in ROUTED.items() if k != "head_dim"}, r),
    "gpt_oss": lambda r: T.GptOssConfig(**ROUTED, num_local_experts=3, sliding_window=16, rope_scaling=None, tie_word_embeddings=False),
}
MOE = ("mixtral", "qwen3_moe", "qwen2_moe", "olmoe", "gpt_oss")
ENCODERS = {"bert": lambda **f: T.BertConfig(**SMALL, **f),
            "roberta": lambda **f: T.RobertaConfig(**{**SMALL, "pad_token_id": 0, "type_vocab_size": 1}, **f),
            "modernbert": lambda **f: T.ModernBertConfig(**MODERN, **f)}
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj"]
NAMES = {name: LINEAR + ([] if name in MOE else ["gate_proj", "up_proj", "down_proj", "mlp.up_proj", "layers.1.self_attn.q_proj"]) for name in DECODERS}
NAMES["gpt2"] = ["c_attn", "c_fc", "attn.c_proj", "mlp.c_proj"]
NAMES["bert"] = NAMES["roberta"] = ["query", "key", "value", "intermediate.dense", "attention.output.dense", "dense"]
NAMES["modernbert"] = ["Wqkv", "Wo", "Wi"]
NAMES["t5"] = ["q", "k", "v", "o", "wo", "SelfAttention.q", "EncDecAttention.v"]


def some(rng, pool, most):
    return rng.sample(pool, rng.randint(1, min(most, len(pool))))


def tokenizer_folder(folder, modern):
    """[CLS] words [SEP], as each of the encoders has here."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    raw = Tokenizer(models.WordPiece({w: i for i, w in enumerate(special + list(LETTERS))}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    T.PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
                              bos_token="[CLS]" if modern else None).save_pretrained(folder)


def widen(model, rng):
    """Norms away from 1 and biases from 0, so that one that is forgotten shows."""
    torch.manual_seed(rng.randrange(1 << 30))
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(0.1 * torch.randn_like(p))


class Case:
    def __init__(self, number):
        self.rng = rng = random.Random(SEED * 100003 + number)
        self.kind = rng.choice(("decoder", "decoder", "experts", "experts", "sequence", "token", "pairs"))
        self.folder = os.path.join(SCRATCH, str(number))
        os.makedirs(self.folder)
        self.make_model()
        self.fields = self.make_fields()
        self.frozen = self.make_frozen() if rng.random() < 0.4 else []
        self.problem = rng.choice(("", "regression", "multi_label_classification")) if self.kind == "sequence" else ""

    def make_model(self):
        rng, more = self.rng, {}
        torch.manual_seed(rng.randrange(1 << 30))
        if self.kind in ("decoder", "experts"):
            self.family = rng.choice(MOE if self.kind == "experts" else list(DECODERS))
            self.config, self.auto, self.task = DECODERS[self.family](rng), T.AutoModelForCausalLM, "CAUSAL_LM"
            more = {"experts_implementation": "eager"} if self.family in MOE else {}
        elif self.kind == "pairs":
            self.family, self.auto, self.task = "t5", T.AutoModelForSeq2SeqLM, "SEQ_2_SEQ_LM"
            self.config = T.T5Config(**SOURCES, feed_forward_proj=rng.choice(("relu", "gated-gelu")))
        else:
            self.family = rng.choice(list(ENCODERS))
            self.config = ENCODERS[self.family](num_labels=rng.choice((2, 3, 5)))
            self.auto = T.AutoModelForSequenceClassification if self.kind == "sequence" else T.AutoModelForTokenClassification
            self.task = "SEQ_CLS" if self.kind == "sequence" else "TOKEN_CLS"
        self.more = {"attn_implementation": "eager", **more}
        model = self.auto.from_config(self.config, **self.more)
        widen(model, rng)
        model.save_pretrained(self.folder + "/model")
        self.n_labels = self.config.num_labels
        if self.kind in ("sequence", "token"):
            tokenizer_folder(self.folder + "/model", self.family == "modernbert")

    def make_fields(self):
        rng, pool = self.rng, NAMES[self.family]
        c = {"r": rng.randint(1, 5), "lora_alpha": rng.choice([1, 4, 8, 3.7]), "target_modules": some(rng, pool, 4)}
        table, head = False, self.kind in ("decoder", "experts", "pairs")
        if rng.random() < 0.15 and self.kind != "experts":
            c["target_modules"] = "all-linear"
        elif head and rng.random() < (0.05 if self.kind == "pairs" else 0.4):
            c["target_modules"] = c["target_modules"] + ["lm_head"]
        elif self.kind in ("decoder", "experts") and rng.random() < 0.2:
            c["target_modules"] = c["target_modules"] + [rng.choice(("wte", "wpe") if self.family == "gpt2" else ("embed_tokens",))]
            table = True
        elif rng.random() < 0.25:
            saved = {"bert": ["pooler", "LayerNorm"], "roberta": ["LayerNorm"], "modernbert": ["head", "final_norm"], "t5": ["lm_head", "final_layer_norm"],
                     "gpt2": ["lm_head", "ln_f", "wte"]}.get(self.family, ["lm_head", "norm", "embed_tokens", "input_layernorm"])
            c["modules_to_save"] = some(rng, saved, 2)
        parameters = self.kind == "experts" and rng.random() < 0.9
        if parameters:
            router = "mlp.router.weight" if self.family == "gpt_oss" else "mlp.gate.weight"
            c["target_parameters"] = some(rng, ["mlp.experts.gate_up_proj", "mlp.experts.down_proj", router, "layers.1.mlp.experts.down_proj",
                                                "self_attn.k_proj.weight"], 3)
            if rng.random() < 0.3:
                c["target_modules"] = []
        if rng.random() < 0.35:
            c["use_rslora"] = True
        if rng.random() < (0.02 if parameters or table else 0.35):
            c["use_dora"] = True
        elif rng.random() < (0.02 if parameters or table else 0.2):
            for key in ("target_parameters", "use_rslora"):  # flags have one method
                c.pop(key, None)
            if self.config.tie_word_embeddings and "lm_head" in c["target_modules"]:
                c["target_modules"] = ["q_proj"]  # PEFT takes from the embedding what the head's A and B begin as
            return {**c, "init_lora_weights": "pissa", "target_modules": c["target_modules"] or ["q_proj"]}
        if rng.random() < 0.3:
            c["rank_pattern"] = {rng.choice(pool + ["lm_head", r"layers\.1\..*", ".*experts.*"]): rng.randint(1, 4)}
        if rng.random() < 0.3:
            c["alpha_pattern"] = {rng.choice(pool + ["lm_head", r"layers\.0\..*", "gate.weight"]): rng.choice([2, 5, 9])}
        if rng.random() < 0.15 and isinstance(c["target_modules"], list) and self.family != "t5":
            c["layers_to_transform"] = rng.choice([0, 1, [1]])
        if rng.random() < 0.1 and isinstance(c["target_modules"], list):
            c["exclude_modules"] = some(rng, pool, 1)
        return c

    def make_frozen(self):
        """One or two others, which PEFT lets have the same target_parameters alone."""
        made = []
        for _ in range(self.rng.choice((1, 1, 2))):
            fields = self.make_fields()
            fields.pop("target_parameters", None)
            if "target_parameters" in self.fields:
                fields["target_parameters"] = self.fields["target_parameters"]
            for key in ("modules_to_save", "init_lora_weights", "use_dora"):
                if self.rng.random() < 0.9:
                    fields.pop(key, None)
            made.append(fields)
        return made

    def base(self):
        return self.auto.from_pretrained(self.folder + "/model", dtype=torch.float32, **self.more)

    def rows(self):
        rng, rows, at = self.rng, [], self.folder + "/rows.jsonl"
        for _ in range(ROWS):
            words = [rng.choice(LETTERS) for _ in range(rng.randint(4, 12))]
            if self.kind == "sequence":
                label = {"": lambda: rng.randrange(self.n_labels), "regression": lambda: [round(rng.uniform(-2, 2), 3) for _ in range(self.n_labels)],
                         "multi_label_classification": lambda: [rng.randrange(2) for _ in range(self.n_labels)]}[self.problem]()
                rows.append({"text": " ".join(words), "label": label})
            elif self.kind == "token":
                rows.append({"tokens": words, "tags": [rng.choice([-100] + list(range(self.n_labels))) for _ in words]})
            else:
                a, b = ("".join(rng.choices(LETTERS + " ", k=rng.randint(5, 20))) for _ in range(2))
                rows.append({"prompt": a, "completion": b})
        with open(at, "w", encoding="utf-8") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)
        return rows

    def ids(self, row):
        if self.kind == "pairs":
            return list(row["prompt"].encode()), list(row["completion"].encode())
        if self.kind in ("decoder", "experts"):
            a, b = row["prompt"].encode(), row["completion"].encode()
            return list(a + b), [-100] * len(a) + list(b)
        words = row["text"].split() if self.kind == "sequence" else row["tokens"]
        ids = [2] + [5 + LETTERS.index(w) for w in words] + [3]
        return ids, [row["label"]] if self.kind == "sequence" else [-100] + row["tags"] + [-100]

    def loss(self, model, rows):
        """Each row by itself: no padding, which does not exist there."""
        total, count = 0.0, 0
        if self.problem:  # transformers' loss, a mean over rows
            model.config.problem_type = model.get_base_model().config.problem_type = self.problem
            return sum(model(input_ids=torch.tensor([self.ids(row)[0]]), labels=torch.tensor([row["label"]], dtype=torch.float32)).loss for row in rows) / len(rows)
        for row in rows:
            ids, labels = self.ids(row)
            out = model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels]) if self.kind == "pairs" else None).logits
            labels = torch.tensor(labels)
            out = out.reshape(-1, out.shape[-1])
            if self.kind in ("decoder", "experts"):
                out, labels = out[:-1], labels[1:]
            total = total + torch.nn.functional.cross_entropy(out.float(), labels, ignore_index=-100, reduction="sum")
            count += int((labels != -100).sum())
        return total / count

    def set_frozen(self, model):
        """Active behind the first, without gradients."""
        if not self.frozen:
            return
        trained = {key for key, value in model.named_parameters() if value.requires_grad}
        for i in range(len(self.frozen)):
            model.load_adapter(f"{self.folder}/frozen{i}", adapter_name=f"frozen{i}")
        model.base_model.set_adapter(["default", *(f"frozen{i}" for i in range(len(self.frozen)))])
        for key, value in model.named_parameters():
            value.requires_grad_(key in trained)

    def theirs(self, rows):
        pissa = self.fields.get("init_lora_weights") == "pissa"
        torch.manual_seed(5)
        try:
            for i, fields in enumerate(self.frozen):
                model = get_peft_model(self.base(), LoraConfig(task_type=self.task, **fields))
                for key, value in model.named_parameters():
                    if "lora_" in key:
                        torch.nn.init.normal_(value, std=0.1)
                model.save_pretrained(f"{self.folder}/frozen{i}")
            model = get_peft_model(self.base(), LoraConfig(task_type=self.task, **self.fields))
            if not pissa:
                for key, value in model.named_parameters():
                    if "lora_B" in key or "lora_embedding_A" in key:
                        torch.nn.init.normal_(value, std=0.1)
                model.save_pretrained(self.folder + "/start")
                model = PeftModel.from_pretrained(self.base(), self.folder + "/start", is_trainable=True)
            self.set_frozen(model)
        except Exception as error:  # pylint: disable=broad-except
            return None, None, f"{type(error).__name__} {error}"
        model.eval()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, weight_decay=0.0, eps=EPS)
        losses = []
        for _ in range(STEPS):
            loss = self.loss(model, rows)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return model, losses, ""

    def ours(self):
        with open(self.folder + "/ds.json", "w", encoding="utf-8") as out:
            json.dump({"train_batch_size": ROWS, "gradient_clipping": 0.0, "zero_optimization": {"stage": self.rng.choice((0, 2, 3))},
                       "optimizer": {"type": "AdamW", "params": {"lr": RATE, "eps": EPS, "weight_decay": 0.0}}}, out)
        f = self.fields
        if f.get("init_lora_weights") == "pissa":
            begin = ["--lora", str(f["r"]), "--lora_alpha", str(f["lora_alpha"]), "--lora_method", "pissa"]
            begin += [] if f["target_modules"] == "all-linear" else ["--lora_targets", *f["target_modules"]]
            begin += ["--modules_to_save", *f["modules_to_save"]] if "modules_to_save" in f else []
        else:
            begin = ["--adapter", self.folder + "/start"]
        if self.frozen:
            begin += ["--frozen_adapters", *(f"{self.folder}/frozen{i}" for i in range(len(self.frozen)))]
        if self.kind in ("sequence", "token"):
            begin += ["--objective", "classes" if self.kind == "sequence" else "tags", "--num_labels", str(self.n_labels)]
            begin += ["--problem_type", self.problem] if self.problem else []
        else:
            begin += ["--tokenizer", "bytes", "--packing", "false"]
        command = [BUILD + "/ds_train", "--model", self.folder + "/model", "--data", self.folder + "/rows.jsonl", "--seq_length", str(LENGTH), "--steps", str(STEPS),
                   "--lr_scheduler_type", "none", "--loss_average", "targets", "--threads", "1", "--deepspeed_config", self.folder + "/ds.json",
                   "--output", self.folder + "/out", "--metrics", self.folder + "/metrics.jsonl", "--report", "none", *begin]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert run.returncode in (0, 1, 2), (run.returncode, run.stderr)
        if run.returncode:
            return None, run.stderr.strip().splitlines()[-1]
        with open(self.folder + "/metrics.jsonl", encoding="utf-8") as lines:
            return [v["loss"] for v in map(json.loads, lines) if "loss" in v], ""

    def apart(self, model):
        """What PEFT reads of our folder beside what it made itself: the largest difference, and where."""
        got = PeftModel.from_pretrained(self.base(), self.folder + "/out")
        if self.frozen:
            model.base_model.set_adapter("default")
        if self.fields.get("init_lora_weights") == "pissa":
            got, want = got.merge_and_unload().state_dict(), model.merge_and_unload().state_dict()
        else:
            got, want = ({k: v for k, v in get_peft_model_state_dict(m).items() if not k.endswith(".base_layer.weight")} for m in (got, model))
        if set(got) != set(want):
            return float("inf"), str(set(got) ^ set(want))
        return max(((got[k].double() - want[k].double()).abs().max().item(), k) for k in want)

    def run(self):
        rows = self.rows()
        said = f"{self.family} {self.task} {self.problem} {'tied' if self.config.tie_word_embeddings else 'untied'} {json.dumps(self.fields)} beside {json.dumps(self.frozen)}"
        model, want, why = self.theirs(rows)
        if model is None:
            return "refused by PEFT", why[:90], said
        got, why = self.ours()
        if got is None:
            return "refused by us", why.split(":", 1)[-1].strip()[:150], said
        off = max(abs(a - b) for a, b in zip(got, want, strict=True))
        if off > 1e-5:
            return "DIFFERENT", f"losses {got} and {want}", said
        try:
            far, where = self.apart(model)
        except Exception as error:  # pylint: disable=broad-except
            return "DIFFERENT", f"PEFT does not load it: {error}", said
        # a gradient that is a rounding of 0 goes either way, by at most its size over eps
        if not far <= 2e-4:
            return "DIFFERENT", f"{where} by {far:g}", said
        return "equal", self.kind + (" pissa" if "init_lora_weights" in self.fields else "") + (" beside frozen ones" if self.frozen else ""), said


def main():
    seen, words, bad = collections.Counter(), collections.Counter(), 0
    for number in range(FIRST, FIRST + COUNT):
        if time.monotonic() > UNTIL:
            break
        case = Case(number)
        state, why, said = case.run()
        seen[state] += 1
        words[state + ": " + why.replace(case.folder, "…")] += state != "DIFFERENT"
        bad += state == "DIFFERENT"
        if state != "equal" or os.environ.get("DS_ADAPTER_VERBOSE"):
            print(number, state, said, why, flush=True)
        shutil.rmtree(case.folder)
    for text, n in words.most_common():
        if n:
            print(n, text)
    print(f"cases from {FIRST} of seed {SEED}: {dict(seen)}")
    if seen["equal"] < sum(seen.values()) // 3:
        sys.exit("too few are compared")
    sys.exit(bad > 0)


main()
