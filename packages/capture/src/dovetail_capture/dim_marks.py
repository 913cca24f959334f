"""Marks on tensors: which dimensions the user wants symbolic, and within what bounds.

A mark is an attribute of the tensor object itself, as PyTorch's own marks are; those are honoured
too, so that a program written for torch.compile keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_DYNAMIC = "_dovetail_dynamic_dims"
_STATIC = "_dovetail_static_dims"
_UNBACKED = "_dovetail_unbacked_dims"
_STATIC_ADDRESS = "_dovetail_static_address"


@dataclass(frozen=True)
class Bounds:
    """What the user says of a dynamic size: both ends included, None where nothing is said.
    `strict`: it is an error if the program needs one size."""

    min: int | None = None
    max: int | None = None
    strict: bool = True


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


Predicates = Sequence[Callable[[int], bool]]


def mark_dynamic(
    t: torch.Tensor,
    index: int | Iterable[int],
    *,
    hint_override: int | None = None,
    min: int | None = None,
    max: int | None = None,
    specialize_on: Predicates | None = None,
) -> None:
    """Compile for any size of `t` along `index` (a dimension, or several), within `min` and `max`.

    The mark belongs to this tensor object. Sizes 0 and 1 are compiled apart all the same. A size
    for which a function of `specialize_on` is true is compiled for itself, if nothing that fits it
    was compiled before. `hint_override` is accepted for torch.compile's sake: nothing is chosen by
    the size that a graph is compiled at.

    Raises CaptureError, when the program is captured, if it needs one size.
    """
    _mark_dynamic(t, index, Bounds(min, max), specialize_on)


def maybe_mark_dynamic(
    t: torch.Tensor, index: int | Iterable[int], *, min: int | None = None, max: int | None = None
) -> None:
    """`mark_dynamic`, but a size that the program needs is compiled in. What `mark_dynamic` said of
    a dimension stands."""
    known = getattr(t, _DYNAMIC, {})
    dims = [d for d in _dims(t, index) if d not in known or not known[d].strict]
    _mark_dynamic(t, dims, Bounds(min, max, strict=False), None)


def _mark_dynamic(
    t: torch.Tensor, index: int | Iterable[int], bounds: Bounds, special: Predicates | None
) -> None:
    if bounds.min is not None and bounds.max is not None and bounds.min > bounds.max:
        raise ValueError(f"min={bounds.min} is greater than max={bounds.max}")
    marks = dict(getattr(t, _DYNAMIC, {}))
    for d in _dims(t, index):
        if _is_special(t, d, special):
            mark_static(t, d)
        marks[d] = bounds
    setattr(t, _DYNAMIC, marks)


def _is_special(t: torch.Tensor, dim: int, special: Predicates | None) -> bool:
    return any(predicate(t.shape[dim]) for predicate in special or ())


def mark_static(t: torch.Tensor, index: int | Iterable[int] | None = None) -> None:
    """Compile anew for each size of `t` along `index` (None: along every dimension)."""
    dims = range(t.dim()) if index is None else _dims(t, index)
    setattr(t, _STATIC, frozenset(getattr(t, _STATIC, frozenset())) | frozenset(dims))


def mark_static_address(t: torch.Tensor, guard: bool = False) -> None:
    """Promise that what is passed here lies where `t` lies, as parameters do: a recorded CUDA graph
    reads it in place. (It is recorded anew where that is not so, with or without `guard`.)"""
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"mark_static_address takes a tensor, got {type(t).__name__}")
    setattr(t, _STATIC_ADDRESS, True)


def mark_unbacked(
    t: torch.Tensor,
    index: int | Iterable[int],
    hint_override: int | None = None,
    strict: bool = False,
    specialize_on: Predicates | None = None,
    shape_id: str | None = None,
    min: int | None = None,
    max: int | None = None,
) -> None:
    """Compile once for any size of `t` along `index`, 0 and 1 included.

    Nothing may be decided about such a size while the program is captured: a question that
    `torch._check(...)` before it does not answer breaks the graph. So `strict` is always so.
    A size outside of `min` and `max` is refused here; nothing more is concluded from them.
    `specialize_on` and `hint_override` are those of `mark_dynamic`.

    Raises:
        NotImplementedError: `shape_id` is given: say `torch._check(a.size(0) == b.size(0))` in the
            program instead.
    """
    if shape_id is not None:
        raise NotImplementedError(
            "mark_unbacked takes no shape_id: say which sizes are equal in the program, "
            "torch._check(a.size(0) == b.size(0))"
        )
    dims = _dims(t, index)
    for d in dims:
        size = t.shape[d]
        if (min is not None and size < min) or (max is not None and size > max):
            raise ValueError(f"dimension {d} is of size {size}, outside min={min}, max={max}")
    dims = [d for d in dims if not _is_special(t, d, specialize_on)]
    setattr(t, _UNBACKED, frozenset(getattr(t, _UNBACKED, ())) | frozenset(dims))


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
        d: Bounds(strict=strict)
        for name, strict in (
            ("_dynamo_weak_dynamic_indices", False),
            ("_dynamo_dynamic_indices", True),
        )
        for d in fields.get(name, ())
    }
    for limits in fields.get("_dynamo_dynamic_range", ()):
        said = dynamic.get(limits.dim, Bounds())
        dynamic[limits.dim] = Bounds(limits.min, limits.max, said.strict)
    dynamic |= fields.get(_DYNAMIC, {})
    static = frozenset(fields.get("_dynamo_static_indices", ())) | fields.get(_STATIC, frozenset())
    unbacked = frozenset(fields.get("_dynamo_unbacked_indices", ()))
    unbacked |= fields.get(_UNBACKED, frozenset())
    if not (dynamic or static or unbacked):
        return None
    return Marks(dynamic, static, unbacked)
