"""Marks on tensors: which dimensions the user wants symbolic, and within what bounds.

A mark is an attribute of the tensor object itself, as PyTorch's own marks are; those are honoured
too, so that a program written for torch.compile keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

_DYNAMIC = "_dovetail_dynamic_dims"
_STATIC = "_dovetail_static_dims"
_UNBACKED = "_dovetail_unbacked_dims"
_STATIC_ADDRESS = "_dovetail_static_address"


@dataclass(frozen=True)
class Bounds:
    """What the user says of a dynamic size: both ends included, None where nothing is said."""

    min: int | None = None
    max: int | None = None


@dataclass(frozen=True)
class Marks:
    """The marks of one tensor: dynamic dimensions with their bounds, static and unbacked ones."""

    dynamic: dict[int, Bounds]
    static: frozenset[int]
    unbacked: frozenset[int]


def _dims(t: torch.Tensor, dim: int | Iterable[int]) -> list[int]:
    wanted = [dim] if isinstance(dim, int) else list(dim)
    for d in wanted:
        if not -t.dim() <= d < t.dim():
            raise IndexError(f"dimension {d} of a tensor with {t.dim()} dimensions")
    return [d % t.dim() for d in wanted]


def mark_dynamic(
    t: torch.Tensor,
    dim: int | Iterable[int],
    *,
    min: int | None = None,
    max: int | None = None,
    hint_override: int | None = None,
    specialize_on: Iterable[Any] | None = None,
) -> None:
    """Compile for any size of `t` along `dim` (an index, or several), within `min` and `max`.

    The mark belongs to this tensor object. Sizes 0 and 1 are compiled apart all the same.
    `hint_override` and `specialize_on`, with which torch.compile chooses kernels by sizes, are
    accepted and change nothing: the kernels are those for any size.
    """
    if min is not None and max is not None and min > max:
        raise ValueError(f"min={min} is greater than max={max}")
    marks = dict(getattr(t, _DYNAMIC, {}))
    for d in _dims(t, dim):
        marks[d] = Bounds(min, max)
    setattr(t, _DYNAMIC, marks)


def mark_static(t: torch.Tensor, dim: int | Iterable[int] | None = None) -> None:
    """Compile anew for each size of `t` along `dim` (None: along every dimension)."""
    dims = range(t.dim()) if dim is None else _dims(t, dim)
    setattr(t, _STATIC, frozenset(getattr(t, _STATIC, frozenset())) | frozenset(dims))


def mark_unbacked(t: torch.Tensor, dim: int | Iterable[int]) -> None:
    """Compile once for any size of `t` along `dim`, 0 and 1 included.

    Nothing may be decided about such a size while the program is captured: a question that
    `torch._check(...)` before it does not answer breaks the graph.
    """
    setattr(t, _UNBACKED, frozenset(getattr(t, _UNBACKED, ())) | frozenset(_dims(t, dim)))


def maybe_mark_dynamic(t: torch.Tensor, dim: int | Iterable[int]) -> None:
    """`mark_dynamic`; where the program needs a number for the size, that is no error."""
    mark_dynamic(t, dim)


def mark_static_address(t: torch.Tensor, guard: bool = True) -> None:
    """Promise that what is passed here lies where `t` lies, as parameters do: a recorded CUDA graph
    reads it in place. (It is recorded anew where that is not so, with or without `guard`.)"""
    setattr(t, _STATIC_ADDRESS, True)


def has_static_address(t: torch.Tensor) -> bool:
    """Is `t` a parameter, or marked (by us, or by torch.compile's own function)?"""
    if isinstance(t, torch.nn.Parameter):
        return True
    fields = t.__dict__
    return bool(fields) and not fields.keys().isdisjoint(
        (_STATIC_ADDRESS, "_dynamo_static_input_type")
    )


def marks_of(t: torch.Tensor) -> Marks | None:
    """The marks of a tensor; None if it has none (nearly always)."""
    fields: dict[str, Any] = t.__dict__
    if not fields:
        return None
    dynamic: dict[int, Bounds] = {
        d: Bounds()
        for name in ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices")
        for d in fields.get(name, ())
    }
    for limits in fields.get("_dynamo_dynamic_range", ()):
        dynamic[limits.dim] = Bounds(limits.min, limits.max)
    dynamic |= fields.get(_DYNAMIC, {})
    static = frozenset(fields.get("_dynamo_static_indices", ())) | fields.get(_STATIC, frozenset())
    unbacked = frozenset(fields.get("_dynamo_unbacked_indices", ()))
    unbacked |= fields.get(_UNBACKED, frozenset())
    if not (dynamic or static or unbacked):
        return None
    return Marks(dynamic, static, unbacked)
