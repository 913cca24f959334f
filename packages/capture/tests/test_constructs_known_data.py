"""Tensors of plain numbers: what a frame makes of them is known while it is captured."""

# ruff: noqa  (small programs in rows)

from __future__ import annotations


import pytest
import torch
from construct_cases import Case, Table, run_case

construct = Table()


@construct()
def as_int(x):
    return x + int(torch.tensor(3))


@construct()
def division_of_ints(x):
    n = torch.div(6, 2, rounding_mode="floor") - 1
    return x.reshape(n, 3) * n


@construct()
def as_list(x):
    return x.reshape(torch.tensor([3, 2]).tolist())


@construct()
def in_range(x):
    for i in range(torch.tensor(2)):
        x = x + i
    return x


@construct()
def as_index_and_truth(x):
    n = torch.tensor(2)
    if n > 1:
        x = x + 1
    return x, n.item(), [1, 2, 3][n], float(n), f"{n.item()}"


@construct(graphs=None, breaks=1)
def written_through_a_view(x):
    n = torch.tensor([1, 2])
    v = n[0]
    n.add_(5)
    return x + int(v)


@construct()
def as_sizes(x):
    n = torch.div(x.shape[1] + 3, 2, rounding_mode="trunc")
    return x.as_strided(size=[2, n], stride=[3, 1]), x.new_zeros(n, 2), torch.zeros(n, n)


@construct()
def of_a_shape(x):
    n = torch.tensor(x.shape)
    m = n.prod()
    return x.view(m), n[-1]


@construct()
def a_range(x):
    n = torch.arange(3)
    return x * n, n.sum().item(), bool(n[0])


@construct(graphs=None, breaks=None)
def written(x):
    n = torch.tensor(2.5)
    y = torch.tensor(3)
    y += 1
    return x * n.item(), int(y)


@construct()
def as_arguments(x):
    n = torch.tensor(2)
    return x.expand(n, 2, 3), x[n - 1], x[:, :n], x.sum(n - 1)


@construct(graphs=None, breaks=None)
def masks_of_one(x):
    """A mask with a dimension selects rows, which a truth value does not."""
    kept, dropped, place = torch.tensor([True]), torch.tensor([[False]]), torch.tensor([1])
    row = x[:1]
    y = x[:1].clone()
    y[kept] = 5.0
    y[torch.tensor([True]), 1] = 7.0
    return row[kept], row[kept, 1], x[:1, :1][dropped], x[place], x[place, place], y, x[:place]


@construct(graphs=None, breaks=None)
def masks_without_dimensions(x):
    return x[torch.tensor(True)], x[torch.tensor(False)], x[torch.tensor(1)]


@construct()
def steps_of_a_solver(x):
    """A grid of times that the frame makes, and results that are written beside it."""
    times = torch.linspace(0, 1, 4)
    found, place = torch.empty(4, 2, 3), 1
    found[0] = x
    assert (times[1:] > times[:-1]).all()
    for before, after in zip(times[:-1], times[1:]):
        x = x + (after - before)
        while place < len(times) and after >= times[place]:
            found[place] = x
            place += 1
    for time in times.unbind():
        if ~(time > 0.5):
            x = x * 2
    first, second = times.chunk(2)
    return found, x, first.tolist(), 1 if torch.isfinite(second).all() else 2


@construct(graphs=None, breaks=None)
def written_in_memory(x):
    t, u, w = torch.zeros(3), torch.ones(2), torch.full((2,), 3.0)
    t[1] = 2
    if t.any():
        x = x + 1
    u[0].fill_(0)
    if u.all():
        x = x + 10
    if (w == 3).all():
        x = x * 7
    n = torch.tensor([1, 2])
    torch.relu_(n.view(2).neg_())
    if n[0] == 0:
        x = x + 100
    sizes = torch.arange(x.shape[0])
    twice = sizes * 2
    sizes.add_(1)
    if twice.sum() == 2:
        x = x + 1000
    torch._foreach_add_([w], 1)
    if (w == 3).any():
        x = x + 10000
    return x


@construct(graphs=1, breaks=0)
def written_beside(x):
    t = torch.ones(2)
    y = x.clone()
    y.add_(1)
    y[0] = 3
    torch.add(y, 1, out=y)
    return y * 2 if t.all() else y


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)
