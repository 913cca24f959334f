"""Gradients that come expanded, as from `sum()` outside of compiled code: a small backward reads
large ones as they lie, and is right for those that lie otherwise, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_autograd_aot.calls.lazy_backward import LazyBackward
from torch import Tensor
from torch.fx import GraphModule

import dovetail

ROWS, COLUMNS = 512, 1024
Function = Callable[..., Any]

FUNCTIONS: dict[str, Function] = {
    "elements": lambda x, w: (x * w).sin(),
    "the gradient itself": lambda x, w: x + w,
    "a transposed result": lambda x, w: (x * w).t(),
    "a reshaped result": lambda x, w: (x * w).exp().view(2, -1),
    "a reduction in the backward": lambda x, w: (x * w).softmax(-1),
    "a sum to fewer dimensions": lambda x, w: x + w[0],
    "a product": lambda x, w: F.linear(x, w[:COLUMNS, :]).relu(),
    "a convolution": lambda x, w: F.conv2d(
        x.view(1, 8, 256, 256), w.view(-1)[: 8 * 8 * 9].view(8, 8, 3, 3), padding=1
    ).sigmoid(),
    "a pool": lambda x, w: F.avg_pool2d((x * w).view(1, 2, 512, 512), 3, 1, 1),
    "several results": lambda x, w: ((x * w).sin(), (x - w).exp()),
}
# Sums whose backwards expand along all dimensions, or along one.
ASKED: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda y: y.sum(),
    "the last": lambda y: (y.sum(-1) ** 2).sum(),
    "the first": lambda y: (y.sum(0) ** 2).sum(),
    "none": lambda y: (y * y).sum(),
}


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.rand(ROWS, COLUMNS, generator=generator) for _ in range(2))
    return x.requires_grad_(), w.requires_grad_()


def gradients(function: Function, given: tuple[Tensor, ...], asked: str) -> tuple[Tensor, ...]:
    results = function(*given)
    results = results if isinstance(results, tuple) else (results,)
    return torch.autograd.grad(sum(ASKED[asked](result) for result in results), given)


@pytest.fixture
def laid(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each backward that is compiled: whether it reads tangents as they came."""
    made: list[bool] = []
    compile_one = LazyBackward._compiled

    def noted(self: LazyBackward, gm: GraphModule) -> Any:
        placeholders = list(gm.graph.find_nodes(op="placeholder"))[len(self.parts.saved) :]
        made.append(any(0 in node.meta["val"].stride() for node in placeholders))
        return compile_one(self, gm)

    monkeypatch.setattr(LazyBackward, "_compiled", noted)
    return made


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_all_layouts_are_eagers(name: str, laid: list[bool]) -> None:
    function, given = FUNCTIONS[name], inputs()
    compiled = dovetail.compile(function, fullgraph=True, dynamic=False)
    for asked in ("all", "all", "the last", "none", "the first", "all"):
        got, wanted = gradients(compiled, given, asked), gradients(function, given, asked)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert laid[0] and not all(laid) and len(laid) <= 4


def test_small_gradients_are_copied(laid: list[bool]) -> None:
    given = tuple(torch.rand(8, 8, requires_grad=True) for _ in range(2))
    function = FUNCTIONS["elements"]
    compiled = dovetail.compile(function)
    for asked in ("all", "none"):
        torch.testing.assert_close(
            gradients(compiled, given, asked), gradients(function, given, asked)
        )
    assert laid == [False]


def test_those_of_any_size_are_copied(laid: list[bool]) -> None:
    function = FUNCTIONS["elements"]
    compiled = dovetail.compile(function, dynamic=True)
    for rows in (512, 600):
        x, w = (torch.rand(rows, COLUMNS).requires_grad_() for _ in range(2))
        torch.testing.assert_close(
            gradients(compiled, (x, w), "all"), gradients(function, (x, w), "all")
        )
    assert not any(laid)


def test_a_lazy_negative_and_a_batch_are_read_right(laid: list[bool]) -> None:
    function, given = FUNCTIONS["elements"], inputs()
    compiled = dovetail.compile(function)
    negative = torch.complex(torch.zeros(1), torch.ones(1)).conj().imag.expand(ROWS, COLUMNS)
    assert negative.is_neg()
    batch = torch.ones(2, 1, 1).expand(2, ROWS, COLUMNS)
    for gradient, batched in ((batch[0], False), (negative, False), (batch, True)):
        got, wanted = (
            torch.autograd.grad(run(*given), given, gradient, is_grads_batched=batched)
            for run in (compiled, function)
        )
        torch.testing.assert_close(got, wanted)
    assert laid == [True, False]
