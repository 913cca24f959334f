"""Launches of Triton kernels that the program wrote itself: `kernel[grid](...)` is one node.

The node calls an operator of `triton_operators`, which names the tensors that the kernel writes to,
as its source says (`triton_writes`). Autograd does not see what a kernel does, so tensors are
detached for it. A grid that is a function is asked here, once for each configuration of an
autotuner. Triton itself is not imported: its functions are known by their names.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from dovetail_capture.extensions.triton.triton_operators import GRID, Launch, operator_of
from dovetail_capture.extensions.triton.triton_writes import python_function, written_parameters
from dovetail_capture.interpreter.machine.machine import Args, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value
from dovetail_capture.interpreter.values.containers import ListValue, TupleValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue

_HINT = "launch it outside of the compiled function"


def launch(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`kernel.run(*arguments, grid=grid, warmup=False, **arguments)`."""
    kernel = _real(vm, args[0])
    function = python_function(kernel)
    if function is None or kernel is UNKNOWN:
        raise GraphBreakSignal("a launch of a Triton kernel that was made here", _HINT)
    name = function.__qualname__
    given = dict(kwargs)
    grid, warmup = given.pop("grid", None), given.pop("warmup", Constant(False))
    if grid is None or vm.as_python(warmup) is not False:
        raise GraphBreakSignal(f"the Triton kernel `{name}` is asked for without a launch", _HINT)
    signature = inspect.signature(function)
    names = list(signature.parameters)
    if len(args) - 1 > len(names):
        raise GraphBreakSignal(f"the Triton kernel `{name}` takes fewer arguments", _HINT)
    given = {**dict(zip(names, args[1:], strict=False)), **given}
    parameters: list[tuple[str, type]] = []
    constants: list[tuple[str, Any]] = []
    places: list[int] = []
    values: list[Value] = []
    for key, value in given.items():
        kind = None if _is_constant(signature, key) else _kind(value)
        if kind is None:
            constants.append((key, _constant(vm, name, key, value)))
            continue
        parameters.append((key, kind))
        known = next((i for i, v in enumerate(values) if _is_same_memory(v, value)), None)
        places.append(len(values) if known is None else known)
        if known is None:
            values.append(value)
    written = written_parameters(function) & {key for key, _ in parameters}
    _check_apart(
        name, values, {places[i] for i, (key, _) in enumerate(parameters) if key in written}
    )
    defaults = {
        key: vm.held(p.default) if not isinstance(p.default, (int, float)) else Constant(p.default)
        for key, p in signature.parameters.items()
        if p.default is not inspect.Parameter.empty and key not in given
    }
    grids = list(_grids(vm, kernel, grid, {**defaults, **given}, ()))
    choices = _distinct(tuple(choice for choice, _ in grids))
    if len(choices) < len(grids):
        grids = [next(g for g in grids if g[0] == choice) for choice in choices]
    numbers = [number for _, grid_numbers in grids for number in grid_numbers]
    operator = operator_of(
        Launch(kernel, tuple(parameters), tuple(places), tuple(constants), written, choices)
    )
    nodes = [_detached(vm, v) if isinstance(v, TensorValue) else v for v in values]
    vm.record("call_function", operator, [*nodes, ListValue(numbers)], {})
    return NONE


def _is_same_memory(first: Value, second: Value) -> bool:
    """Are both tensors the same elements, seen alike?"""
    if not (isinstance(first, TensorValue) and isinstance(second, TensorValue)):
        return False
    a: Any = first.fake
    b: Any = second.fake
    if a is b:
        return True
    if a._storage is not b._storage or a._dtype is not b._dtype or a.dim() != b.dim():
        return False
    layouts = _layout(a), _layout(b)
    return _are_known(*layouts) and all(n == m for n, m in zip(*layouts, strict=True))


def _layout(fake: Any) -> list[Any]:
    return [fake._offset, *fake._sizes, *fake._strides]


def _are_known(*layouts: list[Any]) -> bool:
    """Does this call tell the numbers? (What is found of symbolic ones is guarded.)"""
    return all(type(n) is int or n.node.hint is not None for layout in layouts for n in layout)


def _check_apart(kernel: str, values: list[Value], written: set[int]) -> None:
    """Break the graph where what a kernel writes to lies over another of its arguments: graphs are
    made functional, so that it would not see there what it writes."""
    for place in sorted(written):
        for other, value in enumerate(values):
            if other == place or not isinstance(value, TensorValue):
                continue
            a: Any = values[place].fake  # type: ignore[attr-defined]
            b: Any = value.fake
            if a._storage is b._storage and not _apart(a, b):
                raise GraphBreakSignal(
                    f"the Triton kernel `{kernel}` writes to memory that it is given twice", _HINT
                )


