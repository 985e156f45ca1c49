# SPDX-License-Identifier: Apache-2.0
"""Writes folders whose tokenizer is a model of SentencePiece, for test_tokenizer_folder, in the form of
make_tokenizer_folders.py: the first line holds the models ("@NAME" in a folder's "files").

The models are trained here. The ids of BPE are those of the package sentencepiece: transformers gives ways to make the same
piece ranks of their own, so that of some runs ("aaaaa") it makes other pieces than SentencePiece, which takes the leftmost. A
text of which it does is replaced by another (how many: printed), and the folders "exact" have what sentencepiece itself says.

Usage: make_spiece_folders.py [--count N] [--texts N] [--seed S] [--nfkc] [--out FILE]
Without --out it writes tokenizer_folders_spiece.jsonl beside itself, the set of `make check`. --nfkc: with the map nmt_nfkc,
which is 240 KB, where the set has a small one.
"""
import argparse
import base64
import io
import json
import pathlib
import random
import re
import shutil
import sys
import tempfile

import make_tokenizer_folders as base
import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as pb

RULES = "FB01\t66 69\nFF21\t41\n65 301\tE9\n3000\t20\n9\t20\n"  # ﬁ, Ａ, e with an accent, spaces
RUNS = ["aaaaaaa aaa aaaaa", "----- --- -------", "      int  x    y", "..... ... ......", "ababababab abab"] * 40
BITS = ["a" * 5, "aa", "a" * 8, "-" * 5, "-" * 7, "     ", "   ", "....", "abababab", "ﬁ", "Ａ", "\u3000", "<sep>", "[A]", "x.y", "<sep", "<extra_id_0>", "<extra_id_1>"]
MARKED = ["<sep>", "[A]", "x.y", "<s>", "</s>", "<unk>", "<pad>"]


def trained(**options):
    out = io.BytesIO()
    spm.SentencePieceTrainer.train(sentence_iterator=iter([line for part in base.CORPUS for line in part.split("\n")] + RUNS), model_writer=out,
                                   minloglevel=2, hard_vocab_limit=False, num_threads=1, **options)
    return out.getvalue()


def changed(model, change):
    proto = pb.ModelProto()
    proto.ParseFromString(model)
    change(proto)
    return proto.SerializeToString()


def raise_scores(proto):
    """Pieces that were added later have the score 0, and so merge first and share a rank."""
    for text in ("aaa", "aa", "--", "---", "\u2581\u2581\u2581", "the", "\u2581and"):
        old = [p for p in proto.pieces if p.piece == text]
        piece = old[0] if old else proto.pieces.add()
        piece.piece, piece.score, piece.type = text, 0.0, 1


def rename(proto):
    proto.trainer_spec.bos_piece = proto.pieces[1].piece = "<bos>"
    proto.trainer_spec.eos_piece = proto.pieces[2].piece = "<eos>"


def models(nfkc):
    with tempfile.TemporaryDirectory() as folder:
        rules = pathlib.Path(folder) / "rules.tsv"
        rules.write_text(RULES)
        form = {"normalization_rule_name": "nmt_nfkc"} if nfkc else {"normalization_rule_tsv": str(rules)}
        llama = trained(model_type="bpe", vocab_size=450, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                        character_coverage=0.99)
        return {
            "llama": llama,
            "scores": changed(llama, raise_scores),
            "bpe": trained(model_type="bpe", vocab_size=220, user_defined_symbols=["<sep>", "[A]", "x.y"], character_coverage=0.995, **form),
            "named": changed(trained(model_type="bpe", vocab_size=420, byte_fallback=True, add_dummy_prefix=False, character_coverage=0.99,
                                     user_defined_symbols=["<sep>"], normalization_rule_name="identity"), rename),
            "t5": trained(model_type="unigram", vocab_size=260, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, character_coverage=0.995, **form),
            "unigram": trained(model_type="unigram", vocab_size=460, byte_fallback=True, user_defined_symbols=["<sep>", "[A]"], character_coverage=0.99,
                               remove_extra_whitespaces=False, normalization_rule_name="identity"),
        }


