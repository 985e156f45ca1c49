# SPDX-License-Identifier: Apache-2.0
"""Reads the library's public headers and writes deepspeed_native/_abi.py: structs, enums, functions.

So no layout and no signature is written twice: what Python knows of the library is what the headers
say that the package was built from. It understands what the headers use and stops with an error at
anything else. test/python/test_layouts.py compares the result with the C compiler's.
"""
from __future__ import annotations

import pathlib
import re

HEADER = '''"""The C interface of libdeepspeed {version}, made of its headers by headers.py. Not edited by hand."""
# ruff: noqa
from ctypes import (Structure, c_bool, c_char, c_char_p, c_double, c_float, c_int, c_int8, c_int16, c_int32, c_int64, c_size_t,
                    c_uint8, c_uint16, c_uint32, c_uint64, c_void_p)

VERSION = {number}
VERSION_TEXT = "{version}"


class Checked(Structure):
    """A struct whose whole numbers are held to the range of their field: ctypes alone would keep their low bits."""

    def __setattr__(self, name, value):
        if isinstance(value, int) and not isinstance(value, bool):
            check_whole(dict(self._fields_).get(name), name, value)
        super().__setattr__(name, value)


def check_whole(kind, name, value):
    low, high = RANGES.get(kind, (value, value))
    if not low <= value <= high:
        raise OverflowError(f"{{name}} is {{value}}, expected a whole number from {{low}} to {{high}}")


RANGES = {{kind: (0, 256 ** bytes_ - 1) if unsigned else (-(256 ** bytes_) // 2, 256 ** bytes_ // 2 - 1)
          for kind, bytes_, unsigned in [(c_int8, 1, 0), (c_int16, 2, 0), (c_int32, 4, 0), (c_int64, 8, 0), (c_uint8, 1, 1),
                                         (c_uint16, 2, 1), (c_uint32, 4, 1), (c_uint64, 8, 1), (c_size_t, 8, 1)]}}
'''
SCALARS = {
    "bool": "c_bool", "char": "c_char", "int": "c_int", "float": "c_float", "double": "c_double",
    "size_t": "c_size_t", "void": "None",
    **{f"{sign}int{n}_t": f"c_{sign}int{n}" for sign in ("", "u") for n in (8, 16, 32, 64)},
}


