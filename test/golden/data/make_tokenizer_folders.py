# SPDX-License-Identifier: Apache-2.0
"""Writes whole tokenizer folders, each some random changes away from a real family's, with what transformers'
AutoTokenizer.from_pretrained(folder) makes of them: ids with and without special tokens, decoded texts with and without
them, and the ids of bos, eos, pad and unk. test_tokenizer_folder compares the library with it.

Usage: make_tokenizer_folders.py [--bert | --roberta | --t5] [--count N] [--seed S] [--out FILE]
Without --out it writes tokenizer_folders.jsonl beside itself, the set of `make check`. The first line holds the
vocabularies, which the folders name as "@NAME"; each other line is a folder:
{"what": [changes], "files": {name: JSON or text}, "texts": [...], "answer": {...} or null, "error": "..."}
"""
import argparse
import base64
import copy
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

HERE = pathlib.Path(__file__).parent
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
B = pre_tokenizers.ByteLevel
CORPUS = (HERE / "../../../data/tinyshakespeare.txt").read_text()[:60000].split("\n\n") + ["été naïve 日本 1 22 333 4444"] * 20


# ---- the families ----

def trained(tok, special, size, alphabet):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False,
                                  limit_alphabet=300)
    tok.train_from_iterator(CORPUS, trainer)
    return json.loads(tok.to_str())


def byte_level(pre, norm, special, post=None, ignore=False):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre
    tree = trained(tok, [], 330, sorted(B.alphabet()))
    tok = Tokenizer.from_str(json.dumps(tree))
    tok.normalizer = norm
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens(special)
    if post:
        tok.post_processor = post(tok)
    tree = json.loads(tok.to_str())
    tree["model"]["ignore_merges"] = ignore
    return tree


def sentencepiece(pre, norm, decoder, legacy):
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    tok = Tokenizer(models.BPE(unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    model = trained(tok, special, 410, [])["model"]
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = norm
    if pre:
        tok.pre_tokenizer = pre
    tok.decoder = decoder
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    tree = json.loads(tok.to_str())
    tree["model"]["vocab"], tree["model"]["merges"] = model["vocab"], model["merges"]
    tree["added_tokens"] = [added(i, s, special=True, normalized=legacy) for i, s in enumerate(special[:3])]
    return tree


def added(index, content, **flags):
    token = {"id": index, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {**token, **flags}


def template(bos):
    return lambda tok: processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, tok.token_to_id(bos))])])


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), B(add_prefix_space=False, use_regex=False)])


def bert():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer()
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece()
    tok.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=330, special_tokens=special, show_progress=False, limit_alphabet=120))
    tree = json.loads(tok.to_str())
    tree["model"]["vocab"] = dict(sorted(tree["model"]["vocab"].items(), key=lambda kv: kv[1]))
    return {"bert": {"tokenizer.json": tree, "config.json": {"model_type": "bert"},
                     "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "unk_token": "[UNK]", "cls_token": "[CLS]",
                                               "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]", "strip_accents": None}}}


def roberta():
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = B(add_prefix_space=False)
    tree = trained(tok, special, 340, sorted(B.alphabet()))
    tree["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    tree["post_processor"] = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True, "add_prefix_space": False}
    mask = {"__type": "AddedToken", "content": "<mask>", "single_word": False, "lstrip": True, "rstrip": False, "normalized": False, "special": True}
    return {"roberta": {"tokenizer.json": tree, "config.json": {"model_type": "roberta"},
                        "tokenizer_config.json": {"tokenizer_class": "RobertaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>",
                                                  "cls_token": "<s>", "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": mask,
                                                  "add_prefix_space": False}}}


def nmt_nfkc():
    """The map that T5's own tokenizer has, out of SentencePiece."""
    import sentencepiece as spm
    from sentencepiece import sentencepiece_model_pb2 as pb
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "text").write_text("\n".join(CORPUS))
        spm.SentencePieceTrainer.train(input=f"{folder}/text", model_prefix=f"{folder}/m", vocab_size=500, hard_vocab_limit=False, minloglevel=2,
                                       normalization_rule_name="nmt_nfkc")
        model = pb.ModelProto()
        model.ParseFromString((pathlib.Path(folder) / "m.model").read_bytes())
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()}