def _apart(a: Any, b: Any) -> bool:
    """Do two tensors of one memory lie in different stretches of it?"""
    if a._dtype is not b._dtype or not _are_known(_layout(a), _layout(b)):
        return False
    ends = [
        fake._offset + sum((n - 1) * s for n, s in zip(fake._sizes, fake._strides, strict=True))
        for fake in (a, b)
    ]
    return bool(ends[0] < b._offset) or bool(ends[1] < a._offset)


def _distinct(choices: tuple[Any, ...]) -> tuple[Any, ...]:
    """Each once: configurations may differ in what no grid sees."""
    found: list[Any] = []
    for choice in choices:
        if choice not in found:
            found.append(choice)
    return tuple(found)


def _real(vm: Interpreter, value: Value) -> Any:
    """The object that a value is, from now on guarded; UNKNOWN if it was made in the frame."""
    if isinstance(value, ObjectValue):
        if value.real is None:
            return UNKNOWN
        if not value.pinned and value.source is not None:
            vm.session.guards.pin(value.source, value.real)
        return value.real
    return vm.as_python(value)


def _is_constant(signature: inspect.Signature, name: str) -> bool:
    """Is an argument part of the kernel that is compiled: a `constexpr`, or an option?"""
    parameter = signature.parameters.get(name)
    if parameter is None:
        return True
    note = parameter.annotation
    text = note if isinstance(note, str) else getattr(note, "__name__", "")
    return "constexpr" in text


def _kind(value: Value) -> type | None:
    """What an operator takes for an argument; None if it is part of the operator."""
    if isinstance(value, TensorValue):
        return torch.Tensor
    if isinstance(value, (Constant, SymbolicNumber)):
        kind = value.python_type()
        return kind if kind in (int, float) else None
    return None


def _constant(vm: Interpreter, kernel: str, name: str, value: Value) -> Any:
    real = _real(vm, value)
    if real is UNKNOWN or isinstance(value, TensorValue):
        raise GraphBreakSignal(
            f"the Triton kernel `{kernel}` is launched with {value.describe()} as `{name}`", _HINT
        )
    return real


def _detached(vm: Interpreter, tensor: TensorValue) -> Value:
    if not tensor.fake.requires_grad:
        return tensor
    return vm.record("call_method", "detach", [tensor], {})


# --- grids ----------------------------------------------------------------------------------------


def _grids(
    vm: Interpreter, kernel: Any, grid: Value, given: dict[str, Value], choice: tuple[Any, ...]
) -> Iterator[tuple[tuple[Any, ...], list[Value]]]:
    """The grids of a launch, each with what an autotuner must have chosen for it."""
    if isinstance(grid, (TupleValue, ListValue)):
        yield (), _numbers(vm, grid)
        return
    what = type(kernel).__name__
    if what == "Autotuner":
        for config in kernel.configs:
            chosen = {key: vm.constant(value) for key, value in config.all_kwargs().items()}
            tried = (*choice, *config.kwargs.items())
            yield from _grids(vm, kernel.fn, grid, {**given, **chosen}, tried)
        return
    if what == "Heuristics":
        for key, heuristic in kernel.values.items():
            told = vm.call(vm.held(heuristic), [vm.call(Constant(dict), [], dict(given))], {})
            given = {**given, key: told}
        yield from _grids(vm, kernel.fn, grid, given, choice)
        return
    asked = vm.call(grid, [vm.call(Constant(dict), [], dict(given))], {})
    yield choice, _numbers(vm, asked)


def _numbers(vm: Interpreter, grid: Value) -> list[Value]:
    if not isinstance(grid, (TupleValue, ListValue)):
        raise GraphBreakSignal(f"a grid of a Triton kernel that is {grid.describe()}", _HINT)
    numbers = list(vm.iterate(grid))
    whole = all(
        isinstance(n, (Constant, SymbolicNumber)) and n.python_type() is int for n in numbers
    )
    if not whole or not 1 <= len(numbers) <= GRID:
        raise GraphBreakSignal("a grid of a Triton kernel that is not of 1 to 3 sizes", _HINT)
    return [*numbers, *(Constant(1) for _ in range(GRID - len(numbers)))]


BY_NAME = {
    ("triton.runtime.jit", "JITFunction.run"): launch,
    ("triton.runtime.interpreter", "InterpretedFunction.run"): launch,
    ("triton.runtime.autotuner", "Autotuner.run"): launch,
    ("triton.runtime.autotuner", "Heuristics.run"): launch,
}
