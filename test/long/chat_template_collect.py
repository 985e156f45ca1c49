# SPDX-License-Identifier: Apache-2.0
"""Collects the chat templates of source trees into a folder for chat_templates.py, and a table of where each came from.

Usage: chat_template_collect.py OUT TABLE NAME=TREE...
A template is a file *.jinja or a string in a Python file that goes over `messages` and that transformers' Jinja parses. Each text is
kept once, under the first 16 digits of its SHA-256; TABLE has digits, NAME and path for all of them, sorted. The texts are others':
OUT stays out of the repository, TABLE shows which ones were compared.
"""
import ast
import hashlib
import pathlib
import sys
import warnings

from transformers.utils import chat_template_utils as chat


def folded(node):
    """The string of a constant or of a sum of constants, else None."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = folded(node.left), folded(node.right)
        return None if left is None or right is None else left + right
    return None


def strings(node):
    text = folded(node)
    if text is not None:
        yield text
        return
    for child in ast.iter_child_nodes(node):
        if not isinstance(node, ast.JoinedStr):
            yield from strings(child)


def texts_of(path):
    text = path.read_bytes().decode("utf-8", "replace")
    if path.suffix == ".jinja":
        return [text]
    if "{%" not in text or "messages" not in text:
        return []
    try:
        return list(strings(ast.parse(text)))
    except (SyntaxError, RecursionError):
        return []


def is_template(text):
    if "\ufffd" in text or "{%" not in text or "messages" not in text or "for" not in text:
        return False
    try:
        chat._compile_jinja_template.__wrapped__(text)
        return True
    except Exception:
        return False


def main():
    warnings.simplefilter("ignore")
    out, table = pathlib.Path(sys.argv[1]), {}
    out.mkdir(parents=True, exist_ok=True)
    for name, tree in (source.split("=", 1) for source in sys.argv[3:]):
        for path in sorted(p for p in pathlib.Path(tree).rglob("*") if p.suffix in (".jinja", ".py") and p.is_file()):
            for text in texts_of(path):
                key = hashlib.sha256(text.encode()).hexdigest()[:16]
                if key not in table and is_template(text):
                    table[key] = (name, str(path.relative_to(tree)))
                    (out / f"{key}.jinja").write_bytes(text.encode())
    lines = sorted("\t".join((*origin, key)) for key, origin in table.items())
    pathlib.Path(sys.argv[2]).write_text("\n".join(["source\tpath\tsha256 (16 digits)", *lines]) + "\n")
    print(f"{len(table)} templates")


main()
