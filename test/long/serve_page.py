# SPDX-License-Identifier: Apache-2.0
"""The chat page of ds_serve in a real browser, by its debugging protocol over two pipes. Usage: serve_page.py PROGRAM MODEL BROWSER"""
import atexit
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM, MODEL, BROWSER = sys.argv[1:4]
checks = 0


def expect(holds, *what):
    global checks
    checks += 1
    if not holds:
        raise SystemExit(f"FAILED at line {sys._getframe(1).f_lineno}: {what}")


class Server:
    def __init__(self, *flags, model=True):
        own = ("--model", MODEL, "--served_model_name", "m", "--chat_template", "chatml", "--max_length", "2048", "--kv_tokens", "8192") if model else ()
        self.process = subprocess.Popen([PROGRAM, "--port", "0", *own, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        line = self.process.stdout.readline()
        expect(re.search(r":(\d+)\n", line), line)
        self.port = int(re.search(r":(\d+)\n", line).group(1))

    def ask(self, method, path, body=None, key=""):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request(method, path, None if body is None else json.dumps(body), {"Authorization": f"Bearer {key}"})
        return c.getresponse().read().decode()

    def chat(self, messages, **more):
        got = json.loads(self.ask("POST", "/v1/chat/completions", dict(model="m", messages=messages, temperature=0, **more)))
        return got["choices"][0]["message"]["content"]

    def running(self):
        return float(re.search(r"^vllm:num_requests_running (\S+)$", self.ask("GET", "/metrics"), re.M).group(1))

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        expect(self.process.wait(30) == 0)


class Page:
    def __init__(self):
        to_browser, self.out = os.pipe()
        self.inp, from_browser = os.pipe()
        home = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, home, True)

        def pipes():  # the protocol is spoken on descriptors 3 and 4
            a, b = os.dup(to_browser), os.dup(from_browser)
            a, b = (os.dup2(a, 20), os.dup2(b, 21))
            os.dup2(a, 3)
            os.dup2(b, 4)
        self.process = subprocess.Popen([BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={home}",
                                         "--no-first-run", "--remote-debugging-pipe", "about:blank"], preexec_fn=pipes, close_fds=False,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        atexit.register(self.process.kill)
        self.rest, self.n, self.events, self.session = b"", 0, [], None
        target = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"][0]["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def read(self):
        while b"\0" not in self.rest:
            part = os.read(self.inp, 1 << 16)
            expect(part, "the browser ended")
            self.rest += part
        one, self.rest = self.rest.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, **params):
        self.n += 1
        message = dict(id=self.n, method=method, params=params)
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            got = self.read()
            if got.get("id") == self.n:
                expect("error" not in got, method, got)
                return got["result"]
            self.events.append(got)

    def js(self, text):
        got = self.call("Runtime.evaluate", expression=text, returnByValue=True, awaitPromise=True)
        expect("exceptionDetails" not in got, text, got)
        return got["result"].get("value")

    def until(self, text, seconds=30):
        end = time.time() + seconds
        while time.time() < end:
            if self.js(text):
                return
            time.sleep(0.02)
        expect(False, text, self.js("document.body.innerText"))

    def open(self, port):
        self.call("Page.navigate", url=f"http://127.0.0.1:{port}/")
        self.until("document.readyState === 'complete' && !!document.getElementById('form')")

    def set(self, **values):
        for key, value in values.items():
            self.js(f"document.getElementById('{key}').value = {json.dumps(value)}")

    def send(self, text):
        """As a person: the text is typed, Enter sends it."""
        self.js("document.getElementById('text').focus()")
        self.call("Input.insertText", text=text)
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, **({"text": "\r"} if kind == "keyDown" else {}))

    def wait(self):
        self.until("running === null && !document.getElementById('send').hidden")

    def last(self):
        return self.js("(e => e && e.firstChild ? e.firstChild.textContent : null)([...document.querySelectorAll('.assistant')].pop())")

    def note(self):
        return self.js("(e => e ? e.textContent : null)([...document.querySelectorAll('.assistant small')].pop())")


