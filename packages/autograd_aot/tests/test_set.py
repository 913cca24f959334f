"""`set_`: tensors, also inputs, that become aliases of others, or views of their storages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from aot_testing import TABLES, as_graph, check, run_fx
from dovetail_autograd_aot import TraceError, aot_compile
from torch import Tensor

Function = Callable[..., tuple[Tensor, ...]]


def _part_of_a_storage(x: Tensor) -> tuple[Tensor, ...]:
    y, z = x * 2, torch.zeros(3)
    z.set_(y.untyped_storage(), 2, (2, 2), (1, 3))
    z.add_(1)
    return y, z


def _whole_storage(x: Tensor) -> tuple[Tensor, ...]:
    y, z = x * 2, torch.zeros(3)
    old = z[1:]  # it stays where it is
    z.set_(y.untyped_storage())
    z.add_(1)
    old.as_strided((3,), (1,), 0).mul_(5)
    return y, z, old


def _counted_from_a_tensor(x: Tensor) -> tuple[Tensor, ...]:
    y, z = x * 2, torch.zeros(3)
    z.set_(y[1], 1, (3,))
    z.add_(1)
    return y, z


def _beyond_a_storage(x: Tensor) -> tuple[Tensor, ...]:
    y, z = (x * 2).reshape(-1), torch.zeros(3)
    z.set_(y, 4, (20,))
    z.fill_(1)
    return y, z


def _nothing(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    return y.set_(), y.resize_(2).fill_(x.sum())


INTERMEDIATES = [
    _part_of_a_storage, _whole_storage, _counted_from_a_tensor, _beyond_a_storage, _nothing,
]  # fmt: skip


@pytest.mark.parametrize("function", INTERMEDIATES)
@pytest.mark.parametrize("table", TABLES)
def test_intermediates(function: Function, table: str) -> None:
    check(function, [torch.randn(3, 4)], table=table)


def _to_an_input(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.set_(y)
    return x[0], x[1:], x + 1


def _to_a_new_tensor(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    z = y * 2
    x.set_(z)
    x.add_(1)
    return z, x, x[1:]


def _to_a_part_after_a_write(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    z, old = y * 2, x[0]
    x.mul_(2)
    x.set_(z[1:])
    x.add_(1)
    return z, old


def _in_turn(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    old = x.view_as(x)
    x.set_(y)
    y.set_(old)
    x.add_(1)
    return (x.sum() + y,)


def _to_nothing(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    row = x[0]
    x.set_()
    return x, row, y * 2


def _to_its_own_storage(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x.set_(x.untyped_storage(), 2, (2, 2), (1, 3)).add_(1), y * 2


def _to_a_part_of_a_storage(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x.set_(y.untyped_storage(), 1, (2, 2), (1, 3)).add_(1), y * 2


def _to_a_storage_that_grows(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x.set_(y[1:], 1, (8,)).fill_(1), y * 2


def _after_a_change_of_shape(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    seen = x.t_()[0]
    x.set_(y).unsqueeze_(0)
    return seen, x, x[0]


def _twice(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.set_(y)
    part = x[1:]
    x.set_()
    return part, y


INPUTS = [
    _to_an_input, _to_a_new_tensor, _to_a_part_after_a_write, _in_turn, _to_nothing,
    _to_its_own_storage, _to_a_part_of_a_storage, _to_a_storage_that_grows,
    _after_a_change_of_shape, _twice,
]  # fmt: skip


@pytest.mark.parametrize("function", INPUTS)
@pytest.mark.parametrize("table", TABLES)
def test_inputs(function: Function, table: str) -> None:
    check(function, [torch.randn(3, 4), torch.randn(6)], table=table)
    memory = torch.randn(18)
    check(function, [memory[:12].view(3, 4), memory[12:]], table=table)


def test_gradients_of_what_an_input_was_before() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        before = (x.sin() * y).sum()
        x.set_(y.detach() * 2)
        return before, (y * y).sin(), x

    y = torch.randn(6, requires_grad=True)
    check(function, [torch.randn(6), y])
    run = aot_compile(as_graph(function, 2), [torch.randn(6), y], forward_compiler=run_fx)
    found = []
    for call in (function, run):
        x = torch.arange(6.0)
        before, product, _ = call(x, y)
        (first,) = torch.autograd.grad(before + product.sum(), y, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), y)
        found.append((first.detach(), second, x))
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected)


def test_views_of_what_an_input_is_set_to_share_its_counter() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        x.set_(y)
        return (x[1:],)

    run = aot_compile(
        as_graph(function, 2), [torch.ones(3), torch.ones(3)], forward_compiler=run_fx
    )
    for call in (function, run):
        x, y = torch.ones(3), torch.ones(3)
        (part,) = call(x, y)
        counted = x._version
        part.mul_(2)
        assert (counted, x._version, y._version) == (1, 2, 0)
        assert part._base is x and y.tolist() == x.tolist() == [1, 2, 2]


def test_what_requires_grad_is_refused() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            x.set_(y)
        return (x * 2,)

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(TraceError, match="set_ of input 0, which requires grad"):
        aot_compile(as_graph(function, 2), [x, torch.ones(2)], forward_compiler=run_fx)
