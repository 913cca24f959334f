"""Steps whose loss nobody reads raise for bad data as eager does, and leave all state as it was."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dovetail

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
}


class Trainer:
    """A small classifier of tokens, its optimizer, and a step that returns nothing."""

    def __init__(self, optimizer: str) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Embedding(50, 16), nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 10)
        )
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())

    def step(self, tokens: torch.Tensor, labels: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(tokens), labels).backward()
        self.optimizer.step()

    def state(self) -> list[torch.Tensor]:
        slots = (v for s in self.optimizer.state.values() for v in s.values())
        held = (v.clone() for v in slots if isinstance(v, torch.Tensor))
        return [*(v.clone() for v in self.model.state_dict().values()), *held]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("bad", ["labels", "tokens"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_that_raises_changes_nothing(optimizer: str, bad: str, dynamic: bool | None):
    trainer = Trainer(optimizer)
    step = dovetail.compile(trainer.step, dynamic=dynamic)
    for n in (6, 6, 7):
        step(torch.arange(n), torch.arange(n) % 10)
    before = trainer.state()
    tokens, labels = torch.arange(7), torch.arange(7) % 10
    (labels if bad == "labels" else tokens)[3] = 50
    with pytest.raises(IndexError, match="50"):
        step(tokens, labels)
    assert len(before) == len(trainer.state())
    for was, now in zip(before, trainer.state(), strict=True):
        assert torch.equal(was, now)


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
def test_a_graph_that_raises_has_written_nothing(backend: str) -> None:
    """Eager has made the writes before the failing call by then; a graph makes none of its own."""
    count = torch.zeros(3)

    def fn(x, i):
        count.add_(1)
        x[i]
        count.mul_(2)
        return x * 2

    compiled = dovetail.compile(fn, backend=backend, fullgraph=True)
    compiled(torch.ones(4), torch.tensor([1]))
    assert count.tolist() == [2.0] * 3
    with pytest.raises(IndexError, match="index 4 is out of bounds for dimension 0 with size 4"):
        compiled(torch.ones(4), torch.tensor([4]))
    assert count.tolist() == [2.0] * 3


def test_branches_check_what_they_do_not_return() -> None:
    def fn(p, x, i):
        return torch.cond(p, lambda x, i: (x[i], x * 2)[1], lambda x, i: x * 3, (x, i))

    compiled = dovetail.compile(fn, fullgraph=True)
    x, beyond = torch.ones(4), torch.tensor([4])
    assert torch.equal(compiled(torch.tensor(False), x, beyond), x * 3)
    with pytest.raises(IndexError, match="index 4"):
        compiled(torch.tensor(True), x, beyond)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, i: x[:, i],
        lambda x, i: x.gather(1, i[None].expand(2, -1)),
        lambda x, i: F.embedding(i, x),
        lambda x, i: x.scatter(1, i[None], 1.0),
        lambda x, i: i // (i - i),
        lambda x, i: F.cross_entropy(x, i),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_kernels_check_what_nobody_reads(call, dynamic: bool) -> None:
    def fn(x, i):
        call(x, i)
        return x * 2

    compiled = dovetail.compile(fn, fullgraph=True, dynamic=dynamic)
    args = torch.ones(2, 4), torch.tensor([4, 4])
    with pytest.raises((IndexError, RuntimeError)) as expected:
        fn(*args)
    with pytest.raises((IndexError, RuntimeError)) as raised:
        compiled(*args)
    assert isinstance(raised.value, type(expected.value))


RANGES = {
    "index": lambda w, n: w[torch.arange(n)],
    "from an offset": lambda w, n: w[torch.arange(2, n)],
    "moved": lambda w, n: w[torch.arange(n) + 1],
    "in steps": lambda w, n: w[torch.arange(0, n, 2)],
    "of columns": lambda w, n: w[:, torch.arange(n)],
    "embedding": lambda w, n: F.embedding(torch.arange(n), w),
    "gather": lambda w, n: w.gather(0, torch.arange(n)[:, None]),
    "index_select": lambda w, n: w.index_select(0, torch.arange(n)),
    "of the table itself": lambda w, n: w[torch.arange(w.shape[0])],
}


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
@pytest.mark.parametrize("of_a_size", [False, True])
@pytest.mark.parametrize("name", RANGES)
def test_an_unread_lookup_by_a_range_of_symbolic_length(
    name: str, of_a_size: bool, backend: str
) -> None:
    def look_up(w: torch.Tensor, n: int | torch.Tensor) -> torch.Tensor:
        RANGES[name](w, n.shape[0] if isinstance(n, torch.Tensor) else n)
        return w * 2

    compiled = dovetail.compile(look_up, backend=backend, dynamic=True)
    for n in (3, 4, 5, 6, 9, 4, 7):
        w, given = torch.ones(5, 5), torch.ones(n) if of_a_size else n
        try:
            expected = look_up(w, given)
        except (IndexError, RuntimeError) as error:
            with pytest.raises(type(error)):
                compiled(w, given)
        else:
            assert torch.equal(compiled(w, given), expected)
