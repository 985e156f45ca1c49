#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/data/tokenizer_class_table.c: which tokenizer class transformers makes for a model type, and the names of the
classes that build a tokenizer in a way of their own. Needs transformers; the version is noted in the file.

Usage: make_tokenizer_classes.py [FILE]   (default: the file in the tree)
"""
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import transformers  # noqa: E402
from transformers.models.auto import tokenization_auto as auto  # noqa: E402

KINDS = {"LlamaTokenizer": "LLAMA", "Qwen2Tokenizer": "QWEN2", "GPT2Tokenizer": "GPT2", "BertTokenizer": "BERT", "RobertaTokenizer": "ROBERTA", "T5Tokenizer": "T5"}
GENERIC = {"TokenizersBackend", "PythonBackend", "PreTrainedTokenizerFast", "PreTrainedTokenizer", "MistralCommonBackend"}


def kind(name):
    return "FILE" if name in GENERIC else KINDS.get(name, "OTHER")


def rows():
    for model, name in sorted(auto.TOKENIZER_MAPPING_NAMES.items()):
        if name is None:
            continue
        name = name.removesuffix("Fast")
        forced = "true" if model in auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS else "false"
        yield f'    {{"{model}", "{name}", DSI_CLASS_{kind(name)}, {forced}}},'


def names():
    found = {n.removesuffix("Fast") for n in auto.TOKENIZER_MAPPING_NAMES.values() if n}
    found |= {n.removesuffix("Fast") for n in dir(transformers) if n.endswith(("Tokenizer", "TokenizerFast"))}
    for name in sorted(found - GENERIC - set(KINDS) - {"AutoTokenizer"}):
        made = auto.tokenizer_class_from_name(name) or auto.tokenizer_class_from_name(name + "Fast")
        if made is not None and made.__name__ not in GENERIC and "okenizer" in made.__name__:
            yield f'    "{name}",'


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "src/data/tokenizer_class_table.c"
    lines = ["/* SPDX-License-Identifier: Apache-2.0 */",
             "/* Made by scripts/make_tokenizer_classes.py; not to be changed by hand. */",
             '#include "data/tokenizer_class.h"', "",
             f"/* Of transformers {transformers.__version__}, sorted by model type. */", "const dsi_class_model dsi_class_models[] = {", *rows(), "    {NULL, NULL, DSI_CLASS_FILE, false},", "};", "",
             "const char *const dsi_class_others[] = {", *names(), "    NULL,", "};"]
    pathlib.Path(path).write_text("\n".join(lines) + "\n")


main()
