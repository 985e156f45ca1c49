# SPDX-License-Identifier: Apache-2.0
"""A tokenizer of bytes with a chat template of one's own, for tests of ds_serve: the folder "tagged"."""
import json
import os


def make_tokenizer(template):
    os.makedirs("tagged", exist_ok=True)
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in plain} | {b: chr(256 + k) for k, b in enumerate(b for b in range(256) if b not in plain)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    with open("tagged/tokenizer.json", "w", encoding="utf-8") as f:
        json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": level, "post_processor": None,
                   "decoder": level, "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                   "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": {letters[b]: b for b in range(256)}, "merges": []}}, f)
    with open("tagged/tokenizer_config.json", "w", encoding="utf-8") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}, f)
