"""What inputs were computed from is come to only from outputs that lead there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_testing import run_fx
from dovetail_autograd_aot import aot_compile, compiled_autograd
from torch import Tensor
from torch.fx import symbolic_trace


def graph(y: Tensor, z: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return y * 2 * w, z.sin() * w, (y * z * w).sum()


class Counted(torch.autograd.Function):
    """Counts its backwards: what the user's code does there."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Counted.calls += 1
        return gradient * 1


def one_after_another(o: Any, i: Any) -> None:
    o[0].sum().backward()
    o[1].sum().backward()


def one_alone(o: Any, i: Any) -> None:
    o[1].sum().backward()


def together(o: Any, i: Any) -> None:
    (o[0].sum() + o[1].sum() + o[2]).backward()


def of_one_input(o: Any, i: Any) -> Any:
    return torch.autograd.grad(o[0].sum(), i[0])


def of_an_input_behind_a_gate_and_one_that_is_not(o: Any, i: Any) -> Any:
    return torch.autograd.grad(o[1].sum(), [i[1], i[2]])


def of_second_order(o: Any, i: Any) -> None:
    (g,) = torch.autograd.grad(o[1].sum(), i[1], create_graph=True)
    g.square().sum().backward()


def kept_and_again(o: Any, i: Any) -> None:
    o[0].sum().backward(retain_graph=True)
    o[0].sum().backward()
    o[1].sum().backward()


def by_way_of_another(o: Any, i: Any) -> None:
    o[0].register_hook(lambda g: g * 2)
    o[2].backward()


def several_at_once(o: Any, i: Any) -> Any:
    return torch.autograd.grad(o[1], i[1], torch.eye(3), is_grads_batched=True)


QUESTIONS = [
    one_after_another, one_alone, together, of_one_input, kept_and_again, of_second_order,
    of_an_input_behind_a_gate_and_one_that_is_not, by_way_of_another, several_at_once,
]  # fmt: skip


def asked(run: Callable[..., Any], question: Callable[..., Any]) -> list[Any]:
    torch.manual_seed(0)
    leaves = [torch.randn(3, requires_grad=True) for _ in range(3)]
    Counted.calls = 0
    y, z = Counted.apply(leaves[0].exp()), Counted.apply(leaves[1].exp())
    found = question(run(y, z, leaves[2]), leaves) or ()
    return [*found, *(leaf.grad for leaf in leaves), Counted.calls]


def same(ours: list[Any], eager: list[Any]) -> None:
    assert len(ours) == len(eager)
    for one, other in zip(ours, eager, strict=True):
        if isinstance(other, Tensor):
            torch.testing.assert_close(one, other)
        else:
            assert one == other


def compiled() -> Callable[..., Any]:
    examples = [torch.ones(3, requires_grad=True) * 1 for _ in range(2)]
    examples.append(torch.ones(3, requires_grad=True))
    return aot_compile(symbolic_trace(graph), examples, forward_compiler=run_fx)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.__name__)
def test_answers_are_eagers(question: Callable[..., Any]) -> None:
    same(asked(compiled(), question), asked(graph, question))


def test_compiled_autograd_comes_through_gates() -> None:
    context = compiled_autograd(lambda gm, _: gm)
    run = compiled()

    def in_context(o: Any, i: Any) -> None:
        with context:
            (o[0].sum() + o[1].sum()).backward()

    for _ in range(3):
        same(asked(run, in_context)[:-1], asked(graph, together_of_two)[:-1])
    assert context.report.compiled == 2 and not context.report.on_engine


def together_of_two(o: Any, i: Any) -> None:
    (o[0].sum() + o[1].sum()).backward()


def test_the_same_tensor_given_twice_in_a_run_by_eager() -> None:
    def fn(x: Tensor, again: Tensor) -> tuple[Tensor, ...]:
        v = x[1:]
        return v, (v * again[:2]).sin()

    def gradients(run: Callable[..., Any]) -> tuple[Tensor, ...]:
        x = torch.linspace(-1, 1, 3, requires_grad=True)
        v, out = run(x, x)
        return torch.autograd.grad(out.sum(), [v, x])

    example = torch.ones(3, requires_grad=True)
    run = aot_compile(symbolic_trace(fn), [example, example], forward_compiler=run_fx)
    same(list(gradients(run)), list(gradients(fn)))
