#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes elastic.csv: DeepSpeed's own compute_elastic_config over a grid. Usage: make_elastic.py CHECKOUT

CHECKOUT is a folder with DeepSpeed's sources; the installed package need not hold deepspeed/elasticity.
A row: version,cap,micro batches,min,max,ranks a node,model parallel,prefer larger,world | batch,micro,
number of valid counts,their sum,their sum of squares; "error" when DeepSpeed raises.
"""
import importlib.util
import itertools
import logging
import pathlib
import random
import sys


def load(checkout):
    import deepspeed  # the parent package, for its logger and version
    folder = pathlib.Path(checkout) / "deepspeed" / "elasticity"
    spec = importlib.util.spec_from_file_location("deepspeed.elasticity", folder / "__init__.py",
                                                  submodule_search_locations=[str(folder)])
    module = importlib.util.module_from_spec(spec)
    sys.modules["deepspeed.elasticity"] = module
    spec.loader.exec_module(module)
    logging.disable(logging.CRITICAL)
    return module, deepspeed.__version__


def grid():
    micros = [[2, 4, 6], [8, 12, 16, 17], [1], [3], [6, 4, 2], [5, 7, 11, 13], [4, 4, 8], [32, 48, 64, 96], [1, 2, 3, 5, 8]]
    caps = [1, 7, 64, 100, 512, 999, 2000, 10000]
    ranges = [(1, 10000), (1, 8), (4, 64), (32, 1500), (100, 200)]
    nodes = [(1, 1), (2, 1), (8, 1), (8, 2), (4, 4), (8, 3)]
    for micro, cap, (low, high), larger in itertools.product(micros, caps, ranges, (True, False)):
        yield 0.1, cap, micro, low, high, 1, 1, larger, 0
        yield 0.1, cap, micro, low, high, 1, 1, larger, random.choice([1, 2, 3, 8, 24, 64])
        for n, mp in random.sample(nodes, 3):
            yield 0.2, cap, micro, low, high, n, mp, larger, random.choice([1, 2, 3, 4, 6, 7, 8, 16, 24, 60, 64, 128])


def main():
    module, version = load(sys.argv[1])
    random.seed(7)
    out = pathlib.Path(__file__).with_name("elastic.csv").open("w")
    for ver, cap, micro, low, high, n, mp, larger, world in grid():
        section = {"enabled": True, "max_train_batch_size": cap, "micro_batch_sizes": micro, "min_gpus": low,
                   "max_gpus": high, "num_gpus_per_node": n, "model_parallel_size": mp,
                   "prefer_larger_batch": larger, "version": ver}
        try:
            result = module.compute_elastic_config({"elasticity": section}, version, world_size=world)
            batch, valid, size = result if world else (*result, 0)
            text = f"{batch},{size},{len(valid)},{sum(valid)},{sum(v * v for v in valid)}" if valid else "error"
            text = "error" if batch == 0 else text
        except Exception:
            text = "error"
        print(f"{ver},{cap},{' '.join(map(str, micro))},{low},{high},{n},{mp},{int(larger)},{world}|{text}", file=out)


main()
