#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipe.tar.gz as of an optimizer with two groups of parameters, first vectors, which do not decay, then matrices.

    make_pipe_groups.py OUT      needs torch

Unpacks it there as OUT/pipe_groups, and cuts the one group of each stage in two; on one rank a partition is a whole group.
"""
import collections
import glob
import os
import shutil
import sys
import tarfile

import torch


def split(folder, stage):
    model_path = f"{folder}/mp_rank_{stage:02}_model_states.pt"
    optim_path = f"{folder}/zero_pp_rank_0_mp_rank_{stage:02}_optim_states.pt"
    model = torch.load(model_path, weights_only=False)
    optim = torch.load(optim_path, weights_only=False)
    shapes, = model["param_shapes"]
    groups = [collections.OrderedDict((n, s) for n, s in shapes.items() if (len(s) < 2) == first) for first in (True, False)]
    state = optim["optimizer_state_dict"]
    base = state["base_optimizer_state"]

    def cut(flat):
        at, parts = 0, {}
        for name, shape in shapes.items():
            parts[name] = flat[at:at + shape.numel()]
            at += shape.numel()
        return [torch.cat([parts[name] for name in group]) for group in groups]

    state["single_partition_of_fp32_groups"] = cut(state["single_partition_of_fp32_groups"][0])
    moments = base["state"][0]
    halves = {key: cut(moments[key]) for key in ("exp_avg", "exp_avg_sq")}
    base["state"] = {g: {**moments, **{key: halves[key][g] for key in halves}} for g in (0, 1)}
    base["param_groups"] = [{**base["param_groups"][0], "weight_decay": decay, "params": [g]} for g, decay in ((0, 0.0), (1, 0.1))]
    for key in ("group_paddings", "partition_count"):
        if isinstance(state.get(key), list):
            state[key] = state[key] * 2
    state.pop("param_slice_mappings", None)
    state.pop("param_alignment_paddings", None)
    model["param_shapes"] = groups
    torch.save(model, model_path)
    torch.save(optim, optim_path)


def main(out):
    own = os.path.dirname(os.path.abspath(__file__))
    with tarfile.open(f"{own}/pipe.tar.gz") as tar:
        tar.extractall(out, filter="data")
    shutil.move(f"{out}/pipe", f"{out}/pipe_groups")
    folder, = glob.glob(f"{out}/pipe_groups/global_step*")
    for stage in (0, 1):
        split(folder, stage)
    with tarfile.open(f"{own}/pipe_groups.tar.gz", "w:gz") as tar:
        tar.add(f"{out}/pipe_groups", "pipe_groups")


if __name__ == "__main__":
    main(sys.argv[1])