def t5_nfkc():
    bases = t5()
    norm = nmt_nfkc()
    for files in bases.values():
        files["tokenizer.json"]["normalizer"] = norm
    return bases


def t5():
    """With the map of texts of tokenizer-t5.json, which make_tokenizers.py makes."""
    special = ["<pad>", "</s>", "<unk>"]
    tok = Tokenizer(models.Unigram())
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token="<unk>", show_progress=False))
    vocab = json.loads(tok.to_str())["model"]["vocab"]
    gaps = [f"<extra_id_{i}>" for i in range(3)]
    norm = json.loads((HERE / "tokenizer-t5.json").read_text())["normalizer"]
    meta = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    post = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    tok = Tokenizer(models.Unigram([(p, round(s, 6)) for p, s in vocab] + [(g, 0.0) for g in reversed(gaps)], unk_id=2))
    tok.post_processor = post
    tree = json.loads(tok.to_str())
    tree |= {"normalizer": norm, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, meta]}, "decoder": meta,
             "added_tokens": [added(i, s) for i, s in enumerate(special)] + [added(len(vocab) + 2 - i, g) for i, g in enumerate(gaps)]}
    config = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "extra_ids": 3, "extra_special_tokens": gaps}
    return {"t5": {"tokenizer.json": tree, "config.json": {"model_type": "t5"}, "tokenizer_config.json": {**config, "tokenizer_class": "T5Tokenizer"}},
            "t5-file": {"tokenizer.json": copy.deepcopy(tree), "config.json": {"model_type": "umt5"}, "tokenizer_config.json": dict(config)}}


def change_t5(r, case, _):
    tree, config = tree_of(case), config_of(case)
    kind = r.choice(["norm", "norm", "unk", "bytes", "class", "gaps", "eos"])
    if kind == "norm":
        norm = tree["normalizer"]
        tree["normalizer"] = r.choice([None, {"type": "Sequence", "normalizers": [norm, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}]}, {"type": "NFKC"}])
    elif kind == "unk":
        tree["model"]["unk_id"] = r.choice([0, 2, 5])
    elif kind == "bytes":
        tree["model"]["byte_fallback"] = r.choice([True, False])
    elif kind == "class":
        config["tokenizer_class"] = r.choice(["T5Tokenizer", "T5TokenizerFast", "PreTrainedTokenizerFast", None])
    elif kind == "gaps":
        config["extra_ids"] = r.choice([0, 2, 3, 5])
        config["extra_special_tokens"] = r.choice([config.get("extra_special_tokens", []), [f"<extra_id_{i}>" for i in range(config["extra_ids"])], []])
        if r.random() < 0.3:
            del config["extra_special_tokens"]
    else:
        config["eos_token"] = r.choice(["</s>", "<pad>", "the", None])
    return "t5." + kind


def change_bert(r, case, _):
    config = config_of(case)
    key = r.choice(["do_lower_case", "do_lower_case", "strip_accents", "strip_accents", "tokenize_chinese_chars", "tokenizer_class"])
    config[key] = r.choice([True, False, False, None]) if key != "tokenizer_class" else r.choice(["BertTokenizerFast", "PreTrainedTokenizerFast", None])
    return "bert." + key


