#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every family of the parity goldens: the greedy text of ds_serve, of one rank and of two that share the layers, is that of
ds_generate, or the family is refused by a message of REFUSED. Usage: serve_families.py BUILD SOURCE"""
import json
import pathlib
import re
import subprocess
import sys
import urllib.request

PROMPT, TOKENS = "$%!", 12
REFUSED = ("rotary positions are dynamic",)


def serve(build: pathlib.Path, model: pathlib.Path, launcher=()):
    """The text, or what was said instead of serving."""
    server = subprocess.Popen([*launcher, build / "ds_serve", "--model", model, "--tokenizer", "bytes", "--port", "0", "--dtype", "f32",
                               "--served_model_name", "m"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        line = ""
        for line in server.stdout:
            if found := re.search(r"(http://127\.0\.0\.1:\d+)", line):
                body = json.dumps({"model": "m", "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}).encode()
                request = urllib.request.Request(f"{found.group(1)}/v1/completions", body)
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return True, json.load(answer)["choices"][0]["text"].encode()
        return False, line.strip()
    finally:
        server.terminate()
        server.wait()


def generate(build: pathlib.Path, model: pathlib.Path) -> bytes:
    return subprocess.run([build / "ds_generate", "--model", model, "--tokenizer", "bytes", "--dtype", "f32", "--prompt", PROMPT,
                           "--max_new_tokens", str(TOKENS), "--temperature", "0", "--no_echo"],
                          check=True, capture_output=True, timeout=60).stdout


def ascii_of(text: bytes) -> bytes:
    """Bytes that are no characters are written in two ways."""
    return re.sub(rb"(\xef\xbf\xbd|[\x80-\xff])+", b"?", text).rstrip(b"\n")


def main() -> int:
    build, source = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    same = refused = bad = 0
    for model in sorted(path.parent for path in (source / "test/golden/parity").glob("*/config.json")):
        served, said = serve(build, model)
        two = serve(build, model, [build / "deepspeed", "--num_gpus", "2"])
        if served and two[0] and ascii_of(said) == ascii_of(two[1]) == ascii_of(generate(build, model)):
            same += 1
        elif not served and not two[0] and any(words in said for words in REFUSED):
            refused += 1
        else:
            bad += 1
            print(f"{model.name}: {said!r}, two ranks {two[1]!r}" + (f", ds_generate {generate(build, model)!r}" if served else ""))
    print(f"{same} families the same, {refused} refused, {bad} wrong")
    return 1 if bad or same < 51 else 0


sys.exit(main())
