#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random mutations of config.json, transformers against this build: run by model_config.sh.

    model_config.py BUILD N SEED [--show CLASS] [--family NAME ...]

Each mutation is a folder with tiny weights that transformers saved. transformers gives the last logits of a short
and of a long sequence in fp32, and so does BUILD/model_logits. The outcome is one of the classes of CLASSES.
"""
import argparse
import collections
import json
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import traceback

root = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "test/golden/model_config"))
import config_cases as cc  # noqa: E402
import torch  # noqa: E402

resource.setrlimit(resource.RLIMIT_AS, (16 << 30, resource.RLIM_INFINITY))  # a mutated size may ask for all of the memory
TOLERANCE = 2e-5  # of the largest logit
BY_BITS = ("qwen3_next",)  # norms of single products: with a small eps they blow up roundings, transformers' too
SHAKES = 4
CLASSES = {
    "equal": "logits within %g of the largest" % TOLERANCE,
    "by bits": "farther apart, but by less than %d times what the last bits of weights change in transformers" % SHAKES,
    "both refuse": "or transformers gives logits that are not finite",
    "made up": "we refuse; transformers loads with random values for weights that are not stored",
    "we refuse": "what transformers accepts",
    "we accept": "what transformers refuses",
    "generation": "we accept; transformers refuses a default of generate(), which is no part of the model",
    "DIFFERENT": "",
}
GENERATION = "generation"
MOST_REFUSED = 0.05  # of what transformers accepts


def run_ours(build, folders, scratch):
    (scratch / "list").write_text("".join(f"{f}\n" for f in folders))
    done = subprocess.run([f"{build}/model_logits", scratch / "list", scratch / "out", str(cc.SHORT), str(cc.LONG)],
                          capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == len(folders), (len(lines), len(folders), done.stderr)
    data = torch.frombuffer(bytearray((scratch / "out").read_bytes() or b"\0" * 4), dtype=torch.float32)
    at = 0
    for line in lines:
        word, rest = line.split(" ", 1)
        if word != "ok":
            yield None, rest
            continue
        length, vocab = map(int, rest.split())
        yield length, data[at:at + 2 * vocab].reshape(2, vocab)
        at += 2 * vocab


def run_theirs(folder, length):
    try:
        return cc.oracle_logits(folder, length)
    except Exception as error:  # whatever stops it: a refusal
        frames = traceback.extract_tb(error.__traceback__)
        if any(frame.filename.endswith("generation/configuration_utils.py") for frame in frames):
            return None, GENERATION
        return None, f"{type(error).__name__}: {error}"


def classify(length, ours, folder):
    """Class, detail."""
    theirs, note = run_theirs(folder, length or cc.LONG)
    refused = length is None
    if theirs is None or not torch.isfinite(theirs).all():
        same = theirs is not None and not refused and bool((torch.isfinite(theirs) == torch.isfinite(ours)).all())
        reason = note if theirs is None else "logits are not finite"
        if not refused and reason == GENERATION:
            return "generation", reason
        return ("both refuse", ours) if refused else ("equal", "nan") if same else ("we accept", reason)
    if refused:
        return ("made up", ours) if note else ("we refuse", ours)
    worst = float((ours - theirs).abs().max() / theirs.abs().max())
    if worst > TOLERANCE and json.loads((folder / "config.json").read_text())["model_type"] in BY_BITS:
        bits = max(float((cc.oracle_logits(folder, length, seed)[0] - theirs).abs().max() / theirs.abs().max())
                   for seed in range(SHAKES))
        return ("by bits" if worst <= SHAKES * bits else "DIFFERENT"), f"{worst:.1e}, by bits {bits:.1e}"
    return ("equal" if worst <= TOLERANCE else "DIFFERENT"), f"{worst:.1e}"


def shape_of(text):
    """A message without its numbers, names and paths: refusals are counted by it."""
    text = re.sub(r"/\S*/", "", text.split("config.json: ")[-1])
    return re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "N", text)[:110]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("n", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--show", default="DIFFERENT,we accept")
    parser.add_argument("--family", nargs="*", default=[])
    options = parser.parse_args()
    counts, reasons, worst = collections.Counter(), collections.Counter(), 0.0
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        cc.make_bases(scratch / "bases", options.family)
        found = list(cc.cases(options.seed, options.n, scratch / "bases", options.family))
        folders = []
        for i, (base, config, _) in enumerate(found):
            folders.append(scratch / f"{i}")
            folders[-1].mkdir()
            (folders[-1] / "config.json").write_text(json.dumps(config))
            (folders[-1] / "model.safetensors").symlink_to(scratch / "bases" / base / "model.safetensors")
        for (base, _, changes), folder, (length, ours) in zip(found, folders, run_ours(options.build, folders, scratch)):
            kind, detail = classify(length, ours, folder)
            counts[kind] += 1
            if kind == "equal" and detail != "nan":
                worst = max(worst, float(detail))
            if kind in ("we refuse", "we accept", "made up"):
                reasons[kind, shape_of(detail)] += 1
            if kind in options.show.split(","):
                print(f"{kind}: {base} {json.dumps(changes)}: {detail[:200]}")
    print(f"seed {options.seed}, {options.n} mutations")
    for kind, meaning in CLASSES.items():
        print(f"  {counts[kind]:6d} {kind}: {meaning}")
    print(f"  largest difference among the equal: {worst:.1e}")
    for (kind, reason), n in sorted(reasons.items(), key=lambda item: (item[0][0], -item[1])):
        print(f"  {n:6d} {kind}: {reason}")
    accepted = counts["equal"] + counts["by bits"] + counts["we refuse"] + counts["DIFFERENT"]
    share = counts["we refuse"] / max(accepted, 1)
    print(f"  refused of what transformers accepts: {100 * share:.1f} %")
    return 1 if counts["DIFFERENT"] or counts["we accept"] or share > MOST_REFUSED else 0


sys.exit(main())
