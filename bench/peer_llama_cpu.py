#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ds_generate beside llama.cpp on GGUF files by the time of the processor, for a machine that is shared with other work. Usage:
    peer_llama_cpu.py BUILD LLAMA ROUNDS FILE.gguf...
One thread each, alternating. Prints tokens a second of user time, from 136 tokens less 8: what opening costs is in both. LLAMA is llama-bench
or a program that takes its -m, -t, -p and -n and generates n tokens once."""
import os
import sys

build, llama, rounds, *files = sys.argv[1:]
LOW, HIGH = 8, 136


def user(command):
    pid = os.fork()
    if pid == 0:
        null = os.open("/dev/null", os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        os.execv(command[0], command)
    _, status, usage = os.wait4(pid, 0)
    assert status == 0, (command, status)
    return usage.ru_utime


def ours(file, n):
    return user([f"{build}/ds_generate", "--model", file, "--quantize", "file", "--threads", "1", "--prompt", "Once upon a time there was",
                 "--max_length", "512", "--temperature", "1", "--max_new_tokens", str(n)])


def theirs(file, n):
    return user([llama, "-m", file, "-t", "1", "-p", "8", "-n", str(n)])


for r in range(int(rounds)):
    for file in files:
        a, b = ((HIGH - LOW) / (run(file, HIGH) - run(file, LOW)) for run in (ours, theirs))
        print(f"round {r} {file}: ds_generate {a:.1f}, llama.cpp {b:.1f} tokens a second of user time, ratio {a / b:.2f}", flush=True)
