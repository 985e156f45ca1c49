# SPDX-License-Identifier: Apache-2.0
"""Writes estimate.txt: DeepSpeed's tables of model states, for test_ds_plan.sh.

usage: make_estimate.py > estimate.txt     (needs deepspeed)

Newer Pythons print the name of an enum's member where DeepSpeed means its value: that is undone.
"""
import contextlib
import io

from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs_all_cold as zero3
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs_all_cold as zero2

CASES = [(3_000_000_000, 100_000_000, 8, 1, 1.5), (7_000_000_000, 131_072_000, 4, 2, 1.5),
         (124_439_808, 38_597_376, 1, 1, 1.5), (70_000_000_123, 262_144_000, 8, 16, 1.1)]
out = io.StringIO()
with contextlib.redirect_stdout(out):
    for total, largest, gpus, nodes, factor in CASES:
        print(f"case {total} {largest} {gpus} {nodes} {factor}")
        zero2(total, num_gpus_per_node=gpus, num_nodes=nodes, additional_buffer_factor=factor)
        zero3(total, largest, num_gpus_per_node=gpus, num_nodes=nodes,
              additional_buffer_factor=factor)
print(out.getvalue().replace("OffloadDeviceEnum.cpu", "cpu "), end="")
