# SPDX-License-Identifier: Apache-2.0
"""Writes tokenizer-*.json, small tokenizers of each family trained here, and tokenizers.json: texts
with the ids and decoded texts that the `tokenizers` package gives for each of them.

Usage: make_tokenizers.py [--keep] (in this folder's place; needs data/tinyshakespeare.txt)
--keep: the tokenizers that are there are not trained again (training is not the same in each version of the package);
with --unigram those of Unigram are
"""
import json
import pathlib
import random
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
VOCAB = 1000
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
GPT4O = r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"""

TEXTS = [
    "", " ", "  ", "\n", "\r\n", "\t", "Hello, world!", "It's DON'T we'LL I'VE 'S 'ſ x'sy o'clock",
    "a  b   c    d", " leading", "trailing  ", "\n\n\n a \n\n b \r\n\r\n c\t\td",
    "x = {\n\t'k': [1, 22, 333, 4444, 55555],\n}\r\n# комментарий — тест №5",
    "def f(a, b=2):\n    return a ** b  # fast\n\n\nclass X(object): pass\n",
    "#include <stdio.h>\nint main(void) { printf(\"%d\\n\", 0x1F & ~3); return 0; }",
    "Zażółć gęślą jaźń. Fußgänger œuvre Ærøskøbing ﬁ ﬀ Ⅷ ½ ① ㎏ ™ ²³",
    "日本語のテキスト、カタカナ。中文文本，没有空格的长句子需要被正确切分。한국어 텍스트도 있습니다.",
    "हिन्दी में पाठ का उदाहरण। বাংলা ভাষা। ไทยไม่มีช่องว่าง العربية من اليمين ١٢٣ עברית",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 👍🏽 😀😃 ☺️ 𝓗𝓮𝓵𝓵𝓸 𝟘𝟙𝟚",
    "e\u0301 a\u0323\u0307 \u1112\u1161\u11ab q\u0307\u0323 \u0958 \u2126 \u212b \u0344",
    "\u00a0nbsp\u2003em\u3000ideographic\u200bzero\u2028line\u0085nel\ufeffbom",
    "<s>bos</s> <|endoftext|> <|im_start|>user\nhi<|im_end|> [INST] x [/INST] <unk> <0x0A>",
    "▁under ▁▁ score ▁", "a▁b  ▁ c", "the  word and  Ing swording the", "0 12 345 6789 20242025 1234567890 3.14159 1e-5 ١٢٣٤٥", "aaaa" * 60, "ab" * 200, "é" * 70,
]
# Read, not trained on: the letter that becomes two in lower case; words of as many characters as WordPiece takes, and one more.
EDGES = ["\u0130stanbul D\u0130YARBAKIR i\u0307 \u0130", "the" * 4 + " " + "the" * 4 + "s", "e" * 100 + " " + "e" * 101]
BLOCKS = [(0x20, 0x7F), (0x20, 0x7F), (0x61, 0x7B), (0x30, 0x3A), (0xA0, 0x180), (0x300, 0x370), (0x370, 0x530),
          (0x590, 0x700), (0x900, 0xA00), (0xE00, 0xE80), (0x1100, 0x1200), (0x1E00, 0x2070), (0x2070, 0x2C00),
          (0x3000, 0x3130), (0x4E00, 0x5000), (0xAC00, 0xAD00), (0xF900, 0xFB50), (0xFE00, 0x10000),
          (0x1D400, 0x1D800), (0x1F300, 0x1FA00), (0x0, 0x20), (0x80, 0xA0), (0x80, 0xD800), (0x10000, 0x110000)]
BITS = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "'s", "'T", "'re", "'LL", " 'd", "1", "123", "1234", " the", "and",
        "Ing", ".", "...", "--", "▁", "é", "e\u0301", "\u00a0", "</s>", "<s>", "<|im_end|>", "[INST]", "ſ", "²", "word "]


def chance(r):
    out = []
    for _ in range(r.randint(1, r.choice([3, 10, 20]))):
        kind = r.random()
        if kind < 0.45:
            out.append(r.choice(BITS))
        elif kind < 0.9:
            low, high = r.choice(BLOCKS)
            out.append("".join(chr(c) for c in (r.randrange(low, high) for _ in range(r.randint(1, 6))) if not 0xD800 <= c < 0xE000))
        else:
            out.append(r.choice(BITS) * r.randint(2, 12))
    return "".join(out)


def corpus():
    text = (HERE / "../../../data/tinyshakespeare.txt").read_text()[:150000]
    r = random.Random(1)
    numbers = [" ".join(str(r.randint(0, 10 ** r.randint(1, 7))) for _ in range(20)) for _ in range(400)]
    return numbers + TEXTS * 10 + text.split("\n\n") + [chance(r) for _ in range(100)]


CORPUS = corpus()
B = pre_tokenizers.ByteLevel
S = lambda p, b="isolated", inv=False: pre_tokenizers.Split(Regex(p), b, invert=inv)
Seq = pre_tokenizers.Sequence


def save(name, tok):
    (HERE / f"tokenizer-{name}.json").write_text(json.dumps(json.loads(tok.to_str()), ensure_ascii=False, indent=0) + "\n")


def byte_level(name, pre, norm=None, special=(), post=None, ignore=False):
    tok = Tokenizer(models.BPE(ignore_merges=ignore))
    tok.normalizer = norm
    tok.pre_tokenizer = pre
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=VOCAB, initial_alphabet=B.alphabet(), show_progress=False))
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in special])
    if post:
        tok.post_processor = post(tok)
    save(name, tok)


def sentencepiece(name, pre, norm, decoder, legacy=False, fallback=True, fuse=True, extra=()):
    special = ["<unk>", "<s>", "</s>"] + ([f"<0x{i:02X}>" for i in range(256)] if fallback else [])
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=VOCAB + 200, special_tokens=special, limit_alphabet=200, show_progress=False))
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse, byte_fallback=fallback))
    tok.normalizer = norm
    tok.pre_tokenizer = pre
    tok.decoder = decoder
    whole = json.loads(tok.to_str())
    model = json.loads(trained.to_str())["model"]
    whole["model"]["vocab"], whole["model"]["merges"] = model["vocab"], model["merges"]
    tok = Tokenizer.from_str(json.dumps(whole))
    tok.add_tokens([AddedToken(s, special=True, normalized=legacy) for s in special[:3]])
    tok.add_tokens(list(extra))
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    save(name, tok)


def llama_post(tok):
    bos = "<|begin_of_text|>"
    template = processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, tok.token_to_id(bos))])
    return processors.Sequence([processors.ByteLevel(trim_offsets=False), template])


D = decoders


def llama_decoder():
    return D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)])


def llama_norm():
    return normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


def wordpiece(name, lower, accents, chinese, post, cleanup, longest, extra=()):
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=longest))
    tok.normalizer = normalizers.BertNormalizer(clean_text=chinese, handle_chinese_chars=chinese, strip_accents=accents, lowercase=lower)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece(cleanup=cleanup)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tok.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=VOCAB, special_tokens=special, limit_alphabet=250, show_progress=False))
    whole = json.loads(tok.to_str())
    vocab = whole["model"]["vocab"] = dict(sorted(whole["model"]["vocab"].items(), key=lambda kv: kv[1]))
    tok = Tokenizer.from_str(json.dumps(whole))
    tok.add_tokens(list(extra))
    tok.post_processor = post(vocab)
    save(name, tok)


def charsmap():
    """SentencePiece's map of a few rules: single characters, several, of a grapheme and across one, and to nothing."""
    import sentencepiece as spm
    rules = {"\u00a0": " ", "\u3000": " ", "\t": " ", "\n": " ", "\r": " ", "\u200b": "", "\ufb01": "fi", "\u2126": "\u03a9", "\u00bd": "1\u20442", "\u2167": "VIII",
             "e\u0301": "\u00e9", "a\u0323": "\u1ea1", "\u1112\u1161": "\ud558", "x'": "y", "\u2028": " ", "\uff21": "A", "\u0958": "\u0915\u093c", "\u1f44d": "+", "\U0001f600": ":)"}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "rules.tsv").write_text("".join("%s\t%s\n" % (" ".join(f"{ord(c):X}" for c in a), " ".join(f"{ord(c):X}" for c in b)) for a, b in rules.items()))
        (path / "text").write_text("the quick brown fox jumps over the lazy dog\n" * 50)
        spm.SentencePieceTrainer.train(input=str(path / "text"), model_prefix=str(path / "m"), vocab_size=40, hard_vocab_limit=False,
                                       normalization_rule_tsv=str(path / "rules.tsv"), minloglevel=2)
        from sentencepiece import sentencepiece_model_pb2 as pb
        model = pb.ModelProto()
        model.ParseFromString((path / "m.model").read_bytes())
        return model.normalizer_spec.precompiled_charsmap


