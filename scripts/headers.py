#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the public headers: deepspeed.h includes each, and each struct may grow, or never will.

A struct that may grow ends in DS_RESERVED (docs/adr/0014-structs-grow-into-room.md). The others are
named here with the reason why they need none.
"""
import pathlib
import re
import sys

FIXED = set("""ds_chat_message ds_chat_span ds_extent ds_maybe ds_named_tensor ds_batch ds_init ds_estimate
    ds_text_pair ds_shape ds_meta ds_packed ds_tensor ds_token_range ds_serve_bias ds_weight_types""".split())
# Made by the library and read through a pointer: a field at the end moves nothing.
BY_POINTER = set("""ds_place_case ds_config_item ds_safetensor ds_checkpoint_tensor ds_checkpoint_info
    ds_checkpoint_saver_info""".split())
# DS_OP_VERSION or DS_ACCEL_VERSION counts their changes.
VERSIONED = set("ds_accel ds_accel_memory ds_accel_kernels ds_accel_streams ds_accel_graphs ds_accel_library "
                "ds_accel_groups ds_accel_disks ds_accel_about ds_accel_part ds_accel_collective "
                "ds_attr ds_infer ds_grad ds_cost ds_kernel_sig ds_kernel_call ds_kernel ds_cuda_kernel "
                "ds_cuda_launch".split())
EXEMPT = FIXED | BY_POINTER | VERSIONED
STRUCT = re.compile(r"^(?:typedef )?struct (\w+) \{\n(.*?)^\}", re.M | re.S)


def main() -> int:
    folder = pathlib.Path(__file__).resolve().parent.parent / "include/deepspeed"
    everything = (folder / "deepspeed.h").read_text()
    bad = []
    seen = set()
    for path in sorted(folder.glob("*.h")):
        if path.name != "deepspeed.h" and f"#include <deepspeed/{path.name}>" not in everything:
            bad.append(f"deepspeed.h does not include {path.name}")
        for name, body in STRUCT.findall(path.read_text()):
            seen.add(name)
            has_room = re.search(r"\n    DS_RESERVED\(\d+\);\n\Z", "\n" + body) is not None
            if "DS_RESERVED" in body and not has_room:
                bad.append(f"{path.name}: {name}: DS_RESERVED is not its last line")
            if has_room == (name in EXEMPT):
                bad.append(f"{path.name}: {name}: " + ("has room, and is listed as having none"
                           if has_room else "has no DS_RESERVED at its end and is not listed here"))
    bad += [f"{name} is listed here, and no header has it" for name in sorted(EXEMPT - seen)]
    print("\n".join(bad) if bad else "headers hold")
    return 1 if bad else 0


sys.exit(main())
