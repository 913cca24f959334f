"""Sizes and numbers that depend on the data of tensors: symbols without an example.

Within `data_symbols(env)`, operators whose result's size depends on data give fakes over new
symbols of `env`, and `.item()` gives a new symbolic number. Outside of it, both are refused with
`DataDependentError`: who cannot carry such symbols through never sees one.
"""

from __future__ import annotations

import threading
from typing import Any, cast

import torch
from dovetail_guards import relations as rel
from dovetail_guards.ranges import Range
from dovetail_guards.shape_env import ShapeEnv
from dovetail_guards.sym_node import SymNode

from dovetail_prims.fake_tensor import DataDependentError

_ACTIVE = threading.local()


class data_symbols:
    """Let data-dependent operators on fakes make symbols of `env` (None: refuse them)."""

    __slots__ = ("_before", "_env")

    def __init__(self, env: ShapeEnv | None) -> None:
        self._env = env
        self._before: ShapeEnv | None = None

    def __enter__(self) -> None:
        self._before = getattr(_ACTIVE, "env", None)
        _ACTIVE.env = self._env

    def __exit__(self, *error: object) -> None:
        _ACTIVE.env = self._before


def data_symbols_are_made() -> bool:
    """Whether this is within `data_symbols`."""
    return getattr(_ACTIVE, "env", None) is not None


def new_size(op: object, least: int = 0, most: int | None = None) -> Any:
    """A size that only the data tells, with what is known of it."""
    env = _env(op)
    top = float("inf") if most is None else most
    return env.symint(env.create_unbacked(Range(least, top)))


def new_number(op: object, dtype: torch.dtype) -> Any:
    """The value of an element: a symbolic int, float or bool."""
    env = _env(op)
    if dtype.is_complex:
        raise DataDependentError(f"{op} of complex numbers")
    if dtype.is_floating_point:
        return env.symfloat(env.create_unbacked_float())
    if dtype is torch.bool:
        truth = rel.ne(env.create_unbacked(Range(0, 1)), 0)
        return torch.SymBool(cast(Any, SymNode(env, truth, bool)))
    return env.symint(env.create_unbacked(Range()))


def _env(op: object) -> ShapeEnv:
    env: ShapeEnv | None = getattr(_ACTIVE, "env", None)
    if env is None:
        raise DataDependentError(str(op))
    return env
