# SPDX-License-Identifier: Apache-2.0
"""Writes optim.txt: optimizer steps in fp64 by torch.optim (adam, sgd, adagrad) and, for Lion and LAMB, which torch
lacks, by the formulas of their papers as DeepSpeed has them. Run: python make_optim.py > optim.txt

Each case: "case NAME OP adamw dampening nesterov momentum n steps", then "hyper", "grad" and "param" for each step after "start".
"""
import math
import torch

N, STEPS = 37, 6
LR, WD = 0.01, 0.1


def show(tag, values):
    print(tag, *("%.9g" % v for v in values))


def data():
    torch.manual_seed(5)
    start = torch.randn(N).double()
    grads = [torch.randn(N).double() * 0.3 for _ in range(STEPS)]
    return start, grads


def run(name, op, attrs, b1, b2, wd, bias, step_fn):
    """step_fn(p, g, t) returns the new p; keeps its own state."""
    start, grads = data()
    print("case", name, op, *attrs, N, STEPS)
    show("start", start)
    p = start.clone()
    for t, g in enumerate(grads, 1):
        b1f, b2f = (torch.tensor(b).float().item() for b in (b1, b2))
        c1 = 1 - b1f**t if bias else 1.0
        c2 = math.sqrt(1 - b2f**t) if bias else 1.0
        show("hyper", [LR, b1, b2, wd, c1, c2, 1.0 if t == 1 else 0.0, 0.0])
        show("grad", g)
        p = step_fn(p, g, t)
        show("param", p)


def by_torch(make):
    state = {}

    def step(p, g, t):
        if "q" not in state:
            state["q"] = torch.nn.Parameter(p.clone())
            state["o"] = make([state["q"]])
        state["q"].grad = g.clone()
        state["o"].step()
        return state["q"].detach().clone()

    return step


def lion(b1, b2, wd):
    m = torch.zeros(N).double()

    def step(p, g, t):
        nonlocal m
        c = b1 * m + (1 - b1) * g
        p = p * (1 - LR * wd) - LR * torch.sign(c)
        m = b2 * m + (1 - b2) * g
        return p

    return step


def lamb(b1, b2, wd, eps=1e-8, most=10.0, least=0.01):
    m = torch.zeros(N).double()
    v = torch.zeros(N).double()

    def step(p, g, t):
        nonlocal m, v
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        u = m / (v.sqrt() + eps) + wd * p
        ratio = min(max((p.norm() / u.norm()).item(), least), most)
        scale = LR * math.sqrt(1 - b2**t) / (1 - b1**t)
        return p - scale * ratio * u

    return step


O = torch.optim
run("adamw", "adam", [1, 0, 0, 0], 0.9, 0.99, WD, True,
    by_torch(lambda q: O.AdamW(q, lr=LR, betas=(0.9, 0.99), weight_decay=WD)))
run("adam_l2", "adam", [0, 0, 0, 0], 0.9, 0.99, WD, True,
    by_torch(lambda q: O.Adam(q, lr=LR, betas=(0.9, 0.99), weight_decay=WD)))
run("adam_no_decay", "adam", [0, 0, 0, 0], 0.9, 0.999, 0.0, True,
    by_torch(lambda q: O.Adam(q, lr=LR, betas=(0.9, 0.999))))
run("sgd", "sgd", [0, 0, 0, 0], 0.0, 0.0, WD, False, by_torch(lambda q: O.SGD(q, lr=LR, weight_decay=WD)))
run("sgd_momentum", "sgd", [0, 0.1, 0, 1], 0.9, 0.0, WD, False,
    by_torch(lambda q: O.SGD(q, lr=LR, momentum=0.9, dampening=0.1, weight_decay=WD)))
run("sgd_nesterov", "sgd", [0, 0, 1, 1], 0.9, 0.0, 0.0, False,
    by_torch(lambda q: O.SGD(q, lr=LR, momentum=0.9, nesterov=True)))
run("adagrad", "adagrad", [0, 0, 0, 0], 0.0, 0.0, WD, False,
    by_torch(lambda q: O.Adagrad(q, lr=LR, weight_decay=WD, eps=1e-8)))
run("lion", "lion", [0, 0, 0, 0], 0.9, 0.99, WD, False, lion(0.9, 0.99, WD))
run("lamb", "lamb", [0, 0, 0, 0], 0.9, 0.99, WD, True, lamb(0.9, 0.99, WD))
