"""Inputs of several dtypes that lie in one storage; views that count in elements of a dtype."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from aot_testing import TABLES, as_graph, check, run_fx
from dovetail_autograd_aot import aot_compile
from torch import Tensor

Function = Callable[..., tuple[Tensor, ...]]

_X = torch.arange(1.0, 13.0).view(3, 4)
_C = torch.view_as_complex(torch.arange(1.0, 13.0).view(3, 2, 2))

BESIDE = {
    "of one size": (_X, _X.view(torch.int32)),
    "smaller": (_X, _X.view(torch.int16)),
    "bytes, a part": (_X[1:], _X.view(torch.uint8)[:2, 1:]),
    "larger, transposed": (_X[1:], _X.view(torch.float64)[:2].t()),
    "complex": (_C, torch.view_as_real(_C).view(3, 4)),
    "three": (_X, _X.view(torch.int64), _X.view(torch.uint8)),
}


def _first_written(x: Tensor, y: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    return x.mul_(3), x[0], y + 1, y[1], *(other[0] for other in others)


def _second_written(x: Tensor, y: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    row = y[0]
    y.add_(y)
    return x[1:], y, row, *(other[0] + 1 for other in others)


def _strided(x: Tensor, y: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    part = y.as_strided((2,), (1,), 1)
    part.fill_(2)
    return part, x[0], x.as_strided((2,), (1,), 2), *others


@pytest.mark.parametrize("function", [_first_written, _second_written, _strided])
@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("table", TABLES)
def test_inputs(function: Function, name: str, table: str) -> None:
    check(function, BESIDE[name], table=table)


def test_a_gradient_beside_the_elements_as_integers() -> None:
    def function(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        before = y + 0
        x.mul_(w)
        return before, y & 255, x.sin()

    def run(call: Function) -> list[Tensor]:
        leaf = torch.arange(1.0, 7.0).requires_grad_()
        w = torch.full((6,), 3.0, requires_grad=True)
        x = leaf * 1
        results = call(x, x.detach().view(torch.int32), w)
        results[2].sum().backward()
        assert leaf.grad is not None and w.grad is not None
        return [*results, x, leaf.grad, w.grad]

    x = torch.arange(1.0, 7.0).requires_grad_() * 1
    examples = [x, x.detach().view(torch.int32), torch.ones(6, requires_grad=True)]
    compiled = aot_compile(as_graph(function, 3), examples, forward_compiler=run_fx)
    for got, expected in zip(run(compiled), run(function), strict=True):
        torch.testing.assert_close(got, expected)


def test_the_same_input_twice() -> None:
    def function(x: Tensor, same: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        same.abs_()
        return y.data, x[0]

    check(function, [_X, _X, _X.view(torch.int32)])


def _strided_integers(x: Tensor) -> tuple[Tensor, ...]:
    x.view(torch.int32).as_strided((3, 2), (1, 3), 2).add_(1)
    return (x * 1,)


def _strided_halves_of_a_new_tensor(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    return y.view(torch.int16).as_strided((3, 2), (1, 3), 2).add_(1), y


def _strided_pairs_of_a_new_tensor(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    return torch.view_as_complex(y.view(3, 2, 2)).as_strided((3, 2), (1, 3)).mul_(2j), y


def _resized_bytes(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    part = y.view(torch.uint8)[1:]
    part.resize_(60).fill_(7)
    return part[2:], y


def _set_to_other_elements(x: Tensor) -> tuple[Tensor, ...]:
    y, z = x * 2, torch.zeros(2, dtype=torch.int16)
    z.set_(y.untyped_storage(), 3, (2, 2), (5, 1))
    z.add_(1)
    return z, y


@pytest.mark.parametrize(
    "function",
    [
        _strided_integers, _strided_halves_of_a_new_tensor, _strided_pairs_of_a_new_tensor,
        _resized_bytes, _set_to_other_elements,
    ],
)  # fmt: skip
@pytest.mark.parametrize("table", TABLES)
def test_places_are_counted_in_elements_of_the_view(function: Function, table: str) -> None:
    check(function, [torch.randn(3, 4)], table=table)


def test_an_input_is_set_to_elements_of_another_dtype() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        y.set_(x.untyped_storage()).add_(1)
        return (x + 1,)

    check(function, [torch.randn(3, 4), torch.ones(2, dtype=torch.int64)])
