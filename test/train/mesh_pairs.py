# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of any mesh on any other: mesh_pairs.py BUILD SOURCE MESHES.

Each of the first MESHES meshes below trains two steps and saves, and goes on for a third. Each mesh goes on from each checkpoint (every
ordered pair, its own too). What must hold for the third step:
    on the mesh that saved  the bits of the run that was not interrupted
    on meshes that differ in their stage, in the pipeline or in ep  the same bits
    on any other            near the run that was not interrupted: random_meshes.limits()
Needs no package. Exit 1 when a pair does not hold.
"""
import pathlib
import shutil
import sys
import tempfile
import time

import random_meshes

# dp, tp, sp, pp, ep, stage, and of some: domino. 257 rows of the vocabulary are padded by every tp; 4 heads of keys and values are fewer than the ranks of some
MESHES = [(1, 2, 1, 1, 1, 1), (2, 1, 2, 1, 1, 3), (2, 1, 1, 2, 2, 1), (1, 1, 1, 1, 1, 0), (1, 2, 2, 1, 1, 3), (4, 1, 1, 1, 4, 2), (3, 2, 1, 1, 1, 3),
          (2, 1, 2, 1, 2, 0), (1, 1, 3, 2, 1, 3), (1, 4, 2, 1, 1, 1), (1, 3, 1, 2, 1, 0), (1, 1, 6, 1, 1, 2), (1, 6, 1, 1, 1, 2), (2, 2, 1, 2, 1, 2),
          (2, 2, 2, 1, 2, 3), (2, 1, 1, 2, 1, 3)]
# Where stages run micro-batches in another order than 1f1b.
SCHEDULES = {(2, 1, 1, 2, 2, 1): "zb-v", (1, 1, 3, 2, 1, 3): "zb-v", (1, 3, 1, 2, 1, 0): "zb-h1", (2, 2, 1, 2, 1, 2): "zb-v"}
MODEL = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 257, "hidden_size": 48, "intermediate_size": 12,
         "num_hidden_layers": 4, "num_attention_heads": 12, "num_key_value_heads": 4, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
         "hidden_act": "silu", "tie_word_embeddings": False, "attention_dropout": 0.1, "num_local_experts": 12, "num_experts_per_tok": 2,
         "sliding_window": None}
BATCH = 12
# Of a model without experts, whose micro-batches may go in halves
DENSE_MESHES = [(1, 2, 1, 1, 1, 0, True), (2, 2, 1, 1, 1, 3, True), (1, 2, 1, 2, 1, 1, True), (1, 2, 1, 1, 1, 1, False)]
DENSE = {**{key: value for key, value in MODEL.items() if "experts" not in key}, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}


class Case:
    """What random_meshes asks of a case."""

    def __init__(self, model):
        self.model, self.precision, self.optimizer, self.data, self.length = model, "fp32", "AdamW", "pairs.jsonl", 24
        self.flags = {"--loss_average": "targets"}  # which is the same number however the rows are dealt

    def layers(self):
        return self.model["num_hidden_layers"]


def config_of(mesh):
    dp, tp, sp, pp, ep, stage, domino = (*mesh, False)[:7]
    more = {"pipeline": {"stages": pp, "schedule": SCHEDULES.get(mesh, "1f1b")}} if pp > 1 else {}
    if ep > 1:
        more["expert_parallel"] = {"enabled": True, "autoep_size": ep}
    return {**more, "train_micro_batch_size_per_gpu": BATCH // dp, "gradient_clipping": 1.0, "zero_optimization": {"stage": stage},
            "optimizer": {"type": "AdamW", "params": {"lr": random_meshes.RATE, "eps": random_meshes.EPS}},
            "tensor_parallel": {"autotp_size": tp, **({"domino": True} if domino else {})}, "sequence_parallel_size": sp}


def name_of(mesh):
    return "dp {} tp {} sp {} pp {} ep {} stage {}".format(*mesh) + (" domino" if mesh[6:] == (True,) else "")


def ranks_of(mesh):
    return mesh[0] * mesh[1] * mesh[2] * mesh[3]


def check_pair(runs, case, saved, mesh, whole, others):
    """Complaints about `mesh` going on from what `saved` saved. whole: the run of `saved` that was not interrupted; others: results by mesh."""
    result = runs.run(case, "out", config_of(mesh), ranks_of(mesh), flags={"--steps": "3", "--resume": "./saved"})
    what = f"{name_of(saved)} -> {name_of(mesh)}"
    if result.code != 0:
        return [f"{what}: exit code {result.code}\n{result.log[-2000:]}"]
    alike = mesh[:3] + mesh[6:]
    others.setdefault(alike, (mesh, result.hash()))
    first, bits = others[alike]
    bad = []
    if mesh == saved and result.hash() != whole.hash():
        bad.append(f"{what}: other bits than the run that was not interrupted")
    if result.hash() != bits:
        bad.append(f"{what}: other bits than on {name_of(first)}")
    loss, limit = result.losses[-1], random_meshes.limits(case)[1] * whole.losses[-1]
    if not abs(loss - whole.losses[-1]) <= limit:
        bad.append(f"{what}: the next loss is {loss}, not {whole.losses[-1]}")
    return bad + [f"{what}: {b}" for b in random_meshes.tensors_near(case, whole, result, *random_meshes.limits(case)[2:])[:4]]


def check_pairs(runs, meshes, model):
    """Complaints about every ordered pair."""
    case, failures = Case(model), []
    runs.write_model(case)
    for saved in meshes:
        first = runs.run(case, "saved", config_of(saved), ranks_of(saved), flags={"--steps": "2"})
        assert first.code == 0, first.log
        shutil.rmtree(runs.folder / "kept", ignore_errors=True)
        whole = runs.run(case, "kept", config_of(saved), ranks_of(saved), flags={"--steps": "3"})
        assert whole.code == 0, whole.log
        others = {}
        for mesh in meshes:
            for line in check_pair(runs, case, saved, mesh, whole, others):
                failures.append(line)
                print(line, flush=True)
    return failures


def main():
    build, source, n = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), int(sys.argv[3])
    meshes, dense, begin = MESHES[:n], DENSE_MESHES[:max(2, n // 4)], time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        random_meshes.make_data(source, folder)
        runs = random_meshes.Runs(build, folder)
        failures = check_pairs(runs, meshes, MODEL) + check_pairs(runs, dense, DENSE)
    print(f"{len(meshes)} and {len(dense)} meshes, {len(meshes) ** 2 + len(dense) ** 2} ordered pairs, {len(failures)} complaints, "
          f"{time.monotonic() - begin:.0f} s")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
