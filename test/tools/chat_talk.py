#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Conversations with ds_generate --chat: each answer is that of a fresh prompt of all messages before it; commands, a context that
is full, end-of-turn tokens, a terminal with Ctrl-C. chat_talk.py BUILD"""
import json
import os
import pathlib
import pty
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time

BUILD = pathlib.Path(sys.argv[1]).resolve()
MODEL = {"model_type": "llama", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
CHAT = [("hello", "good day"), ("how are you?", "fine, thanks"), ("bye", "see you")]


def run(*args, stdin="", ok=(0,)):
    done = subprocess.run([str(BUILD / args[0]), *map(str, args[1:])], input=stdin.encode(), capture_output=True)
    assert done.returncode in ok, f"{args}: {done.returncode}\n{done.stderr.decode()}"
    return done.stdout.decode(), done.stderr.decode(), done.returncode


def talk(lines, *flags, ok=(0,), model="made"):
    return run("ds_generate", "--model", model, "--chat", "--chat_template", "chatml", "--threads", 1, *flags,
               stdin="".join(line + "\n" for line in lines), ok=ok)


def make_models():
    """made: a tokenizer with end-of-turn tokens, trained until it knows CHAT; its end of turn is no eos token."""
    pathlib.Path("model.json").write_text(json.dumps(MODEL))
    pathlib.Path("seq.txt").write_text("\n".join(map(str, range(3000))))
    run("ds_train", "--model_config", "model.json", "--tokenizer", "bytes", "--data", "seq.txt", "--seq_length", 32, "--steps", 1,
        "--threads", 1, "--output", "bytes")
    tokenizer = json.loads(pathlib.Path("bytes/tokenizer.json").read_text())
    first = 1 + max([t["id"] for t in tokenizer.get("added_tokens", [])] + list(tokenizer["model"]["vocab"].values()))
    for i, text in enumerate(["<|im_start|>", "<|im_end|>"]):
        tokenizer.setdefault("added_tokens", []).append({"id": first + i, "content": text, "single_word": False, "lstrip": False,
                                                         "rstrip": False, "normalized": False, "special": True})
    pathlib.Path("words").mkdir()
    pathlib.Path("words/tokenizer.json").write_text(json.dumps(tokenizer))
    chat = [{"role": role, "content": text} for turn in CHAT for role, text in zip(("user", "assistant"), turn)]
    rows = [{"messages": chat[:k]} for k in (2, 4, 6)]
    pathlib.Path("chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("ds_train", "--model_config", "model.json", "--tokenizer", "words", "--data", "chats.jsonl", "--chat_template", "chatml",
        "--seq_length", 256, "--steps", 120, "--learning_rate", 5e-3, "--lr_scheduler_type", "constant", "--micro_batch", 1, "--threads", 1, "--output", "made")


def saved():
    return json.loads(pathlib.Path("talk.jsonl").read_text())["messages"]


def fresh(model, dtype, length, new, temperature):
    out, _, _ = run("chat_fresh", model, "chatml", dtype, length, new, temperature, stdin=pathlib.Path("talk.jsonl").read_text())
    return [json.loads(line) for line in out.splitlines()]


def known_answers():
    """The trained turns, which end at the template's token; the message is a row that ds_train reads."""
    out, err, _ = talk([q for q, _ in CHAT] + ["/save talk.jsonl"], "--stats")
    assert out.splitlines() == [a for _, a in CHAT], out
    assert [m["content"] for m in saved()] == [t for turn in CHAT for t in turn], saved()
    kept = [int(n) for n in re.findall(r"(\d+) of them kept", err)]
    assert kept[0] == 0 and kept[1] > 20 and kept[2] > kept[1] + 20, err
    out, _, _ = run("ds_generate", "--model", "made", "--chat", "--chat_template", "chatml", "--prompt", CHAT[0][0], "--threads", 1)
    assert out == CHAT[0][1] + "\n", out
    run("ds_data", "check", "talk.jsonl", "--tokenizer", "words", "--chat_template", "chatml")


