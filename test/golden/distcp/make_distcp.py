#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Folders of torch.distributed.checkpoint (torch 2.15, three processor ranks).

    make_distcp.py OUT      needs torch, safetensors

fsdp: {"model": …, "optim": {"state": …}} with tensors cut on either dim and whole ones; flat: names at the top. NAME.tar.gz holds the
folder NAME/step and NAME/want.safetensors: "param/NAME", "exp_avg/NAME", … whole.
"""
import os
import subprocess
import sys

RANKS = 3


def save(out):
    import safetensors.torch
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (RANKS, ))
    torch.manual_seed(0)
    whole = {"model.embed.weight": torch.randn(7, 4), "model.up.weight": torch.randn(4, 6).bfloat16(),
             "model.down.weight": torch.randn(2, 3, 5), "model.norm.weight": torch.randn(8), "model.count": torch.tensor(5)}
    dims = {"model.embed.weight": 0, "model.up.weight": 1, "model.down.weight": 2}
    cut = {n: distribute_tensor(t, mesh, [Shard(dims[n])]) if n in dims else t for n, t in whole.items()}
    first = {n: torch.randn(t.shape) for n, t in whole.items() if n != "model.count"}
    state = {n: {"step": torch.tensor(3.), "exp_avg": distribute_tensor(t, mesh, [Shard(0)]), "exp_avg_sq": t * t}
             for n, t in first.items()}
    dcp.save({"model": cut, "optim": {"state": state, "param_groups": [{"lr": 0.1, "params": list(whole)}]}, "step": 7},
             checkpoint_id=os.path.join(out, "fsdp", "step"))
    dcp.save(cut, checkpoint_id=os.path.join(out, "flat", "step"))
    if dist.get_rank() == 0:
        params = {"param/" + n: t for n, t in whole.items()}
        safetensors.torch.save_file(params, os.path.join(out, "flat", "want.safetensors"))
        safetensors.torch.save_file({**params, **{"exp_avg/" + n: t for n, t in first.items()},
                                     **{"exp_avg_sq/" + n: t * t for n, t in first.items()}}, os.path.join(out, "fsdp", "want.safetensors"))


def main():
    if len(sys.argv) == 3:
        return save(sys.argv[1])
    root = os.path.abspath(sys.argv[1])
    subprocess.run([sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={RANKS}", "--master_port=29633", __file__, root,
                    "rank"], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    for name in ("fsdp", "flat"):
        subprocess.run(["tar", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "-czf", name + ".tar.gz", name],
                       cwd=root, check=True)


if __name__ == "__main__":
    main()
