"""What a compiled function read of its surroundings changes: the next call equals eager's.

Each row of the table makes a function and changes to what it reads, one after the other. Before the
first of them the function is called twice: with nothing changed nothing is compiled again.
"""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import abc
import builtins
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_capture import optimize
from torch import nn

ROWS: list[Callable[[], tuple[Any, ...]]] = []


def row(make: Callable[[], tuple[Any, ...]]) -> Callable[[], tuple[Any, ...]]:
    ROWS.append(make)
    return make


@row
def a_module_and_its_getattr():
    m = types.ModuleType("m")
    m.k = 2
    return (
        lambda x: x * m.k * getattr(m, "new", 1),
        lambda: setattr(m, "new", 5),
        lambda: setattr(m, "k", 3),
        lambda: delattr(m, "new"),
        lambda: setattr(m, "__getattr__", lambda name: 7),
        lambda: setattr(m, "__getattr__", lambda name: 8),
    )


@row
def a_functions_attribute():
    def g(x):
        return x * getattr(g, "scale", 1)

    return (
        lambda x: g(x),
        lambda: setattr(g, "scale", 4),
        lambda: setattr(g, "scale", 5),
        lambda: delattr(g, "scale"),
    )


@row
def a_metaclass():
    class Meta(type):
        pass

    class A(metaclass=Meta):
        pass

    def read(cls, name):
        return 9 if name == "q" else type.__getattribute__(cls, name)

    return (
        lambda x: x * getattr(A, "q", 1),
        lambda: setattr(Meta, "q", 2),
        lambda: setattr(A, "q", 3),
        lambda: setattr(Meta, "q", property(lambda cls: 4)),
        lambda: setattr(Meta, "__getattribute__", read),
    )


@row
def a_metaclass_that_learns_getattr():
    class Meta(type):
        pass

    class A(metaclass=Meta):
        pass

    return lambda x: x * getattr(A, "q", 1), lambda: setattr(Meta, "__getattr__", lambda c, n: 5)


@row
def an_abstract_class():
    class Abstract(abc.ABC):
        pass

    class A:
        pass

    a = A()
    return lambda x: x * (2 if isinstance(a, Abstract) else 3), lambda: Abstract.register(A)


@row
def a_subclass_of_an_abstract_class():
    class Abstract(abc.ABC):
        pass

    class A:
        pass

    return lambda x: x * (2 if issubclass(A, Abstract) else 3), lambda: Abstract.register(A)


@row
def other_bases():
    class P:
        pass

    class Q:
        pass

    class A(P):
        pass

    return lambda x: x * (2 if issubclass(A, Q) else 3), lambda: setattr(A, "__bases__", (Q,))


@row
def a_check_of_instances():
    class Meta(type):
        pass

    class K(metaclass=Meta):
        pass

    o = types.SimpleNamespace()
    check = lambda cls, obj: True
    return (
        lambda x: x * (2 if isinstance(o, K) else 3),
        lambda: setattr(Meta, "__instancecheck__", check),
    )


@row
def a_descriptors_class():
    class Descriptor:
        n = 2

        def __get__(self, obj, owner):
            return self.n

    d = Descriptor()

    class A:
        v = d

    a = A()
    return (
        lambda x: x * a.v,
        lambda: setattr(d, "n", 5),
        lambda: setattr(Descriptor, "__get__", lambda self, obj, owner: 8),
        lambda: a.__dict__.__setitem__("v", 100),
        lambda: setattr(Descriptor, "__set__", lambda self, obj, value: None),
        lambda: delattr(Descriptor, "__set__"),
    )


@row
def a_builtin():
    usual = builtins.max
    return (
        lambda x: x * max(1, 2),
        lambda: setattr(builtins, "max", lambda *args: 9),
        lambda: setattr(builtins, "max", usual),
    )


@row
def operators_of_classes():
    class V:
        def __mul__(self, other):
            return other * 2

        def __add__(self, other):
            return 1

    class W(V):
        pass

    v, w = V(), W()
    return (
        lambda x: v * x + (x * 2 if v == w else x) * (v + w),
        lambda: setattr(V, "__mul__", lambda self, other: other * 10),
        lambda: setattr(W, "__eq__", lambda self, other: True),
        lambda: setattr(W, "__radd__", lambda self, other: 5),
        lambda: setattr(V, "__radd__", lambda self, other: 6),
        lambda: delattr(W, "__radd__"),
    )


@row
def the_text_of_an_object():
    class V:
        def __str__(self):
            return "ab"

    v = V()
    return (
        lambda x: x * len(f"{v}"),
        lambda: setattr(V, "__str__", lambda self: "abcd"),
        lambda: setattr(V, "__format__", lambda self, spec: "a" * 9),
    )


