# SPDX-License-Identifier: Apache-2.0
"""Tokenizing: ours against the `tokenizers` package, one thread each, alternating in one run.

usage: bench_tokenizer.py LIBRARY TEXT TOKENIZER...
LIBRARY is libdeepspeed.so; a TOKENIZER is a tokenizer.json or a folder with GPT-2's files. Prints a
row each: megabytes a second (medians of the rounds, text as one piece and in lines), their ratio,
milliseconds to open. Both must give the same ids. Needs Python with the tokenizers package.
"""
import ctypes
import os
import statistics
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: E402

ROUNDS = 9


class Tokens(ctypes.Structure):
    _fields_ = [("ids", ctypes.POINTER(ctypes.c_uint32)), ("ranges", ctypes.c_void_p), ("n", ctypes.c_size_t)]


class Ours:
    def __init__(self, lib, ctx, path):
        self.lib = lib
        self.tok, self.scratch = ctypes.c_void_p(), ctypes.c_void_p()
        if lib.ds_tokenizer_open(ctx, path.encode(), ctypes.byref(self.tok)) < 0:
            sys.exit(lib.ds_ctx_error(ctx).decode())
        lib.ds_tokenizer_scratch_create(self.tok, ctypes.c_size_t(0), ctypes.byref(self.scratch))

    def encode(self, data):
        """Leaves the ids in the scratch, as a C caller has them."""
        out = Tokens()
        if self.lib.ds_tokenizer_encode(self.tok, self.scratch, data, ctypes.c_size_t(len(data)), 0, ctypes.byref(out)) < 0:
            sys.exit("encode failed")
        return out

    def close(self):
        self.lib.ds_tokenizer_scratch_destroy(ctypes.byref(self.scratch))
        self.lib.ds_tokenizer_close(ctypes.byref(self.tok))


def theirs(path):
    if os.path.isdir(path) and not os.path.exists(path + "/tokenizer.json"):
        tok = Tokenizer(models.BPE.from_file(path + "/vocab.json", path + "/merges.txt"))
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tok.decoder = decoders.ByteLevel()
        tok.add_special_tokens(["<|endoftext|>"])
        return tok
    return Tokenizer.from_file(path + "/tokenizer.json" if os.path.isdir(path) else path)


def seconds(call):
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def encode_fast(tok, texts):
    """The package's quickest way: no offsets, and only the ids are looked at."""
    return [e.ids for e in tok.encode_batch_fast(texts, add_special_tokens=False)]


def main():
    lib = ctypes.CDLL(sys.argv[1])
    lib.ds_ctx_error.restype = ctypes.c_char_p
    ctx = ctypes.c_void_p()
    lib.ds_ctx_create(None, ctypes.byref(ctx))
    text = open(sys.argv[2], encoding="utf-8").read()
    data = text.encode()
    lines = text.splitlines(keepends=True)
    byte_lines = [line.encode() for line in lines]
    mb = len(data) / 1e6
    print("| tokenizer | ours, whole MB/s | package | ratio | ours, lines MB/s | package | ratio | open ms | package |")
    print("|---|---|---|---|---|---|---|---|---|")
    for path in sys.argv[3:]:
        opened = [seconds(lambda: Ours(lib, ctx, path)) for _ in range(3)]
        opened_theirs = [seconds(lambda: theirs(path)) for _ in range(3)]
        ours, package = opened[0][1], opened_theirs[0][1]
        got = ours.encode(data)
        if got.ids[: got.n] != package.encode(text, add_special_tokens=False).ids:
            sys.exit(f"{path}: the ids differ")
        rows = {"whole": [], "whole_package": [], "lines": [], "lines_package": []}
        for _ in range(ROUNDS):
            rows["whole"].append(seconds(lambda: ours.encode(data))[0])
            rows["whole_package"].append(seconds(lambda: encode_fast(package, [text]))[0])
            rows["lines"].append(seconds(lambda: [ours.encode(line) for line in byte_lines])[0])
            rows["lines_package"].append(seconds(lambda: encode_fast(package, lines))[0])
        speed = {k: mb / statistics.median(v) for k, v in rows.items()}
        opening = statistics.median(t for t, _ in opened) * 1e3
        opening_theirs = statistics.median(t for t, _ in opened_theirs) * 1e3
        print(
            f"| {os.path.basename(path.rstrip('/'))} | {speed['whole']:.1f} | {speed['whole_package']:.2f} | {speed['whole'] / speed['whole_package']:.1f} "
            f"| {speed['lines']:.1f} | {speed['lines_package']:.2f} | {speed['lines'] / speed['lines_package']:.1f} | {opening:.1f} | {opening_theirs:.1f} |",
            flush=True,
        )
        for _, one in opened:
            one.close()


main()
