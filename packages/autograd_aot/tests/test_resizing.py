"""`out=` and `resize_` to other sizes: of intermediates, of inputs, and of views of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from aot_testing import TABLES, as_graph, check, run_fx
from dovetail_autograd_aot import TraceError, aot_compile
from torch import Tensor

pytestmark = pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")


def _out_of_more(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.zeros(2)
    part = y[1:]
    torch.mul(x, 2, out=y)
    part.add_(1)  # it lies in the memory that y has now
    return y, part


def _out_of_fewer(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.zeros(5, 5)
    row = y[1]
    torch.mul(x, 2, out=y)
    row.add_(1)
    return y, row, y * 2


def _out_in_a_part(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.arange(6.0)
    torch.mul(x, 2, out=y[4:])
    part = y[3:5]
    torch.mul(x, 3, out=part)
    return y, part


def _several_times(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.zeros(2)
    torch.add(x, x, out=y)
    row = y[0]
    torch.cat([x, x], out=y)
    torch.cat([x, x, x], out=y)
    return y, row


def _resized_and_filled(x: Tensor) -> tuple[Tensor, ...]:
    y = (x * 2).reshape(-1)[10:]
    y.resize_(3, 4).fill_(3)
    return (y,)


@pytest.mark.parametrize(
    "function",
    [_out_of_more, _out_of_fewer, _out_in_a_part, _several_times, _resized_and_filled],
)
@pytest.mark.parametrize("table", TABLES)
def test_intermediates(function: Callable[..., tuple[Tensor, ...]], table: str) -> None:
    check(function, [torch.randn(3, 4)], table=table)
    check(function, [torch.randn(4, 3).t()], table=table)


def _into(x: Tensor, y: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    part = y[1:]
    torch.mul(x.detach(), 2, out=y)
    part.add_(1)
    return y, part, y + 1, y * x.sum(), *(other + 1 for other in others)


_MEMORY = torch.arange(9.0)
INPUTS = {
    "more": (torch.zeros(3),),
    "more, from nothing": (torch.empty(0),),
    "more, in the middle of memory": (torch.arange(8.0)[2:5],),
    "fewer": (torch.zeros(5, 5),),
    "beside another input": (_MEMORY[3:6], _MEMORY[5:], _MEMORY[:4]),
}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("table", TABLES)
def test_inputs(name: str, table: str) -> None:
    """They have other memory afterwards, and so has what shares it."""
    for x in (torch.randn(3, 4), torch.randn(4, 3).t(), torch.randn(3, 4, requires_grad=True)):
        check(_into, [x, *INPUTS[name]], table=table)


def test_an_input_is_resized_and_written_to() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        y.resize_(3, 4).copy_(x)
        return (y.sum(),)

    check(function, [torch.randn(3, 4), torch.arange(5.0)[2:]])


def test_several_results() -> None:
    def function(x: Tensor, values: Tensor, places: Tensor) -> tuple[Tensor, ...]:
        torch.sort(x, 0, out=(values, places))
        return values, places

    check(function, [torch.randn(3, 4), torch.zeros(2), torch.zeros(1, dtype=torch.int64)])


def test_it_is_warned_of() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (torch.mul(x, 2, out=y),)

    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        aot_compile(as_graph(function, 2), [torch.ones(3), torch.ones(2)], forward_compiler=run_fx)


def test_what_shares_memory_with_an_operand_is_refused() -> None:
    """Eager reads there what it has written already."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (torch.add(x, y.view(1, 3), out=y),)

    with pytest.raises(TraceError, match="shares memory with an operand"):
        aot_compile(
            as_graph(function, 2), [torch.ones(2, 3), torch.ones(3)], forward_compiler=run_fx
        )


def test_what_requires_grad_is_refused() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            torch.mul(x, 2, out=y)
        return (y.sum(),)

    y = torch.ones(2, requires_grad=True)
    with pytest.raises(TraceError, match="out= that requires grad is given another size"):
        aot_compile(as_graph(function, 2), [torch.ones(3), y], forward_compiler=run_fx)


def test_memory_of_a_fixed_size_is_refused() -> None:
    numpy = pytest.importorskip("numpy")

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (torch.mul(x, 2, out=y),)

    y = torch.from_numpy(numpy.zeros(2, dtype="float32"))
    with pytest.raises(TraceError, match="which is fixed"):
        aot_compile(as_graph(function, 2), [torch.ones(3), y], forward_compiler=run_fx)