def unigram(name, pre, norm, fallback=False, extra=()):
    special = ["<pad>", "</s>", "<unk>"] + ([f"<0x{i:02X}>" for i in range(256)] if fallback else [])
    tok = Tokenizer(models.Unigram())
    tok.normalizer = norm
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=VOCAB, special_tokens=special, unk_token="<unk>", show_progress=False))
    model = json.loads(tok.to_str())["model"]
    few = [r for i, r in enumerate(model["vocab"]) if i < len(special) or ord(max(r[0])) < 0x2600]  # others are unknown
    tok = Tokenizer(models.Unigram([(p, round(s, 6)) for p, s in few], unk_id=2, byte_fallback=fallback))
    if norm:
        tok.normalizer = norm
    tok.pre_tokenizer = pre
    tok.decoder = D.Metaspace()
    tok.add_tokens([AddedToken(s, special=True, normalized=False) for s in special[:3]])
    tok.add_tokens(list(extra))
    tok.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    save(name, tok)


def make_unigrams():
    unigram("t5", Seq([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]), normalizers.Precompiled(charsmap()), extra=[AddedToken("<extra_id_0>", special=True, normalized=False)])
    unigram("unigram", pre_tokenizers.Metaspace(prepend_scheme="first", split=False), None, fallback=True, extra=[AddedToken("word", single_word=True)])
    unigram("unigram-whole", None, normalizers.Sequence([normalizers.Precompiled(charsmap()), normalizers.Replace(Regex(" {2,}"), " ")]))


