# SPDX-License-Identifier: Apache-2.0
"""Hostile strings in every kind of input of the tools; see test_hostile_names.sh, which makes what it starts from.

What a tool writes to its terminal must be UTF-8 without control characters (but line feeds, tabs, and the live line's own
"\\r\\x1b[K"), marks of direction and separators of lines, and end by itself, not by a signal."""
import json, os, pty, random, re, select, shutil, struct, subprocess, sys, termios, time

BIN, ROOT = os.environ["bin"], os.environ["root"]
CASES, SEED = int(os.environ.get("DS_HOSTILE_CASES", "60")), int(os.environ.get("DS_HOSTILE_SEED", "1"))
BITS = ["\x1b[2J", "\x1b]0;title\x07", "\x1b[31m", "\u009b7m", "\u0085", "\r", "\x08\x08", "\x7f", "\u202e", "\u2066", "\u200f",
        "\u061c", "\u2028", "\x1bP1$r\x1b\\", "\nFORGED line", "plain", "\u00e9\u6f22", "\x01", "\x1bc"]
BAD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def hostile(rng):
    return "".join(rng.choice(BITS) for _ in range(rng.randint(1, 4)))


def run(argv):
    """What argv writes to a terminal, and its exit code."""
    master, slave = pty.openpty()
    mode = termios.tcgetattr(slave)
    mode[1] &= ~termios.OPOST
    termios.tcsetattr(slave, termios.TCSANOW, mode)
    p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave)
    os.close(slave)
    said, end = b"", time.time() + 20
    while time.time() < end:
        if not select.select([master], [], [], 0.2)[0]:
            continue
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        if not piece:
            break
        said += piece
    if p.poll() is None and time.time() >= end:
        p.kill()
    os.close(master)
    return said, p.wait()


def put_config(rng, text):
    ds = json.load(open("ds.json"))
    where = rng.randrange(5)
    if where == 0:
        ds[text] = 1
    elif where == 1:
        ds["optimizer"]["params"][text] = 1
    elif where == 2:
        ds["optimizer"]["type"] = text
    elif where == 3:
        ds["zero_optimization"] = {"stage": 1, text: {text: 2}}
    else:
        ds["tensorboard"] = {"enabled": text, "job_name": text}
    json.dump(ds, open("bad.json", "w"), ensure_ascii=rng.random() < 0.5)
    tool = rng.choice(["check", "effective"])
    return ["ds_config", tool, "bad.json"] if tool == "check" else ["ds_config", "print", "bad.json", "--effective"]


def rename_tensors(source, target, rng, text):
    data = open(source, "rb").read()
    (n,) = struct.unpack("<Q", data[:8])
    head = json.loads(data[8 : 8 + n])
    names = [k for k in head if k != "__metadata__"]
    name = rng.choice(names)
    out = {(text + k if k == name else k): v for k, v in head.items()}
    if rng.random() < 0.3:
        out[text + name]["dtype"] = text
    raw = json.dumps(out, ensure_ascii=rng.random() < 0.5).encode()
    raw += b" " * (-len(raw) % 8)
    open(target, "wb").write(struct.pack("<Q", len(raw)) + raw + data[8 + n :])


def put_model(rng, text):
    shutil.rmtree("model", ignore_errors=True)
    os.mkdir("model")
    config = json.load(open("saved/config.json"))
    what = rng.randrange(3)
    if what == 0:
        config["architectures"] = [text]
        config["model_type"] = text
    elif what == 1:
        config["activation_function"] = text
    json.dump(config, open("model/config.json", "w"))
    rename_tensors("saved/model.safetensors", "model/model.safetensors", rng, text)
    return ["ds_generate", "--model", "model", "--tokenizer", "bytes", "--prompt", "a", "--max_new_tokens", "2"]