class Headers:
    """Everything of one folder of headers."""

    def __init__(self, folder: pathlib.Path) -> None:
        text = "\n".join(self._without_comments(p.read_text()) for p in self._ordered(folder))
        self.defines = {k: v.strip() for k, v in re.findall(r"^#define (\w+)[ \t]+([^\n(][^\n]*)$", text, re.M)}
        self.lists = self._x_lists(text)
        self.aliases: dict[str, str] = {}
        self.enums: dict[str, dict[str, int]] = {}
        self.constants: dict[str, int] = {}
        self.structs: dict[str, list[tuple[str, str]]] = {}
        self.functions: dict[str, tuple[str, list[str]]] = {}
        self._read_enums(text)
        plain = re.sub(r"^#.*?(?<!\\)$", "", text, flags=re.M | re.S)
        self._read_aliases(plain)
        self._read_structs(plain)
        self._read_functions(plain)

    @staticmethod
    def _without_comments(text: str) -> str:
        return re.sub(r"/\*.*?\*/", "", text, flags=re.S)

    @staticmethod
    def _ordered(folder: pathlib.Path) -> list[pathlib.Path]:
        """Each header behind those that it includes."""
        done: list[pathlib.Path] = []

        def visit(path: pathlib.Path) -> None:
            if path not in done:
                for name in re.findall(r"#include <deepspeed/(\w+\.h)>", path.read_text()):
                    visit(folder / name)
                done.append(path)

        for path in sorted(folder.glob("*.h")):
            visit(path)
        return done

    @staticmethod
    def _x_lists(text: str) -> dict[str, list[list[str]]]:
        """#define NAME_LIST(X) X(A, …) X(B, …): the arguments of each row."""
        lists = {}
        for name, body in re.findall(r"^#define (\w+_LIST)\(X\)((?:[^\n]*\\\n)*[^\n]*)", text, re.M):
            rows = re.findall(r"X\(((?:[^()\"]|\"[^\"]*\")*)\)", body)
            lists[name] = [[a.strip() for a in re.findall(r'(?:"[^"]*"|[^,])+', row)] for row in rows]
        return lists

    def number(self, word: str) -> int:
        """A constant expression: numbers, known names, sums and shifts."""
        names = sorted(re.findall(r"[A-Za-z_]\w*", re.sub(r"\b0x[0-9a-fA-F]+|\d+[uUlL]*", " ", word)))
        value = re.sub(r"\b(0x[0-9a-fA-F]+|\d+)[uUlL]*\b", r"\1", word)
        for name in names:
            known = self.constants.get(name)
            known = self.number(self.defines[name]) if known is None and name in self.defines else known
            if known is None:
                raise ValueError(f"headers.py: what is {name} in {word!r}?")
            value = re.sub(rf"\b{name}\b", str(known), value)
        if not re.fullmatch(r"[0-9a-fxA-F+\-*<>()| ]+", value):
            raise ValueError(f"headers.py: cannot read the constant {word!r}")
        return int(eval(value))  # numbers and operators only, see above

    def _rows(self, body: str) -> list[str]:
        """The enumerators of a body, with its X macro applied to the list that it names."""
        macro = re.search(r"#define X\(([^)]*)\)\s*([^\n]*)\n\s*(\w+_LIST)\(X\)\s*#undef X", body)
        if macro is None:
            return [row.strip() for row in body.split(",") if row.strip()]
        parameters = [p.strip() for p in macro[1].split(",")]
        rows = []
        for arguments in self.lists[macro[3]]:
            row = macro[2].strip().rstrip(",")
            for parameter, argument in zip(parameters, arguments):
                row = re.sub(rf"##{parameter}\b", argument, row)
                row = re.sub(rf"\b{parameter}\b", argument, row)
            rows.append(row)
        before, after = body[: macro.start()], body[macro.end():]
        return [r.strip() for r in before.split(",") if r.strip()] + rows + \
               [r.strip() for r in after.split(",") if r.strip()]

    def _read_enums(self, text: str) -> None:
        for body, name in re.findall(r"^(?:typedef )?enum(?: \w+)? \{(.*?)\}\s*(\w*);", text, re.M | re.S):
            values: dict[str, int] = {}
            following = 0
            for row in self._rows(body):
                key, _, value = row.partition("=")
                following = self.number(value.strip()) if value else following
                values[key.strip()] = self.constants[key.strip()] = following
                following += 1
            if name:
                self.enums[name] = values

    def _read_aliases(self, text: str) -> None:
        for of, name in re.findall(r"^typedef (\w+) (\w+);", text, re.M):
            self.aliases[name] = of

    def ctype(self, words: str) -> str:
        """The ctypes name of a type without declarator."""
        words = re.sub(r"\b(?:const|struct)\b", " ", words).split()
        if words[-1] == "*" or "*" in "".join(words):
            return "c_char_p" if words == ["char", "*"] else "c_void_p"
        name = self.aliases.get(words[0], words[0])
        if name in SCALARS:
            return SCALARS[name]
        if name in self.enums:
            return "c_int"
        if name in self.structs:
            return name
        return "c_void_p" if name.endswith("_fn") else f"<{name}>"

    def _field(self, line: str) -> list[tuple[str, str]]:
        """One line of a struct: a type and one or more names."""
        room = re.fullmatch(r"DS_RESERVED\((\d+)\)", line)
        if room:
            return [("reserved", f"c_uint64 * {room[1]}")]
        if "(*" in line:
            return [(re.search(r"\(\*(\w+)\)", line)[1], "c_void_p")]
        base, rest = re.fullmatch(r"((?:const |struct )*\w+(?: const)?)\s*(.*)", line, re.S).groups()
        fields = []
        for declarator in rest.split(","):
            stars, name, dims = re.fullmatch(r"\s*((?:\*\s*(?:const)?\s*)*)(\w+)((?:\[[^\]]+\])*)\s*", declarator).groups()
            kind = self.ctype(base + " *" * stars.count("*"))
            for length in reversed(re.findall(r"\[([^\]]+)\]", dims)):
                kind = f"({kind} * {self.number(length)})"
            fields.append((name, kind.removeprefix("(").removesuffix(")") if dims.count("[") == 1 else kind))
        return fields

    def _read_structs(self, text: str) -> None:
        for name, body in re.findall(r"^(?:typedef )?struct (\w+) \{\n(.*?)^\}", text, re.M | re.S):
            fields: list[tuple[str, str]] = []
            for line in body.split(";"):
                if line.strip():
                    fields += self._field(" ".join(line.split()))
            unknown = [kind for _, kind in fields if "<" in kind]
            if unknown:
                raise ValueError(f"headers.py: {name} has fields of unknown types {unknown}")
            self.structs[name] = fields

    def _read_functions(self, text: str) -> None:
        for words, name, parameters in re.findall(r"^DS_API ([^;(]*?)(\w+)\(([^;]*?)\)\s*(?:DS_PRINTF\([^)]*\))?;", text, re.M | re.S):
            if "..." in parameters:
                continue
            kinds = []
            for parameter in [] if parameters.strip() == "void" else self._split(parameters):
                words_of = parameter if "(*" in parameter else re.sub(r"\w+(\[\w*\])?$", lambda m: " *" if m[1] else "", parameter)
                kinds.append("c_void_p" if "(*" in parameter else self.ctype(words_of))
            result = "None" if words.strip() == "void" else self.ctype(words)
            bad = [k for k in [result, *kinds] if "<" in k]
            if bad:
                raise ValueError(f"headers.py: {name} has the unknown types {bad}")
            self.functions[name] = (result, kinds)

    @staticmethod
    def _split(parameters: str) -> list[str]:
        depth = 0
        parts = [""]
        for letter in " ".join(parameters.split()):
            depth += (letter == "(") - (letter == ")")
            if letter == "," and depth == 0:
                parts.append("")
            else:
                parts[-1] += letter
        return [part.strip() for part in parts]

    def version(self) -> tuple[str, int]:
        major, minor, patch = (int(self.defines[f"DS_VERSION_{p}"]) for p in ("MAJOR", "MINOR", "PATCH"))
        return f"{major}.{minor}.{patch}", major * 10000 + minor * 100 + patch

    def module(self) -> str:
        """The text of _abi.py."""
        version, number = self.version()
        out = [HEADER.format(version=version, number=number)]
        out += [f"{name} = {value}" for name, value in self.constants.items()]
        for name, fields in self.structs.items():
            out.append(f"\n\nclass {name}(Checked):\n    _fields_ = [")
            out += [f'        ("{field}", {kind}),' for field, kind in fields]
            out.append("    ]")
        out.append("\n\nSTRUCTS = {" + ", ".join(f'"{n}": {n}' for n in self.structs) + "}")
        out.append(f"ENUMS = {self.enums!r}")
        out.append("FUNCTIONS = {")
        out += [f'    "{n}": ({r}, [{", ".join(k)}]),' for n, (r, k) in self.functions.items()]
        return "\n".join(out) + "\n}\n"


if __name__ == "__main__":
    here = pathlib.Path(__file__).resolve().parent
    print(Headers(here.parent / "include/deepspeed").module(), end="")
