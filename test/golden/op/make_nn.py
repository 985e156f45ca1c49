# SPDX-License-Identifier: Apache-2.0
"""Writes nn.txt: what torch computes, in fp64, for the calls of test/nn/test_nn_math.c. Run: python make_nn.py > nn.txt

Two tensors x (2,3,5) and z (2,4,5); element i of x is 0.3 + ((7 i) mod 30) / 20, of z ((11 i) mod 40) / 25 - 0.7. A case is a
value y; its loss is the sum of y times weights 1 + (i mod 4) / 8. Lines: "case NAME", "y …", "dx …", "dz …" (zeros where
y does not depend on it).
"""
import torch

torch.set_default_dtype(torch.float64)


def inputs():
    x = (0.3 + (7 * torch.arange(30) % 30) / 20).reshape(2, 3, 5).requires_grad_()
    z = ((11 * torch.arange(40) % 40) / 25 - 0.7).reshape(2, 4, 5).requires_grad_()
    return x, z


def attend(q, k, v):
    """Two heads of width 2, and one pair of keys and values of width 2 for both: q (B,T,4), k and v (B,Tk,2)."""
    q = q.reshape(q.shape[0], q.shape[1], 2, 2).transpose(1, 2)
    y = torch.nn.functional.scaled_dot_product_attention(q, k.unsqueeze(1), v.unsqueeze(1), enable_gqa=True)
    return y.transpose(1, 2).reshape(y.shape[0], y.shape[2], 4)


def causal(x, z):
    """Attention by hand: what a model of one's own writes."""
    scores = x @ z.transpose(-1, -2) / 2
    return torch.softmax(scores.masked_fill(torch.ones(3, 3).triu(1) > 0, -torch.inf), -1) @ x


CASES = {
    "neg": lambda x, z: -x,
    "exp": lambda x, z: torch.exp(x),
    "log": lambda x, z: torch.log(x),
    "sqrt": lambda x, z: torch.sqrt(x),
    "square": lambda x, z: torch.square(z),
    "tanh": lambda x, z: torch.tanh(z),
    "sigmoid": lambda x, z: torch.sigmoid(z),
    "relu": lambda x, z: torch.relu(z),
    "slice_0": lambda x, z: x[1:2],
    "slice_1": lambda x, z: x[:, 1:3],
    "slice_last": lambda x, z: z[..., 2:5],
    "concat_1": lambda x, z: torch.cat([x, z, x], 1),
    "concat_0": lambda x, z: torch.cat([x, x * z[:, :3]], 0),
    "transpose_01": lambda x, z: x.transpose(0, 1),
    "transpose_last": lambda x, z: z.transpose(-1, -2),
    "sum_0": lambda x, z: z.sum(0),
    "sum_1": lambda x, z: z.sum(1),
    "sum_last": lambda x, z: z.sum(-1),
    "mean_0": lambda x, z: x.mean(0),
    "mean_1": lambda x, z: x.mean(1),
    "mean_last": lambda x, z: x.mean(-1),
    "max_0": lambda x, z: z.amax(0),
    "max_1": lambda x, z: x.amax(1),
    "max_ties": lambda x, z: torch.relu(z - 0.5).amax(-1),
    "min_1": lambda x, z: z.amin(1),
    "min_last": lambda x, z: x.amin(-1),
    "bmm": lambda x, z: x @ z.transpose(-1, -2),
    "bmm_plain": lambda x, z: z.transpose(-1, -2) @ z,
    "where": lambda x, z: torch.where(x > z[:, :3], x, z[:, :3]),
    "masked_fill": lambda x, z: z.masked_fill((z > 0.12) & (z <= 0.48), 0.5),
    "where_row": lambda x, z: torch.where(z[:, :1] < 0.2, z, z * z),
    "tril": lambda x, z: torch.where(torch.ones(4, 5).tril(1) > 0, z, -2.0),
    "triu": lambda x, z: z.triu(-1),
    "causal": lambda x, z: causal(x, z[:, :3]),
    "cross_attention": lambda x, z: attend(x[..., :4], z[..., :2], z[..., 2:4]),
    "full_attention": lambda x, z: attend(z[..., :4], z[..., 1:3], z[..., 3:5]),
}

for name, fn in CASES.items():
    x, z = inputs()
    y = fn(x, z)
    w = 1 + (torch.arange(y.numel()) % 4).reshape(y.shape) / 8
    dx, dz = torch.autograd.grad((y * w).sum(), [x, z], allow_unused=True, materialize_grads=True)
    print("case", name)
    for tag, t in (("y", y), ("dx", dx), ("dz", dz)):
        print(tag, *("%.9g" % v for v in t.reshape(-1).tolist()))
