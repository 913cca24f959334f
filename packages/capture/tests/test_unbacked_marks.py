"""`mark_unbacked`: one graph for any size, 0 and 1 included; nothing is decided about it."""

from __future__ import annotations

import pytest
import torch
from construct_cases import CountingBackend
from dovetail_capture import GraphBreakError, mark_unbacked, optimize

SIZES = (5, 1, 0, 7, 2)


def marked(rows: int) -> torch.Tensor:
    x = torch.randn(rows, 3)
    mark_unbacked(x, 0)
    return x


def test_one_graph_for_all_sizes() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).relu().sum(1) + x.shape[0]

    backend = CountingBackend()
    compiled = optimize(f, backend, fullgraph=True)
    for rows in SIZES:
        x = marked(rows)
        assert torch.equal(compiled(x), f(x))
    assert len(backend.graphs) == 1


def test_starting_from_one() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x]) @ torch.ones(3, 2)

    backend = CountingBackend()
    compiled = optimize(f, backend, fullgraph=True)
    for rows in (1, 4, 0):
        x = marked(rows)
        assert torch.equal(compiled(x), f(x))
    assert len(backend.graphs) == 1


def branching(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 3:
        return x + 1
    return x - 1


def test_a_decision_is_a_break() -> None:
    with pytest.raises(GraphBreakError, match="marked unbacked"):
        optimize(branching, CountingBackend(), fullgraph=True)(marked(5))
    compiled = optimize(branching, CountingBackend())
    for rows in SIZES:
        x = marked(rows)
        assert torch.equal(compiled(x), branching(x))


def test_torch_check_decides() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] > 3)
        return branching(x)

    backend = CountingBackend()
    compiled = optimize(f, backend, fullgraph=True)
    for rows in (5, 4, 9):
        x = marked(rows)
        assert torch.equal(compiled(x), f(x))
    assert len(backend.graphs) == 1


def test_torchs_own_mark_is_honoured() -> None:
    x = torch.randn(1, 3)
    x._dynamo_unbacked_indices = {0}  # type: ignore[attr-defined]
    backend = CountingBackend()
    compiled = optimize(lambda t: t * 2, backend)
    assert torch.equal(compiled(x), x * 2)
    y = torch.randn(4, 3)
    y._dynamo_unbacked_indices = {0}  # type: ignore[attr-defined]
    assert torch.equal(compiled(y), y * 2)
    assert len(backend.graphs) == 1