def families():
    sp = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    meta = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    legacy = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    old = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
           "add_bos_token": True, "add_eos_token": False, "clean_up_tokenization_spaces": False, "model_max_length": 4096}
    decoder = {str(i): {k: v for k, v in added(0, s).items() if k != "id"} for i, s in enumerate(["<unk>", "<s>", "</s>"])}
    return {
        "gpt2": {"tokenizer.json": byte_level(B(add_prefix_space=False), None, ["<|endoftext|>"]),
                 "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|endoftext|>",
                                           "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "add_prefix_space": False},
                 "config.json": {"model_type": "gpt2"}},
        "qwen2": {"tokenizer.json": byte_level(split(QWEN2), normalizers.NFC(), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
                                               lambda tok: processors.ByteLevel(trim_offsets=False)),
                  "tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "eos_token": "<|im_end|>",
                                            "pad_token": "<|endoftext|>", "unk_token": None, "add_prefix_space": False,
                                            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
                                            "split_special_tokens": False, "errors": "replace"},
                  "config.json": {"model_type": "qwen2"}},
        "llama3": {"tokenizer.json": byte_level(split(LLAMA3), None, ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"],
                                                template("<|begin_of_text|>"), True),
                   "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>",
                                             "eos_token": "<|eot_id|>", "model_input_names": ["input_ids", "attention_mask"]},
                   "config.json": {"model_type": "llama"}},
        "llama2": {"tokenizer.json": sentencepiece(meta, None, sp, False), "config.json": {"model_type": "llama"},
                   "tokenizer_config.json": {**old, "legacy": False, "added_tokens_decoder": decoder}},
        "llama2old": {"tokenizer.json": sentencepiece(None, legacy, sp, True), "config.json": {"model_type": "llama"},
                      "tokenizer_config.json": {**old, "legacy": True},
                      "special_tokens_map.json": {k: {"content": c, "lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
                                                  for k, c in (("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>"))}},
        "mistral": {"tokenizer.json": sentencepiece(pre_tokenizers.Metaspace(prepend_scheme="first", split=False), None, sp, False),
                    "tokenizer_config.json": {**old, "pad_token": "</s>"}, "config.json": {"model_type": "mistral"}},
    }


# ---- the changes ----

NEW = ["<new>", "<|fim|>", "[INST]", "hello", " wor", "é", "<s>", "</s>", "<unk>", "<|endoftext|>", "the", "▁the", "<0x41>", "x", "", "\n", "日本", "<pad>"]


def token_name(r):
    return r.choice(NEW)


def flags(r):
    return {k: r.random() < 0.5 for k in ("single_word", "lstrip", "rstrip", "normalized", "special")}


def rich(r):
    return {"__type": "AddedToken", "content": token_name(r), **flags(r)}


def tree_of(case):
    return case["files"]["tokenizer.json"]


def config_of(case):
    return case["files"].setdefault("tokenizer_config.json", {})


def whole_vocab(case, vocabularies):
    model = tree_of(case)["model"]
    for key in ("vocab", "merges"):
        if isinstance(model.get(key), str):
            model[key] = copy.deepcopy(vocabularies[model[key][1:]][key])
    return model


NORMALIZERS = [
    None, {"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Strip", "strip_left": True, "strip_right": False},
    {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Prepend", "prepend": "▁"}, {"type": "Prepend", "prepend": "a "},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, {"type": "Replace", "pattern": {"String": "the"}, "content": ""},
    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}, {"type": "Replace", "pattern": {"Regex": "[0-9]+"}, "content": "1"},
    {"type": "Replace", "pattern": {"String": "zq"}, "content": "x"}, {"type": "Replace", "pattern": {"String": ""}, "content": "x"},
    {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    {"type": "Sequence", "normalizers": []},
    {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
]
PATTERNS = [{"Regex": GPT2}, {"Regex": QWEN2}, {"Regex": LLAMA3}, {"Regex": r"\s+"}, {"Regex": r"\d"}, {"Regex": "a{,2}b"}, {"Regex": "[aeiou]{2,3}"},
            {"Regex": r"\p{N}{1,3}"}, {"Regex": r" ?[^(\s|[.,!?…。，、।۔،])]+"}, {"Regex": r"[\r\n]"}, {"Regex": r"(?=(\d{3})+(?!\d))"}, {"Regex": r"\w+|[^\w\s]+"},
            {"String": " "}, {"String": "the"}, {"String": "."}, {"String": "\n"}]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def pre_tokenizer(r):
    one = r.choice([
        lambda: {"type": "ByteLevel", "add_prefix_space": r.random() < 0.5, "trim_offsets": True, "use_regex": r.random() < 0.7},
        lambda: {"type": "Metaspace", "replacement": "▁", "prepend_scheme": r.choice(["first", "always", "never"]), "split": r.random() < 0.5},
        lambda: {"type": "Split", "pattern": r.choice(PATTERNS), "behavior": r.choice(BEHAVIORS), "invert": r.random() < 0.2},
        lambda: {"type": "Digits", "individual_digits": r.random() < 0.5}, lambda: {"type": "WhitespaceSplit"}, lambda: {"type": "Whitespace"},
        lambda: {"type": "Punctuation", "behavior": r.choice(BEHAVIORS)}])
    if r.random() < 0.6:
        return one()
    steps = [one() for _ in range(r.randint(1, 3))]
    steps.sort(key=lambda s: s["type"] == "ByteLevel")
    while sum(s["type"] == "ByteLevel" for s in steps) > 1:
        steps.pop()
    return {"type": "Sequence", "pretokenizers": steps}


DECODERS = [
    None, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, {"type": "Fuse"}, {"type": "ByteFallback"},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True},
    {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]},
    {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                                      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}]},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}, {"type": "Replace", "pattern": {"String": "Ġ"}, "content": " "},
]


