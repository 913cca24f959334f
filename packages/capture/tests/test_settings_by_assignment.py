"""Settings of torch that functions in C read or make, and assignments that a module's class, or a
class's class, makes something else of: eager's answers and eager's state, call for call."""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from dovetail_capture import optimize
from construct_cases import CountingBackend, same

BACKENDS = torch.backends
SMALL = torch.tensor([1e-40])


def test_anomaly_mode_is_read_as_it_is() -> None:
    def program(x: torch.Tensor) -> tuple[Any, ...]:
        return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled(), x * 2

    captured = optimize(program, CountingBackend(), fullgraph=True)
    x = torch.ones(2)
    detect = torch.autograd.set_detect_anomaly
    modes = (nullcontext, lambda: detect(True), lambda: detect(True, False), nullcontext)
    for mode in modes:
        with mode():
            assert same(program(x), captured(x))


def _threads(x):
    torch.set_num_threads(3)
    return x * 2, torch.get_num_threads()


def _denormals(x):
    return torch.set_flush_denormal(True), x * SMALL


def _anomalies(x):
    torch.autograd.set_detect_anomaly(True)
    return x * 2, torch.is_anomaly_enabled()


def _dtype_of_autocast(x):
    torch.set_autocast_dtype("cpu", torch.float16)
    return x * 2


def _mkldnn(x):
    BACKENDS.mkldnn.enabled = False
    return x * 2, BACKENDS.mkldnn.enabled


def _cudnn(x):
    BACKENDS.cudnn.benchmark = not BACKENDS.cudnn.benchmark
    return x * 2, BACKENDS.cudnn.benchmark


def _precision(x):
    BACKENDS.cudnn.allow_tf32 = False
    return x + 1, BACKENDS.cudnn.allow_tf32


READ: list[Callable[[], Any]] = [
    torch.get_num_threads,
    lambda: torch.ones(1) * SMALL,
    torch.is_anomaly_enabled,
    lambda: torch.get_autocast_dtype("cpu"),
    lambda: BACKENDS.mkldnn.enabled,
    lambda: BACKENDS.cudnn.benchmark,
    lambda: BACKENDS.cudnn.allow_tf32,
]


@contextmanager
def settings_put_back() -> Iterator[None]:
    threads, benchmark = torch.get_num_threads(), BACKENDS.cudnn.benchmark
    tf32, dtype = BACKENDS.cudnn.allow_tf32, torch.get_autocast_dtype("cpu")
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)
        torch.set_anomaly_enabled(False)
        torch.set_autocast_dtype("cpu", dtype)
        BACKENDS.mkldnn.enabled, BACKENDS.cudnn.benchmark = True, benchmark
        BACKENDS.cudnn.allow_tf32 = tf32


def kept_by_results(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """A backend as compilers are: what no result needs does not run."""
    for node in reversed(gm.graph.nodes):
        if node.op.startswith("call") and not node.users:
            gm.graph.erase_node(node)
    gm.recompile()
    return gm.forward


@pytest.mark.parametrize(
    "program",
    [_threads, _denormals, _anomalies, _dtype_of_autocast, _mkldnn, _cudnn, _precision],
)
def test_a_setting_is_made_in_each_call(program: Callable[..., Any]) -> None:
    captured = optimize(program, kept_by_results)
    x = torch.ones(2)
    for _ in range(3):
        seen = []
        for call in (program, captured):
            with settings_put_back():
                seen.append((call(x), [read() for read in READ]))
        assert same(*seen), seen


# --- what a module's class says -------------------------------------------------------------------


class Module(types.ModuleType):
    @property
    def p(self):
        return self.__dict__.get("_p", 0)

    @p.setter
    def p(self, value):
        self.__dict__["_p"] = value * 10

    def __getattr__(self, name):
        if name.startswith("dyn"):
            return self.__dict__["base"] + len(name)
        raise AttributeError(name)


class Shifted(types.ModuleType):
    def __setattr__(self, name, value):
        self.__dict__[name] = value + 100

    def __getattribute__(self, name):
        value = types.ModuleType.__getattribute__(self, name)
        return value + 1000 if name == "z" else value


class Doubled:
    def __get__(self, instance, owner):
        return instance.__dict__.get("_v", 7)

    def __set__(self, instance, value):
        type.__setattr__(instance, "_v", value * 2)


class Once:
    def __get__(self, instance, owner):
        return instance.__dict__.get("_v", 7) + 1


class Meta(type):
    v = Doubled()
    once = Once()

    @property
    def p(cls):
        return cls._p

    @p.setter
    def p(cls, value):
        cls._p = value + 1


def _by_property(x, n, world):
    world.p = n
    world.other = n
    return x * world.p, world.other


def _by_getattr(x, n, world):
    world.base = n
    return x * world.dyn


def _by_setattr(x, n, world):
    world.z = n
    return x * world.z


def _of_a_class(x, n, world):
    world.p = n
    world.v = n
    return x * world.p, world.v, world.once


def _module():
    return Module("m")


def _shifted():
    return Shifted("s")


def _class():
    return Meta("K", (), {"_p": 1})


@pytest.mark.parametrize(
    ("program", "make"),
    [
        (_by_property, _module),
        (_by_getattr, _module),
        (_by_setattr, _shifted),
        (_of_a_class, _class),
    ],
)
def test_assignments_do_what_the_class_says(
    program: Callable[..., Any], make: Callable[[], Any]
) -> None:
    outcomes = []
    for compiled in (False, True):
        world = make()
        function = lambda x, n: program(x, n, world)
        call = optimize(function, CountingBackend()) if compiled else function
        seen = [call(torch.ones(2), n) for n in (1, 2, 3)]
        fields = {k: v for k, v in vars(world).items() if type(v) is int}
        outcomes.append((seen, fields))
    assert same(*outcomes), outcomes


def test_what_a_descriptor_of_a_metaclass_reads_is_guarded() -> None:
    kind = _class()
    captured = optimize(lambda x: x * kind.v + kind.once, CountingBackend(), fullgraph=True)
    for value in (1, 2, 3):
        kind.v = value
        assert torch.equal(captured(torch.ones(2)), torch.ones(2) * value * 2 + value * 2 + 1)


def test_a_gradient_mode_that_is_no_bool_is_refused() -> None:
    def program(x: torch.Tensor, mode: Any) -> torch.Tensor:
        with torch.set_grad_enabled(mode):
            return x * 2

    captured = optimize(program, CountingBackend())
    for mode in (True, 1, 0, False):
        if type(mode) is bool:
            captured(torch.ones(2), mode)
            continue
        with pytest.raises(TypeError, match="must be bool"):
            captured(torch.ones(2), mode)
    assert torch.is_grad_enabled()