def random_talks(rng):
    """Random models answer bytes that are no text: answers are encoded otherwise than they were drawn."""
    for k in range(16):
        pathlib.Path("talk.jsonl").unlink(missing_ok=True)
        dtype, temperature = rng.choice(["f32", "bf16", "f16"]), rng.choice([0, 0.7, 1.5])
        new, length = rng.choice([1, 7, 40]), rng.choice([160, 300, 512])
        system = ["--system", rng.choice(["be brief", "ä{{ x }}€" * 3])] if rng.random() < 0.5 else []
        lines = ["".join(rng.choices("ab \\é€{}\"'/<|im_end|>🙂", k=rng.randint(1, 12))) or "x" for _ in range(rng.randint(1, 9))]
        lines = ["x" + line for line in lines]
        _, err, _ = talk([*lines, "/save talk.jsonl"], "--dtype", dtype, "--temperature", temperature, "--max_new_tokens", new, "--max_length", length,
                         *system, model="bytes")
        messages = [m for m in saved() if m["role"] != "system"]
        assert [m["content"] for m in messages[::2]] == lines, (lines, messages)
        answers = [m["content"] for m in messages[1::2]]
        right = fresh("bytes", dtype, length, new, temperature)
        assert answers == right, f"talk {k}: {dtype}, {temperature}, {new}, {length}:\n{answers}\n{right}\n{err}"
        if sum(map(len, lines)) + len(lines) * new > length:
            assert "oldest" in err, err


def pipes():
    out, _, _ = talk(["", "hello", "", "/clear", "hello", "/system x", "/system", "//help", "/exit", "no"], "--max_new_tokens", 9)
    assert out.splitlines()[:3] == ["good day", "good day", "x"] and len(out.splitlines()) == 4, out
    _, err, code = talk(["hello", "/none", "bye"], ok=(1,))
    assert code == 1 and "/none is no command" in err
    _, err, _ = talk([], ok=(1,))
    assert "standard input has no message" in err
    _, err, _ = talk(["/save talk.jsonl"], ok=(1,))
    assert "is there already" in err
    out, err, _ = talk(["x" * 500], "--max_length", 100, ok=(1,))
    assert out == "" and "the context has 100 (--max_length)" in err, err
    _, err, _ = talk(["hello"], "--max_new_tokens", 3)
    assert "[cut after 3 tokens: --max_new_tokens]" in err
    _, err, _ = run("ds_generate", "--model", "made", "--prompt", "x", "--system", "y", ok=(2,))
    assert "--system and --chat_template need --chat" in err
    for form in (b"hello", b"hello\r\n"):  # a last line without line feed; line ends of another system
        done = subprocess.run([BUILD / "ds_generate", "--model", "made", "--chat", "--chat_template", "chatml"], input=form, capture_output=True)
        assert done.stdout == b"good day\n", done


class Terminal:
    def __init__(self, *flags, model="made", term="dumb", locale="C.UTF-8"):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ.update(TERM=term, LC_ALL=locale, HOME=os.getcwd())
            os.execv(BUILD / "ds_generate", ["ds_generate", "--model", model, "--chat", "--chat_template", "chatml", *map(str, flags)])
        self.seen = b""

    def until(self, text, seconds=60):
        """What was written up to the text."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < end, f"no {text!r} in {self.seen[-2000:]!r}"
            if select.select([self.fd], [], [], 1)[0]:
                try:
                    self.seen += os.read(self.fd, 65536)
                except OSError:
                    raise AssertionError(f"ended before {text!r}: {self.seen[-2000:]!r}")
        before, self.seen = self.seen.split(text, 1)
        return before

    def some(self, seconds=60):
        """Until an answer has begun, and a little longer."""
        end = time.monotonic() + seconds
        while not self.seen.strip():
            assert time.monotonic() < end, "no answer begins"
            if select.select([self.fd], [], [], 1)[0]:
                self.seen += os.read(self.fd, 65536)
        time.sleep(0.1)

    def send(self, text):
        os.write(self.fd, text)

    def end(self):
        while True:
            try:
                if not os.read(self.fd, 65536):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def terminals():
    t = Terminal()
    t.until(b"> ")
    for question, right in CHAT:
        t.send(question.encode() + b"\n")
        answer = t.until(b"> ").replace(b"\r", b"").split(b"\n")
        assert answer[1:] == [right.encode(), b""], answer
    t.send(b"/nope\n")
    assert b"/nope is no command" in t.until(b"> ")
    t.send(b"/help\n")
    assert b"/system TEXT" in t.until(b"Ctrl-C ends an answer.")
    t.until(b"> ")
    t.send(b"/clear\n")
    t.until(b"> ")
    t.send(b"hel\\\n")
    t.until("… ".encode())
    t.send(b"lo\n")
    t.until(b"> ")
    t.send(b"/save lines.jsonl\n")
    t.until(b"> ")
    t.send(b"\n")
    assert t.end() == 0
    assert json.loads(pathlib.Path("lines.jsonl").read_text())["messages"][0]["content"] == "hel\nlo"
    t = Terminal()
    t.until(b"> ")
    t.send(b"\x04")
    assert t.end() == 0
    t = Terminal()
    t.until(b"> ")
    t.send(b"\x03")
    assert t.end() == 130


UP, LEFT, HOME, ERASE, FORWARD = b"\x1b[A", b"\x1b[D", b"\x01", b"\x7f", b"\x04"


def flags_of(fd):
    """Whether the terminal keeps whole lines and echoes."""
    return [bool(termios.tcgetattr(fd)[3] & flag) for flag in (termios.ICANON, termios.ECHO, termios.ISIG)]


def until_edited(t):
    """A prompt is there, and the editor has the terminal: until then keys are the kernel's."""
    t.until(b"> ")
    deadline = time.monotonic() + 60
    while flags_of(t.fd)[0]:
        assert time.monotonic() < deadline, "lines are not edited"
        time.sleep(0.05)


