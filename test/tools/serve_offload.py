# SPDX-License-Identifier: Apache-2.0
"""Random flags and files that say where ds_serve's weights, keys and values are: the bits of a server that has all in memory, with what was asked
for in force, and no file left; or a refusal that names the flag or key. Usage: serve_offload.py PROGRAM MODEL LORA [CASES [SEED]]"""
import atexit
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading

PROGRAM, MODEL, LORA = sys.argv[1:4]
N = int(sys.argv[4]) if len(sys.argv) > 4 else 20
SEED = int(sys.argv[5]) if len(sys.argv) > 5 else 1
ASKS = (("/v1/completions", dict(model="m", prompt=["the ship", "over the sea " * 6], max_tokens=16, seed=3, n=2, logprobs=2)),
        ("/v1/completions", dict(model="m", prompt="the quiet", max_tokens=30, temperature=0, repetition_penalty=1.3, logprobs=0)),
        ("/v1/embeddings", dict(model="m", input=["the ship", "sails " * 20])))
wants = {}


def fail(*what):
    raise SystemExit(f"FAILED (seed {SEED}): {what}")


def serve(flags):
    """Its answers and its log, or its exit code and its log."""
    process = subprocess.Popen([PROGRAM, "--model", MODEL, "--served_model_name", "m", "--port", "0", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    atexit.register(process.kill)
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(iter(process.stderr.readline, "")), daemon=True)
    reader.start()
    timer = threading.Timer(60, process.kill)
    timer.start()
    found = re.search(r":(\d+)\n", process.stdout.readline())
    got = []
    for path, body in ASKS + ((("/v1/completions", dict(ASKS[1][1], model="l")),) if "--lora" in flags else ()) if found else ():
        c = http.client.HTTPConnection("127.0.0.1", int(found.group(1)), timeout=60)
        c.request("POST", path, json.dumps(body))
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        if r.status != 200:
            fail(flags, body, r.status, text)
        value = json.loads(text)
        got.append(json.dumps(value.get("choices") or value["data"]))
    if found:
        process.send_signal(signal.SIGTERM)
    code = process.wait(60)
    timer.cancel()
    reader.join(10)
    if found and code != 0:
        fail("its end", flags, code, lines)
    return got or code, "".join(lines)


def where(rng, flags, log):
    """An offload_param of a file; the key that is wrong, or None; whether weights go to disk."""
    device = rng.choice(("none", "cpu", "nvme", "nvme", "nvme"))
    part, wrong = {"device": device}, None
    if device == "nvme" or rng.random() < 0.1:
        part["nvme_path"] = rng.choice(("disk", "disk", "disk,disk2"))
    if rng.random() < 0.4:
        part["max_in_cpu"] = rng.choice((0, 1000, 10**9))
    if rng.random() < 0.3:
        part["buffer_count"] = rng.choice((1, 5))
    if rng.random() < 0.15:
        key, value = rng.choice((("device", "tape"), ("nvme_path", "nowhere"), ("max_in_cpu", -1), ("nvme_pathh", "disk"), ("device", 3)))
        part[key] = value
        if key == "nvme_path":
            part.update(device="nvme", max_in_cpu=0)  # else nothing would go there
        wrong = key if key != "nvme_path" else "nowhere"
    return part, wrong, part["device"] == "nvme" and part.get("max_in_cpu", 10**9) < 10**9 and not wrong


def command(rng):
    """Flags that change bits, flags that do not, words of which one is in a refusal (none: it starts), whether weights are on disk."""
    bits = rng.choice(([], ["--dtype", "f32"], ["--dtype", "f32"], ["--dtype", "bf16"])) + rng.choice(([], [], ["--quantize", "q8_0"], ["--kv_type", "int8"]))
    bits += rng.choice(([], [], ["--lora", f"l={LORA}", "--max_lora_rank", "4"]))
    flags = ["--threads", rng.choice("12")] + rng.choice(([], [], ["--draft", "3"], ["--no_prefix_cache"], ["--max_batch_tokens", "16"], ["--max_sequences", "2"]))
    wrong, disk = set(), False
    device, path = rng.choice((None, "cpu", "nvme", "nvme", "nvme")), None
    kind = rng.choice((None, None, None, "training", "inference"))
    if kind and rng.random() < 0.85:
        device = None
    if device:
        flags += ["--offload_param", device]
    if rng.random() < (0.6 if device else 0.1):
        path = rng.choice(("disk", "disk", "disk,disk2", MODEL, "nowhere", "keep", "", "disk,"))
        flags += ["--nvme_path", path]
        wrong |= {"nvme_path"} if device != "nvme" or path == "" else {"nowhere", "keep", "nvme_path"} if path in ("nowhere", "keep", "disk,") else set()
    if rng.random() < (0.4 if device else 0.1):
        most = rng.choice((0, 1000, 400000, 10**12, -1))
        flags += ["--max_in_cpu", str(most)]
        wrong |= {"max_in_cpu"} if device != "nvme" or most < 0 else set()
        disk = device == "nvme" and most < 10**9
    else:
        disk = device == "nvme"
    if kind:
        part, bad, disk_by_file = where(rng, flags, None)
        text = dict(train_micro_batch_size_per_gpu=1, zero_optimization=dict(stage=3, offload_param=part)) if kind == "training" else dict(dtype="fp32", zero=dict(stage=3, offload_param=part))
        with open("ds.json", "w", encoding="utf8") as f:
            json.dump(text, f)
        flags += ["--deepspeed_config", "ds.json"]
        if device or "--nvme_path" in flags or "--max_in_cpu" in flags:
            wrong |= {"offload_param", "nvme_path", "max_in_cpu"}
        if bad:
            wrong.add(bad)
        disk = disk_by_file
        if kind == "inference":
            if "--dtype" in bits:
                wrong |= {"dtype"}
            else:
                bits += ["--dtype", "f32"]
                flags += [None]  # the file says it
    if rng.random() < 0.3:
        flags.append("--offload_kv")
        if not device and not kind or kind and part["device"] == "none":
            wrong.add("offload_kv")
    return bits, flags, wrong, disk and not wrong


def main():
    rng = random.Random(SEED)
    for d in ("disk", "disk2"):
        os.makedirs(d, exist_ok=True)
    with open("keep", "w", encoding="utf8") as f:
        f.write("a file\n")
    refused = on_disk = 0
    for _ in range(N):
        bits, flags, wrong, disk = command(rng)
        by_file = None in flags
        all_flags = [f for f in flags if f is not None] + (bits[:-2] if by_file and bits[-2:] == ["--dtype", "f32"] else bits)
        got, log = serve(all_flags)
        if isinstance(got, int):
            refused += 1
            if not wrong or got not in (1, 2) or not any(w in log for w in wrong):
                fail("refused", all_flags, wrong, got, log, open("ds.json", encoding="utf8").read() if "ds.json" in all_flags else "")
        else:
            key = " ".join(bits)
            if key not in wants:
                wants[key] = serve(["--threads", "1", *bits])[0]
            file = open("ds.json", encoding="utf8").read() if "ds.json" in all_flags else ""
            if wrong:
                fail("starts", all_flags, wrong, log, file)
            if got != wants[key]:
                fail("other bits", all_flags, log, got, wants[key], file)
            if disk != ("on disk" in log) and disk != ("read from the model" in log):
                fail("not in force" if disk else "in force", all_flags, log, file)
            on_disk += disk
        left = os.listdir("disk") + os.listdir("disk2")
        if left or open("keep", encoding="utf8").read() != "a file\n":
            fail("left", all_flags, left)
    print(f"seed {SEED}: {N} command lines, {refused} refused, {on_disk} with weights on disk")


main()
