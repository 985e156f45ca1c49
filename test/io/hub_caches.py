#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random caches of the Hugging Face Hub: what hub_find makes of them against a model of its own, a function a rule.

hub_caches.py HUB_FIND COUNT SEED [--oracle]: with --oracle the model's rules are compared with huggingface_hub's own functions
(HF_HUB_CACHE, validate_repo_id, try_to_load_from_cache, snapshot_download with local_files_only).
"""
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

CONFIG, TOKENIZER, WEIGHTS = 1, 2, 4
VARIABLES = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"]
FILES = ["config.json", "model.safetensors", "model.safetensors.index.json", "model-1.safetensors", "model-2.safetensors",
         "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json", "pytorch_model.bin", "README.md",
         "vocab.json", "merges.txt"]
NAMES = ["gpt2", "org/name", "org/Name-2.5", "a_b/c.d", "org/other"]
BAD_NAMES = ["org/", "/abs/name", "a/b/c", "a--b", "-a/b", "a.", "x..y", "org/x.git", "./gpt2", "é/x", "~/m", ".hidden/a"]
REVISIONS = ["main", "v1.0", "refs/pr/1", "dev"]
COMMITS = ["%040x" % (0xabc123 * k) for k in range(1, 5)]


# ---- the model: what the cache means ----

def expand(path):
    return os.path.expandvars(os.path.expanduser(path))


def cache_folder(env):
    home = env.get("HF_HOME")
    if home is None:
        home = os.path.join(env["XDG_CACHE_HOME"], "huggingface") if "XDG_CACHE_HOME" in env else "~/.cache/huggingface"
    usual = os.path.join(expand(home), "hub")
    return expand(env.get("HF_HUB_CACHE", env.get("HUGGINGFACE_HUB_CACHE", usual)))


def is_name(name):
    part = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
    return (re.fullmatch(f"{part}(?:/{part})?", name) is not None and "--" not in name and ".." not in name
            and not name.endswith(".git"))


class Repo:
    def __init__(self, cache, name):
        self.path = os.path.join(cache, "models--" + name.replace("/", "--"))

    def commit(self, revision):
        ref = os.path.join(self.path, "refs", revision)
        return open(ref).read() if os.path.isfile(ref) else revision

    def snapshot(self, revision):
        """The folder, or None."""
        commit = self.commit(revision)
        folder = os.path.join(self.path, "snapshots", commit)
        plain = commit not in ("", ".", "..") and "/" not in commit and commit.isprintable()
        return folder if plain and os.path.isdir(folder) else None

    def load(self, revision, file):
        """The path of a file, or None."""
        folder = self.snapshot(revision)
        if folder is None or os.path.isfile(os.path.join(self.path, ".no_exist", self.commit(revision), file)):
            return None
        path = os.path.join(folder, file)
        return path if os.path.isfile(path) else None

    def tree(self, revision):
        try:
            data = json.load(open(os.path.join(self.path, "trees", self.commit(revision) + ".json")))
            return list(data["files"]) if data["format_version"] == 1 else None
        except (OSError, ValueError):
            return None

    def incomplete(self):
        blobs = os.path.join(self.path, "blobs")
        names = os.listdir(blobs) if os.path.isdir(blobs) else []
        return [n for n in names if n.endswith(".incomplete") and n.split(".")[0] not in names]


def is_read(file, needs):
    if file == "config.json":
        return bool(needs & CONFIG)
    if file in ("model.safetensors", "model.safetensors.index.json", "generation_config.json"):
        return bool(needs & WEIGHTS)
    wanted = file.startswith("tokenizer") or file in ("vocab.json", "merges.txt", "chat_template.jinja")
    return bool(needs & TOKENIZER) and wanted


def expected(cache, name, revision, needs):
    """(status, folder or texts that the message must have)."""
    own = os.path.isdir(name) or (needs == TOKENIZER and os.path.exists(name))
    if own or not is_name(name):
        return ("ERR_ARG", [revision]) if revision else ("OK", name)
    repo, asked = Repo(cache, name), revision or "main"
    get = "hf download " + name + (f" --revision {revision}" if revision else "")
    if revision and (".." in revision.split("/") or revision.startswith("/")):
        return "ERR_ARG", [revision]
    folder = repo.snapshot(asked) if os.path.isdir(repo.path) else None
    if folder is None:
        return "ERR_NOT_FOUND", [get, repo.path]
    load = lambda file: repo.load(asked, file)
    links = [f for f in os.listdir(folder) if is_read(f, needs) and not os.path.exists(os.path.join(folder, f))]
    if links:
        return "ERR_FORMAT", [get, *(f for f in links if len(links) == 1)]
    if needs & WEIGHTS and load("model.safetensors.index.json") and not load("model.safetensors"):
        shards = json.load(open(load("model.safetensors.index.json")))["weight_map"].values()
        if any(load(s) is None for s in shards):
            return "ERR_FORMAT", [get, "model-"]
    tree = repo.tree(asked)
    if tree is not None:
        lost = [f for f in tree if is_read(f, needs) and load(f) is None]
        if lost:
            return "ERR_FORMAT", [get, *(f for f in lost if len(lost) == 1)]
    elif needs & (WEIGHTS | TOKENIZER) and repo.incomplete():
        return "ERR_FORMAT", [get, ".incomplete"]
    groups = {CONFIG: ["config.json"], TOKENIZER: ["tokenizer.json", "vocab.json", "tokenizer.model", "tokenizer_config.json"],
              WEIGHTS: ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"]}
    for need, files in groups.items():
        if needs & need and not any(load(f) for f in files):
            return "ERR_NOT_FOUND", [get, folder]
    return "OK", folder


# ---- random caches ----

def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)


def make_file(rng, repo, folder, file, whole):
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    text = json.dumps(index) if file.endswith("index.json") else "{}"
    path = os.path.join(folder, file)
    if rng.random() < 0.1:  # a file system without links
        write(path, text)
        return
    blob = "%040x" % rng.getrandbits(160)
    if whole or rng.random() < 0.97:
        write(os.path.join(repo, "blobs", blob), text)
    if rng.random() < 0.03:  # an earlier try that was left
        write(os.path.join(repo, "blobs", blob + rng.choice([".incomplete", ".1a2b3c4d.incomplete"])), text[:1])
    os.makedirs(folder, exist_ok=True)
    os.symlink(os.path.relpath(os.path.join(repo, "blobs", blob), folder), path)


def make_snapshot(rng, repo, commit):
    folder = os.path.join(repo, "snapshots", commit)
    whole = rng.random() < 0.6
    kept = [f for f in FILES if rng.random() < (0.95 if whole else 0.6)]
    if rng.random() < 0.5:  # one file of weights, or shards
        kept = [f for f in kept if not f.startswith("model-") and not f.endswith("index.json")]
    elif rng.random() < 0.8:
        kept = [f for f in kept if f != "model.safetensors"]
    for file in kept:
        make_file(rng, repo, folder, file, whole)
    os.makedirs(folder, exist_ok=True)
    if rng.random() < 0.4:
        listed = kept + [f for f in FILES if f not in kept and rng.random() < 0.1]
        version = rng.choice([1, 1, 1, 2])
        text = json.dumps({"format_version": version, "files": {f: {"size": 2, "blob_id": "x"} for f in listed}})
        write(os.path.join(repo, "trees", commit + ".json"), text if rng.random() < 0.9 else text[:5])
    if rng.random() < 0.2:
        write(os.path.join(repo, ".no_exist", commit, rng.choice(FILES)), "")
    if not whole and rng.random() < 0.3:
        write(os.path.join(repo, "blobs", "%040x" % rng.getrandbits(160) + rng.choice([".incomplete", ".ab12cd34.incomplete"])), "{")


def make_cache(rng, cache):
    for name in NAMES:
        repo = Repo(cache, name).path
        if rng.random() < 0.25:
            continue
        commits = rng.sample(COMMITS, rng.randint(0, 3))
        for commit in commits:
            make_snapshot(rng, repo, commit)
        for revision in REVISIONS:
            if rng.random() < 0.6:
                odd = ["", "..", COMMITS[0] + "\n", "../snapshots/" + COMMITS[0], COMMITS[3]]
                text = rng.choice(commits) if commits and rng.random() < 0.85 else rng.choice(odd)
                write(os.path.join(repo, "refs", revision), text)
        if rng.random() < 0.1:
            shutil.rmtree(os.path.join(repo, "refs"), ignore_errors=True)


def make_environment(rng, root):
    env = {"HOME": rng.choice([root + "/home", root + "/home/"]), "PLACE": root + "/place"}
    forms = [root + "/a", "~/b", "$PLACE/c", "${PLACE}/d", "$NOT_SET/e", "~", "f", "", "~nobody_of_this_name/g", "$PLACE$PLACE", "h$"]
    for name in VARIABLES:
        if rng.random() < 0.35:
            env[name] = rng.choice(forms)
    return env


def queries(rng):
    for _ in range(14):
        name = rng.choice(NAMES if rng.random() < 0.8 else BAD_NAMES + ["folder", "file", "nowhere"])
        revision = rng.choice([None, None, rng.choice(REVISIONS), rng.choice(COMMITS), rng.choice(["../x", "/etc", "a/../b", "none"])])
        yield name, revision, rng.choice([CONFIG, TOKENIZER, CONFIG | WEIGHTS, CONFIG | WEIGHTS | TOKENIZER])


# ---- comparison ----

def compare_rules(cache, asked):
    """The model's rules with huggingface_hub."""
    import importlib
    import huggingface_hub
    from huggingface_hub import constants, _tree_cache
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, IncompleteSnapshotError
    importlib.reload(constants)
    _tree_cache._IN_MEMORY_TREE_CACHE.clear()
    assert constants.HF_HUB_CACHE == cache, (constants.HF_HUB_CACHE, cache)
    for name, revision, _ in asked:
        try:
            huggingface_hub.utils.validate_repo_id(name)
            valid = name.isascii()
        except HFValidationError:
            valid = False
        assert valid == is_name(name), name
        if not valid or (revision and (".." in revision or revision.startswith("/"))):
            continue
        repo, ref = Repo(cache, name), revision or "main"
        for file in FILES:
            found = huggingface_hub.try_to_load_from_cache(name, file, cache_dir=cache or ".", revision=ref)
            ours = repo.load(ref, file)
            assert (found if isinstance(found, str) else None) == (os.path.join(cache or ".", os.path.relpath(ours, cache or ".")) if ours else None), (name, ref, file, found, ours)
        try:
            folder = huggingface_hub.snapshot_download(name, revision=ref, cache_dir=cache or ".", local_files_only=True)
        except IncompleteSnapshotError:
            listed = repo.tree(ref)
            assert any(not os.path.exists(os.path.join(repo.snapshot(ref), f)) for f in listed), (name, ref, "incomplete")
        except RuntimeError:  # pathlib knows no folder of "~nobody…"
            assert cache.startswith("~")
        except LocalEntryNotFoundError:
            assert repo.snapshot(ref) is None, (name, ref, "not there")
        else:
            if repo.snapshot(ref):
                assert os.path.realpath(folder) == os.path.realpath(repo.snapshot(ref)), (folder, repo.snapshot(ref))


