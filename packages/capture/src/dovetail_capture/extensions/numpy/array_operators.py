"""Operators, subscripts, attributes and iteration of NumPy's arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from dovetail_capture.extensions.numpy.numpy_arrays import (
    HINT,
    as_array,
    as_tensors,
    ask,
    sample,
    tensor_numpy,
)
from dovetail_capture.extensions.numpy.numpy_on_tensors import UFUNCS
from dovetail_capture.interpreter.machine.machine import Interpreter
from dovetail_capture.interpreter.protocols.choices import BINARY, COMPARE
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import SliceValue, TupleValue
from dovetail_capture.interpreter.values.functions import IteratorValue
from dovetail_capture.interpreter.values.tensors import ArrayValue, CopiedView, TensorValue

try:
    import numpy as np
except ImportError:  # torch works without it, and so do we
    np = None  # type: ignore[assignment]


def array_attr(vm: Interpreter, obj: ArrayValue, name: str) -> Value | None:
    """An attribute that is no method; None for any other."""
    if name == "T":
        return vm.call(Constant(np.transpose), [obj], {})
    if name == "real" and not obj.tensor.fake.dtype.is_complex:
        return obj
    if name in ("real", "imag") and not obj.is_scalar:
        if obj.tensor.fake.dtype.is_complex:
            part = vm.record("call_function", getattr(torch, name), [obj.tensor], {})
            return as_array(vm, name, part, getattr(sample(obj), name))
        return vm.call(Constant(np.zeros_like), [obj], {})
    if name in ("shape", "ndim", "size", "dtype", "itemsize", "nbytes", "strides"):
        found = getattr(sample(obj), name)
        if name in ("strides", "nbytes") and not obj.tensor.fake.is_contiguous():
            raise GraphBreakSignal(f"the `{name}` of a numpy array that is not contiguous", HINT)
        return vm.constant(found)
    return None


# --- operators -----------------------------------------------------------------------------------


_OPERATORS: dict[str, Any] = {**BINARY, **COMPARE}


def _ufunc(symbol: str) -> Any:
    return getattr(np, UFUNCS[symbol])


def binary(vm: Interpreter, symbol: str, left: Value, right: Value, inplace: bool) -> Value:
    """`left <symbol> right` where one is an array."""
    if isinstance(left, TensorValue) or isinstance(right, TensorValue):
        if inplace:
            raise GraphBreakSignal(f"`{symbol}=` of a tensor and a numpy array", HINT)
        return _with_tensor(vm, symbol, left, right)
    if inplace and isinstance(left, ArrayValue) and not left.is_scalar:
        _refuse_input(left)
        total = vm.call(Constant(_ufunc(symbol)), [left, right], {})
        assert isinstance(total, ArrayValue)
        fakes = left.tensor.fake, total.tensor.fake
        if fakes[0].dtype != fakes[1].dtype or tuple(fakes[0]._sizes) != tuple(fakes[1]._sizes):
            raise GraphBreakSignal(f"`{symbol}=` that changes a numpy array's dtype or shape", HINT)
        vm.record("call_method", "copy_", [left.tensor, total.tensor], {})
        return left
    return vm.call(Constant(_ufunc(symbol)), [left, right], {})


def _with_tensor(vm: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    """An operator between a tensor and an array, which NumPy computes. Whether that gives a
    tensor or an array is asked of both libraries."""
    sides = [
        tensor_numpy(vm, [side], {}) if isinstance(side, TensorValue) else side
        for side in (left, right)
    ]
    like = ask(vm, _OPERATORS[symbol][0], [left, right], {})
    found = vm.call(Constant(_ufunc(symbol)), sides, {})
    if not isinstance(found, ArrayValue):
        raise GraphBreakSignal(f"`{symbol}` of a tensor and a numpy array", HINT)
    if not isinstance(like, torch.Tensor):
        return as_array(vm, symbol, found.tensor, like)
    if like.dtype != found.tensor.fake.dtype or tuple(like.shape) != tuple(found.tensor.sizes):
        raise GraphBreakSignal(f"`{symbol}` of a tensor and a numpy array", HINT)
    return found.tensor


def compare(vm: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    """`left <symbol> right` where one is an array."""
    return binary(vm, symbol, left, right, False)


def unary(vm: Interpreter, symbol: str, operand: Value) -> Value:
    """`-a`, `+a`, `~a`."""
    names = {"-": "negative", "+": "positive", "~": "invert"}
    return vm.call(Constant(getattr(np, names[symbol])), [operand], {})


_VIEWS = frozenset(
    {"getitem", "permute", "reshape", "squeeze", "unsqueeze", "swapaxes", "moveaxis",
     "broadcast_to", "real", "imag"}
)  # fmt: skip


def _refuse_input(array: ArrayValue) -> None:
    """No write to an array that was given, or to a view of one: another array of the caller's may
    share its memory, and no guard tells."""
    node = array.tensor.node
    while getattr(node.target, "__name__", node.target) in _VIEWS and node.args:
        assert isinstance(node.args[0], Node)
        node = node.args[0]
    if array.source is not None or (node.op == "placeholder" and "_as_tensor" in node.name):
        raise GraphBreakSignal(
            "a write to a numpy array from outside of the graph", "copy it first"
        )


def _as_index(vm: Interpreter, key: Value) -> Value:
    """What torch takes for an index: of bytes, it would make a mask."""
    if isinstance(key, ArrayValue):
        return as_tensors(vm, key, None if key.tensor.fake.dtype == torch.bool else torch.int64)
    if isinstance(key, TupleValue):
        return TupleValue([_as_index(vm, item) for item in vm.iterate(key)])
    return as_tensors(vm, key, None)


def getitem(vm: Interpreter, obj: ArrayValue, key: Value) -> Value:
    """`array[key]`."""
    like = ask(vm, lambda a, k: a[k], [obj, key], {})
    obj, key = reversed_first(vm, obj, key)
    found = vm.getitem(obj.tensor, _as_index(vm, key))
    if isinstance(like, np.generic):  # a scalar of its own: the array may be written to
        found = vm.record("call_method", "clone", [found], {})
    return as_array(vm, "__getitem__", found, like)


def setitem(vm: Interpreter, obj: ArrayValue, key: Value, value: Value) -> None:
    """`array[key] = value`."""
    _refuse_input(obj)

    def assign(array: Any, index: Any, item: Any) -> None:
        array[index] = item

    ask(vm, assign, [obj, key, value], {})
    dtype = obj.tensor.fake.dtype
    parts = [obj.tensor, _as_index(vm, key), as_tensors(vm, value, dtype)]
    vm.call(Constant(_set), parts, {})


def _set(tensor: Any, key: Any, value: Any) -> None:
    tensor[key] = value


def iterate(vm: Interpreter, obj: ArrayValue) -> Value:
    """`iter(array)`."""
    if obj.is_scalar or not obj.tensor.fake.dim():
        vm.raise_error(TypeError, "iteration over a 0-d array")

    def rows() -> Iterator[Value]:
        for index in range(int(obj.tensor.sizes[0])):
            yield getitem(vm, obj, Constant(index))

    return IteratorValue(rows(), type(iter(np.zeros(1))), True)


# --- views of NumPy's of which torch makes copies: reversed dimensions, and diagonals -------------
# A copy is right as long as nobody writes to it, or to the array that it shows: the capture then
# ends before it was made (`CopiedView`).

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
