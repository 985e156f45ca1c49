# SPDX-License-Identifier: Apache-2.0
"""ds_serve gives sentence-transformers' vectors of folders with modules Dense, also after a reload. Usage: serve_dense.py PROGRAM GOLDEN"""
import atexit
import http.client
import json
import os
import re
import shutil
import subprocess
import sys

PROGRAM, GOLDEN = sys.argv[1:3]
TEXTS = [line.rstrip("\n") for line in open(f"{GOLDEN}/texts.txt", encoding="utf-8")][:4]  # the last is cut, which a server refuses


def folder(name):
    shutil.copytree(GOLDEN, name)
    shutil.copytree(f"{GOLDEN}/dense_{name}", name, dirs_exist_ok=True)
    return name


def wanted(name):
    return [[float(x) for x in line.split()] for line in open(f"{GOLDEN}/dense_{name}/vectors.txt", encoding="utf-8")][:4]


def post(port, path, **body):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=100)
    c.request("POST", path, json.dumps(body), {"Authorization": "Bearer k"})
    r = c.getresponse()
    text = r.read().decode()
    c.close()
    return r.status, json.loads(text)


def check(port, name, **more):
    status, got = post(port, "/v1/embeddings", model="m", input=TEXTS, **more)
    assert status == 200, got
    for text, one, want in zip(TEXTS, got["data"], wanted(name)):
        n = more.get("dimensions", len(want))
        size = sum(x * x for x in want[:n]) ** 0.5 if n < len(want) else 1.0
        assert len(one["embedding"]) == n, (text, len(one["embedding"]))
        worst = max(abs(a - b / size) for a, b in zip(one["embedding"], want))
        assert worst < 1e-5, (name, text, worst)


def main():
    for name in ("tanh", "adds"):
        folder(name)
    with open("keys", "w", encoding="utf-8") as f:
        f.write("k\n")
    shutil.copytree("tanh", "other")
    shutil.copytree(f"{GOLDEN}/dense_adds/2_Dense", "other/2_Dense", dirs_exist_ok=True)
    server = subprocess.Popen([PROGRAM, "--served_model_name", "m", "--port", "0", "--threads", "1", "--dtype", "f32", "--api_key_file", "keys", "--model",
                               "tanh"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    atexit.register(server.kill)
    found = re.search(r":(\d+)\n", server.stdout.readline())
    assert found, server.stderr.read()
    port = int(found.group(1))
    check(port, "tanh")
    check(port, "tanh", dimensions=5)
    status, got = post(port, "/v1/embeddings", model="m", input="a", dimensions=17)
    assert status == 400, got
    for other in ("adds", "other"):
        status, got = post(port, "/v1/reload", model=os.path.abspath(other))
        assert status == 400 and "another width" in json.dumps(got), got
    check(port, "tanh")
    status, got = post(port, "/v1/reload", model=os.path.abspath("tanh"))
    assert status == 200, got
    check(port, "tanh")
    server.terminate()
    assert server.wait(timeout=60) == 0
    with open("tanh/2_Dense/config.json", "r+", encoding="utf-8") as f:
        text = f.read().replace("Tanh", "Mish")
        f.seek(0)
        f.write(text)
    refused = subprocess.run([PROGRAM, "--model", "tanh", "--port", "0"], capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode != 0 and "Mish" in refused.stderr, refused.stderr


main()
