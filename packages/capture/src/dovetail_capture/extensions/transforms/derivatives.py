"""`torch.func.vjp`, `jvp` and `linearize`: the function is captured once, on the primals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from dovetail_capture.extensions.transforms.transforms import (
    CapturedFunction,
    call_transformed,
    capture_function,
    record_transform,
    value_of,
)
from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.containers import TupleValue
from dovetail_capture.interpreter.values.functions import TransformValue
from dovetail_capture.interpreter.values.tensors import TensorValue


def _value_below(function: Any, count: int, has_aux: bool) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        value, _, *beside = torch.func.vjp(function, *args[:count], has_aux=has_aux)
        return (value, *beside) if has_aux else value

    return call


def _vjp(function: Any, count: int, has_aux: bool = False) -> Callable[..., Any]:
    return lambda *args: torch.func.vjp(function, *args[:count], has_aux=has_aux)[1](*args[count:])


def _jvp(function: Any, count: int, has_aux: bool) -> Callable[..., Any]:
    return lambda *args: torch.func.jvp(function, args[:count], args[count:], has_aux=has_aux)


def _push(function: Any, count: int) -> Callable[..., Any]:
    return lambda *args: torch.func.jvp(function, args[:count], args[count:])[1]


_RANDOM = ("rand", "dropout", "bernoulli", "multinomial", "normal_", "uniform_", "exponential_")


def _on_primals(vm: Interpreter, function: Value, primals: Args, how: str) -> CapturedFunction:
    inner = capture_function(vm, value_of, function, {}, primals, {}, how)
    names = [str(getattr(n.target, "__name__", n.target)) for n in inner.graph.graph.nodes]
    if any(word in name for name in names for word in _RANDOM):
        raise GraphBreakSignal("a derivative of a function that draws random numbers")
    return inner


def vjp_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.func.vjp`: the value, a function of what is to be pulled back, and what comes beside
    the value."""
    has_aux = _has_aux(vm, kwargs)
    if has_aux is None or not args:
        return PASS
    inner = _on_primals(vm, args[0], args[1:], "reverse")
    count = len(args) - 1
    mapped = TransformValue(
        call_transformed, _vjp, args[0], {"count": count, "has_aux": has_aux}, inner
    )
    mapped.born = vm.frames[0].steps
    if torch.is_grad_enabled():
        value = record_transform(vm, value_of, {"count": count}, inner, [])
    else:  # the function ran with gradients on, which the value does not have
        value = record_transform(vm, _value_below, {"count": count, "has_aux": has_aux}, inner, [])
    if not has_aux:
        return TupleValue([value, mapped])
    found, beside = vm.iterate(value)
    return TupleValue([found, mapped, beside])


def linearize_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.func.linearize`: the value, and a function of what is to be pushed forward. To the
    latter all that is known beforehand is a constant: nothing but the tangents has a gradient."""
    if kwargs or not args:
        return PASS
    inner = _on_primals(vm, args[0], args[1:], "forward")
    options = {"count": len(args) - 1}
    value = record_transform(vm, value_of, options, inner, [])

    def constant(value: Any) -> Any:
        if not isinstance(value, TensorValue):
            return value
        return vm.record("call_method", "detach", [value], {})

    known = replace(
        inner,
        tensors=list(map(constant, inner.tensors)),
        captured=list(map(constant, inner.captured)),
    )
    mapped = TransformValue(call_transformed, _push, args[0], options, known)
    mapped.born = vm.frames[0].steps
    return TupleValue([value, mapped])


def jvp_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.func.jvp(function, primals, tangents, has_aux=False)`."""
    has_aux = _has_aux(vm, kwargs)
    if has_aux is None or len(args) != 3:
        return PASS
    primals, tangents = list(vm.iterate(args[1])), list(vm.iterate(args[2]))
    inner = capture_function(vm, value_of, args[0], {}, primals, {}, "forward")
    return record_transform(vm, _jvp, {"count": len(primals), "has_aux": has_aux}, inner, tangents)


def _has_aux(vm: Interpreter, kwargs: Kwargs) -> bool | None:
    """Whether the function gives something beside what is differentiated; None if that cannot be
    told, or something else is asked for."""
    known = {name: vm.as_python(value) for name, value in kwargs.items()}
    has_aux = known.pop("has_aux", False)
    return has_aux if isinstance(has_aux, bool) and not known else None


HANDLERS: dict[Any, Handler] = {
    torch.func.vjp: vjp_,
    torch.func.linearize: linearize_,
    torch.func.jvp: jvp_,
}