def talk(p, s):
    p.open(s.port)
    p.until("document.getElementById('model').value === 'm'")
    p.set(temperature="0", max_tokens="300")
    p.js("window.seen = new Set(); new MutationObserver(() => window.seen.add((document.querySelector('.assistant') || {textContent: ''}).textContent.length))"
         ".observe(document.getElementById('talk'), {subtree: true, childList: true, characterData: true})")
    p.send("the quick")
    p.until("document.querySelectorAll('.assistant small').length === 1")
    p.wait()
    first = s.chat([dict(role="user", content="the quick")], max_tokens=300)
    expect(p.last() == first, p.last(), first)
    expect(re.fullmatch(r"300 tokens, [0-9.]+ tokens/s, cut by the length", p.note()), p.note())
    expect(p.js("window.seen.size") > 6, "the text came at once", p.js("[...window.seen]"))
    p.set(max_tokens="40")
    p.send("brown fox")  # a second turn has the first
    p.until("document.querySelectorAll('.assistant small').length === 2")
    p.wait()
    turns = [dict(role="user", content="the quick"), dict(role="assistant", content=first), dict(role="user", content="brown fox")]
    expect(p.last() == s.chat(turns, max_tokens=40), p.last())
    p.js("document.getElementById('clear').click()")
    expect(p.js("document.getElementById('talk').childElementCount") == 0)
    p.set(system="jumps over the lazy dog")
    p.send("the <img src=x onerror='document.title=1'> &amp;")  # is shown as it is
    p.until("document.querySelectorAll('.assistant small').length === 1")
    p.wait()
    said = "the <img src=x onerror='document.title=1'> &amp;"
    expect(p.js("document.querySelector('.user').textContent") == said and p.js("document.images.length") == 0)
    expect(p.last() == s.chat([dict(role="system", content="jumps over the lazy dog"), dict(role="user", content=said)], max_tokens=40))


def stops(p, s):
    p.js("document.getElementById('clear').click()")
    p.set(system="", max_tokens="1900", temperature="0", seed="3")
    p.send("the quick")
    p.until("(e => e && e.textContent.length > 3)([...document.querySelectorAll('.assistant')].pop())")
    p.js("document.getElementById('stop').click()")
    p.wait()
    expect(p.note().endswith(", stopped") and 3 < len(p.last()) < 1900, p.note())
    for _ in range(200):
        if s.running() == 0:
            break
        time.sleep(0.05)
    expect(s.running() == 0, "the server goes on")


def errors(p):
    p.js("document.getElementById('clear').click()")
    p.set(max_tokens="100000")
    p.send("too much")
    p.until("document.querySelectorAll('.error').length === 1")
    p.wait()
    expect("max_tokens" in p.js("document.querySelector('.error').textContent") or "2048" in p.js("document.querySelector('.error').textContent"),
           p.js("document.querySelector('.error').textContent"))
    expect(p.js("document.getElementById('text').value") == "too much" and p.js("messages.length") == 0)
    p.set(text="", max_tokens="5")
    p.send("less")
    p.until("document.querySelectorAll('.assistant small').length === 1")
    p.wait()


def keys(p):
    with open("keys", "w", encoding="utf8") as out:
        out.write("secret\n")
    s = Server("--api_key_file", "keys")
    p.open(s.port)
    p.until("document.querySelector('details').open")
    p.js("document.getElementById('key').value = 'secret'; document.getElementById('key').dispatchEvent(new Event('change'))")
    p.until("document.getElementById('model').value === 'm'")
    p.set(max_tokens="3")
    p.send("a")
    p.until("document.querySelectorAll('.assistant small').length === 1")
    p.wait()
    s.end()
    p.send("nobody is there")
    p.until("document.querySelectorAll('.error').length === 1")
    p.wait()


def main():
    p = Page()
    s = Server()
    talk(p, s)
    stops(p, s)
    errors(p)
    front = Server("--upstream", f"http://127.0.0.1:{s.port}", model=False)
    talk(p, front)
    front.end()
    s.end()
    asked = [e["params"]["request"]["url"] for e in p.events if e["method"] == "Network.requestWillBeSent"]
    expect(all(re.match(r"http://127\.0\.0\.1:|about:|data:,$", u) for u in asked), set(asked))
    wrong = [e for e in p.events if e["method"] == "Runtime.exceptionThrown" or
             (e["method"] == "Log.entryAdded" and e["params"]["entry"]["level"] == "error" and "400" not in e["params"]["entry"]["text"])]
    expect(not wrong, wrong)
    keys(p)
    print(f"{checks} checks in {subprocess.run([BROWSER, '--version'], capture_output=True, text=True, check=True).stdout.strip()}")


main()
