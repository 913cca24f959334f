"""torch's higher-order operators: what they do in eager, in graphs or around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as torch_map

import dovetail


def branches(x: Tensor, y: Tensor) -> Tensor:
    z = torch.cond(x.sum() > 0, lambda x, y: (x * y).sin(), lambda x, y: x - y, (x, y))
    return z * 2


def branches_by_size(x: Tensor, y: Tensor) -> Tensor:
    z: Tensor = torch.cond(x.shape[0] > 2, torch.sin, torch.cos, (x,))
    return z * y


def doubled_until(x: Tensor, y: Tensor) -> Tensor:
    left = (x.detach().sum() > 0).long() + 2
    count, z = while_loop(lambda i, z: i > 0, lambda i, z: (i - 1, z * 2), (left, x.detach()))
    return x * z + count + y


def mapped(x: Tensor, y: Tensor) -> Tensor:
    first, second = torch_map(lambda parts, w: (parts[0] * w, parts[1].sum()), (x, y), x[0].sin())
    return first + second.unsqueeze(1)


def scanned(x: Tensor, y: Tensor) -> Tensor:
    def combine(carry: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
        return carry * 0.5 + part, carry * part

    last, all_ = scan(combine, y[0], x)
    return last + all_


def scanned_backwards(x: Tensor, y: Tensor) -> Tensor:
    last, all_ = scan(lambda c, p: (c + p, c * p), y.sum(1), x, dim=-1, reverse=True)
    return last + all_.t()


PROGRAMS = [branches, branches_by_size, doubled_until, mapped, scanned, scanned_backwards]


@pytest.mark.parametrize("program", PROGRAMS)
def test_as_eager(program: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    x, y = torch.rand(3, 4, requires_grad=True), torch.rand(3, 4, requires_grad=True)
    compiled = dovetail.compile(program, backend="aot_eager", fullgraph=True)
    for sign in (1, -1):
        found: list[tuple[Any, ...]] = []
        for function in (program, compiled):
            result = function(x * sign, y)
            found.append((result, *torch.autograd.grad(result.sum(), [x, y], allow_unused=True)))
        torch.testing.assert_close(found[1], found[0])


def test_slices_of_a_symbolic_size() -> None:
    """They are unrolled: a graph for each number of them."""
    compiled = dovetail.compile(mapped, backend="aot_eager", fullgraph=True, dynamic=True)
    for count in (3, 5, 2):
        x, y = torch.rand(count, 4), torch.rand(count, 4)
        torch.testing.assert_close(compiled(x, y), mapped(x, y))


def test_operators_that_mark_a_function() -> None:
    flex_gemm = pytest.importorskip("torch._higher_order_ops.flex_gemm").flex_gemm
    invoke_quant = pytest.importorskip("torch._higher_order_ops").InvokeQuant()
    bias = torch.ones(5, requires_grad=True)

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        product = flex_gemm(torch.mm, (x, y), lambda z: (z + bias).relu())
        return product, invoke_quant(lambda a, b: a.sin() * b, x, x)

    x, y = torch.randn(3, 4), torch.randn(4, 5)
    results = program(x, y)
    found = dovetail.compile(program, backend="aot_eager", fullgraph=True)(x, y)
    torch.testing.assert_close(found, results)
    assert [t.requires_grad for t in found] == [t.requires_grad for t in results]
    with pytest.raises(dovetail.CaptureError, match="flex_gemm"):
        dovetail.compile(program, fullgraph=True)(x.requires_grad_(), y)


LAYER = torch.nn.Linear(4, 4)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_switch_is_a_chain_of_conditions(dynamic: bool | None) -> None:
    switch = pytest.importorskip("torch._higher_order_ops.switch").switch

    def function(x: Tensor, index: Any) -> Tensor:
        y = x * 2
        branches = (lambda t: {"a": t * y}, lambda t: {"a": LAYER(t)}, lambda t: {"a": t.sin()})
        return switch(index, branches, (x,))["a"]  # type: ignore[no-any-return]

    def plainly(x: Tensor, index: Any) -> Tensor:
        number = max(0, min(int(index), 2))
        return (x * x * 2, LAYER(x), x.sin())[number]

    call = dovetail.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for index in (*map(torch.tensor, (-2, 0, 1, 2, [9])), 1, 7):
        found = []
        for run in (plainly, call):
            x = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_()
            result = run(x, index)
            wanted = [x, *LAYER.parameters()]
            slopes = torch.autograd.grad(result.square().sum(), wanted, allow_unused=True)
            found.append([result.detach(), slopes[0], *(s for s in slopes[1:] if s is not None)])
        zeros = [torch.zeros_like(p) for p in LAYER.parameters()]
        torch.testing.assert_close(found[1], found[0] + zeros[: len(found[1]) - len(found[0])])


def test_an_associative_scan_is_part_of_the_graph() -> None:
    module = pytest.importorskip("torch._higher_order_ops.associative_scan")

    def function(x: Tensor) -> Any:
        product = module.associative_scan(lambda a, b: a * b, x, 0, combine_mode="pointwise")
        total = module.associative_scan(torch.add, x, dim=1, reverse=True)
        return product + total

    call = dovetail.compile(function, fullgraph=True, backend="aot_eager")
    for count in (1, 2, 7):
        found = []
        for run in (lambda x: x.cumprod(0) + x.flip(1).cumsum(1).flip(1), call):
            x = torch.linspace(-1, 2, 3 * count).view(count, 3).requires_grad_()
            result = run(x)
            found.append([result.detach(), *torch.autograd.grad(result.square().sum(), x)])
        torch.testing.assert_close(*found)
