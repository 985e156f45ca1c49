#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks a page of ds_train or ds_report: run_report.py PAGE [HISTORY] [WORD…]

The page is well-formed and alone (no reference to anything else, no markup of foreign names), and
its figures are those of the history's lines. Each WORD is in its text, "-WORD" is not.
"""
import html.parser
import json
import pathlib
import re
import sys

VOID = {"meta", "br", "hr", "img", "input", "link"}
ALLOWED = {"html", "head", "meta", "title", "style", "body", "main", "header", "h1", "h2", "h3", "p", "span", "section",
           "div", "b", "i", "small", "svg", "path", "rect", "line", "text", "polygon", "script", "table", "tr", "th", "td",
           "pre", "code", "details", "summary", "g"}
CURVES = {"loss": "loss", "learning rate": "lr", "gradient norm": "grad_norm", "speed": "tokens_per_s"}


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.text, self.figures, self.scripts, self.reload = [], [], [], 0, None
        self.title = None
        self.charts = {}

    def handle_starttag(self, tag, attrs):
        assert tag in ALLOWED, f"element {tag}"
        attrs = dict(attrs)
        for name, value in attrs.items():
            assert not name.startswith("on") and name not in ("src", "href", "xlink:href"), (tag, name)
            assert "url(" not in (value or "") and "http:" not in (value or "") and "https:" not in (value or ""), value
        assert "style" not in attrs or "\"" not in attrs["style"]
        assert attrs.get("http-equiv") != "refresh"  # it would not end when the run is killed
        if tag == "script":
            self.scripts += attrs.get("type") != "application/json"
        if tag == "path":
            assert set(attrs.get("d", "")) <= set("MLHVhvZ0123456789.- e+"), attrs["d"][:80]
            assert "nan" not in attrs.get("d", "") and "inf" not in attrs.get("d", "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> in {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.reload = self.reload or re.search(r"written = (\d+), silence = (\d+);.*location\.reload\(\); }, 5000\)", data, re.S)
            if data.lstrip().startswith("[{"):
                self.charts[self.title] = json.loads(data)
        elif self.open and self.open[-1] == "h3":
            self.title = data.strip() or self.title
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)


def lines_of(path):
    steps, evals = {}, {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if "loss" in row:
            assert row["step"] not in steps, f"step {row['step']} twice"
            steps[row["step"]] = row
        elif "eval_loss" in row:
            evals[row["step"]] = row["eval_loss"]
    assert list(steps) == sorted(steps) == list(range(1, len(steps) + 1)), list(steps)
    return steps, evals


def same(curve, values):
    assert curve["x"] == list(values), (curve["x"], list(values))
    for ours, theirs in zip(curve["y"], values.values()):
        assert ours == theirs or abs(ours - theirs) <= 1e-8 * abs(theirs), (ours, theirs)


def main():
    page = Page()
    path = pathlib.Path(sys.argv[1])
    page.feed(path.read_text())
    page.close()
    assert not page.open, page.open
    rest = sys.argv[2:]
    assert page.scripts == (0 if "-script" in rest else 2 if "refresh" in rest else 1)
    if rest and pathlib.Path(rest[0]).is_file():
        steps, evals = lines_of(pathlib.Path(rest.pop(0)))
        norms = {k: None if (v["grad_norm"] or 0) < 0 else v["grad_norm"] for k, v in steps.items()}
        same(page.charts["Loss"][0], {k: v["loss"] for k, v in steps.items()})
        same(page.charts["Learning rate"][0], {k: v["lr"] for k, v in steps.items()})
        same(page.charts["Speed"][0], {k: v["tokens_per_s"] for k, v in steps.items()})
        assert ("Gradient norm" in page.charts) == any(v is not None for v in norms.values())
        if "Gradient norm" in page.charts:
            same(page.charts["Gradient norm"][0], norms)
        if evals:
            same(page.charts["Loss"][1], evals)
    text = " ".join(" ".join(page.text).split())
    for word in rest:
        if word == "refresh":
            written, silence = map(int, page.reload.groups())
            assert silence == 600 and 0 <= path.stat().st_mtime - written <= 60, (written, silence)
        elif word == "-refresh":
            assert page.reload is None
        elif word.startswith("-"):
            assert word[1:] not in text, word
        else:
            assert word in text, (word, text[:400])


main()
