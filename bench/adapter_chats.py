#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Chats with a rule to learn, the same for every run: the user gives four words, the answer is the same words from last to
first, joined by " < ". Usage: adapter_chats.py FOLDER [N]. Writes train.jsonl, nine tenths of N (1,000) chats as messages, and
held_out.jsonl, the last tenth, whose word lists are in no chat of train.jsonl."""
import json
import os
import random
import sys

WORDS = """apple river stone cloud bread chair green house light music night ocean paper queen robot smile table uncle voice water
yellow zebra brush candle dance eagle flower garden honey island jacket king lemon mountain needle orange pencil rabbit silver train
winter bridge castle desert engine forest guitar hammer insect kitchen""".split()


def chats(n):
    rng = random.Random(20)
    seen = set()
    while len(seen) < n:
        words = tuple(rng.sample(WORDS, 4))
        if words not in seen:
            seen.add(words)
            yield {"messages": [{"role": "user", "content": " ".join(words)},
                                {"role": "assistant", "content": " < ".join(reversed(words))}]}


def main():
    folder, n = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    rows = [json.dumps(chat) + "\n" for chat in chats(n)]
    for name, part in (("train", rows[:n - n // 10]), ("held_out", rows[n - n // 10:])):
        with open(os.path.join(folder, name + ".jsonl"), "w", encoding="utf-8") as f:
            f.writelines(part)


main()