def change_components(r, case, _):
    tree = tree_of(case)
    kind = r.choice(["normalizer", "pre_tokenizer", "decoder", "post_processor"])
    if kind == "normalizer":
        tree[kind] = r.choice(NORMALIZERS)
    elif kind == "pre_tokenizer":
        tree[kind] = None if r.random() < 0.15 else pre_tokenizer(r)
    elif kind == "decoder":
        tree[kind] = r.choice(DECODERS)
    else:
        token = r.choice(list((tree.get("added_tokens") or [added(0, "a")])))["content"]
        bos = {"SpecialToken": {"id": token, "type_id": 0}}
        text = {"Sequence": {"id": "A", "type_id": 0}}
        pair = [text, {"Sequence": {"id": "B", "type_id": 1}}]
        single = r.choice([[bos, text], [text, bos], [bos, text, bos], [text]])
        made = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": {token: {"id": token, "ids": [r.randrange(0, 300)], "tokens": [token]}}}
        tree[kind] = r.choice([None, made, made, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
                               {"type": "Sequence", "processors": [made]}])
    return kind


def change_model(r, case, vocabularies):
    tree = tree_of(case)
    model = tree["model"]
    kind = r.choice(["unk_token", "unk_token", "fuse_unk", "byte_fallback", "ignore_merges", "dropout", "prefix", "drop_token", "merges", "order", "hole", "legacy"])
    if kind == "unk_token":
        model["unk_token"] = r.choice([None, None, "a", "<unk>" if "<unk>" in json.dumps(tree["added_tokens"]) else None])
    elif kind in ("fuse_unk", "byte_fallback", "ignore_merges"):
        model[kind] = r.choice([True, False])
    elif kind == "dropout":
        model[kind] = r.choice([None, 0.0])
    elif kind == "prefix":
        model[r.choice(["continuing_subword_prefix", "end_of_word_suffix"])] = r.choice([None, ""])
    elif kind == "drop_token":
        model = whole_vocab(case, vocabularies)
        used = {part for m in model["merges"] for part in (*m, "".join(m))}
        free = [t for t in model["vocab"] if t not in used]
        for token in r.sample(free, min(len(free), r.choice([1, 5, 40]))):
            del model["vocab"][token]
    elif kind == "merges":
        model = whole_vocab(case, vocabularies)
        model["merges"] = model["merges"][:r.randrange(0, 40)]
    elif kind == "order":
        model = whole_vocab(case, vocabularies)
        r.shuffle(model["merges"])
    elif kind == "hole":
        model = whole_vocab(case, vocabularies)
        last = max(model["vocab"], key=model["vocab"].get)
        model["vocab"][last] += r.choice([1, 7])
    else:
        model = whole_vocab(case, vocabularies)
        model["merges"] = [" ".join(m) for m in model["merges"]]
    return "model." + kind


def change_added(r, case, _):
    tree = tree_of(case)
    tokens = tree.setdefault("added_tokens", [])
    kind = r.choice(["new", "new", "flags", "drop", "id", "twice"])
    if kind == "new" or not tokens:
        tokens.append(added(r.choice([len(tokens) + 330, 1000, 5]), token_name(r) or "<new>", **flags(r)))
    elif kind == "flags":
        r.choice(tokens).update(flags(r))
    elif kind == "drop":
        tokens.remove(r.choice(tokens))
    elif kind == "id":
        r.choice(tokens)["id"] += r.choice([1, 100])
    else:
        tokens.append({**r.choice(tokens), **flags(r)})
    return "added_tokens." + kind


