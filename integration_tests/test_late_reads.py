"""What backwards and hooks read that has changed since their forward: eager's gradients, or an
error; never what it was before."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import dovetail

Call = Callable[..., Any]
Case = tuple[Call, Call]  # a function of a tensor, and how what it reads is set
NUMBER = 2.0
TENSOR = torch.tensor(2.0)
NEVER_BOUND_AGAIN = 2.0
TABLE = {"scale": 2.0}
CASES: dict[str, Callable[[], Case]] = {}


def function(backward: Call, forward: Call | None = None) -> Any:
    """A function of autograd with this backward; `forward` is told the context and arguments."""

    class Made(torch.autograd.Function):
        factor = 2.0

        @staticmethod
        def forward(ctx: Any, x: Tensor, *others: Any) -> Tensor:
            if forward is not None:
                forward(ctx, *others)
            ctx.count = len(others)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return (backward(ctx, gradient), *[None] * ctx.count)

    return Made


def keep(ctx: Any, kept: Any) -> None:
    ctx.kept = kept


def twice(gradient: Tensor) -> Tensor:
    return gradient * 2


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


@case
def a_global() -> Case:
    def change(value: float) -> None:
        global NUMBER
        NUMBER = value

    made = function(lambda ctx, g: g * NUMBER)
    return (lambda x: made.apply(x) * 2), change


@case
def a_global_that_decides() -> Case:
    def change(value: float) -> None:
        globals()["NUMBER"] = value

    made = function(lambda ctx, g: g * 3 if NUMBER > 2 else g)
    return (lambda x: made.apply(x) * 2), change


@case
def a_global_of_forward_too() -> Case:
    change = a_global()[1]
    made = function(lambda ctx, g: g * NUMBER, lambda ctx: keep(ctx, NUMBER))
    return (lambda x: made.apply(x * NUMBER) * NUMBER), change


@case
def a_global_tensor() -> Case:
    def change(value: float) -> None:
        global TENSOR
        TENSOR = torch.tensor(value)

    made = function(lambda ctx, g: g * TENSOR)
    return (lambda x: made.apply(x) * 2), change


@case
def a_table() -> Case:
    made = function(lambda ctx, g: g * TABLE["scale"])
    return (lambda x: made.apply(x) * TABLE["scale"]), lambda v: TABLE.update(scale=v)


@case
def a_closure() -> Case:
    scale = 2.0

    def change(value: float) -> None:
        nonlocal scale
        scale = value

    made = function(lambda ctx, g: g * scale)
    return (lambda x: made.apply(x) * scale), change


@case
def a_closure_over_a_tensor() -> Case:
    scale = torch.tensor(2.0)
    made = function(lambda ctx, g: g * scale)
    return (lambda x: made.apply(x) * 2), scale.fill_


@case
def an_attribute_of_its_class() -> Case:
    made = function(lambda ctx, g: g * made.factor)
    return (lambda x: made.apply(x) * 2), lambda value: setattr(made, "factor", value)


@case
def a_list_on_its_context() -> Case:
    held = [2.0]
    made = function(lambda ctx, g: g * ctx.kept[0], keep)
    return (lambda x: made.apply(x, held) * 2), lambda value: held.__setitem__(0, value)


@case
def a_module_on_its_context() -> Case:
    layer = nn.Linear(2, 2)
    nn.init.constant_(layer.weight, 2.0)

    def change(value: float) -> None:
        with torch.no_grad():
            layer.weight.fill_(value)

    made = function(lambda ctx, g: g * ctx.kept.weight.sum(), keep)
    return (lambda x: made.apply(x, layer) * 2), change


@case
def the_mode_of_a_module() -> Case:
    layer = nn.Linear(2, 2)
    made = function(lambda ctx, g: g * (2.0 if ctx.kept.training else 5.0), keep)
    return (lambda x: made.apply(x, layer) * 2), lambda value: layer.train(value > 2)


@case
def an_object() -> Case:
    options = SimpleNamespace(scale=2.0)
    made = function(lambda ctx, g: g * options.scale)
    return (lambda x: made.apply(x) * 2), lambda value: setattr(options, "scale", value)


@case
def a_function_of_an_object() -> Case:
    options = SimpleNamespace(run=twice)
    made = function(lambda ctx, g: options.run(g))
    return (lambda x: made.apply(x) * 2), lambda v: setattr(options, "run", lambda g: g * v)


@case
def the_environment() -> Case:
    made = function(lambda ctx, g: g * float(os.environ.get("A_SCALE", "2")))
    return (lambda x: made.apply(x) * 2), lambda v: os.environ.__setitem__("A_SCALE", str(v))


@case
def a_list_that_the_frame_changes() -> Case:
    made = function(lambda ctx, g: g * ctx.kept[0], keep)

    def run(x: Tensor) -> Tensor:
        held = [NUMBER]
        y = made.apply(x, held)
        held[0] = 5.0
        return y * 2  # type: ignore[no-any-return]

    return run, lambda value: None


@case
def a_list_that_leaves_the_frame() -> Case:
    made = function(lambda ctx, g: g * ctx.kept[0], keep)
    left: list[list[float]] = [[0.0]]

    def run(x: Tensor) -> Tensor:
        held = [2.0]
        y = made.apply(x, held)
        left.append(held)
        return y * 2  # type: ignore[no-any-return]

    return run, lambda value: left[-1].__setitem__(0, value)


@case
def a_count_of_its_own() -> Case:
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        ctx.times = ctx.times + 1
        return gradient * ctx.times

    def forward(ctx: Any) -> None:
        ctx.times = 0

    made = function(backward, forward)
    return (lambda x: made.apply(x) * 2), lambda value: None


@case
def a_hooks_global() -> Case:
    change = a_global()[1]

    def run(x: Tensor) -> Tensor:
        y = x.sin()
        y.register_hook(lambda g: g * NUMBER)  # type: ignore[no-untyped-call]
        return y * 2

    return run, change


def observed(call: Call, change: Call) -> list[Tensor]:
    found = []
    for before, after in ((2.0, 2.0), (2.0, 3.0), (3.0, 4.0), (4.0, 4.0), (2.0, 2.0)):
        x = torch.linspace(-1, 1, 5).requires_grad_()
        change(before)
        result = call(x)
        change(after)
        result.sum().backward(retain_graph=True)
        result.sum().backward()
        assert x.grad is not None
        found += [result.detach(), x.grad]
    change(2.0)
    return found


@pytest.mark.parametrize("name", CASES)
def test_what_has_changed_is_what_it_is(name: str) -> None:
    expected = observed(*CASES[name]())
    run, change = CASES[name]()
    call = dovetail.compile(run, backend="aot_eager")
    for got, wanted in zip(observed(call, change), expected, strict=True):
        torch.testing.assert_close(got, wanted)
    assert dovetail.report(call).breaks  # counted


def made_by_a_decorator(scale: float, name: str) -> Call:
    def run(g: Tensor) -> Tensor:
        return g * scale if name == "scaled" else g

    return run


SCALED = made_by_a_decorator(2.0, "scaled")


def reads_what_is_never_bound_again(x: Tensor) -> Tensor:
    made = READS_CONSTANTS
    return made.apply(x) * 2  # type: ignore[no-any-return]


def reads_it_in_a_hook(x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(lambda g: SCALED(twice(g)) * NEVER_BOUND_AGAIN)  # type: ignore[no-untyped-call]
    return y * 2


@dataclass(frozen=True)
class Options:
    scale: float


class Pair(NamedTuple):
    first: float
    second: float


HELD = (Options(1.5), Pair(2.0, 4.0))


def of_its_context(ctx: Any, g: Tensor) -> Tensor:
    options, pair = ctx.held
    tiny = torch.finfo(g.dtype).tiny
    return SCALED(twice(g)) * NEVER_BOUND_AGAIN + torch.pi * options.scale - pair.second + tiny


READS_CONSTANTS = function(of_its_context, lambda ctx: setattr(ctx, "held", HELD))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("run", [reads_what_is_never_bound_again, reads_it_in_a_hook])
def test_what_nobody_binds_again_is_part_of_the_graph(
    run: Call, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = dovetail.compile(run, backend=backend)
    x = torch.linspace(-1, 1, 5).requires_grad_()
    for _ in range(2):
        wanted, got = (torch.autograd.grad(f(x).sum(), x)[0] for f in (run, call))
        torch.testing.assert_close(got, wanted)
    assert not dovetail.report(call).breaks
    first, second = call(x), call(x)
    monkeypatch.setitem(globals(), "NEVER_" + "BOUND_AGAIN", 3.0)
    for ask in (lambda: first.sum().backward(), lambda: _twice_derived(second, x)):
        with pytest.raises(RuntimeError, match=r"NEVER_BOUND_AGAIN of .* is read by the backward"):
            ask()
    # It is known to change now.
    wanted, got = (torch.autograd.grad(f(x).sum(), x)[0] for f in (run, call))
    torch.testing.assert_close(got, wanted)
    assert dovetail.report(call).breaks


def _twice_derived(result: Tensor, x: Tensor) -> None:
    torch.autograd.grad(result.sum(), x, create_graph=True)


@pytest.mark.parametrize("derive", [lambda t: t, lambda t: t.sum() * 1.0])
def test_a_tensor_that_nobody_saved_is_as_it_was(derive: Call) -> None:
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * derive(ctx.kept)  # type: ignore[no-any-return]

    made = function(backward, keep)
    call = dovetail.compile(lambda x, t: made.apply(x, t) * 2, fullgraph=True, backend="aot_eager")
    x, scale = torch.linspace(-1, 1, 5).requires_grad_(), torch.tensor(2.0)
    for number in range(2):
        scale.fill_(number)
        call(x, scale).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.full((5,), 2.0))
    result = call(x, scale)
    scale.fill_(3.0)
    with pytest.raises(RuntimeError, match=r"written to between|modified by an inplace"):
        result.sum().backward()


class Keeps(torch.autograd.Function):
    """Keeps tensors on its context, without a word to autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, other: Tensor) -> Tensor:
        ctx.x, ctx.other, ctx.result = x, other, x.sin()
        return ctx.result  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.x * ctx.other + ctx.result, None