def make():
    byte_level("gpt2", B(add_prefix_space=False), special=["<|endoftext|>"], post=lambda t: processors.ByteLevel())
    byte_level("llama3", Seq([S(LLAMA3), B(add_prefix_space=False, use_regex=False)]), special=["<|begin_of_text|>", "<|im_start|>", "<|im_end|>"], post=llama_post, ignore=True)
    byte_level("qwen2", Seq([S(QWEN2), B(add_prefix_space=False, use_regex=False)]), norm=normalizers.NFC(), special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    byte_level("gpt4o", Seq([S(GPT4O, "removed", True), B(add_prefix_space=False, use_regex=False)]))
    byte_level("odd", Seq([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation("merged_with_previous"), S(r"\s", "merged_with_next"), pre_tokenizers.Split("th", "contiguous"), B(add_prefix_space=True)]), norm=normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(), normalizers.Replace(Regex(r"x+"), "y")]))
    sentencepiece("llama2", None, llama_norm(), llama_decoder())
    sentencepiece("llama2-legacy", None, llama_norm(), llama_decoder(), legacy=True)
    sentencepiece("mistral", pre_tokenizers.Metaspace(prepend_scheme="first", split=False), None, llama_decoder(), extra=[AddedToken("[INST]", special=True, normalized=False), AddedToken("[/INST]", special=True, normalized=False)])
    wordpiece("bert", True, None, True, lambda v: processors.TemplateProcessing(single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[("[CLS]", v["[CLS]"]), ("[SEP]", v["[SEP]"])]), True, 100)
    wordpiece("bert-odd", False, True, False, lambda v: processors.BertProcessing(("[SEP]", v["[SEP]"]), ("[CLS]", v["[CLS]"])), False, 12, extra=[AddedToken("Hello, world"), AddedToken("\u00e9t\u00e9", normalized=True)])
    sentencepiece("unknown", pre_tokenizers.Metaspace(), None, D.Metaspace(), fallback=False, extra=[AddedToken("word", single_word=True), AddedToken("the", lstrip=True), AddedToken("and", rstrip=True, lstrip=True), AddedToken("  ", normalized=False), AddedToken("   ", normalized=False), AddedToken("Ing", single_word=True, rstrip=True, normalized=False)])


def real_gpt2():
    folder = HERE / "../../../data/gpt2"
    tok = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    tok.pre_tokenizer = B(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens(["<|endoftext|>"])
    return tok


def main():
    if "--keep" not in sys.argv:
        make()
        make_unigrams()
    if "--unigram" in sys.argv:
        make_unigrams()
    r = random.Random(7)
    texts = TEXTS + [chance(r) for _ in range(60)] + EDGES
    out = {"texts": texts, "tokenizers": {}}
    subjects = {f"test/golden/data/{p.name}": Tokenizer.from_file(str(p)) for p in sorted(HERE.glob("tokenizer-*.json"))}
    subjects["data/gpt2"] = real_gpt2()
    for name, tok in subjects.items():
        rows = {"with_special": [], "plain": [], "decoded": [], "skipped": []}
        for text in texts:
            ids = tok.encode(text, add_special_tokens=True).ids
            rows["with_special"].append(ids)
            tok.encode_special_tokens = True
            rows["plain"].append(tok.encode(text, add_special_tokens=False).ids)
            tok.encode_special_tokens = False
            rows["decoded"].append(tok.decode(ids, skip_special_tokens=False))
            rows["skipped"].append(tok.decode(ids, skip_special_tokens=True))
        out["tokenizers"][name] = rows
    (HERE / "tokenizers.json").write_text(json.dumps(out, ensure_ascii=False, separators=(",", ":")) + "\n")


main()