NAMES = ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"]


def change_config(r, case, _):
    config = config_of(case)
    kind = r.choice(["name", "name", "name", "additional", "extra", "decoder", "decoder", "prefix", "split", "add", "class", "class", "drop", "image", "plain", "max", "legacy"])
    if kind == "name":
        config[r.choice(NAMES)] = r.choice([token_name(r), token_name(r), None, rich(r)])
    elif kind == "additional":
        config["additional_special_tokens"] = [r.choice([token_name(r), rich(r)]) for _ in range(r.randint(0, 3))]
    elif kind == "extra":
        config["extra_special_tokens"] = r.choice([[token_name(r)], {"image_token": token_name(r)}, [], {}])
    elif kind == "decoder":
        table = config.setdefault("added_tokens_decoder", {})
        for _ in range(r.randint(1, 3)):
            table[str(r.choice([0, 1, 2, 330, 331, 332, 500]))] = {"content": token_name(r), **flags(r)}
    elif kind == "prefix":
        config["add_prefix_space"] = r.choice([True, False, True])
    elif kind == "split":
        config["split_special_tokens"] = r.choice([True, True, False])
    elif kind == "add":
        config[r.choice(["add_bos_token", "add_eos_token"])] = r.choice([True, False])
    elif kind == "class":
        # a class of BPE beside WordPiece makes merges of its own: refused, and not drawn
        config["tokenizer_class"] = r.choice(["BertTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend", "NoSuchTokenizer", None] if case["files"].get("tokenizer.json", {}).get("model", {}).get("type") == "WordPiece" else
                                              ["T5Tokenizer", "PreTrainedTokenizerFast", "TokenizersBackend", "NoSuchTokenizer", None] if case["files"].get("tokenizer.json", {}).get("model", {}).get("type") == "Unigram" else ["LlamaTokenizer", "LlamaTokenizerFast", "Qwen2Tokenizer", "Qwen2TokenizerFast", "GPT2Tokenizer", "GPT2TokenizerFast",
                                              "PreTrainedTokenizerFast", "TokenizersBackend", "PreTrainedTokenizer", "NoSuchTokenizer", None])
    elif kind == "drop" and config:
        del config[r.choice(list(config))]
    elif kind == "image":
        config[r.choice(["image_token", "audio_token"])] = token_name(r)
    elif kind == "plain":
        config[r.choice(["clean_up_tokenization_spaces", "use_default_system_prompt", "spaces_between_special_tokens"])] = r.choice([True, False])
    elif kind == "max":
        config["model_max_length"] = r.choice([5, 1e30])
    else:
        config["legacy"] = r.choice([True, False, None])
    return "config." + kind