def put_tokenizer(rng, text):
    tok = {"version": "1.0", "model": {"type": rng.choice([text, "BPE"]), "vocab": {text: 0, "a": 0}, "merges": [text]},
           "normalizer": {"type": text}, "pre_tokenizer": {"type": text}, "added_tokens": [{"id": 0, "content": text}]}
    for key in rng.sample(["normalizer", "pre_tokenizer", "added_tokens"], 2):
        del tok[key]
    json.dump(tok, open("tok.json", "w"), ensure_ascii=rng.random() < 0.5)
    return ["ds_data", "tokenize", "text.txt", "--tokenizer", "tok.json", "--output", "tokens"]


def put_jsonl(rng, text):
    line = rng.choice([json.dumps({"text": text, text: 1}) + text, json.dumps({text: text}), text + "\n" + text,
                       json.dumps({"messages": [{"role": text, "content": text}]})])
    open("bad.jsonl", "w").write(line + "\n")
    return ["ds_data", "tokenize", "bad.jsonl", "--tokenizer", "bytes", "--output", "tokens"]


def put_hostfile(rng, text):
    open("hosts", "w").write(rng.choice([text + " slots=1\n", "localhost slots=" + text + "\n", "localhost " + text + "=1\n"]))
    return ["deepspeed", "--hostfile", "hosts", "--force_multi", "--dry_run", "true"]


def put_checkpoint(rng, text):
    shutil.rmtree("bad_saved", ignore_errors=True)
    shutil.copytree("saved", "bad_saved")
    tag = open("saved/latest").read().strip()
    folder = "bad_saved/" + tag
    where = rng.randrange(3)
    if where == 0:
        os.rename(folder, "bad_saved/" + text.replace("/", "_"))
        open("bad_saved/latest", "w").write(text)
    elif where == 1:
        for name in os.listdir(folder):
            if name.endswith(".json"):
                raw = open(folder + "/" + name).read()
                words = [w for w in re.findall(r'"([A-Za-z_.0-9]{3,})"', raw)]
                word = rng.choice(words)
                open(folder + "/" + name, "w").write(raw.replace('"%s"' % word, json.dumps(word + text)))
    else:
        name = rng.choice([f for f in os.listdir(folder) if f.endswith(".safetensors")])
        rename_tensors("saved/" + tag + "/" + name, folder + "/" + name, rng, text)
    return ["ds_checkpoint", rng.choice(["list", "inspect", "verify"]), "bad_saved"]


def put_name(rng, text):
    name = text.replace("/", "_")
    return rng.choice([["ds_config", "check", name], ["ds_checkpoint", "verify", name], ["ds_data", "inspect", name],
                       ["ds_plan", "--model", name, "--deepspeed_config", name], ["ds_elastic", "--config", name],
                       ["ds_train", "--" + name, "1"], ["zero_to_fp32", name, name], ["ds_bench", "--ops", name],
                       ["ds_nvme_tune", "--sweep_config", name], ["ds_io", "--read", name], ["deepspeed", "--hostfile", name, "x"],
                       ["deepspeed", name], ["ds_ssh", "-f", name, "true"], ["ds_generate", "--model", name, "--prompt", name]])


def main():
    kinds = [put_config, put_model, put_tokenizer, put_jsonl, put_hostfile, put_checkpoint, put_name]
    failed, refused = 0, 0
    for case in range(CASES):
        rng = random.Random(SEED * 1000003 + case)
        kind = kinds[case % len(kinds)]
        text = hostile(rng)
        argv = kind(rng, text)
        said, code = run([BIN + "/" + argv[0]] + argv[1:])
        try:
            bad = BAD.search(said.decode().replace("\r\x1b[K", ""))
        except UnicodeDecodeError as error:
            bad = error
        forged = kind is put_config and b"\nFORGED" in said
        refused += code != 0
        if bad or forged or code < 0:
            failed += 1
            print("FAILED: case %d of seed %d (%s): %r exit %d: %s in %r" % (case, SEED, kind.__name__, argv, code, bad, said[:600]))
    print("%d cases of hostile names, %d refused by their tool, %d shown raw" % (CASES, refused, failed))
    return 1 if failed or refused == 0 else 0


sys.exit(main())
