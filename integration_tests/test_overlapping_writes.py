"""Writes by one operator to memory that it reads: refused where eager refuses them, and where eager
does not see them and the result depends on its order, as if all was read first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import dovetail

REFUSED: dict[str, Callable[[Tensor], object]] = {
    "a row by an element": lambda a: a[0].div_(a[0, 0]),
    "all by an element": lambda a: a.div_(a[0, 0]),
    "an element as a scalar": lambda a: a.sub_(a[0, 0], alpha=2),
    "all by a row": lambda a: a.add_(a[0]),
    "the transpose": lambda a: a.add_(a.T),
    "moved on": lambda a: a[1:].add_(a[:-1]),
    "moved back": lambda a: a[:-1].copy_(a[1:]),
    "an item": lambda a: a.__setitem__(slice(1, None), a[:-1]),
    "out": lambda a: torch.add(a[1:], 1, out=a[:-1]),
    "rows of a list": lambda a: torch._foreach_mul_([a[0], a[1]], a[0, 0]),
    "what the graph made": lambda a: (lambda b: b[1:].add_(b[:-1]))(a + 1),
}
ORDERED: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], object]] = {
    "a column by its first element": lambda seen, a: a[:, 0].mul_(seen(a[0, 0])),
    "all by a column": lambda seen, a: a.sub_(seen(a[:, :1])),
    "a column by parts of it": lambda seen, a: a[::2, 0].add_(seen(a[:2, 0])),
}
APART: dict[str, Callable[[Tensor], object]] = {
    "halves": lambda a: a[:2].add_(a[2:]),
    "columns": lambda a: a[:, 0].add_(a[:, 1]),
    "itself": lambda a: a.mul_(a),
    "the same part": lambda a: a[1:].mul_(a[1:]),
    "a copy": lambda a: a.div_(a[0, 0].clone()),
}


def square(n: int = 4) -> Tensor:
    return torch.arange(1.0, n * n + 1).view(n, n)


def written(write: Callable[[Tensor], object]) -> Callable[[Tensor], Tensor]:
    def function(a: Tensor) -> Tensor:
        write(a)
        return a

    return function


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str, dynamic: bool) -> None:
    function = written(REFUSED[name])
    for call in (function, dovetail.compile(function, dynamic=dynamic)):
        with pytest.raises(RuntimeError, match="single memory location"):
            call(square())


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ORDERED)
def test_what_depends_on_eagers_order_reads_before_it_writes(name: str, dynamic: bool) -> None:
    write = ORDERED[name]
    compiled = dovetail.compile(written(lambda a: write(lambda t: t, a)), dynamic=dynamic)
    assert torch.equal(compiled(square()), written(lambda a: write(Tensor.clone, a))(square()))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", APART)
def test_parts_that_lie_apart_are_taken(name: str, dynamic: bool) -> None:
    function = written(APART[name])
    compiled = dovetail.compile(function, dynamic=dynamic, fullgraph=True)
    assert torch.equal(compiled(square()), function(square()))