def change_files(r, case, vocabularies):
    files = case["files"]
    kind = r.choice(["map", "map", "added", "added", "drop", "drop", "type", "type", "gpt2", "truncation", "padding"])
    if kind == "map":
        table = files.setdefault("special_tokens_map.json", {})
        value = r.choice([token_name(r), {"content": token_name(r), **{k: v for k, v in flags(r).items() if k != "special"}}])
        table[r.choice(NAMES)] = value
        if r.random() < 0.4:
            table["additional_special_tokens"] = [token_name(r) for _ in range(r.randint(1, 2))]
    elif kind == "added":
        files["added_tokens.json"] = {token_name(r) or "<n>": r.choice([330, 331, 332, 3, 700]) for _ in range(r.randint(1, 3))}
    elif kind == "drop":
        gone = r.choice([n for n in files if n != "tokenizer.json"] or [None])
        files.pop(gone, None)
    elif kind == "type":
        files["config.json"] = r.choice([{"model_type": "llama"}, {"model_type": "qwen2"}, {"model_type": "qwen3"}, {"model_type": "mistral"}, {"model_type": "gpt2"},
                                         {"model_type": "phi3"}, {"model_type": "llama", "tokenizer_class": "Qwen2Tokenizer"}, {}])
    elif kind == "gpt2":
        if "<0x41>" in tree_of(case)["model"]["vocab"] or "llama2" in case["what"][0] or case["what"][0] == "mistral":
            return "nothing"
        model = whole_vocab(case, vocabularies)
        files["vocab.json"], files["merges.txt"] = model["vocab"], "#version: 0.2\n" + "\n".join(" ".join(m) for m in model["merges"]) + "\n"
        del files["tokenizer.json"]
    elif kind == "truncation":
        tree_of(case)["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    else:
        tree_of(case)["padding"] = {"strategy": {"Fixed": 20}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
                                    "pad_token": r.choice(["<pad>", "a", "</s>"])}
    return "files." + kind


def change_form(r, case, _):
    """A value of the wrong kind, somewhere."""
    tree = tree_of(case)
    places = [(tree, k) for k in tree] + [(tree["model"], k) for k in tree["model"]] + [(config_of(case), k) for k in config_of(case)]
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if isinstance(tree.get(part), dict):
            places += [(tree[part], k) for k in tree[part]]
    places += [(t, k) for t in tree.get("added_tokens") or [] for k in t]
    holder, key = r.choice(places)
    if r.random() < 0.4:
        del holder[key]
    else:
        holder[key] = r.choice([None, "x", 3, True, [], {}])
    return f"form.{key}"


CHANGES = [(change_components, 6), (change_model, 4), (change_added, 4), (change_config, 8), (change_files, 5), (change_form, 1)]


# ---- the texts ----

BLOCKS = [(0x20, 0x7F), (0x61, 0x7B), (0x30, 0x3A), (0xA0, 0x180), (0x300, 0x370), (0x370, 0x530), (0x900, 0xA00), (0x1100, 0x1200),
          (0x2070, 0x2C00), (0x3000, 0x3130), (0x4E00, 0x5000), (0xFF00, 0xFFEE), (0x1F300, 0x1F600), (0, 0x20)]
BITS = [" ", "  ", "\n", "\n\n", "\r\n", "\t", "'s", "'LL", "1", "123", "1234567", " the", "the", "hello world", ".", "...", "▁", "é", "e\u0301", "\u00a0", "</s>",
        "<s>", "<|im_end|>", "[INST]", "aab", "ab", "word ", "<0x41>", "<unk>", "<|endoftext|>"]


def some_text(r, spelled):
    out = []
    for _ in range(r.randint(1, r.choice([3, 8, 14]))):
        kind = r.random()
        if kind < 0.25 and spelled:
            out.append(r.choice(spelled))
        elif kind < 0.75:
            out.append(r.choice(BITS))
        else:
            low, high = r.choice(BLOCKS)
            out.append("".join(chr(r.randrange(low, high)) for _ in range(r.randint(1, 5))))
    return "".join(out)


def strings_in(value):
    if isinstance(value, dict):
        return [s for k, v in value.items() if k not in ("vocab", "merges") for s in strings_in(v)]
    if isinstance(value, list):
        return [s for v in value for s in strings_in(v)]
    return [value] if isinstance(value, str) and 0 < len(value) < 20 and not value.startswith("@") else []


# ---- the answers ----

def resolved(files, vocabularies):
    files = copy.deepcopy(files)
    model = files.get("tokenizer.json", {}).get("model")
    for key in ("vocab", "merges"):
        if isinstance(model, dict) and isinstance(model.get(key), str) and model[key].startswith("@"):
            model[key] = vocabularies[model[key][1:]][key]
    for name in files:
        if name.endswith(".model"):  # of SentencePiece, see make_spiece_folders.py
            files[name] = base64.urlsafe_b64decode(vocabularies[files[name][1:]]["model"])
    return files


def tried(function):
    try:
        return function()
    except BaseException as error:  # a panic of the Rust library is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return None


def answer(case, vocabularies, r, folder):
    from transformers import AutoTokenizer
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for name, content in resolved(case["files"], vocabularies).items():
        if isinstance(content, bytes):
            (pathlib.Path(folder) / name).write_bytes(content)
            continue
        (pathlib.Path(folder) / name).write_text(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False), newline="")
    try:
        tok = AutoTokenizer.from_pretrained(folder)
        ids = sorted(tok.get_vocab().values())
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return None, f"{type(error).__name__}: {str(error)[:100]}"
    out = {"class": type(tok).__name__, "size": max(ids) + 1 if ids else 0}
    for name in ("bos", "eos", "pad", "unk"):
        out[name] = tried(lambda: getattr(tok, name + "_token_id"))
    out["ids"] = [tried(lambda: tok(t)["input_ids"]) for t in case["texts"]]
    out["plain"] = [tried(lambda: tok(t, add_special_tokens=False)["input_ids"]) for t in case["texts"]]
    lists = [x for x in out["ids"][:3] if x] + [[r.choice(ids) for _ in range(r.randint(1, 12))] for _ in range(3) if ids]
    out["decode"] = [[x, tried(lambda: tok.decode(x)), tried(lambda: tok.decode(x, skip_special_tokens=True))] for x in lists]
    return out, None