def families():
    old = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True,
           "add_eos_token": False, "legacy": False}
    decoder = {str(i): {k: v for k, v in base.added(0, s).items() if k != "id"} for i, s in enumerate(["<unk>", "<s>", "</s>"])}
    llama, mistral, t5 = {"model_type": "llama"}, {"model_type": "mistral"}, {"model_type": "t5"}
    return {
        "llama": ("llama", {"tokenizer_config.json": {**old, "added_tokens_decoder": decoder}, "config.json": llama}),
        "llama-plain": ("llama", {"tokenizer_config.json": {**old, "pad_token": None}, "config.json": llama}),
        "llama-scores": ("llama", {"config.json": llama, "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizerFast", "legacy": True}}),
        "llama-user": ("bpe", {"config.json": llama, "tokenizer_config.json": old}),
        "mistral": ("llama", {"config.json": mistral, "tokenizer_config.json": {**old, "added_tokens_decoder": decoder}}),
        "general": ("bpe", {"config.json": llama}),
        "general-scores": ("scores", {"config.json": mistral, "tokenizer_config.json": {"add_bos_token": True, "add_eos_token": True}}),
        "named": ("named", {"config.json": mistral, "tokenizer_config.json": {"add_bos_token": True}}),
        "unigram": ("unigram", {"config.json": llama, "tokenizer_config.json": {"add_eos_token": True}}),
        "t5": ("t5", {"config.json": t5}),
        "t5-config": ("t5", {"config.json": t5, "tokenizer_config.json": {"tokenizer_class": "T5Tokenizer", "extra_ids": 3, "eos_token": "</s>",
                             "additional_special_tokens": [f"<extra_id_{i}>" for i in range(3)]}}),
        "t5-general": ("t5", {"config.json": llama, "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"}}),
    }


def file_of(name):
    return "spiece.model" if name in ("t5", "t5-config") else "tokenizer.model"


def change(r, case, _):
    kind = r.choice(["config", "config", "config", "map", "class", "gaps", "table"])
    if kind == "config":
        old = base.config_of(case).get("tokenizer_class")
        what = base.change_config(r, case, _)
        if what == "config.class":  # one that no such model goes with is refused, and not drawn
            base.config_of(case)["tokenizer_class"] = r.choice([old, "TokenizersBackend", "PreTrainedTokenizer", None])
        return what
    if kind == "map":
        files = case["files"]
        if r.random() < 0.5:
            files["added_tokens.json"] = {base.token_name(r) or "<n>": r.choice([700, 701, 900])}
        else:
            files["special_tokens_map.json"] = {r.choice(base.NAMES): r.choice([base.token_name(r), base.rich(r)])}
    elif kind == "class":
        own = "T5Tokenizer" if case["what"][0].startswith("t5") else "PreTrainedTokenizerFast" if case["what"][0] == "unigram" else "LlamaTokenizer"
        base.config_of(case)["tokenizer_class"] = r.choice([own, "PreTrainedTokenizerFast", "NoSuchTokenizer", None])
    elif kind == "gaps":
        base.config_of(case)["extra_ids"] = r.choice([0, 2, 100, 101])
    else:
        table = base.config_of(case).setdefault("added_tokens_decoder", {})
        for _ in range(r.randint(1, 3)):
            table[str(r.choice([0, 1, 2, 3, 50, 200, 900]))] = {"content": base.token_name(r) or "<n>", **base.flags(r)}
    return "spiece." + kind


class Core:
    """Whether the model's own pieces of a text are those of transformers."""

    def __init__(self, model, folder):
        from transformers import AutoTokenizer
        self.sp = spm.SentencePieceProcessor(model_proto=model)
        shutil.rmtree(folder, ignore_errors=True)
        pathlib.Path(folder).mkdir()
        (pathlib.Path(folder) / "tokenizer.model").write_bytes(model)
        self.tok = AutoTokenizer.from_pretrained(folder)
        self.bpe = json.loads(self.tok.backend_tokenizer.to_str())["model"]["type"] == "BPE"

    def same_form(self, text):
        """Whether the package tokenizers, whose map goes by graphemes, normalizes it in the same way."""
        return self.sp.normalize(text).lstrip("\u2581") == self.tok.backend_tokenizer.normalizer.normalize_str(text).lstrip("\u2581")

    def agrees(self, text):
        return self.sp.encode(text) == self.tok(text, add_special_tokens=False)["input_ids"]