def run(program, env, asked):
    text = "".join(f"{name}\t{revision or ''}\t{needs}\n" for name, revision, needs in asked)
    done = subprocess.run([program], input=text, capture_output=True, text=True, check=True, env=env)
    return done.stdout.splitlines()


def one(program, rng, root, oracle, counts):
    env = make_environment(rng, root)
    for name in [*VARIABLES, "HOME", "PLACE"]:
        os.environ.pop(name, None)
    os.environ.update(env)
    os.makedirs(root + "/work/folder")
    os.makedirs(root + "/home")
    os.chdir(root + "/work")
    write(root + "/work/file", "{}")
    if rng.random() < 0.2:
        os.makedirs("org/name")  # a folder of the name wins
    cache = cache_folder(env)
    make_cache(rng, cache or ".")
    asked = list(queries(rng))
    lines = run(program, env, asked)
    assert lines[0] == (cache or "."), (lines[0], cache)
    assert len(lines) == len(asked) + 1, lines
    for (name, revision, needs), line in zip(asked, lines[1:]):
        status, text = line.split("\t", 1)
        right, what = expected(cache or ".", name, revision, needs)
        same = status == right and (text == what if status == "OK" else all(w in text for w in what))
        assert same, f"{name} {revision} {needs}: expected {right} {what}, found {line}"
        counts[status] = counts.get(status, 0) + (name in NAMES)
    if oracle:
        compare_rules(cache, asked)


def main():
    program, count, seed, oracle = os.path.abspath(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), "--oracle" in sys.argv
    counts = {}
    for k in range(count):
        root = os.path.realpath(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
        try:
            one(program, random.Random(seed * 1000003 + k), root, oracle, counts)
        except AssertionError as e:
            print(f"seed {seed}, cache {k}: {e}")
            return 1
        finally:
            os.chdir("/")
            shutil.rmtree(root)
    print(f"{count} caches:", ", ".join(f"{n} {status}" for status, n in sorted(counts.items())))
    few = [s for s in ("OK", "ERR_ARG", "ERR_NOT_FOUND", "ERR_FORMAT") if counts.get(s, 0) < count // 10]
    if few:
        print("too few cases of", few)
    return 1 if few else 0


sys.exit(main())