def writes_to_its_argument(x: Tensor) -> Tensor:
    y = x * 2
    z = Keeps.apply(y, torch.ones(5))
    y.add_(1)
    return z + y  # type: ignore[no-any-return]


def writes_to_its_argument_unseen(x: Tensor) -> Tensor:
    y = x * 2
    z = Keeps.apply(y, y.detach())
    with torch.no_grad():
        y.add_(1)
    return z * 1  # type: ignore[no-any-return]


def writes_through_a_view(x: Tensor) -> Tensor:
    table = torch.ones(2, 5)
    z = Keeps.apply(x, table[0])
    table.mul_(5)
    return z * 1  # type: ignore[no-any-return]


def writes_to_its_result(x: Tensor) -> Tensor:
    z = Keeps.apply(x, torch.ones(5))
    z.mul_(2)
    return z  # type: ignore[no-any-return]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "run",
    [
        writes_to_its_argument,
        writes_to_its_argument_unseen,
        writes_through_a_view,
        writes_to_its_result,
    ],
)
def test_a_write_to_what_nobody_saved_is_seen(run: Call, backend: str) -> None:
    call = dovetail.compile(run, backend=backend)
    x = torch.linspace(-1, 1, 5).requires_grad_()
    for _ in range(2):
        wanted, got = (torch.autograd.grad(f(x).sum(), x)[0] for f in (run, call))
        torch.testing.assert_close(got, wanted)
    reasons = [one.reason for one in dovetail.report(call).breaks]
    assert any("the backward of Keeps that is written to" in reason for reason in reasons)


def gives_its_result(x: Tensor) -> tuple[Tensor, Tensor]:
    z = Keeps.apply(x, torch.ones(5))
    return z * 1, z


def gives_its_argument(x: Tensor) -> tuple[Tensor, Tensor]:
    other = x.detach().exp()
    return Keeps.apply(x, other) * 1, other.view(5, 1)


@pytest.mark.parametrize("run", [gives_its_result, gives_its_argument])
def test_a_write_outside_to_what_nobody_saved_is_an_error(run: Call) -> None:
    call = dovetail.compile(run, fullgraph=True, backend="aot_eager")
    x = torch.linspace(-1, 1, 5).requires_grad_()
    wanted, got = (torch.autograd.grad(f(x)[0].sum(), x)[0] for f in (run, call))
    torch.testing.assert_close(got, wanted)
    result, given = call(x)
    with torch.no_grad():
        given.mul_(4)
    with pytest.raises(RuntimeError, match="keeps on its context, was written to"):
        result.sum().backward()
