"""What a user's own backward gives is there only in a backward that comes to it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from aot_testing import TABLES, as_graph, run_fx
from dovetail_autograd_aot import aot_compile
from dovetail_prims.graphs.gradient_hooks import GradientHook, GraphInBackward, remove_hook
from torch import Tensor


class Fixed(torch.autograd.Function):
    """Its gradient does not depend on the one that comes in."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return torch.ones_like(x)


class Shifted(torch.autograd.Function):
    """Of a zero gradient it makes something else."""

    @staticmethod
    def forward(ctx, x):
        return x.cos()

    @staticmethod
    def backward(ctx, gradient):
        return gradient + 1


class TwoResults(torch.autograd.Function):
    """One of its results may lack a gradient, which it then sees as zeros."""

    @staticmethod
    def forward(ctx, x, y):
        return x * y, x + y

    @staticmethod
    def backward(ctx, first, second):
        return first.exp() + second, second.cos() + first


def beside(function):
    return lambda x, y: (function.apply(x).exp(), x * 2, y * x)


def in_a_row(x, y):
    h = Shifted.apply(Fixed.apply(x) * y)
    return h.sin(), Fixed.apply(y), (x * y).sum()


def transposed(x, y):
    return Shifted.apply(x.t()).sum(0) * 2, (Fixed.apply(y.t()) @ x).softmax(0), x * y


def two_results(x, y):
    a, b = TwoResults.apply(x, y)
    return a.exp(), b * 3, x.sin()


def clamped(gradient):
    return (gradient.clamp(min=0.5),)


def shifted(gradient, factor):
    return ((gradient + 1) * factor,)


def hooked(x, y, register):
    h = x * y
    g = h.sin()
    register(clamped, h)
    return g, h.exp() * y, x.cos()


def hooked_in_order(x, y, register):
    h = x * y
    register(shifted, h, y)
    register(clamped, h).remove()
    register(shifted, h, x.detach())
    return h.exp(), x * 3, h.mul_(2).sin()


def doubled(gradient):
    return (gradient * 2,)


def linear(x, y, register):
    h = x * y
    g = h.sin()
    register(doubled, h)
    return g, h.exp() * y, x.cos()


def by_python(hook, tensor, *taken):
    return tensor.register_hook(lambda gradient: hook(gradient, *taken)[0])


def as_hooked_graph(program):
    """The graph of a program whose hooks are calls in it."""
    graph = torch.fx.Graph()

    class Handle:
        def __init__(self, node):
            self.node = node

        def remove(self):
            graph.call_function(remove_hook, (self.node,))

    def register(hook, tensor, *taken):
        inner = as_graph(hook, 1 + len(taken))
        arguments = (tensor.node, *(one.node for one in taken))
        target = GradientHook(GraphInBackward(inner, len(taken)), hook.__name__)
        return Handle(graph.call_function(target, arguments))

    tracer = torch.fx.proxy.GraphAppendingTracer(graph)
    inputs = [torch.fx.Proxy(graph.placeholder(name), tracer) for name in ("x", "y")]
    graph.output(tuple(r.node for r in program(*inputs, register)))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


PROGRAMS = [
    *((as_graph(p, 2), p) for p in
      (beside(Fixed), beside(Shifted), in_a_row, transposed, two_results)),
    *((as_hooked_graph(p), partial(p, register=by_python)) for p in (hooked, hooked_in_order)),
]  # fmt: skip
SUBSETS = [s for n in (1, 2, 3) for s in itertools.combinations(range(3), n)]


def gradients(call, used, inputs):
    results = call(*inputs)
    weights = [torch.full_like(r, 0.5) for r in results]
    wanted = [i for i in inputs if i.requires_grad]
    return torch.autograd.grad(
        [results[i] for i in used], wanted, [weights[i] for i in used], allow_unused=True
    )


def leaves():
    torch.manual_seed(0)
    return torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)


@pytest.mark.parametrize("limit", [4, 1])
@pytest.mark.parametrize(("graph", "program"), PROGRAMS)
def test_gradients_of_some_outputs(graph, program, limit, monkeypatch):
    monkeypatch.setattr("dovetail_autograd_aot.pipeline.MAX_VARIANTS", limit)
    call = aot_compile(graph, leaves(), forward_compiler=run_fx, decompositions=TABLES["core"])
    for used in SUBSETS:
        ours, theirs = gradients(call, used, leaves()), gradients(program, used, leaves())
        for a, b in zip(ours, theirs, strict=True):
            assert (a is None) == (b is None), used
            if a is not None:
                torch.testing.assert_close(a, b)


