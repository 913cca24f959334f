"""Inputs with a gradient that are written to and change their shape in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from aot_testing import TABLES, as_graph, check, run_fx, same_answers
from dovetail_autograd_aot import AotLog, TraceError, aot_compile
from torch import Tensor

Function = Callable[..., tuple[Tensor, ...]]


def _views_after(x: Tensor) -> tuple[Tensor, ...]:
    row = x.t_().mul_(2)[0]
    return row, x, x.sin()


def _detached_before(x: Tensor) -> tuple[Tensor, ...]:
    old = x.detach()[1]
    x.mul_(2)
    return old, x.t_()[0], x.detach()[2]


def _several_changes(x: Tensor) -> tuple[Tensor, ...]:
    x.unsqueeze_(0).mul_(3).transpose_(0, 2)
    x.sin_().squeeze_()
    return (x * 2,)


def _unchanged(x: Tensor) -> tuple[Tensor, ...]:
    x.squeeze_(0).mul_(2)
    return (x.t(),)


FUNCTIONS = {
    "write first": lambda x: (x.mul_(2).t_(),), "shape first": lambda x: (x.t_().mul_(2),),
    "not returned": lambda x: (x.t_().mul_(2).sum(),), "views after": _views_after,
    "detached before": _detached_before, "several changes": _several_changes,
    "unchanged": _unchanged,
}  # fmt: skip


def _with_history(*sizes: int) -> Tensor:
    leaf = torch.randn(sizes or (3, 4), requires_grad=True)
    return leaf * 1


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("table", TABLES)
def test_one_input(name: str, table: str) -> None:
    check(FUNCTIONS[name], [_with_history()], table=table)


def _under_no_grad(x: Tensor) -> tuple[Tensor, ...]:
    x.mul_(2)
    with torch.no_grad():
        x.swapaxes_(0, 1)
    return (x * 3,)


def _a_part(x: Tensor) -> tuple[Tensor, ...]:
    x.mul_(2).as_strided_((2, 2), (1, 3), 1).mul_(2)
    return (x.sin(),)


@pytest.mark.parametrize(
    ("function", "why"), [(_under_no_grad, "under no_grad"), (_a_part, "where it lies")]
)
def test_changes_that_are_refused(function: Function, why: str) -> None:
    with pytest.raises(TraceError, match=f"requires grad, is written to and changes .*{why}"):
        aot_compile(as_graph(function, 1), [_with_history()], forward_compiler=run_fx)


@pytest.mark.parametrize("table", TABLES)
def test_several_inputs(table: str) -> None:
    def function(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        x.t_().mul_(y.t()).unsqueeze_(0)
        z.t_().add_(x[0])  # z has no gradient before
        return x.sin(), z[0], y * 2

    check(function, [_with_history(), _with_history(), torch.randn(3, 4)], table=table)


def _asked(function: Function, question: str) -> list[Tensor | None]:
    torch.manual_seed(0)
    leaf = torch.randn(3, 4, requires_grad=True)
    x, y = leaf * 1, leaf * 2
    if question == "retained before":
        x.retain_grad()
    results = function(x, y)
    loss = sum(((r * r).sum() for r in (*results, x)), torch.zeros(()))
    if question == "at the input":
        return list(torch.autograd.grad(loss, [x, *results, leaf], allow_unused=True))
    if question == "second order":
        (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
        return [first.detach(), *torch.autograd.grad(first.square().sum(), leaf)]
    if question == "retained":
        x.retain_grad()
    loss.backward()
    return [x.grad, leaf.grad]


def _linear(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.mul_(2).t_()
    y.mul_(3).unsqueeze_(0)
    return x[0], y.view(4, 3) + x


@pytest.mark.parametrize(
    "question", ["at the input", "second order", "retained", "retained before"]
)
def test_what_autograd_answers(question: str) -> None:
    inputs = [_with_history(), _with_history()]
    log = AotLog()
    run = aot_compile(as_graph(_linear, 2), inputs, forward_compiler=run_fx, log=log)
    same_answers(_asked(run, question), _asked(_linear, question))
    assert bool(log.eager_calls) == (question == "retained before")  # (which is another place's)
