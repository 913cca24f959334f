"""The iteration protocol."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from dovetail_capture.interpreter.machine.frame import GeneratorValue
from dovetail_capture.interpreter.protocols import (
    class_attributes,
    dicts,
    object_attributes,
    resumed_iterators,
    sequences,
    truth_and_length,
)
from dovetail_capture.interpreter.protocols.constants import from_python
from dovetail_capture.interpreter.protocols.operands import has_own
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    DictView,
    ListValue,
    SetValue,
    TupleValue,
)
from dovetail_capture.interpreter.values.functions import HeldIterator, IteratorValue
from dovetail_capture.interpreter.values.objects import ObjectValue, ProgramException
from dovetail_capture.interpreter.values.tensors import ArrayValue, TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


_LIST_ITERATOR: type = type(iter([]))
_DEQUE_ITERATOR: type = type(iter(collections.deque()))


def get_iter(vm: Interpreter, value: Value) -> Value:
    """`iter(value)`."""
    if type(value) is ArrayValue:
        return vm.arrays.iterate(vm, value)  # type: ignore[no-any-return]
    if isinstance(value, (IteratorValue, GeneratorValue, HeldIterator)):
        return value
    if type(value) is TupleValue:
        return IteratorValue(_tuple_items(vm, value), type(iter(())), True)
    if type(value) is ListValue:
        kind = _DEQUE_ITERATOR if value.cls is collections.deque else _LIST_ITERATOR
        size, left = len(value.items), value.left
        items = _list_items(vm, value, size, left)
        made = IteratorValue(items, kind, over=[value], size=size)
        made.left = left
        return made
    if isinstance(value, (DictValue, DictView)):
        return dict_iterator(vm, value, backwards=False)
    if type(value) is SetValue:
        return _set_iterator(vm, value)
    if type(value) is TensorValue:
        if value.overrides:
            vm.call_method(value, "dim", [])  # which its class is asked, too
        if not len(value.sizes):
            vm.raise_error(TypeError, "iteration over a 0-d tensor")
        unbound = vm.record("call_method", "unbind", [value, Constant(0)], {})
        return get_iter(vm, unbound)
    if type(value) is ObjectValue or has_own(vm, value, "__iter__"):
        return _object_iter(vm, value)
    if isinstance(value, Constant):
        return _constant_iter(vm, value)
    return vm.raise_error(TypeError, f"'{value.python_type().__name__}' object is not iterable")


def _constant_iter(vm: Interpreter, value: Constant) -> Value:
    real = value.value
    if isinstance(real, type):
        _owner, method = class_attributes.class_lookup(vm, type(real), "__iter__")
        if method is class_attributes.MISSING:
            return vm.raise_error(TypeError, f"'{type(real).__name__}' object is not iterable")
        class_attributes.read_members(vm, real)
        return IteratorValue(
            iter([vm.held(item) for item in list(cast(Any, real))]), _LIST_ITERATOR, True
        )
    try:
        iterator = iter(real)
    except TypeError as error:
        return vm.raise_error(TypeError, str(error))
    if iterator is real:
        raise GraphBreakSignal(f"the iterator {value.describe()} from outside of the frame")
    items = (from_python(vm, item) for item in iterator)
    return IteratorValue(items, type(iterator), True, over=[value])


def _is_native_iterator(vm: Interpreter, value: Value) -> bool:
    """Is this an iterator of a C type (or a generator) that existed before the frame ran?"""
    if not isinstance(value, ObjectValue) or value.real is None:
        return False
    _, step = class_attributes.class_lookup(vm, value.cls, "__next__")
    return isinstance(step, class_attributes.C_METHODS)


def _object_iter(vm: Interpreter, value: Value) -> Value:
    if isinstance(value, ObjectValue) and _is_native_iterator(vm, value):
        return value
    owner, method = class_attributes.class_lookup(vm, value.python_type(), "__iter__")
    if method is class_attributes.MISSING or method is None:
        _, getitem = class_attributes.class_lookup(vm, value.python_type(), "__getitem__")
        if getitem is class_attributes.MISSING or method is None:
            name = value.python_type().__name__
            return vm.raise_error(TypeError, f"'{name}' object is not iterable")
        return IteratorValue(_by_index(vm, value), _LIST_ITERATOR)
    bound = object_attributes.bind_to_instance(vm, value, owner, "__iter__", method)
    made = vm.call(bound, [], {})
    cls = made.python_type()
    if class_attributes.class_lookup(vm, cls, "__next__")[1] is class_attributes.MISSING:
        vm.raise_error(TypeError, f"iter() returned non-iterator of type '{cls.__name__}'")
    return made


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
        yield sequences.item(vm, value, index)


def _list_items(vm: Interpreter, value: ListValue, count: int, left: int) -> Iterator[Value]:
    index = 0
    while True:  # the list may grow while it is iterated
        if value.cls is collections.deque:
            check_deque(vm, value, count, left)
        if index >= len(value.items):
            return
        yield sequences.item(vm, value, index)
        index += 1


def check_deque(vm: Interpreter, value: ListValue, size: int, left: int) -> None:
    """A step of an iterator over a deque, which sees every item that came or left."""
    if value.left != left:
        vm.raise_error(RuntimeError, "deque mutated during iteration")
    check_size(vm, value, size)


def check_size(vm: Interpreter, container: Value, size: int) -> None:
    """A step of an iterator over a container that had this size when it began."""
    if truth_and_length.length(vm, container) == size:
        return
    kind = container.python_type()
    text = "OrderedDict mutated" if kind is collections.OrderedDict else "dictionary changed size"
    if kind is collections.deque:
        text = "deque mutated"
    elif isinstance(container, SetValue):
        text = "Set changed size"
    vm.raise_error(RuntimeError, f"{text} during iteration")


def _set_iterator(vm: Interpreter, value: SetValue) -> IteratorValue:
    members = value.in_order()
    items = _set_items(vm, value, members, value.left)
    made = IteratorValue(items, type(iter(set())), value.cls is frozenset, [value], len(members))
    made.members, made.left = members, value.left
    return made


def _check_members(vm: Interpreter, value: SetValue, size: int, left: int) -> None:
    """Before each step: what left may have come back, at another place that only Python knows."""
    check_size(vm, value, size)
    if value.left != left:
        raise GraphBreakSignal("a set whose members change while it is iterated over")


def _set_items(
    vm: Interpreter, value: SetValue, members: list[tuple[Any, Value]], left: int
) -> Iterator[Value]:
    for _, item in members:
        _check_members(vm, value, len(members), left)
        yield item
    _check_members(vm, value, len(members), left)


def dict_iterator(vm: Interpreter, value: DictValue | DictView, backwards: bool) -> IteratorValue:
    """`iter` or `reversed` of a dictionary or of a view of one."""
    kind = "keys"
    dictionary: Value = value
    if isinstance(value, DictView):
        kind, dictionary = value.kind, vm.native(value.dictionary)
    assert isinstance(dictionary, DictValue)
    members = [(key, item) for key, (item, _) in dicts.materialise(vm, dictionary).items()]
    steps = members[::-1] if backwards else members
    remake = reversed if backwards else iter
    cls = type(remake(getattr({}, kind)()))
    # Python's own iterator knows where it is when keys have left and others have come.
    items = _dict_items(vm, dictionary, kind, steps, remake(dictionary.entries))
    next(items)
    made = IteratorValue(items, cls, over=[value], size=len(members), remake=remake)
    made.members, made.left = members, dictionary.left
    return made


def _dict_items(
    vm: Interpreter,
    dictionary: DictValue,
    kind: str,
    members: list[tuple[Any, Value]],
    places: Iterator[Any],
) -> Iterator[Value]:
    entries, left = dictionary.entries, dictionary.left
    yield NONE  # begun: what the dictionary is from here on is compared with what it was
    for step in range(len(members) + 1):
        check_size(vm, dictionary, len(members))
        key = _place_after(vm, dictionary, entries, places, dictionary.left != left)
        if key is None:
            return
        assert step < len(members)
        value = entries[key[0]][0]
        if kind == "keys":
            yield value
        else:
            item = dicts.get(vm, dictionary, dicts.key_of(vm, dictionary, value))
            assert item is not None
            yield item if kind == "values" else TupleValue([value, item])


def _place_after(
    vm: Interpreter, dictionary: DictValue, entries: Any, places: Iterator[Any], changed: bool
) -> tuple[Any] | None:
    """The hash key that an iterator over a dictionary comes to next, None at the end. If keys left
    and others came, the places of all are those of Python's where the frame has made it."""
    if changed and dictionary.cls is collections.OrderedDict:
        return vm.raise_error(RuntimeError, "OrderedDict mutated during iteration")
    if changed and (dictionary.source is not None or dictionary.entries is not entries):
        raise GraphBreakSignal("a dictionary whose keys change while it is iterated over")
    try:
        return (next(places),)
    except StopIteration:
        return None
    except RuntimeError as error:
        return vm.raise_error(RuntimeError, str(error))


def next_value(vm: Interpreter, iterator: Value) -> Value | None:
    """The next item, or None at the end."""
    if type(iterator) is IteratorValue:
        item: Value | None = next(iterator.iterator, None)
        iterator.taken += item is not None
        iterator.ended |= item is None
        return item
    if type(iterator) is GeneratorValue:
        return vm.resume(iterator, None)
    if type(iterator) is HeldIterator:
        return resumed_iterators.next_item(vm, iterator)  # type: ignore[no-any-return]
    if _is_native_iterator(vm, iterator):
        raise resumed_iterators.cannot_step(iterator)
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
