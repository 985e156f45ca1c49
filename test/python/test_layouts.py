# SPDX-License-Identifier: Apache-2.0
"""The package's structs, enums and constants are those of the C compiler, and every public function is known."""
import ctypes
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from deepspeed_native import C, _abi

INCLUDE = pathlib.Path(os.environ["DS_SOURCE_DIR"]) / "include"


def assertions() -> str:
    lines = ["#include <deepspeed/deepspeed.h>", "#include <stddef.h>",
             "#define SAME(a, b) _Static_assert((long long)(a) == (long long)(b), #a)"]
    for name, struct in _abi.STRUCTS.items():
        tag = "struct " if name == "ds_op" else ""
        lines.append(f"SAME(sizeof({tag}{name}), {ctypes.sizeof(struct)});")
        for field, *_ in struct._fields_:
            place = getattr(struct, field)
            lines.append(f"SAME(offsetof({tag}{name}, {field}), {place.offset});")
            lines.append(f"SAME(sizeof((({tag}{name} *)0)->{field}), {place.size});")
    lines += [f"SAME({name}, {value});" for values in _abi.ENUMS.values() for name, value in values.items()]
    lines += [f"SAME({name}, {getattr(_abi, name)});" for name in dir(_abi) if name.startswith("DS_")]
    return "\n".join(lines)


class Layouts(unittest.TestCase):
    def compile(self, text: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "same.c"
            path.write_text(text)
            run = subprocess.run(["cc", "-std=c11", "-I", str(INCLUDE), "-fsyntax-only", str(path)], capture_output=True, text=True)
        return run.stderr

    def test_are_the_compilers(self):
        text = assertions()
        self.assertGreater(text.count("SAME("), 500)
        self.assertEqual(self.compile(text), "")

    def test_a_wrong_one_is_found(self):
        wrong = assertions().replace(f"SAME(sizeof(ds_engine_params), {ctypes.sizeof(_abi.ds_engine_params)});",
                                     "SAME(sizeof(ds_engine_params), 8);")
        self.assertIn("ds_engine_params", self.compile(wrong))

    def test_functions_are_all_there(self):
        text = "\n".join(re.sub(r"/\*.*?\*/", "", p.read_text(), flags=re.S) for p in (INCLUDE / "deepspeed").glob("*.h"))
        declared = set(re.findall(r"\b(ds_\w+)\((?=[^;]*;)", " ".join(re.findall(r"^DS_API ([^;]*;)", text, re.M | re.S))))
        variadic = {"ds_fail_at", "ds_log", "ds_nn_fail", "ds_nn_push"}
        self.assertEqual(declared - variadic, set(_abi.FUNCTIONS))
        self.assertEqual(C.ds_version(), _abi.VERSION)


if __name__ == "__main__":
    unittest.main()
