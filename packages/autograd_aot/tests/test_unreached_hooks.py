"""Hooks on inputs that a backward does not reach are not called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_testing import run_fx
from dovetail_autograd_aot import aot_compile
from torch import Tensor
from torch.fx import symbolic_trace


def two_heads(x: Tensor, shared: Tensor, head: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    h = (x * shared).sin()
    return h * head, h * other


Answers = list[Any]


def scenario(run: Callable[..., Any], leaf: bool, used_elsewhere: bool) -> Answers:
    """Everything that hooks and gradients tell after three backwards from one head."""
    torch.manual_seed(0)
    leaves = [torch.randn(3, requires_grad=True) for _ in range(4)]
    calls: Answers = []
    given = leaves if leaf else [one * 1 for one in leaves]
    for number, one in enumerate(given):
        if number == 3:
            above = one if leaf else one.grad_fn.next_functions[0][0]
            if not leaf:
                above.register_prehook(lambda g: calls.append(("pre", g)))
                above.register_hook(lambda *g: calls.append(("post", g)))
        one.register_hook(lambda g, number=number: calls.append((number, g * 2)))
    for number, one in enumerate(leaves):
        one.register_post_accumulate_grad_hook(
            lambda p, number=number: calls.append((number, p.grad.clone()))
        )
    for step in range(3):
        first, second = run(*given)
        loss = (second if step == 1 else first).sum()
        if used_elsewhere:
            loss = loss + given[3].sum()
        loss.backward(retain_graph=True)
        calls.append("step")
    return [*calls, *(one.grad for one in leaves)]


def equal(ours: Any, eager: Any) -> bool:
    if isinstance(eager, (tuple, list)):
        return len(ours) == len(eager) and all(map(equal, ours, eager))
    if isinstance(eager, Tensor):
        return isinstance(ours, Tensor) and torch.allclose(ours, eager)
    return bool(ours == eager)


@pytest.mark.parametrize("used_elsewhere", [False, True])
@pytest.mark.parametrize("leaf", [False, True])
def test_calls_are_eagers(leaf: bool, used_elsewhere: bool) -> None:
    examples = [torch.randn(3, requires_grad=True) for _ in range(4)]
    compiled = aot_compile(symbolic_trace(two_heads), examples, forward_compiler=run_fx)
    eager = scenario(two_heads, leaf, used_elsewhere)
    ours = scenario(compiled, leaf, used_elsewhere)

    def in_steps(answers: Answers) -> list[Answers]:
        """The calls in each step, in an order of their own: the engine's is not defined."""
        found: list[Answers] = [[]]
        for answer in answers:
            if isinstance(answer, str):
                found.append([])
            else:
                found[-1].append(answer)
        return [sorted(step, key=repr) for step in found[:-1]] + [found[-1]]

    assert equal(in_steps(ours), in_steps(eager))


def test_numbers_among_the_inputs() -> None:
    def fn(x: Tensor, factor: float, w: Tensor) -> tuple[Tensor, Tensor]:
        return x * factor, w * factor

    x, w = (torch.randn(3, requires_grad=True) for _ in range(2))
    compiled = aot_compile(symbolic_trace(fn), [x, 2.0, w], forward_compiler=run_fx)
    calls: Answers = []
    w.register_hook(calls.append)
    compiled(x, 2.0, w)[0].sum().backward()
    assert not calls and w.grad is None
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0))


def test_hooks_are_as_they_were_afterwards() -> None:
    leaves = [torch.randn(3, requires_grad=True) for _ in range(4)]
    compiled = aot_compile(symbolic_trace(two_heads), leaves, forward_compiler=run_fx)

    def hook(gradient: Tensor) -> None:
        gradient.add(1)

    handle = leaves[3].register_hook(hook)
    compiled(*leaves)[0].sum().backward()
    assert list(leaves[3]._backward_hooks.values()) == [hook]
    handle.remove()
    assert not leaves[3]._backward_hooks
