"""What a tensor is indexed by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from dovetail_capture.interpreter.protocols import sequences
from dovetail_capture.interpreter.protocols.operands import record_call
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value, is_none
from dovetail_capture.interpreter.values.containers import ListValue, SliceValue, TupleValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import ArrayValue, TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


_INDEX_TYPES = (torch.int64, torch.int32, torch.uint8, torch.bool)


def tensor_key(vm: Interpreter, obj: TensorValue, key: Value) -> Value:
    """An index of the tensor `obj`; sequences of numbers in tensors inside of it become one tensor
    each, which PyTorch would make of their data.

    Breaks the graph at numbers in lists that lie outside of the tensor, and at tensors that are no
    indices: the program may handle the IndexError, which only the graph would raise.
    """
    if not isinstance(key, TupleValue):
        key = _of_array(vm, key) if _rank_of_array(key) == 1 else key
        _check(vm, obj, [key])
        return key
    items = [_of_array(vm, item) for item in sequences.items(vm, key)]
    _check(vm, obj, items)
    for i, item in enumerate(items):
        if isinstance(item, (ListValue, TupleValue)):
            parts = list(vm.iterate(item))
            if parts and all(
                isinstance(part, TensorValue)
                and part.fake.dim() == 0
                and part.fake.dtype is torch.int64
                for part in parts
            ):
                stacked = vm.record("call_function", torch.stack, [ListValue(parts)], {})
                items[i] = stacked
    return TupleValue(items)


def _rank_of_array(item: Value) -> int:
    """How many dimensions a NumPy array has; -1 for anything else."""
    if not isinstance(item, ArrayValue) or item.is_scalar:
        return -1
    return int(item.tensor.fake.dim())


def _of_array(vm: Interpreter, item: Value) -> Value:
    """The tensor that PyTorch makes of a NumPy array in an index. (One that is the whole index, and
    has rows, is taken for the tuple of its rows, and stays an array here.)"""
    if not isinstance(item, ArrayValue) or _rank_of_array(item) < 1:
        return item
    dtype = item.tensor.fake.dtype
    if dtype in (torch.int64, torch.bool):
        return item.tensor
    if dtype not in (torch.int32, torch.int16, torch.int8):
        return item  # bytes are a mask, and fractions an error to come
    return vm.record("call_method", "to", [item.tensor, Constant(torch.int64)], {})


def at_symbolic_numbers(vm: Interpreter, obj: TensorValue, key: Value) -> tuple[TensorValue, Value]:
    """`obj` where the numbers in `key` that depend on sizes select of it, and the key for what is
    left: PyTorch would ask an index for the number that it is in this call.

    A number that is out of bounds in this call stays in the key, for the words of its error.
    """
    items = [key]
    if isinstance(key, TupleValue):
        items = sequences.items(vm, key)
    if not any(isinstance(item, SymbolicNumber) for item in items):
        return obj, key
    widths = [_width(item) for item in items]
    given = sum(width for width in widths if width is not None and width >= 0)
    if None in widths or widths.count(-1) > 1 or given > len(obj.sizes):
        return obj, key
    found = obj
    rest: list[Value] = []
    dim = 0  # of what is left of the tensor
    for item, width in zip(items, widths, strict=True):
        assert width is not None
        if isinstance(item, SymbolicNumber) and _within(vm, item, found, dim):
            part = record_call(vm, torch.select, [found, Constant(dim), item])
            assert isinstance(part, TensorValue)
            found = part
            continue
        rest.append(item)
        dim += len(obj.sizes) - given if width < 0 else width
    return (obj, key) if found is obj else (found, TupleValue(rest))


def by_mapped_number(vm: Interpreter, key: Value) -> tuple[Value, int] | None:
    """Under `vmap`, an index with one number that is another in each part, which no one number can
    stand for: the key with a row of that one number, and the dimension in which the row then is."""
    recorder = vm.session.recorder
    if not recorder.mapped:
        return None
    items = [key]
    if isinstance(key, TupleValue):
        items = sequences.items(vm, key)
    tensors = [place for place, item in enumerate(items) if isinstance(item, TensorValue)]
    basic = all(isinstance(item, (SliceValue, Constant, TensorValue)) for item in items)
    if len(tensors) != 1 or not basic:
        return None
    (place,) = tensors
    number, before = items[place], items[:place]
    assert isinstance(number, TensorValue)
    whole = number.fake.dim() == 0 and number.fake.dtype in (torch.int64, torch.int32)
    if not whole or not _is_mapped(recorder.mapped, number.node):
        return None
    if any(isinstance(item, Constant) and item.value is Ellipsis for item in before):
        return None
    items[place] = vm.record("call_method", "unsqueeze", [number, Constant(0)], {})
    kept = [item for item in before if isinstance(item, SliceValue) or is_none(item)]
    return TupleValue(items), len(kept)


def _is_mapped(mapped: set[Node], node: Node) -> bool:
    """Is this computed from one of the mapped inputs?"""
    pending, seen = [node], set[Node]()
    while pending:
        one = pending.pop()
        if one in mapped:
            return True
        if one not in seen:
            seen.add(one)
            pending += one.all_input_nodes
    return False


def _width(item: Value) -> int | None:
    """How many dimensions of a tensor a part of an index takes, of which tensors may be part."""
    if not isinstance(item, TensorValue):
        return _dimensions_of(item)
    return item.fake.dim() if item.fake.dtype in (torch.bool, torch.uint8) else 1


def _within(vm: Interpreter, number: SymbolicNumber, obj: TensorValue, dim: int) -> bool:
    """Is it a whole number, known by its bounds to lie in a dimension or only known at run time?
    (The program's modes and classes are asked about the index that it wrote.)"""
    if number.python_type() is not int:
        return False
    if number.value.node.hint is None:
        return True
    if vm.session.modes.function_modes or vm.session.modes.own_functions:
        return False
    size = obj.sizes[dim]
    return bool(-size <= number.value) and bool(number.value < size)


def _check(vm: Interpreter, obj: TensorValue, items: list[Value]) -> None:
    for item in items:
        if isinstance(item, TensorValue) and item.fake.dtype not in _INDEX_TYPES:
            raise GraphBreakSignal(f"a tensor of {item.fake.dtype} as an index")
    widths = [_dimensions_of(item) for item in items]
    if None in widths or not any(isinstance(item, (ListValue, TupleValue)) for item in items):
        return
    given = sum(width for width in widths if width is not None and width >= 0)
    dim = 0
    for item, width in zip(items, widths, strict=True):
        if isinstance(item, (ListValue, TupleValue)) and dim < len(obj.sizes):
            size = obj.sizes[dim]
            for number in _numbers(vm, item):
                if type(size) is int and not -size <= number < size:
                    raise GraphBreakSignal(f"index {number} of a dimension of size {size}")
        assert width is not None
        dim += len(obj.sizes) - given if width < 0 else width


def _dimensions_of(item: Value) -> int | None:
    """How many dimensions a part of an index takes; -1: all that are left, None: not known."""
    if isinstance(item, (SliceValue, SymbolicNumber, ListValue, TupleValue)):
        return 1
    if not isinstance(item, Constant) or isinstance(item.value, bool):
        return None
    if item.value is None:
        return 0
    return -1 if item.value is Ellipsis else 1


def _numbers(vm: Interpreter, item: Value) -> Iterator[int]:
    """The whole numbers in nested lists; nothing of lists with anything else."""
    real: Any = vm.as_python(item)
    pending = list(real) if isinstance(real, (list, tuple)) else []
    found = []
    while pending:
        part = pending.pop()
        if isinstance(part, (list, tuple)):
            pending.extend(part)
        elif type(part) is int:
            found.append(part)
        else:
            return
    yield from found
