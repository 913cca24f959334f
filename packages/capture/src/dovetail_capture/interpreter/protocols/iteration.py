"""The iteration protocol."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from dovetail_capture.interpreter.protocols import attributes, dicts
from dovetail_capture.interpreter.protocols.constants import from_python
from dovetail_capture.interpreter.signals import GraphBreakSignal, ProgramException
from dovetail_capture.interpreter.values.arrays import ArrayValue
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    DictView,
    ListValue,
    SetValue,
    TupleValue,
)
from dovetail_capture.interpreter.values.functions import GeneratorValue, IteratorValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


_LIST_ITERATOR: type = type(iter([]))
_DEQUE_ITERATOR: type = type(iter(collections.deque()))
_VIEW_ITERATORS: dict[str, type] = {
    "keys": type(iter({})), "values": type(iter({}.values())), "items": type(iter({}.items())),
}  # fmt: skip


def get_iter(vm: Interpreter, value: Value) -> Value:
    """`iter(value)`."""
    cls = value.__class__
    if cls is ArrayValue:
        return vm.arrays.iterate(vm, value)  # type: ignore[no-any-return]
    if cls is IteratorValue or cls is GeneratorValue:
        return value
    if cls is TupleValue:
        return IteratorValue(_tuple_items(vm, value), type(iter(())), True)  # type: ignore[arg-type]
    if cls is ListValue:
        kind = _DEQUE_ITERATOR if value.cls is collections.deque else _LIST_ITERATOR  # type: ignore[attr-defined]
        return IteratorValue(_list_items(vm, value), kind, over=[value], size=len(value.items))  # type: ignore[arg-type, attr-defined]
    if cls is DictValue:
        size = len(dicts.keys(vm, value))  # type: ignore[arg-type]
        return IteratorValue(_dict_keys(vm, value), type(iter({})), over=[value], size=size)  # type: ignore[arg-type]
    if cls is DictView:
        size = len(dicts.keys(vm, vm.native(value.dictionary)))  # type: ignore[attr-defined, arg-type]
        kind = _VIEW_ITERATORS[value.kind]  # type: ignore[attr-defined]
        return IteratorValue(_view_items(vm, value), kind, over=[value], size=size)  # type: ignore[arg-type]
    if cls is SetValue:
        return IteratorValue(_set_items(vm, value), type(iter(set())), True)  # type: ignore[arg-type]
    if cls is TensorValue:
        if not len(value.sizes):  # type: ignore[attr-defined]
            vm.raise_error(TypeError, "iteration over a 0-d tensor")
        unbound = vm.record("call_method", "unbind", [value, Constant(0)], {})
        return get_iter(vm, unbound)
    if cls is ObjectValue:
        return _object_iter(vm, value)  # type: ignore[arg-type]
    if cls is Constant:
        return _constant_iter(vm, value)  # type: ignore[arg-type]
    return vm.raise_error(TypeError, f"'{value.python_type().__name__}' object is not iterable")


def _constant_iter(vm: Interpreter, value: Constant) -> Value:
    real = value.value
    if isinstance(real, type):
        _owner, method = attributes.class_lookup(vm, type(real), "__iter__")
        if method is attributes.MISSING:
            return vm.raise_error(TypeError, f"type object '{real.__name__}' is not iterable")
        # An Enum class: its members are fixed.
        return IteratorValue(
            iter([vm.held(item) for item in list(cast(Any, real))]), _LIST_ITERATOR, True
        )
    try:
        iterator = iter(real)
    except TypeError as error:
        return vm.raise_error(TypeError, str(error))
    if iterator is real:
        raise GraphBreakSignal(f"the iterator {value.describe()} from outside of the frame")
    return IteratorValue((from_python(vm, item) for item in iterator), type(iterator), True)


def _is_native_iterator(vm: Interpreter, value: Value) -> bool:
    """Is this an iterator of a C type (or a generator) that existed before the frame ran?"""
    if not isinstance(value, ObjectValue) or value.real is None:
        return False
    _, step = attributes.class_lookup(vm, value.cls, "__next__")
    return isinstance(step, attributes.C_METHODS)


def _object_iter(vm: Interpreter, value: ObjectValue) -> Value:
    if _is_native_iterator(vm, value):
        return value
    owner, method = attributes.class_lookup(vm, value.cls, "__iter__")
    if method is attributes.MISSING or method is None:
        _, getitem = attributes.class_lookup(vm, value.cls, "__getitem__")
        if getitem is attributes.MISSING:
            name = value.cls.__name__
            return vm.raise_error(TypeError, f"'{name}' object is not iterable")
        return IteratorValue(_by_index(vm, value), _LIST_ITERATOR)
    bound = attributes.bind_to_instance(vm, value, owner, "__iter__", method)
    return vm.call(bound, [], {})


def _by_index(vm: Interpreter, value: Value) -> Iterator[Value]:
    index = 0
    while True:
        try:
            item = vm.getitem(value, Constant(index))
        except ProgramException as error:
            if issubclass(error.value.python_type(), IndexError):
                return
            raise
        yield item
        index += 1


def _tuple_items(vm: Interpreter, value: TupleValue) -> Iterator[Value]:
    for index in range(len(value.items)):
        yield vm.tuple_item(value, index)


def _list_items(vm: Interpreter, value: ListValue) -> Iterator[Value]:
    index, count = 0, len(value.items)
    while index < len(value.items):  # the list may grow while it is iterated
        yield vm.list_item(value, index)
        index += 1
        if value.cls is collections.deque and len(value.items) != count:
            vm.raise_error(RuntimeError, "deque mutated during iteration")


def _set_items(vm: Interpreter, value: SetValue) -> Iterator[Value]:
    members = [item for _, item in value.in_order()]
    for item in members:
        yield item
        if len(value.items) != len(members):
            vm.raise_error(RuntimeError, "Set changed size during iteration")


def _dict_keys(vm: Interpreter, dictionary: DictValue) -> Iterator[Value]:
    keys = dicts.keys(vm, dictionary)
    entries = dictionary.entries
    hashed = list(entries)
    for key, value in zip(hashed, keys, strict=True):
        yield value
        if len(dictionary.entries) != len(keys):
            ordered = dictionary.cls is collections.OrderedDict
            text = "OrderedDict mutated" if ordered else "dictionary changed size"
            vm.raise_error(RuntimeError, f"{text} during iteration")
        if key not in dictionary.entries:
            raise GraphBreakSignal("a dictionary whose keys change while it is iterated over")


def _view_items(vm: Interpreter, view: DictView) -> Iterator[Value]:
    dictionary = vm.native(view.dictionary)
    assert isinstance(dictionary, DictValue)
    if view.kind == "keys":
        yield from _dict_keys(vm, dictionary)
        return
    for key in _dict_keys(vm, dictionary):
        item = vm.dict_item(dictionary, key)
        yield item if view.kind == "values" else TupleValue([key, item])


def next_value(vm: Interpreter, iterator: Value) -> Value | None:
    """The next item, or None at the end."""
    cls = iterator.__class__
    if cls is IteratorValue:
        item: Value | None = next(iterator.iterator, None)  # type: ignore[attr-defined]
        iterator.taken += item is not None  # type: ignore[attr-defined]
        iterator.ended |= item is None  # type: ignore[attr-defined]
        return item
    if cls is GeneratorValue:
        return vm.resume(iterator, None)  # type: ignore[arg-type]
    if _is_native_iterator(vm, iterator):
        raise GraphBreakSignal(
            f"a step of a {iterator.python_type().__name__} that was made outside of the graph",
            "iterate over a list or tuple, or make the iterator in the compiled function",
        )
    try:
        return vm.call_method(iterator, "__next__", [])
    except ProgramException as error:
        if issubclass(error.value.python_type(), StopIteration):
            return None
        raise


def iterate(vm: Interpreter, value: Value) -> Iterator[Value]:
    """All items of an iterable, one by one."""
    iterator = get_iter(vm, value)
    while True:
        item = next_value(vm, iterator)
        if item is None:
            return
        yield item
