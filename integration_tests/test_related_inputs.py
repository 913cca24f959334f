"""Graphs whose inputs are views of one tensor: what is written to one of them with gradients gives
the others a history, too, wherever in memory they lie."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import dovetail

Results = tuple[Tensor, ...]


def halves(b: Tensor, g: Tensor) -> Results:
    first, second = b[:2], b[2:]
    dovetail.graph_break()
    first.add_(g)
    return first * 2, second * 2


def base_written(b: Tensor, g: Tensor) -> Results:
    view = b.permute(0, 1)
    dovetail.graph_break()
    b.add_(g)
    return view.clone(), view * 2


def view_written(b: Tensor, g: Tensor) -> Results:
    view = b.permute(0, 1)
    dovetail.graph_break()
    view.add_(g)
    return b.clone(), b * 2


@pytest.mark.parametrize(
    ("function", "shape", "written"),
    [
        (halves, (4,), (2,)),
        (halves, (4, 0), (2, 0)),
        (base_written, (2, 3), (2, 3)),
        (base_written, (0, 2), (0, 2)),
        (view_written, (2, 3), (2, 3)),
        (view_written, (0, 2), (0, 2)),
    ],
)
def test_a_view_gets_the_history_of_what_is_written_behind_a_break(
    function: Callable[..., Results], shape: tuple[int, ...], written: tuple[int, ...]
) -> None:
    seen = []
    for call in (function, dovetail.compile(function)):
        torch.manual_seed(0)
        g = torch.randn(written, requires_grad=True)
        b = torch.randn(shape)
        results = call(b, g)
        sum(r.sum() for r in results).backward()
        seen.append((results, b, g.grad))
    (eager, b, grad), (ours, our_b, our_grad) = seen
    assert [r.requires_grad for r in ours] == [r.requires_grad for r in eager] == [True, True]
    assert b.requires_grad and our_b.requires_grad
    torch.testing.assert_close((*ours, our_b, our_grad), (*eager, b, grad))


def test_the_same_places_in_memory_with_and_without_a_common_base() -> None:
    def write(first: Tensor, second: Tensor, g: Tensor) -> Results:
        first.add_(g)
        return first * 2, second * 2

    def apart(b: Tensor) -> Results:
        return torch.zeros(2), torch.zeros(2)

    def pieces(b: Tensor) -> Results:
        return b[:2], b[2:]

    def strangers(b: Tensor) -> Results:
        return b.data[:2], b.data[2:]

    compiled = dovetail.compile(write)
    for make in (strangers, pieces, apart, pieces, strangers, apart):
        flags = []
        for call in (write, compiled):
            g = torch.ones(2, requires_grad=True)
            inputs = make(torch.zeros(4))
            results = call(*inputs, g)
            flags.append([t.requires_grad for t in (*results, *inputs)])
            assert results[0].tolist() == [2, 2] and results[1].tolist() == [0, 0]
        assert flags[0] == flags[1] == [True, make is pieces, True, make is pieces]


def test_a_view_of_a_view_made_under_no_grad_is_older_than_two_writes() -> None:
    """Eager took it before both; autograd refuses to take it after either."""

    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            t = x.t()
        dovetail.graph_break()
        p = t.permute(())
        with torch.no_grad():
            x.zero_()
            p.add_(1)
        dovetail.graph_break()
        return p.detach()

    for call in (f, dovetail.compile(f)):
        x = torch.tensor(3.0, requires_grad=True) * 2
        result = call(x)
        assert result == 1 and x == 1 and x.requires_grad
