"""Views of NumPy's of which torch makes copies: reversed dimensions, and diagonals.

A copy is right as long as nobody writes to it, or to the array that it shows: the capture then ends
before it was made (`CopiedView`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dovetail_capture.extensions.numpy.numpy_arrays import HINT
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.arrays import ArrayValue, CopiedView
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import SliceValue, TupleValue
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

COPIED = ("flip", "fliplr", "flipud", "rot90", "diag")
"""NumPy's functions that give views, whose twins give copies."""


def note_copy(vm: Interpreter, base: Value, copy: Value) -> None:
    """`copy` stands for a view of `base`."""
    parts = [value.tensor for value in (base, copy) if isinstance(value, ArrayValue)]
    versions = tuple((part, part.fake._version) for part in parts)
    vm.session.effects.copied_views.append(CopiedView(vm.frames[0].steps, versions))


def reversed_first(vm: Interpreter, array: ArrayValue, key: Value) -> tuple[ArrayValue, Value]:
    """`array` and `key` without negative steps, which torch does not know: the array is reversed
    where they reverse."""
    items = list(vm.iterate(key)) if isinstance(key, TupleValue) else [key]
    steps = [vm.as_python(item) if isinstance(item, SliceValue) else None for item in items]
    if not any(isinstance(s, slice) and s.step is not None and s.step < 0 for s in steps):
        return array, key
    dims, found = _dims_of(items, len(array.tensor.sizes)), list(items)
    flipped = []
    for place, (step, dim) in enumerate(zip(steps, dims, strict=True)):
        if isinstance(step, slice) and step.step is not None and step.step < 0:
            size = int(array.tensor.sizes[dim])
            where = range(size)[step]
            start = size - 1 - where[0] if where else 0
            stop = size - where[-1] if where else 0
            found[place] = SliceValue(*map(Constant, (start, stop, -where.step)))
            flipped.append(dim)
    tensor = vm.record("call_function", torch.flip, [array.tensor, vm.constant(tuple(flipped))], {})
    assert isinstance(tensor, TensorValue)
    copy = ArrayValue(tensor, array.cls)
    note_copy(vm, array, copy)
    return copy, TupleValue(found)


def _dims_of(items: list[Value], rank: int) -> list[int]:
    """The dimension that each part of an index is for (the first of them)."""
    widths = [_width(item) for item in items]
    rest = rank - sum(width for width in widths if width >= 0)
    dims, dim = [], 0
    for width in widths:
        dims.append(dim)
        dim += rest if width < 0 else width
    return dims


def _width(item: Value) -> int:
    """How many dimensions a part of an index takes; -1: all that are left."""
    if isinstance(item, SliceValue):
        return 1
    if isinstance(item, ArrayValue):
        return item.tensor.fake.dim() if item.tensor.fake.dtype is torch.bool else 1
    if not isinstance(item, Constant) or isinstance(item.value, bool):
        raise GraphBreakSignal("a reversing index of a numpy array in this form", HINT)
    real: Any = item.value
    if real is None:
        return 0
    return -1 if real is Ellipsis else 1
