"""Subscripts: reading, writing and deleting items; integer indices and slices."""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING, Any

import torch

from dovetail_capture.interpreter.inputs.rebound_names import is_settled
from dovetail_capture.interpreter.protocols import dicts, operands, sequences
from dovetail_capture.interpreter.protocols.class_attributes import class_lookup
from dovetail_capture.interpreter.protocols.comparison import compare, is_same
from dovetail_capture.interpreter.protocols.constants import UNKNOWN, as_python
from dovetail_capture.interpreter.protocols.dicts import member_key
from dovetail_capture.interpreter.protocols.operands import dunder, has_own
from dovetail_capture.interpreter.protocols.tensor_index import (
    at_symbolic_numbers,
    by_mapped_number,
    tensor_key,
)
from dovetail_capture.interpreter.protocols.truth_and_length import truth
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    DictView,
    ListValue,
    SetValue,
    SliceValue,
    TupleValue,
)
from dovetail_capture.interpreter.values.functions import BoundMethod, NativeMethod
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import ArrayValue, TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


def getitem(vm: Interpreter, obj: Value, key: Value) -> Value:
    """`obj[key]`."""
    cls = obj.__class__
    if cls is ArrayValue:
        return vm.arrays.getitem(vm, obj, key)  # type: ignore[no-any-return]
    if isinstance(obj, TensorValue):
        found, rest = at_symbolic_numbers(vm, obj, key)
        if found is not obj and isinstance(rest, TupleValue) and not rest.items:
            return found
        mapped = by_mapped_number(vm, rest)
        if mapped is not None:
            rest, place = mapped
            row = operands.record_call(vm, operator.getitem, [found, tensor_key(vm, found, rest)])
            return operands.record_call(vm, torch.select, [row, Constant(place), Constant(0)])
        return operands.record_call(vm, operator.getitem, [found, tensor_key(vm, found, rest)])
    if isinstance(obj, (ListValue, TupleValue)):
        return _sequence_item(vm, obj, key)
    if isinstance(obj, DictValue):
        return dicts.lookup(vm, obj, key)
    if isinstance(obj, Constant) and not _has_own_items(vm, obj):
        real = obj.value
        if isinstance(key, SliceValue) and type(real) in (str, bytes, range):
            return operands.fold(vm, operator.getitem, real, slice_of(vm, key))
        real_key = as_python(vm, key)
        if real_key is not UNKNOWN:
            return operands.fold(vm, operator.getitem, real, real_key)
    method = operands.dunder(vm, obj, "__getitem__")
    if method is None and issubclass(obj.python_type(), type):
        method = vm.find_attr(obj, "__class_getitem__")
    if method is None or isinstance(obj, (NativeMethod, BoundMethod)):
        return vm.raise_error(
            TypeError, f"'{obj.python_type().__name__}' object is not subscriptable"
        )
    return vm.call(method, [key], {})


def _has_own_items(vm: Interpreter, obj: Constant) -> bool:
    """Has a constant items by a method of the program's?"""
    if not isinstance(obj.value, type):
        return operands.has_own(vm, obj, "__getitem__")
    method = class_lookup(vm, obj.value, "__class_getitem__")[1]
    function = getattr(method, "__func__", None)
    by_class = isinstance(function, types.FunctionType) and not is_settled(function.__module__)
    return by_class or operands.has_own(vm, obj, "__getitem__")


def index_of(vm: Interpreter, key: Value, of: str = "list") -> int:
    """An integer index (`__index__`) of a sequence, or with an empty `of` an integer argument."""
    key = operands.concrete(key)
    own = operands.has_own(vm, key, "__index__")
    if isinstance(key, Constant) and hasattr(key.value, "__index__") and not own:
        return operator.index(key.value)
    if isinstance(key, TensorValue):
        known = vm.data_of(key)
        if known is not UNKNOWN:
            return operator.index(known)
        raise GraphBreakSignal("a tensor used as the index of a Python sequence")
    method = operands.dunder(vm, key, "__index__")
    if method is not None:
        made = vm.call(method, [], {})
        return index_of(
            vm, operands.returned(vm, made, int, "__index__ returned non-int (type {})"), of
        )
    if of in ("", "deque"):  # not a subscript, or one of a class that says so
        kind = key.python_type().__name__
        vm.raise_error(TypeError, f"'{kind}' object cannot be interpreted as an integer")
    return vm.raise_error(
        TypeError, f"{of} indices must be integers or slices, not {key.python_type().__name__}"
    )


def _sequence_item(vm: Interpreter, obj: ListValue | TupleValue, key: Value) -> Value:
    if isinstance(key, SliceValue):
        where = slice_of(vm, key)
        if isinstance(obj, ListValue):
            return ListValue(sequences.items(vm, obj)[where])
        count = len(obj.items)
        chosen = range(count)[where]
        if obj.cls is tuple and chosen == range(count):
            return obj
        items = [sequences.item(vm, obj, i) for i in chosen]
        keeps = obj.cls.__name__ == "Size"
        return TupleValue(items, obj.cls if keeps else tuple)
    kind = obj.python_type().__name__
    index = index_of(vm, key, kind)
    count = len(obj.items)
    if not -count <= index < count:
        vm.raise_error(IndexError, f"{kind} index out of range")
    index %= count
    return sequences.item(vm, obj, index)


_CONTAINERS = (ListValue, TupleValue, DictValue)


def _bound(vm: Interpreter, part: Value) -> Value:
    """A bound or the step of a slice, as a number if it is an object that has one."""
    if isinstance(part, ObjectValue) or operands.has_own(vm, part, "__index__"):
        if operands.dunder(vm, part, "__index__") is not None:
            return Constant(index_of(vm, part))
    elif isinstance(part, Constant):
        if part.value is None or hasattr(part.value, "__index__"):
            return part
    elif not isinstance(part, _CONTAINERS):
        return part
    text = "slice indices must be integers or None or have an __index__ method"
    return vm.raise_error(TypeError, text)