def edited():
    """With libedit: lines are edited anywhere, earlier ones come back, UTF-8 stays itself; Ctrl-C and Ctrl-D as without."""
    t = Terminal("--max_new_tokens", 2, term="xterm")
    before = flags_of(t.fd)
    until_edited(t)
    typed = [b"ell\xe2\x82\xac" + LEFT + ERASE + b"l" + FORWARD + b"o" + HOME + b"h",  # hello, written from the middle
             "é€🙂x".encode() + ERASE, UP + UP, UP + UP + b"!", b"/save edited.jsonl"]
    for line in typed:
        t.send(line)
        time.sleep(0.2)
        t.send(b"\r")
        t.until(b"\n")
        until_edited(t)
    t.send(b"\x03")
    assert t.end() == 130
    said = [m["content"] for m in json.loads(pathlib.Path("edited.jsonl").read_text())["messages"][::2]]
    assert said == ["hello", "é€🙂", "hello", "é€🙂!"], said
    pathlib.Path("edited.jsonl").unlink()
    assert before == [True, True, True]
    t = Terminal(term="xterm")
    until_edited(t)
    t.send(b"hello\r")
    t.until(b"good day")
    until_edited(t)
    t.send(b"\x04")
    t.until(b"\n")
    assert flags_of(t.fd) == before, flags_of(t.fd)
    assert t.end() == 0


def plain_where_not():
    """No editor where the terminal or the locale cannot: bytes stay bytes."""
    for term, locale in ("dumb", "C.UTF-8"), ("", "C.UTF-8"), ("xterm", "C"):
        t = Terminal("--max_new_tokens", 1, term=term, locale=locale)
        t.until(b"> ")
        time.sleep(0.2)
        assert flags_of(t.fd)[0], (term, locale)
        t.send("é€".encode() + b"\n")
        t.until(b"> ")
        t.send(b"/save plain.jsonl\n")
        t.until(b"> ")
        t.send(b"\n")
        assert t.end() == 0
        assert json.loads(pathlib.Path("plain.jsonl").read_text())["messages"][0]["content"] == "é€"
        pathlib.Path("plain.jsonl").unlink()


def interrupts():
    """An answer that takes long is ended by Ctrl-C, and the conversation goes on."""
    slow = dict(MODEL, hidden_size=256, num_hidden_layers=4, max_position_embeddings=100000)
    pathlib.Path("slow.json").write_text(json.dumps(slow))
    run("ds_train", "--model_config", "slow.json", "--tokenizer", "bytes", "--data", "seq.txt", "--seq_length", 32, "--steps", 1, "--output", "slow")
    flags = ("--max_length", 50000, "--max_new_tokens", 49000, "--temperature", 1)
    t = Terminal(*flags, model="slow")
    t.until(b"> ")
    t.send(b"one\n")
    t.until(b"\n")
    t.some()
    t.send(b"\x03")
    t.until(b"\n> ")
    t.send(b"/save part.jsonl\n")
    t.until(b"> ")
    messages = json.loads(pathlib.Path("part.jsonl").read_text())["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant"] and messages[1]["content"], messages
    t.send(b"two\n")
    t.until(b"\n")
    t.some()
    t.send(b"\x03")
    t.until(b"\n> ")
    t.send(b"\x03")
    assert t.end() == 130


def main():
    root = tempfile.mkdtemp()
    os.chdir(root)
    try:
        make_models()
        known_answers()
        random_talks(random.Random(17))
        pipes()
        terminals()
        plain_where_not()
        if b"libedit" in subprocess.run(["ldd", BUILD / "ds_generate"], capture_output=True).stdout:
            edited()
        else:
            print("built without libedit: lines are not edited")
        interrupts()
    finally:
        os.chdir("/")
        shutil.rmtree(root)
    print("conversations are as fresh prompts of them")


main()