@row
def settings_of_backends():
    flags = torch.backends.cuda.matmul
    return (
        lambda x: x * (2 if flags.allow_tf32 else 3),
        lambda: setattr(flags, "allow_tf32", True),
        lambda: setattr(flags, "allow_tf32", False),
    )


@row
def a_partial():
    p = functools.partial(lambda x, a, b=1: x * a + b, a=2)
    return lambda x: p(x), lambda: p.keywords.update(a=5), lambda: p.keywords.update(b=7)


@pytest.mark.parametrize("make", ROWS, ids=[make.__name__ for make in ROWS])
def test_the_answer_is_never_stale(make: Callable[[], tuple[Any, ...]]) -> None:
    function, *changes = make()
    x = torch.arange(1.0, 4.0)
    captured = optimize(function, lambda gm, inputs: gm.forward, recompile_limit=30)
    for _ in range(2):
        assert torch.equal(captured(x), function(x))
    log = captured.capture_context.log
    assert not log.counters["recompile"] and log.counters["graph"] == 1, log.as_text()
    for number, change in enumerate(changes):
        change()
        assert torch.equal(captured(x), function(x)), (number, log.as_text())
    # (Capture itself calls `max`: where it is another function, frames run uncaptured.)
    assert bool(log.counters["plain"]) == (make is a_builtin), log.as_text()


# --- modules that are others in each call ---------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.rest = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.first(x))


def counted(function: Any) -> tuple[Any, list[Any]]:
    graphs: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(gm)
        return gm.forward

    return optimize(function, backend), graphs


def test_modules_made_anew_are_known_by_their_structure() -> None:
    run, graphs = counted(lambda module, x: module(x))
    x = torch.randn(2, 3)
    for _ in range(12):
        block = Block()
        assert torch.equal(run(block, x), block(x))
    assert len(graphs) == 2  # one for the first module, one for all others
    for change in (
        lambda block: block.rest.append(nn.Tanh()),
        lambda block: setattr(block.first, "bias", None),
        lambda block: setattr(block, "forward", lambda x: x * 2),
        lambda block: block.first.weight.requires_grad_(False),
        lambda block: block.first.register_forward_hook(lambda m, args, out: out * 3),
    ):
        block = Block()
        change(block)
        assert torch.equal(run(block, x), block(x))
    shared = Block()
    shared.rest[0] = shared.first
    assert torch.equal(run(shared, x), shared(x))
    block = Block()
    run(block, x).sum().backward()
    wanted = torch.autograd.grad(block(x).sum(), list(block.parameters()))
    assert all(torch.equal(p.grad, g) for p, g in zip(block.parameters(), wanted, strict=True))


class Solver:
    """Keeps functions that it makes anew."""

    def __init__(self, factor: float) -> None:
        self.step = lambda y: y * factor
        self.ends = [lambda y, more=1: y + more]


def test_functions_that_an_object_makes_anew_are_known_by_their_parts() -> None:
    def function(x: torch.Tensor, solver: Solver) -> torch.Tensor:
        return solver.ends[0](solver.step(x))

    run, graphs = counted(function)
    x = torch.arange(3.0)
    for _ in range(20):
        assert torch.equal(run(x, Solver(2.0)), x * 2 + 1)
    assert len(graphs) == 2  # one for the first function, one for all others
    for factor in (3.0, 4.0):  # what its closure holds is guarded
        assert torch.equal(run(x, Solver(factor)), x * factor + 1)
    solver = Solver(2.0)
    for end, wanted in (
        (lambda y: y - 1, x * 2 - 1),
        (lambda y, more=5: y + more, x * 2 + 5),
        (abs, x * 2),
    ):
        solver.ends = [end]
        assert torch.equal(run(x, solver), wanted)
    solver.step.__defaults__ = (torch.full((3,), 7.0),)
    assert torch.equal(run(x, solver), x * 2)


def test_a_module_made_in_the_function() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return nn.Linear(3, 3)(x)

    run, graphs = counted(function)
    x = torch.randn(2, 3)
    for seed in range(12):
        torch.manual_seed(seed)
        wanted = function(x)
        torch.manual_seed(seed)
        assert torch.equal(run(x), wanted)
    assert len(graphs) == 2


def test_a_layer_and_a_parameter_that_are_replaced() -> None:
    x = torch.randn(2, 3)
    for replace in (
        lambda block: setattr(block, "first", nn.Linear(3, 3)),
        lambda block: setattr(block.first, "weight", nn.Parameter(torch.randn(3, 3))),
    ):
        block = Block()
        run, graphs = counted(block)
        for _ in range(12):
            replace(block)
            assert torch.equal(run(x), block(x))
        assert len(graphs) == 2


