"""Writes that autograd counts where the compiled graph makes none: to a tensor that has its version
counter together with another, and in a backward of the program's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail


def write_then_read(a: Tensor, b: Tensor) -> Tensor:
    a.mul_(2)
    return b.sin()


def write_then_multiply(a: Tensor, b: Tensor) -> Tensor:
    a.mul_(2)
    return a.mul(b)


def write_the_second(a: Tensor, b: Tensor) -> Tensor:
    b.mul_(2)
    return a.mul(b)


def write_without_gradients(a: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        a.mul_(2)
    return b.sin()


@pytest.mark.parametrize(
    "function", [write_then_read, write_then_multiply, write_the_second, write_without_gradients]
)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("graded", [False, True])
def test_one_of_two_views_is_written_to(
    function: Callable[[Tensor, Tensor], Tensor], dynamic: bool | None, graded: bool
) -> None:
    def outcome(call: Callable[[Tensor, Tensor], Tensor]) -> list[Any]:
        found: list[Any] = []
        for columns in (3, 4):
            x = torch.arange(1.0, 2.0 * columns + 1).reshape(2, columns).requires_grad_(graded)
            base = x.add(1)
            a, b = base[0], base[1]
            result = call(a, b)
            if graded:
                result.sum().backward()
                found.append(x.grad)
            found += [result.detach(), a.detach(), b.detach(), a._version, b._version]
        return found

    # (Autograd takes views with a history anew of their base: the write is left to eager.)
    compiled = dovetail.compile(function, fullgraph=not graded, dynamic=dynamic)
    torch.testing.assert_close(outcome(compiled), outcome(function))
    told = dovetail.report(compiled).as_text()
    assert ("a view that autograd takes anew of its base" in told) == graded


@pytest.mark.parametrize("part", ["detached part", "part of what is detached", "empty"])
def test_one_of_two_that_are_views_of_nothing_in_common_is_written_to(part: str) -> None:
    """A detached tensor has the counter of what it was detached from."""

    def function(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
        with torch.no_grad():
            a.add_(1)
        return (b * w).sum()

    def outcome(call: Callable[[Tensor, Tensor, Tensor], Tensor]) -> list[Any]:
        whole, w = torch.arange(4.0), torch.ones(2, requires_grad=True)
        a, b = whole[:2], whole.detach()[2:]
        if part == "detached part":
            b = whole[2:].detach().requires_grad_()
        elif part == "empty":
            a = torch.zeros(0, 2)
            b = a.detach().requires_grad_()
        call(a, b, w).backward()
        return [a, w.grad, b.grad, a._version, b._version]

    compiled = dovetail.compile(function, fullgraph=True)
    torch.testing.assert_close(outcome(compiled), outcome(function))


class Counting(torch.autograd.Function):
    """Counts its backwards in a tensor that it saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: Tensor) -> Tensor:
        ctx.save_for_backward(x, count)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, count = ctx.saved_tensors
        count.add_(1)
        return gradient * x.cos(), None


class InPlace(torch.autograd.Function):
    """Computes its gradient in the memory of what it saved, which nobody else has."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.cos())
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (cosine,) = ctx.saved_tensors
        return cosine.mul_(gradient)  # type: ignore[no-any-return]


def counted_input(x: Tensor, count: Tensor) -> tuple[Tensor, ...]:
    return (Counting.apply(x * 2, count.detach()),)


def counted_output(x: Tensor, count: Tensor) -> tuple[Tensor, ...]:
    own = count + 3
    return Counting.apply(x * 2, own), own


def hooked(x: Tensor, count: Tensor) -> tuple[Tensor, ...]:
    y = x * 2

    def note(gradient: Tensor) -> Tensor:
        count.add_(gradient.sum())
        return gradient * 3

    y.register_hook(note)
    return (y.sin(),)


@pytest.mark.parametrize("function", [counted_input, counted_output, hooked])
def test_writes_of_a_backward_come_with_the_backward(
    function: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
) -> None:
    def outcome(call: Callable[[Tensor, Tensor], tuple[Tensor, ...]]) -> list[Any]:
        found: list[Any] = []
        count = torch.zeros(3)
        for _ in range(2):
            x = torch.arange(3.0).requires_grad_()
            results = call(x, count)
            for tensor in (count, *results[1:]):
                found += [tensor.clone(), tensor._version]
            results[0].sum().backward()
            found.append(x.grad)
            for tensor in (count, *results[1:]):
                found += [tensor.clone(), tensor._version]
        return found

    torch.testing.assert_close(outcome(dovetail.compile(function)), outcome(function))


def test_a_backward_that_writes_to_what_only_it_has_is_compiled() -> None:
    x = torch.arange(3.0).requires_grad_()

    def function(x: Tensor) -> Any:
        return InPlace.apply(x * 2)

    result = dovetail.compile(function, fullgraph=True)(x)
    result.sum().backward()
    torch.testing.assert_close(x.grad, 2 * (2 * x.detach()).cos())
