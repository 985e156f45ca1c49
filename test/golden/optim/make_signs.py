# SPDX-License-Identifier: Apache-2.0
"""Goldens of the compressed all-reduce: DeepSpeed's own NcclBackend.compressed_allreduce, run on the
CPU with numpy in place of cupy and threads in place of torch.distributed.

    python make_signs.py DEEPSPEED_SOURCE OUT_FOLDER

DEEPSPEED_SOURCE: a checkout that has deepspeed/runtime/comm/nccl.py (0.19.6 here). Writes
signs.json and signs.safetensors: for each number of ranks W a momentum of every rank over STEPS
rounds of error feedback, and what each rank has after each round.
"""
import json
import math
import os
import sys
import threading
import types

import numpy
import torch
from safetensors.torch import save_file

STEPS = 3
CASES = [(1, 24), (1, 37), (2, 37), (2, 64), (4, 37), (4, 301)]


class World:
    """Collectives between threads, each of which is a rank."""

    def __init__(self, size):
        self.size = size
        self.barrier = threading.Barrier(size)
        self.slots = [None] * size

    def exchange(self, rank, what):
        self.barrier.wait()
        self.slots[rank] = what
        self.barrier.wait()
        seen = list(self.slots)
        self.barrier.wait()
        return seen


LOCAL = threading.local()


def all_to_all_single(out, given, group=None):
    seen = LOCAL.world.exchange(LOCAL.rank, given.clone())
    for r, x in enumerate(seen):
        out[r].copy_(x[LOCAL.rank])


def all_gather(out, given, group=None):
    seen = LOCAL.world.exchange(LOCAL.rank, given.clone())
    for r, x in enumerate(seen):
        out[r].copy_(x.reshape(out[r].shape))


class Compression:
    """What CupyBackend does, of numpy's arrays."""

    @staticmethod
    def torch2cupy(x):
        return x.numpy()

    @staticmethod
    def cupy2torch(x):
        return torch.from_numpy(x)

    @staticmethod
    def compress_by_chunk(bits, n):
        return [numpy.packbits(part) for part in numpy.split(bits, n)]


def load(source):
    class Device:
        def __init__(self, index):
            pass

        def use(self):
            pass

    cupy = types.SimpleNamespace(zeros=numpy.zeros,
                                 unpackbits=numpy.unpackbits,
                                 cuda=types.SimpleNamespace(Device=Device))
    dist = types.SimpleNamespace(all_to_all_single=all_to_all_single, all_gather=all_gather)
    with open(os.path.join(source, "deepspeed/runtime/comm/utils.py")) as f:
        space = {}
        exec(f.read(), space)
    with open(os.path.join(source, "deepspeed/runtime/comm/nccl.py")) as f:
        lines = [x for x in f.read().split("\n") if not x.startswith(("import ", "from "))]
    space.update(np=numpy, torch=torch, cupy=cupy, dist=dist,
                 get_accelerator=lambda: types.SimpleNamespace(device_name=lambda i: "cpu"))
    exec("\n".join(lines), space)
    return space["NcclBackend"]


def padded(n, size):
    unit = size * (size * 8 // math.gcd(size, 8))
    return n + (-n) % unit


def run(backend, size, n, tensors):
    generator = torch.Generator().manual_seed(1000 * size + n)
    name = f"{size}_{n}"
    whole = padded(n, size)
    momenta = torch.randn((STEPS, size, n), generator=generator) * 0.01
    momenta[0, :, 3] = 0.0  # zero counts as plus
    result = torch.zeros((STEPS, size, n))
    worker = torch.zeros((STEPS, size, whole))
    server = torch.zeros((STEPS, size, whole // size))
    world = World(size)

    def rank_main(rank):
        LOCAL.world, LOCAL.rank = world, rank
        me = backend.__new__(backend)
        me.size, me.rank, me.world_group = size, rank, None
        me.bool_not_supported, me.compression_backend = False, Compression
        worker_error, server_error = torch.zeros(whole), torch.zeros(whole // size)
        for step in range(STEPS):
            made = me.compressed_allreduce(momenta[step, rank].clone(), worker_error, server_error,
                                           0)
            result[step, rank] = made
            worker[step, rank] = worker_error
            server[step, rank] = server_error

    threads = [threading.Thread(target=rank_main, args=(r, )) for r in range(size)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    tensors[name + ".x"] = momenta
    tensors[name + ".result"] = result
    tensors[name + ".worker_error"] = worker
    tensors[name + ".server_error"] = server
    return {"name": name, "ranks": size, "n": n, "padded": whole}


def main():
    backend = load(sys.argv[1])
    tensors = {}
    cases = [run(backend, size, n, tensors) for size, n in CASES]
    save_file(tensors, os.path.join(sys.argv[2], "signs.safetensors"))
    with open(os.path.join(sys.argv[2], "signs.json"), "w") as f:
        json.dump({"steps": STEPS, "cases": cases}, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
