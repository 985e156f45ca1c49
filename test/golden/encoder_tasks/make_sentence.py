#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes sentence/: a folder as sentence-transformers saves it (a small random BERT, mean pooling, Normalize, texts cut at 12 tokens), and
what it makes of texts.txt:
  vectors.txt                    a line of numbers for each text
  MODE.config.json, MODE.txt     1_Pooling/config.json of another pooling mode, and its vectors without Normalize

Needs torch, transformers, tokenizers, sentence-transformers. Deterministic. Run: make_sentence.py [OUTPUT_FOLDER]
"""
import os
import shutil
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
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


def main():
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__)))
    torch.set_num_threads(1)
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


if __name__ == "__main__":
    main()