def test_a_written_module_made_anew() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.total = self.total + x.sum(0)
            return x * self.calls + self.total

    run, graphs = counted(lambda one, other, x: one(x) + other(x))
    x = torch.randn(2, 3)
    for number in range(10):
        pairs = [(Counts(), Counts()) for _ in range(2)]
        if number % 3 == 2:  # both are one
            pairs = [(one, one) for one, _ in pairs]
        assert torch.equal(run(*pairs[0], x), (lambda a, b: a(x) + b(x))(*pairs[1]))
        for one, other in zip(*pairs, strict=True):
            assert one.calls == other.calls and torch.equal(one.total, other.total)
    assert len(graphs) <= 4


# --- functions of autograd and hooks --------------------------------------------------------------


class OfLayers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layers, factor):
        for layer in layers:
            x = layer(x)
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None, None


def test_a_function_of_autograd_given_layers() -> None:
    layers = [nn.Linear(3, 3), nn.ReLU()]
    function = lambda x: OfLayers.apply(x, layers, 2) + 1
    run, graphs = counted(function)
    x = torch.randn(2, 3)
    assert torch.equal(run(x), function(x)) and not run(x).requires_grad
    assert len(graphs) == 1 and not run.capture_context.log.breaks
    x.requires_grad_()
    assert torch.equal(run(x), function(x)) and run(x).requires_grad
    grads = [torch.autograd.grad(f(x).sum(), x)[0] for f in (run, function)]
    assert torch.equal(*grads)
    assert len(graphs) == 2 and not run.capture_context.log.breaks


def test_backward_hooks_do_not_count_without_gradients() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    seen: list[Any] = []
    model[0].register_full_backward_hook(lambda *args: seen.append("full"))
    model[0].register_full_backward_pre_hook(lambda *args: seen.append("before"))
    run, graphs = counted(lambda x: model(x))
    x = torch.randn(2, 3)
    with torch.no_grad():
        assert torch.equal(run(x), model(x))
    assert len(graphs) == 1 and not run.capture_context.log.breaks
    run(x).sum().backward()
    assert seen == ["before", "full"]
    assert "backward hooks" in run.capture_context.log.breaks[0].reason


def test_hooks_on_gradients_of_what_the_graph_makes_are_captured() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        factor = 3
        y.register_hook(lambda gradient: gradient * factor)
        return y.sin()

    run, graphs = counted(function)
    grads = []
    for call in (function, run):
        x = torch.ones(3, requires_grad=True)
        call(x).sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)
    assert len(graphs) == 1 and not run.capture_context.log.breaks


def test_hooks_on_gradients_of_inputs_are_registered_after_the_graph() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.register_hook(lambda gradient: gradient * 3)
        return x.sin()

    run, graphs = counted(function)
    grads = []
    for call in (function, run):
        x = torch.ones(3, requires_grad=True)
        call(x).sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)
    assert len(graphs) == 1 and not run.capture_context.log.breaks


def test_a_subclass_with_its_own_torch_function_is_asked_by_the_program_alone() -> None:
    seen: list[str] = []

    class Logs(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types_, args=(), kwargs=None):
            seen.append(function.__name__)
            return super().__torch_function__(function, types_, args, kwargs or {})

    x = torch.ones(3).as_subclass(Logs)
    function = lambda t: (t + 1).sin()
    expected, wanted = function(x), list(seen)
    seen.clear()
    run, _ = counted(function)
    result = run(x)
    assert seen == wanted  # capture itself asked nothing of it
    assert type(result) is Logs
    assert torch.equal(result.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))
    assert not run.capture_context.log.breaks


def test_a_static_torch_function_counts_as_the_class_s_own() -> None:
    class Doubles(torch.Tensor):
        @staticmethod
        def __torch_function__(function, types_, args=(), kwargs=None):
            with torch._C.DisableTorchFunctionSubclass():
                plain = [a.as_subclass(torch.Tensor) if type(a) is Doubles else a for a in args]
                return function(*plain, **(kwargs or {})) * 2

    run, _ = counted(lambda t: t + 1)
    x = torch.ones(3).as_subclass(Doubles)
    assert torch.equal(run(x), torch.full((3,), 4.0))
    assert not run.capture_context.log.breaks


def test_other_registrations_recompile_nothing() -> None:
    class Abstract(abc.ABC):
        pass

    class Plain:
        pass

    class Other:
        pass

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(gm)
        Abstract.register(type("Imported", (), {}))  # as a module does that is imported meanwhile
        return gm.forward

    graphs: list[torch.fx.GraphModule] = []
    plain, x = Plain(), torch.ones(3)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * (2 if isinstance(plain, Abstract) else 3)

    compiled = optimize(f, backend)
    for _ in range(3):
        assert torch.equal(compiled(x), x * 3)
        Abstract.register(Other)
    assert len(graphs) == 1
    Abstract.register(Plain)
    assert torch.equal(compiled(x), x * 2) and len(graphs) == 2
