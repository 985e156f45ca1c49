#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes sentence/: a folder as sentence-transformers saves it (a small random BERT, mean pooling, Normalize, texts cut at 12 tokens), and
what it makes of texts.txt:
  vectors.txt                    a line of numbers for each text
  MODE.config.json, MODE.txt     1_Pooling/config.json of another pooling mode, and its vectors without Normalize

  dense_NAME/                    modules.json, the folders of modules Dense between pooling and Normalize, and vectors.txt

Needs torch, transformers, tokenizers, sentence-transformers. Deterministic. Run: make_sentence.py [OUTPUT_FOLDER [dense]]
"""
import os
import shutil
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = "a small river runs past the old mill and over stones where children look for fish in may ##s ##ing".split()
TEXTS = ["a small river", "the children look for stones and fish", "Mills", "an unknown word", "the river runs past the old mill and over stones where "
         "children look for fish in may and runs"]
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


def make_base(folder):
    vocab = {w: i for i, w in enumerate(SPECIAL + WORDS)}
    tok = Tokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer(lowercase=True)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece()
    tok.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                       special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
                            mask_token="[MASK]").save_pretrained(folder)
    torch.manual_seed(5)
    BertModel(BertConfig(vocab_size=len(vocab), hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20,
                         max_position_embeddings=32, initializer_range=0.3)).save_pretrained(folder)


def write_vectors(path, model):
    with open(path, "w", encoding="utf-8") as f:
        for vector in model.encode(TEXTS, batch_size=1, show_progress_bar=False, precision="float32"):
            f.write(" ".join(f"{x:.9g}" for x in vector.tolist()) + "\n")


def denses():
    torch.manual_seed(9)
    return {
        "tanh": [Dense(24, 16)],
        "two": [Dense(24, 40, bias=False, activation_function=torch.nn.Identity()), Dense(40, 24, activation_function=torch.nn.GELU())],
        "adds": [Dense(24, 24, activation_function=torch.nn.Sigmoid(), use_residual=True),
                 Dense(24, 10, activation_function=torch.nn.ReLU(), use_residual=True)],
        "silu": [Dense(24, 12, activation_function=torch.nn.SiLU())],
    }


def write_denses():
    whole = SentenceTransformer("sentence", device="cpu")
    for name, modules in denses().items():
        model = SentenceTransformer(modules=[whole[0], whole[1], *modules, *([Normalize()] if name != "silu" else [])], device="cpu")
        model.save("other", create_model_card=False)
        folder = f"sentence/dense_{name}"
        os.makedirs(folder)
        shutil.copy("other/modules.json", folder)
        for i in range(len(modules)):
            shutil.move(f"other/{2 + i}_Dense", folder)
        write_vectors(f"{folder}/vectors.txt", model)
        shutil.rmtree("other")


def main():
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__)))
    torch.set_num_threads(1)
    if sys.argv[2:] == ["dense"]:
        write_denses()
        return
    shutil.rmtree("sentence", ignore_errors=True)
    make_base("base")
    transformer = Transformer("base", max_seq_length=12)
    model = SentenceTransformer(modules=[transformer, Pooling(24, pooling_mode="mean"), Normalize()], device="cpu")
    model.save("sentence", create_model_card=False)
    with open("sentence/texts.txt", "w", encoding="utf-8") as f:
        f.writelines(text + "\n" for text in TEXTS)
    write_vectors("sentence/vectors.txt", SentenceTransformer("sentence", device="cpu"))
    for mode in MODES:
        other = SentenceTransformer(modules=[transformer, Pooling(24, pooling_mode=mode)], device="cpu")
        other.save("other", create_model_card=False)
        shutil.copy("other/1_Pooling/config.json", f"sentence/{mode}.config.json")
        write_vectors(f"sentence/{mode}.txt", other)
    shutil.rmtree("other")
    shutil.rmtree("base")
    write_denses()


if __name__ == "__main__":
    main()
