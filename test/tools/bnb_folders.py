# SPDX-License-Identifier: Apache-2.0
"""ds_serve of folders of bitsandbytes: transformers' greedy tokens (test/golden/bnb/make.py), alone and beside others; an adapter by the request
(lora.NAME of the working folder) has the tokens that it has beside the same model dequantized. Usage: bnb_folders.py PROGRAM GOLDEN"""
import atexit
import http.client
import json
import re
import signal
import subprocess
import sys
import threading

PROGRAM, GOLDEN = sys.argv[1:3]


class Server:
    def __init__(self, model, *flags):
        self.process = subprocess.Popen([PROGRAM, "--model", model, "--tokenizer", "letters", "--served_model_name", "m", "--port", "0", "--dtype", "f32",
                                         "--threads", "1", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        self.port = int(re.search(r":(\d+)\n", line).group(1))

    def ids(self, prompt, model="m", n=12):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request("POST", "/v1/completions", json.dumps(dict(model=model, prompt=prompt, max_tokens=n, temperature=0, ignore_eos=True)))
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        assert r.status == 200, text
        return [ord(letter) - 65 for letter in json.loads(text)["choices"][0]["text"]]

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.process.stderr.read()


def main():
    for name in ("nf4", "nf4_nested", "fp4", "int8"):
        with open(f"{GOLDEN}/{name}/greedy.json", encoding="utf-8") as f:
            golden = json.load(f)
        lora = ("--lora", f"a=lora.{name}", "--max_lora_rank", "2")
        server = Server(f"{GOLDEN}/{name}", *lora)
        assert server.ids(golden["prompt"]) == golden["greedy"], name
        prompts = [golden["prompt"], *([i, 3 * i, 47 - i] for i in range(5)), golden["prompt"]]
        alone = [server.ids(p) for p in prompts]
        adapted = [server.ids(p, "a") for p in prompts]
        assert adapted != alone
        crowd = [None] * 2 * len(prompts)

        def ask(i):
            crowd[i] = server.ids(prompts[i // 2], "ma"[i % 2])
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(crowd))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert crowd[::2] == alone and crowd[1::2] == adapted, (name, crowd, alone, adapted)
        server.end()
        plain = Server(f"{GOLDEN}/{name}/plain", *lora)
        assert [plain.ids(p) for p in prompts] == alone and [plain.ids(p, "a") for p in prompts] == adapted, name
        plain.end()


main()
