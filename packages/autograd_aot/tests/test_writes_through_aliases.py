"""Writes between a forward and its backward, by way of whatever lies in the memory of an input or
an output: eager's numbers where it gives some, and its error where it raises one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from aot_testing import TABLES, as_graph, run_fx, same_answers
from dovetail_autograd_aot import aot_compile
from torch import Tensor

Results = Sequence[Tensor]


def _exp_and_rest(rest: Callable[[Tensor], Results]) -> Callable[[Tensor, Tensor], Results]:
    def function(x: Tensor, w: Tensor) -> Results:
        h = x.exp()  # (which eager keeps)
        return (h.sum(), *rest(h))

    return function


def _constant_and_rest(rest: Callable[[Tensor], Results]) -> Callable[[Tensor, Tensor], Results]:
    """What the gradient of x depends on has a counter of its own."""

    def function(x: Tensor, w: Tensor) -> Results:
        h = x.exp()
        d = h.data
        return (x * d, *rest(h), d)

    return function


PROGRAMS = {
    "the result": lambda x, w: (x.exp(),),
    "its row and column": lambda x, w: ((h := x.exp())[0], h[:, 1]),
    "an output": _exp_and_rest(lambda h: (h,)),
    "detached": _exp_and_rest(lambda h: (h.detach(), h.detach()[0])),
    "data": _exp_and_rest(lambda h: (h.data,)),
    "data twice": _exp_and_rest(lambda h: (h.data, h.data)),
    "data and a view": _exp_and_rest(lambda h: (h.data, h[0])),
    "data and its row": _exp_and_rest(lambda h: ((d := h.data), d[0])),
    "a row of data": _exp_and_rest(lambda h: (h.data[0],)),
    "data that is a leaf": _exp_and_rest(lambda h: (h.data.requires_grad_(),)),
    "data is kept": _constant_and_rest(lambda h: ()),
    "data is kept, and returned with its tensor": _constant_and_rest(lambda h: (h,)),
    "data is kept, and other data returned": _constant_and_rest(lambda h: (h.data,)),
    "an input": lambda x, w: (x * w, w.detach(), w.view(-1), x[0]),
    "an input's data": lambda x, w: (x * w, w.data, x.data),
    "an input's data is kept": lambda x, w: (x * (d := w.data), d, w.detach()),
    "an input and its data are kept": lambda x, w: (x * (d := w.data) + w * w, d, w.detach()),
    "an input's other data": lambda x, w: (x * w.data, w.data),
    "a product and what it keeps": lambda x, w: (((h := x.relu()) @ w).sin(), h, h.detach()),
}

WRITTEN = {
    "itself": lambda t: t, "detached": lambda t: t.detach(), "data": lambda t: t.data,
    "a view": lambda t: t.view_as(t), "a row, detached": lambda t: t.detach()[..., 0],
}  # fmt: skip


def _inputs(grads: str) -> list[Tensor]:
    torch.manual_seed(0)
    x, w = (torch.rand(3, 3, dtype=torch.double) + 0.1 for _ in range(2))
    x.requires_grad_()
    if "w" in grads:
        w.requires_grad_()
    return [x * 1, w * 1] if "nonleaf" in grads else [x, w]


def _answers(
    run: Callable[..., Results], grads: str, place: int, write: Callable[[Tensor], Tensor]
) -> list[Tensor] | str:
    """The gradients, or the error's beginning, after a write to an input or an output."""
    inputs = _inputs(grads)
    outputs = run(*inputs)
    loss: Tensor = sum(out.sum() for out in outputs if out.requires_grad)  # type: ignore[assignment]
    try:
        with torch.no_grad():
            write([*inputs, *outputs][place]).mul_(3)
    except (RuntimeError, IndexError) as error:
        return str(error)
    try:
        wanted = [value for value in inputs if value.requires_grad]
        return list(torch.autograd.grad(loss, wanted, allow_unused=True))
    except RuntimeError as error:
        return str(error).split(":")[0]


@pytest.mark.parametrize("table", ["aten", "core"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_writes_are_noticed_where_eager_notices_them(name: str, table: str) -> None:
    def function(x: Tensor, w: Tensor) -> Results:
        return tuple(PROGRAMS[name](x, w))

    for grads in ("x", "x w", "x w nonleaf"):
        inputs = _inputs(grads)
        compiled = aot_compile(
            as_graph(function, 2), inputs, forward_compiler=run_fx, decompositions=TABLES[table]
        )
        places = len(inputs) + len(function(*inputs))
        for place, write in itertools.product(range(places), WRITTEN.values()):
            ours = _answers(compiled, grads, place, write)
            eager = _answers(function, grads, place, write)
            if isinstance(eager, str) or isinstance(ours, str):
                assert ours == eager, (grads, place)
            else:
                same_answers(ours, eager)


def test_what_is_watched_is_let_go_and_noticed_by_each_backward() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        d = x.exp().data
        return x * d, d

    x = torch.ones(3, requires_grad=True)
    compiled = aot_compile(as_graph(function, 1), [x], forward_compiler=run_fx)
    product, data = compiled(x)
    torch.autograd.grad(product.sum(), x, retain_graph=True)
    data.zero_()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()