def text_of(r, core, spelled, counts):
    """One of which transformers makes the model's pieces, whatever added tokens it is cut at."""
    while True:
        text = "".join(r.choice([base.some_text(r, spelled), r.choice(BITS), r.choice(BITS)]) for _ in range(r.randint(1, 4)))
        marks = [m for m in {*spelled, *MARKED, *base.NEW} if m]
        parts = re.split("|".join(re.escape(m) for m in sorted(marks, key=len, reverse=True)), text)
        counts[0] += 1
        if not core.bpe or all(core.agrees(part) for part in [*parts, text.replace("\u2581", " ")] if not any(m in part for m in MARKED)):
            return text
        counts[1] += 1


def exact(name, core, r, n):
    """The general class without special tokens: what the package sentencepiece says."""
    texts, ids, unlike = [], [], 0
    while len(texts) < n:
        text = "".join(r.choice([base.some_text(r, []), r.choice(BITS), r.choice(BITS)]) for _ in range(r.randint(1, 5)))
        text = text.replace("\u2581", " ")  # at the end sentencepiece takes it away like a space, transformers does not
        if any(m in text for m in MARKED[3:]) or not core.same_form(text):
            continue
        unlike += not core.agrees(text)
        texts.append(text)
        ids.append(core.sp.encode(text))
    spec = core.sp.piece_size()
    ids_of = {"bos": core.tok.bos_token_id, "eos": core.tok.eos_token_id, "pad": core.tok.pad_token_id, "unk": core.tok.unk_token_id}
    return {"what": ["exact", name], "files": {"tokenizer.model": "@" + name}, "texts": texts,
            "answer": {"class": "sentencepiece", "size": spec, **ids_of, "ids": ids, "plain": ids, "decode": []}}, unlike


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=110)
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--nfkc", action="store_true")
    parser.add_argument("--out", default=base.HERE / "tokenizer_folders_spiece.jsonl")
    args = parser.parse_args()
    import transformers
    transformers.logging.set_verbosity(100)
    folder = tempfile.mkdtemp()
    trained_models = models(args.nfkc)
    vocabularies = {n: {"model": base64.urlsafe_b64encode(m).decode()} for n, m in trained_models.items()}
    cores = {n: Core(m, folder) for n, m in trained_models.items()}
    counts = [0, 0]
    with open(args.out, "w", encoding="utf-8") as out:
        def write(row):
            out.write(json.dumps(row, ensure_ascii=True, separators=(",", ":")) + "\n")
        write({"vocabularies": vocabularies})
        bases = families()
        for number in range(args.count):
            r = random.Random(f"spiece {args.seed} {number}")
            name = list(bases)[number % len(bases)]
            model, files = bases[name]
            case = {"what": [name], "files": {**json.loads(json.dumps(files)), file_of(name): "@" + model}}
            for _ in range(0 if number < len(bases) else r.choice([0, 1, 1, 2, 3])):
                try:
                    case["what"].append(change(r, case, vocabularies))
                except (TypeError, KeyError, AttributeError, IndexError, ValueError):
                    pass
            spelled = [s for s in base.strings_in(case["files"]) if not s.endswith(".model")]
            case["texts"] = [text_of(r, cores[model], spelled, counts) for _ in range(args.texts)]
            case["answer"], case["error"] = base.answer(case, vocabularies, r, folder)
            write(case)
        print(f"{counts[1]} of {counts[0]} texts drawn again: transformers makes other pieces of BPE than sentencepiece")
        for name, core in cores.items():
            row, unlike = exact(name, core, random.Random(f"exact {args.seed} {name}"), 12 * args.texts)
            print(f"{name}: of {len(row['texts'])} texts transformers' general class differs from sentencepiece on {unlike}")
            if core.bpe:
                write(row)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