def fixed():
    """What random folders showed once: the family, and files put over its own."""
    # another token has the index of "the", whose properties count all the same
    yield "gpt2", {"added_tokens.json": {"the": 330}, "special_tokens_map.json": {"sep_token": {"content": "the", "single_word": True}}}


def make(count, seed, n_texts, write, only):
    bases = only() if only else families()
    changes = [*CHANGES, (change_bert, 10)] if only == bert else [*CHANGES, (change_t5, 15)] if only == t5 else CHANGES
    vocabularies = {}
    for name, files in bases.items():
        model = files["tokenizer.json"]["model"]
        vocabularies[name] = {k: model[k] for k in ("vocab", "merges") if k in model}
        model.update(dict.fromkeys(vocabularies[name], "@" + name))
    write({"vocabularies": vocabularies})
    folder = tempfile.mkdtemp()
    for number in range(count):
        r = random.Random(f"{seed} {number}")
        name = r.choice(list(bases)) if number >= len(bases) else list(bases)[number]
        case = {"what": [name], "files": copy.deepcopy(bases[name])}
        for _ in range(0 if number < len(bases) or only == t5_nfkc else r.choice([1, 1, 2, 2, 3, 4])):
            if "tokenizer.json" not in case["files"]:
                case["what"].append(change_config(r, case, vocabularies))
                continue
            change = r.choices([c for c, _ in changes], [w for _, w in changes])[0]
            try:
                case["what"].append(change(r, case, vocabularies))
            except (TypeError, KeyError, AttributeError, IndexError, ValueError):
                pass  # an earlier change took away what this one wants
        spelled = strings_in(case["files"])
        case["texts"] = [some_text(r, spelled) for _ in range(n_texts)]
        case["answer"], case["error"] = answer(case, vocabularies, r, folder)
        write(case)
    for name, files in [] if only else fixed():
        case = {"what": [name, "fixed"], "files": {**copy.deepcopy(bases[name]), **files}, "texts": ["dthe the thee", "x the"]}
        case["answer"], case["error"] = answer(case, vocabularies, random.Random(0), folder)
        write(case)
    shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--bert", action="store_true", help="BERT's folders alone, by default into tokenizer_folders_bert.jsonl")
    parser.add_argument("--roberta", action="store_true", help="RoBERTa's alone, by default into tokenizer_folders_roberta.jsonl")
    parser.add_argument("--t5", action="store_true", help="T5's alone, by default into tokenizer_folders_t5.jsonl")
    parser.add_argument("--nfkc", action="store_true", help="with --t5: SentencePiece's nmt_nfkc, and no changes of folders; for many --texts")
    parser.add_argument("--out")
    args = parser.parse_args()
    import transformers
    transformers.logging.set_verbosity(100)
    out_path = args.out or HERE / ("tokenizer_folders_bert.jsonl" if args.bert else "tokenizer_folders_roberta.jsonl" if args.roberta
                               else "tokenizer_folders_t5.jsonl" if args.t5 else "tokenizer_folders.jsonl")
    with open(out_path, "w", encoding="utf-8") as out:
        make(args.count, args.seed, args.texts, lambda row: out.write(json.dumps(row, ensure_ascii=True, separators=(",", ":")) + "\n"),
             bert if args.bert else roberta if args.roberta else t5_nfkc if args.t5 and args.nfkc else t5 if args.t5 else None)


if __name__ == "__main__":
    sys.exit(main())
