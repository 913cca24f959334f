"""Graphs of which some backwards raise an error in eager: those do here, and others answer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from aot_testing import as_graph, run_fx, same_answers
from dovetail_autograd_aot import aot_compile
from torch import Tensor

Answers = list[Tensor | None] | str


def _two_results(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    bad, good = x * w, x + v
    w.add_(1)  # (which the product has saved for x alone)
    return bad, good, good * 2


def _one_way(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    result = x * w + v.sin()
    w.add_(1)
    return result, v * 2


def _nothing_else_leads_to_it(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    bad = x * w
    w.add_(1)
    return bad, v.exp()


def _through_one_another(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    bad = (x * w).sin()
    w.add_(1)
    return bad, bad * 2 + v, v * 3


def _all_lost(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    first, second = x * w, x.exp() * w
    w.add_(1)
    return first, second


def _written_input(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    result = v * 3
    v.mul_(x * w)
    w.add_(1)
    return result, x + 1


PROGRAMS = (
    _two_results, _one_way, _nothing_else_leads_to_it, _through_one_another, _all_lost,
    _written_input,
)  # fmt: skip


def _inputs() -> list[Tensor]:
    x, w, v = (torch.linspace(0.2, 1, 3, dtype=torch.float64) + i for i in range(3))
    return [x.requires_grad_(), w, v.requires_grad_() * 1]


def _asked(
    run: Callable[..., Sequence[Tensor]], losses: Sequence[int], wanted: Sequence[int] | None
) -> Answers:
    """The gradients of some outputs, to some of the inputs and outputs or to all leaves."""
    inputs = _inputs()
    leaf = inputs[0]
    outputs = run(*inputs)
    loss: Tensor = sum(outputs[i].sum() for i in losses)  # type: ignore[assignment]
    places = [inputs[0], inputs[2], *outputs]
    try:
        if wanted is None:
            loss.backward()
            return [leaf.grad]
        return list(torch.autograd.grad(loss, [places[i] for i in wanted], allow_unused=True))
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("function", PROGRAMS)
def test_each_way_raises_or_answers_as_in_eager(function: Callable[..., Sequence[Tensor]]) -> None:
    """Where eager raises, so do we. Where it answers so do we, but by way of others: of the graph
    that overwrites something the program is not run again; or where no backward is left at all."""
    compiled = aot_compile(as_graph(function, 3), _inputs(), forward_compiler=run_fx)
    count = len(function(*_inputs()))
    answered = 0
    losses = [c for n in (1, 2) for c in itertools.combinations(range(count), n)]
    for loss in losses:
        for wanted in (None, (0,), (1,), (0, 1), *((2 + i,) for i in range(count)), (0, 2), (1, 3)):
            ours, eager = _asked(compiled, loss, wanted), _asked(function, loss, wanted)
            if isinstance(eager, str):
                assert isinstance(ours, str) and "modified by an inplace" in eager
                assert ours.split(":")[0] == eager.split(":")[0] or "by way of" in ours
            elif isinstance(ours, str):
                assert function is _all_lost or "by way of" in ours
            else:
                same_answers(ours, eager)
                answered += 1
    assert answered > 4


def test_what_requires_a_gradient_and_gets_none_raises_nothing() -> None:
    """A view made under no_grad says that it requires a gradient, and has no place in autograd's
    graph: nothing is computed for it."""

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        bad, good = x * w, x + 1
        w.add_(1)
        return bad, good

    def gradient(run: Callable[..., Sequence[Tensor]]) -> Tensor | None:
        leaf = torch.ones(2, 3, requires_grad=True)
        history = leaf * 1
        with torch.no_grad():
            view = history[0]
        assert view.requires_grad
        bad, good = run(view, torch.ones(3))
        (bad.sum() + good.sum() + history.sum()).backward()
        return leaf.grad

    examples = [torch.ones(3, requires_grad=True), torch.ones(3)]
    compiled = aot_compile(as_graph(function, 2), examples, forward_compiler=run_fx)
    same_answers([gradient(compiled)], [gradient(function)])
