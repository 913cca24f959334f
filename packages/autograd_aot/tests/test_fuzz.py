"""Random programs of views, in-place writes and autograd regions, against eager.

A failure prints its seed; `DOVETAIL_FUZZ_SEED=<seed> pytest -k fuzz` runs that one alone.
"""

from __future__ import annotations

import os
import random

import pytest
import torch
from aot_testing import check

SEED = os.environ.get("DOVETAIL_FUZZ_SEED")
SEEDS = [int(SEED)] if SEED else list(range(60))


class Skip(Exception):
    """The program is not one that eager accepts."""


def random_view(rng, t):
    kind = rng.choice(["t", "select", "slice", "view", "unsqueeze", "diagonal", "expand", "flat",
                       "chunk", "permute", "detach"])  # fmt: skip
    d = t.dim()
    if kind == "t" and d >= 2:
        return t.transpose(0, d - 1)
    if kind == "select" and d >= 2:
        return t.select(rng.randrange(d), 0)
    if kind == "slice" and d >= 1 and t.shape[0] > 1:
        return t[:: rng.choice([1, 2])] if rng.random() < 0.5 else t[1:]
    if kind == "view" and t.is_contiguous() and t.numel() % 2 == 0:
        return t.view(2, -1)
    if kind == "flat" and t.is_contiguous():
        return t.view(-1)
    if kind == "unsqueeze" and d < 4:
        return t.unsqueeze(rng.randrange(d + 1))
    if kind == "diagonal" and d >= 2:
        return t.diagonal()
    if kind == "chunk" and d >= 1 and t.shape[0] > 1:
        return t.chunk(2)[rng.randrange(2)]
    if kind == "permute" and d >= 2:
        order = list(range(d))
        rng.shuffle(order)
        return t.permute(order)
    if kind == "detach" and rng.random() < 0.3:
        return t.detach()
    return t


def random_write(rng, t, pool):
    kind = rng.choice(["mul", "add", "zero", "fill", "copy", "relu", "set", "addt"])
    if kind == "mul":
        t.mul_(0.5)
    elif kind == "add":
        t.add_(1.25)
    elif kind == "zero":
        t.zero_()
    elif kind == "fill":
        t.fill_(0.75)
    elif kind == "relu":
        t.relu_()
    elif kind == "set" and t.dim() >= 1:
        t[0] = 2.0
    elif kind in ("copy", "addt"):
        other = rng.choice(pool)
        if other.shape == t.shape:
            t.copy_(other.clone()) if kind == "copy" else t.add_(other.clone())


def program(seed):
    """A function of three tensors, the same program every time it runs."""

    def run(*inputs):
        rng = random.Random(seed)
        pool = list(inputs)
        for _ in range(rng.randint(4, 12)):
            t = rng.choice(pool)
            step = rng.random()
            if step < 0.35:
                pool.append(random_view(rng, t))
            elif step < 0.6:
                pool.append(rng.choice([torch.sin, torch.clone, torch.exp])(t * 0.5))
            elif step < 0.9:
                if rng.random() < 0.3:
                    with torch.no_grad():
                        random_write(rng, t, pool)
                else:
                    random_write(rng, t, pool)
            else:
                other = rng.choice(pool)
                if other.shape == t.shape:
                    pool.append(t * other)
        rng.shuffle(pool)
        return tuple(pool[: rng.randint(1, 4)])

    return run


def make_inputs(seed):
    rng = random.Random(-seed - 1)
    torch.manual_seed(seed)
    inputs = []
    for _ in range(3):
        shape = rng.choice([(4, 6), (4, 6), (2, 3, 4), (8,)])
        t = torch.randn(shape)
        if rng.random() < 0.3 and t.dim() >= 2:
            t = t.transpose(0, 1).contiguous().transpose(0, 1)
        if rng.random() < 0.6:
            t = t.detach().requires_grad_()
            if rng.random() < 0.5:
                t = t.clone(memory_format=torch.preserve_format)
        inputs.append(t)
    return inputs


def eager_accepts(fn, inputs):
    from aot_testing import clone_inputs

    values = clone_inputs(inputs)
    try:
        outs = fn(*values)
        losses = [o.sum() for o in (*outs, *values) if o.requires_grad]
        if losses:
            sum(losses).backward()
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("table", ["aten", "core"])
@pytest.mark.parametrize("seed", SEEDS)
def test_fuzz(seed, table):
    fn, inputs = program(seed), make_inputs(seed)
    if not eager_accepts(fn, inputs):
        pytest.skip("eager refuses this program")
    print(f"DOVETAIL_FUZZ_SEED={seed}")
    check(fn, inputs, table=table, calls=1)