def slice_of(vm: Interpreter, key: SliceValue) -> slice:
    """A slice of known bounds."""
    key = SliceValue(*(_bound(vm, part) for part in (key.start, key.stop, key.step)))
    real = as_python(vm, key)
    if real is UNKNOWN:
        raise GraphBreakSignal("a slice whose bounds are not known")
    if real.step == 0:
        vm.raise_error(ValueError, "slice step cannot be zero")
    return real  # type: ignore[no-any-return]


def setitem(vm: Interpreter, obj: Value, key: Value, value: Value) -> None:
    """`obj[key] = value`."""
    if isinstance(obj, TensorValue):
        found, rest = at_symbolic_numbers(vm, obj, key)
        mapped = by_mapped_number(vm, rest)
        rest = rest if mapped is None else mapped[0]
        operands.record_call(vm, operator.setitem, [found, tensor_key(vm, found, rest), value])
    elif isinstance(obj, ArrayValue):
        vm.arrays.setitem(vm, obj, key, value)
    elif isinstance(obj, ListValue):
        obj.mutated = True
        if isinstance(key, SliceValue):
            if not isinstance(value, ObjectValue) and not hasattr(value.python_type(), "__iter__"):
                try:
                    [*obj.items][slice_of(vm, key)] = None  # type: ignore[call-overload]
                except TypeError as error:  # in the words of this Python
                    vm.raise_real(error)
            items = list(vm.iterate(value))
            try:
                obj.items[slice_of(vm, key)] = items
            except ValueError as error:  # an extended slice of another length
                vm.raise_real(error)
            return
        index = _place_in(vm, obj, key)
        obj.items[index] = value
    elif isinstance(obj, DictValue):
        dicts.put(vm, obj, key, value)
    else:
        _call_special(vm, obj, "__setitem__", [key, value], "item assignment")


def delitem(vm: Interpreter, obj: Value, key: Value) -> None:
    """`del obj[key]`."""
    if isinstance(obj, ListValue):
        obj.mutated = True
        if isinstance(key, SliceValue):
            obj.left += 1
            del obj.items[slice_of(vm, key)]
            return
        index = _place_in(vm, obj, key)
        obj.left += 1
        del obj.items[index]
    elif isinstance(obj, DictValue):
        if not dicts.delete(vm, obj, dicts.key_of(vm, obj, key)):
            vm.raise_exception(KeyError, [key])
    else:
        _call_special(vm, obj, "__delitem__", [key], "item deletion")


def _place_in(vm: Interpreter, obj: ListValue, key: Value) -> int:
    """The index of an item of a list that is assigned or deleted."""
    index, count = index_of(vm, key), len(obj.items)
    if not -count <= index < count:
        vm.raise_error(IndexError, "list assignment index out of range")
    return index


def _call_special(vm: Interpreter, obj: Value, name: str, args: list[Value], what: str) -> None:
    """Call a special method; TypeError where the class has none and so does not support `what`."""
    method = operands.dunder(vm, obj, name)
    if method is None:
        cls = obj.python_type().__name__
        vm.raise_error(TypeError, f"'{cls}' object does not support {what}")
    assert method is not None
    vm.call(method, args, {})


# --- `item in container` --------------------------------------------------------------------------


def _error_of_containment(cls: type) -> TypeError:
    """What Python says of `in` for an object that cannot be iterated."""
    try:
        operator.contains(type(cls.__name__, (), {})(), None)
    except TypeError as error:
        return error
    raise AssertionError("an object without methods contains nothing")


def contains(vm: Interpreter, container: Value, item: Value) -> bool:
    """`item in container`."""
    if isinstance(container, DictValue):
        return dicts.contains(vm, container, dicts.key_of(vm, container, item))
    if isinstance(container, SetValue):
        return member_key(vm.session, container, item) in container.by_key
    if isinstance(container, DictView) and container.kind == "keys":
        return contains(vm, vm.native(container.dictionary), item)
    own = has_own(vm, container, "__contains__", "__iter__")
    if isinstance(container, Constant) and not own:
        real = as_python(vm, item)
        if real is not UNKNOWN:
            try:
                return real in container.value
            except Exception as error:
                vm.raise_real(error)
        kind = item.python_type().__name__
        if isinstance(container.value, str) and not issubclass(item.python_type(), str):
            text = f"'in <string>' requires string as left operand, not {kind}"
            vm.raise_error(TypeError, text)
        if isinstance(container.value, bytes):
            raise GraphBreakSignal(f"`in` of bytes and {item.describe()}")
    if isinstance(container, DictView) and container.kind == "items":
        pair = vm.native(item)
        if not isinstance(pair, TupleValue) or len(pair.items) != 2:
            return False
    if isinstance(container, TensorValue):
        raise GraphBreakSignal("`in` of a tensor")
    if own or isinstance(container, ObjectValue):
        if class_lookup(vm, container.python_type(), "__contains__")[1] is None:
            name = container.python_type().__name__
            vm.raise_error(TypeError, f"'{name}' object is not a container")
        method = dunder(vm, container, "__contains__")
        if method is not None:
            return truth(vm, vm.call(method, [item], {}))
    cls: Any = container.python_type()
    if not (hasattr(cls, "__iter__") or hasattr(cls, "__getitem__")):
        vm.raise_real(_error_of_containment(cls))
    return any(
        is_same(vm, member, item) or truth(vm, compare(vm, "==", member, item))
        for member in vm.iterate(container)
    )
