#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the goldens of embeddings that are compared across ranks: sentence-transformers' loss with gather_across_devices, each rank in
a process of its own with its own rows, under DistributedDataParallel.

For every case, of the model of another case of make_tasks.py, a folder with
  golden.safetensors   "RANK/NAME": each rank's inputs of the engine
  grads.safetensors    gradient by parameter name: the mean that DistributedDataParallel makes
  golden.json          the model's case, ranks, what the task is, and each rank's losses of six AdamW steps

Needs torch, transformers, sentence-transformers, safetensors. Deterministic. Run: make_gather.py [OUTPUT_FOLDER]
"""
import json
import os
import sys

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from make_tasks import CASES, STEPS, T, load, make_batch  # noqa: E402
from sentence_transformers.losses import MultipleNegativesRankingLoss  # noqa: E402

RUNS = {"gather": ("contrast", 2), "gather_negatives": ("contrast_negatives", 3)}


class Loss(torch.nn.Module):
    def __init__(self, model, what):
        super().__init__()
        self.model = model
        self.loss = MultipleNegativesRankingLoss(None, scale=what["scale"], gather_across_devices=True)

    def forward(self, batch):
        mask = (batch["first"] == 0).long() * ((batch["positions"] > 0) | (torch.arange(T) == 0))
        hidden = self.model(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
        vectors = (batch["pool"][..., None] * hidden).sum(1)
        return self.loss.compute_loss_from_embeddings(list(vectors.split(3)), None)


def run_rank(rank, ranks, case, address, batches, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{address}", rank=rank, world_size=ranks)
    what = CASES[case][1]
    model = load(case, what)
    for name, p in model.named_parameters():
        p.requires_grad_(not name.startswith("pooler."))
    wrapped = DistributedDataParallel(Loss(model, what))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, betas=(0.9, 0.999), eps=1e-8,
                                  weight_decay=0.01, foreach=False, fused=False)
    losses, grads = [], None
    for _ in range(STEPS):
        loss = wrapped(batches[rank])
        optimizer.zero_grad()
        loss.backward()
        grads = grads or {"bert." + n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        losses.append(loss.item())
    results.put((rank, losses, {n: g.tolist() for n, g in grads.items()} if rank == 0 else None))
    dist.barrier()
    dist.destroy_process_group()


def main():
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__)))
    spawn = torch.multiprocessing.get_context("spawn")
    for seed, (name, (case, ranks)) in enumerate(RUNS.items()):
        config, what = CASES[case]
        batches = [make_batch(what, config.num_labels, 20 + 10 * seed + rank) for rank in range(ranks)]
        results = spawn.SimpleQueue()
        os.makedirs(name, exist_ok=True)
        address = os.path.abspath(f"{name}/store")
        workers = [spawn.Process(target=run_rank, args=(r, ranks, case, address, batches, results)) for r in range(ranks)]
        for worker in workers:
            worker.start()
        got = sorted((results.get() for _ in workers), key=lambda one: one[0])
        for worker in workers:
            worker.join()
        if os.path.exists(address):
            os.remove(address)
        save_file({f"{rank}/{k}": (v.float() if v.is_floating_point() else v.to(torch.int32)).contiguous()
                   for rank, batch in enumerate(batches) for k, v in batch.items()}, f"{name}/golden.safetensors")
        save_file({n: torch.tensor(g) for n, g in got[0][2].items()}, f"{name}/grads.safetensors")
        with open(f"{name}/golden.json", "w") as f:
            json.dump(what | dict(model=case, ranks=ranks, losses=[losses for _, losses, _ in got]), f, indent=1)
            f.write("\n")
        print(name, [losses[0] for _, losses, _ in got])


if __name__ == "__main__":
    main()