def test_second_derivatives_of_some_outputs():
    def penalty(call, used):
        x, y = leaves()
        results = call(x, y)
        loss = sum(results[i].sum() for i in used)
        found = torch.autograd.grad(loss, (x, y), create_graph=True, allow_unused=True)
        total = sum(g.square().sum() for g in found if g is not None)
        return torch.autograd.grad(total, (x, y), allow_unused=True)

    graph, program = as_hooked_graph(linear), partial(linear, register=by_python)
    call = aot_compile(graph, leaves(), forward_compiler=run_fx, decompositions=TABLES["core"])
    for used in ((0,), (1,), (0, 2), (0, 1, 2)):
        for a, b in zip(penalty(call, used), penalty(program, used), strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b)


def test_second_derivatives_of_what_is_not_linear_are_refused():
    graph, program = PROGRAMS[-2]
    call = aot_compile(graph, leaves(), forward_compiler=run_fx, decompositions=TABLES["core"])
    slopes = []
    for run in (call, program):
        x, y = leaves()
        loss = sum(r.sum() for r in run(x, y))
        slopes.append(torch.autograd.grad(loss, (x, y), create_graph=True))
    torch.testing.assert_close(slopes[0], slopes[1])
    with pytest.raises(RuntimeError, match="not linear in the gradient"):
        slopes[0][0].sum().backward()


class Doubling(torch.autograd.Function):
    """A view whose gradient is doubled."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient.view(2, 2)


def views_by_user(x: Tensor) -> tuple[Tensor, ...]:
    view = Doubling.apply(x)
    h = x.exp()
    of_result = Doubling.apply(h)
    return view, view[1:], (view * view).sum(), h, of_result, of_result.sin()


def test_view_by_a_function_of_the_user_is_one_that_nobody_may_write_to() -> None:
    run = aot_compile(as_graph(views_by_user, 1), [_history()], forward_compiler=run_fx)
    for call in (views_by_user, run):
        x = _history()
        outputs = call(x)
        assert [o._is_view() for o in outputs] == [True, True, False, False, True, False]
        assert outputs[0]._base is x and outputs[4]._base is outputs[3]
        for number in (0, 1, 4):
            with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
                outputs[number].mul_(2)


class Same(torch.autograd.Function):
    """What it is given, as it is, with the gradient doubled."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


def _same_and_part(x: Tensor) -> tuple[Tensor, Tensor]:
    same = Same.apply(x * 1)
    return same, same[0]


PROTECTED: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "as it is": lambda x: (Same.apply(x * 1),),
    "a view": lambda x: (Doubling.apply(x * 1),),
    "a part of a view": lambda x: (Doubling.apply(x * 1)[1:],),
    "with a part": _same_and_part,
    "a function of a view": lambda x: (Same.apply((x * 1).view(4)),),
    "one of several": lambda x: ((x * 1).split(1)[0],),
}


@pytest.mark.parametrize("name", PROTECTED)
def test_a_view_alone_in_its_memory_that_nobody_may_write_to(name: str) -> None:
    fn = PROTECTED[name]
    run = aot_compile(as_graph(fn, 1), [_history()], forward_compiler=run_fx)
    found = []
    for call in (fn, run):
        x = _history()
        first, *_ = call(x)
        found.append(torch.autograd.grad(first.exp().sum(), (x, first), retain_graph=True))
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            first.mul_(3)
    torch.testing.assert_close(found[1], found[0])


def test_gradients_by_way_of_a_view_by_a_function_of_the_user() -> None:
    run = aot_compile(as_graph(views_by_user, 1), [_history()], forward_compiler=run_fx)
    answers = []
    for call in (views_by_user, run):
        x = _history()
        outputs = call(x)
        loss = sum(o.sum() * n for n, o in enumerate(outputs, 1))
        found = torch.autograd.grad(loss, [x, *outputs], retain_graph=True)
        outputs[0].register_hook(lambda g: g * 3)
        answers.append([*found, *torch.autograd.grad(loss, [x, outputs[0], outputs[3]])])
    for ours, theirs in zip(answers[1], answers[0], strict=True):
        torch.testing.assert_close(ours, theirs)


def test_penalty_by_way_of_views_by_a_function_of_the_user() -> None:
    """They lie in the memory of a result that is not returned."""

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        view = Doubling.apply(x * 2)
        return view, view[1:], view.pow(3).sum()

    run = aot_compile(as_graph(fn, 1), [_history()], forward_compiler=run_fx)
    answers = []
    for call in (fn, run):
        x = _history()
        outputs = call(x)
        (first,) = torch.autograd.grad(outputs[2], outputs[0], create_graph=True)
        answers.append((first.detach(), *torch.autograd.grad(first.square().sum(), x)))
    for ours, theirs in zip(answers[1], answers[0], strict=True):
        torch.testing.assert_close(ours, theirs)


def _history() -> Tensor:
    return torch.linspace(0.5, 1.5, 4).view(2, 2).requires_grad_() * 1
