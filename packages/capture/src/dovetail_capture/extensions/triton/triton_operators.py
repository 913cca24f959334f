"""Launches of Triton kernels as operators of torch, one for each way in which one is launched.

An operator takes the tensors (those that the kernel writes to are marked in its schema), the whole
numbers and floats, and the grids; everything else that the launch says is part of the operator.
Its name says all of that: an artifact that was kept by another process finds the same kernel behind
the name, or no operator of that name.
"""

from __future__ import annotations

import hashlib
import os
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail_capture.extensions.triton.triton_writes import python_function
from dovetail_capture.marks import disable
from dovetail_capture.skip import module_of

NAMESPACE = "dovetail_triton"
GRID = 3  # numbers of each grid

_SCHEMA_TYPES = {torch.Tensor: "Tensor", int: "SymInt", float: "float"}
_PLAIN = (int, float, bool, str, type(None), torch.dtype)
_library: Any = None
_operators: dict[str, Any] = {}
_objects: dict[int, tuple[int, Any]] = {}  # what has no name of its own: a number, kept alive


@dataclass(frozen=True)
class Launch:
    """A way to launch a kernel.

    `parameters` are names and the kind of what the operator takes for each: torch.Tensor, int or
    float; `places` says which of its arguments that is (a tensor may be given more than once);
    `constants` are further keyword arguments. Of several grids the one is taken whose `choices`
    agree with what an autotuner tries.
    """

    kernel: Any
    parameters: tuple[tuple[str, type], ...]
    places: tuple[int, ...]
    constants: tuple[tuple[str, Any], ...]
    written: frozenset[str]
    choices: tuple[tuple[tuple[str, Any], ...], ...]

    def kinds(self) -> list[tuple[type, bool]]:
        """What the operator's arguments are, and whether the kernel writes to them."""
        found: dict[int, tuple[type, bool]] = {}
        for (name, kind), place in zip(self.parameters, self.places, strict=True):
            found[place] = (kind, name in self.written or found.get(place, (kind, False))[1])
        return [found[place] for place in range(len(found))]


def operator_of(launch: Launch) -> Any:
    """The operator that makes a launch."""
    name = _name(launch)
    known = _operators.get(name)
    if known is None:
        known = _operators[name] = _define(name, launch)
    return known


def _define(name: str, launch: Launch) -> Any:
    global _library
    if _library is None:
        make: Any = torch.library.Library
        _library = make(NAMESPACE, "FRAGMENT")
    arguments = []
    for number, (kind, written) in enumerate(launch.kinds()):
        mark = f"({chr(ord('a') + number % 26)}{number}!)" if written else ""
        arguments.append(f"{_SCHEMA_TYPES[kind]}{mark} a{number}")
    _library.define(f"{name}({', '.join([*arguments, 'SymInt[] grids'])}) -> ()")
    _library.impl(name, disable(_launcher(launch)), "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", _nothing, lib=_library)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _nothing(*_: Any) -> None:
    """What a launch gives."""


def _launcher(launch: Launch) -> Callable[..., None]:
    names = [name for name, _ in launch.parameters]
    constants = dict(launch.constants)

    def run(*given: Any) -> None:
        *arguments, numbers = given
        grids = [tuple(numbers[i : i + GRID]) for i in range(0, len(numbers), GRID)]
        named = {name: arguments[p] for name, p in zip(names, launch.places, strict=True)}
        grid = grids[0] if len(launch.choices) == 1 else _choice(launch.choices, grids)
        launch.kernel.run(grid=grid, warmup=False, **named, **constants)

    return run


def _choice(
    choices: Sequence[Sequence[tuple[str, Any]]], grids: Sequence[tuple[int, ...]]
) -> Callable[[dict[str, Any]], tuple[int, ...]]:
    """The grid of what an autotuner tries, as Triton asks for it."""

    def grid(given: dict[str, Any]) -> tuple[int, ...]:
        for choice, numbers in zip(choices, grids, strict=True):
            if all(_plain(given.get(name)) == value for name, value in choice):
                return numbers
        raise AssertionError("an autotuner tries what is none of its configurations")

    return grid


def _plain(value: Any) -> Any:
    """What a constant of Triton's holds."""
    return getattr(value, "value", value)


# --- names ----------------------------------------------------------------------------------------


def _name(launch: Launch) -> str:
    """The same in every process for a kernel that its source tells all of."""
    kernel = launch.kernel
    parts = [
        _kernel_text(kernel),
        *(f"{name}:{kind.__name__}" for name, kind in launch.parameters),
        repr(launch.places),
        *(f"{name}={_text(value)}" for name, value in launch.constants),
        repr(sorted(launch.written)),
        repr([[(name, _text(value)) for name, value in choice] for choice in launch.choices]),
    ]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]
    function = python_function(kernel)
    title = "kernel" if function is None else function.__name__.strip("_")
    return f"{title}_{digest}"


def _kernel_text(kernel: Any) -> str:
    """A kernel whose source, and that of all it calls, is known; else the very object."""
    if type(kernel).__name__ == "JITFunction" and not getattr(kernel, "pre_run_hooks", None):
        return f"{module_of(kernel)}.{kernel.__name__} {kernel.cache_key}"
    return _of_object(kernel)


def _text(value: Any) -> str:
    if type(value) in _PLAIN:
        return f"{type(value).__name__} {value!r}"
    if module_of(type(value)) == "triton.language.core" and type(value).__name__ == "dtype":
        return f"dtype {value}"
    if type(value).__name__ == "JITFunction":
        return _kernel_text(value)
    return _of_object(value)


def _of_object(value: Any) -> str:
    number, _ = _objects.setdefault(id(value), (len(_objects), value))
    what = value.__qualname__ if isinstance(value, types.FunctionType) else type(value).__name__
    return f"{what} {number} of process {os.getpid()} {_TOKEN}"


_TOKEN = os.urandom(8).hex()
