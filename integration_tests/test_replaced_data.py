"""`tensor.data = ...`: a tensor is given other memory, and stays the object that it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

import dovetail

Program = Callable[[Tensor, Tensor, Tensor], Any]


def averaged(a: Tensor, b: Tensor, x: Tensor) -> None:
    """As MoCo's momentum encoder is."""
    for _ in range(3):
        a.data = a.data * 0.9 + b.data * 0.1


def swapped(a: Tensor, b: Tensor, x: Tensor) -> None:
    a.data, b.data = b.data, a.data


def shared(a: Tensor, b: Tensor, x: Tensor) -> None:
    a.data = b.data


def given_an_argument(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    a.data = x
    return x + 1


def given_back(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    a.data = made = b.data * 2
    return made


def of_an_argument(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    x.data = x * 2
    return x + 1


@torch.no_grad()
def put_back(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    kept = [p.data for p in (a, b)]
    for p in (a, b):
        p.data = p.data * 0.5
    y = a @ x @ b
    for p, data in zip((a, b), kept, strict=True):
        p.data = data
    return y


@torch.no_grad()
def written_after(a: Tensor, b: Tensor, x: Tensor) -> Any:
    a.data = b.data + 1
    same = a.mul_(2)
    a.data.add_(1)
    return same is a, a.sum(), a.requires_grad, a.is_leaf


@torch.no_grad()
def written_before(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    row = a.data[0]
    a.mul_(2)
    a.data = a.data + 1
    return row * 3


def of_what_is_made(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """The tensor that is made shares memory with the argument from then on."""
    made = torch.zeros(3, 3)
    same, row = made, made[0]
    made.data = x
    same.add_(1)
    row.add_(5)
    assert same is made and not made.requires_grad
    return (made * a + row).mean() + made


def exchanged(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    one, two = torch.zeros(3, 3), torch.ones(3, 3)
    before = one + 1
    one.data, two.data = two.data, one.data
    one[0] = 7
    return before + one * 2 + two * 3


def of_what_has_a_history(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    made = b * 2
    made.data = x * 3
    return made * b


def used_later(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    for p in (a, b):
        p.data = p.data + 0.1
    return (a @ x @ b).sin()


def used_before(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    y = a @ x
    a.data = a.data * 2
    return y


def of_other_sizes(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    a.data = x[:2].clone()
    return a.detach() + 1


def of_other_strides(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    a.data = x.t()
    return a.detach() + 1


ONE_GRAPH = [
    averaged, swapped, shared, given_an_argument, given_back, of_an_argument, put_back,
    written_after, written_before, of_what_is_made, exchanged,
]  # fmt: skip
BROKEN = [of_what_has_a_history, used_later, used_before, of_other_sizes, of_other_strides]


def outcome(call: Program, kind: str) -> list[Any]:
    """What two calls give, and what the tensors, their old memory and gradients are then; and what
    a write to each tensor changes besides."""
    torch.manual_seed(0)
    first = nn.Parameter(torch.randn(3, 3), requires_grad=kind != "frozen")
    second = first if kind == "one" else nn.Parameter(torch.randn(3, 3))
    x = torch.randn(3, 3)
    memory = [first.data, second.data, x.data]
    found: list[Any] = []
    for _ in range(2):
        result = call(first, second, x)
        if isinstance(result, Tensor) and result.requires_grad:
            result.sum().backward()
        tensors = [first, second, x, *memory, *([result] if isinstance(result, Tensor) else [])]
        found.append([result if not isinstance(result, Tensor) else result.detach().clone()])
        for number, tensor in enumerate(tensors):
            found.append([t.detach().clone() for t in tensors])
            tensor.data.add_(number)
        found.append([first.grad, second.grad, first.requires_grad, type(first).__name__])
        found.append([first._version, second._version])
    return found


@pytest.mark.parametrize("kind", ["two", "one", "frozen"])
@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
@pytest.mark.parametrize("program", [*ONE_GRAPH, *BROKEN])
def test_data_that_is_replaced(program: Program, backend: str, kind: str) -> None:
    call = dovetail.compile(program, backend=backend)
    ours, theirs = (pytree.tree_leaves(outcome(each, kind)) for each in (call, program))
    for mine, wanted in zip(ours, theirs, strict=True):
        if isinstance(wanted, Tensor):
            torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-5)
        else:
            assert mine == wanted
    breaks = [b.reason for b in dovetail.report(call).breaks]
    assert bool(breaks) == (program in BROKEN) or kind != "two", breaks


def test_arguments_that_are_one_tensor_in_another_call() -> None:
    """The graph of two tensors is not that of one."""

    def program(a: Tensor, b: Tensor) -> Tensor:
        a.data = a.data * 2
        return b.detach() + 1

    call = dovetail.compile(program, fullgraph=True)
    for _ in range(2):
        a, b = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        assert call(a, b).tolist() == [2, 2, 2]
        assert call(a, a).tolist() == [5, 5, 5] and a.tolist() == [4, 4, 4]


def test_what_a_backward_needs_notices_a_write_to_the_new_memory() -> None:
    def program(a: Tensor, b: Tensor) -> None:
        with torch.no_grad():
            a.data = b * 2
            a.add_(1)

    for call in (program, dovetail.compile(program, fullgraph=True)):
        a, b = torch.ones(3, requires_grad=True), torch.ones(3)
        loss = (a * a).sum()
        call(a, b)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
