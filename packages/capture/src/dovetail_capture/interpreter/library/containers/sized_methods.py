"""Methods that all containers have: length, items, iteration, containment, comparison; and those of
set and frozenset."""

from __future__ import annotations

import collections
from collections.abc import Hashable
from typing import Any

from dovetail_capture.interpreter.machine.decoding import VERSION
from dovetail_capture.interpreter.machine.machine import Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import (
    comparison,
    operators,
    subscripts,
    truth_and_length,
)
from dovetail_capture.interpreter.protocols.dicts import add_member, member_key
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, boolean
from dovetail_capture.interpreter.values.containers import SetValue, hash_key
from dovetail_capture.interpreter.values.functions import IteratorValue
from dovetail_capture.interpreter.values.objects import ObjectValue


def sequence_getitem(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return subscripts.getitem(vm, vm.native(args[0]), args[1])


def sequence_setitem(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    subscripts.setitem(vm, vm.native(args[0]), args[1], args[2])
    return NONE


def sequence_delitem(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    subscripts.delitem(vm, vm.native(args[0]), args[1])
    return NONE


def _contents(vm: Interpreter, value: Value) -> Value:
    """The built-in container that a value is or holds; of a dict's view that was made outside of
    the frame, only C code knows the dict."""
    native = vm.native(value)
    if native is value and isinstance(native, ObjectValue):
        raise GraphBreakSignal(f"what is in {native.describe()}, made outside of the frame")
    return native


def native_len(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return Constant(truth_and_length.length(vm, _contents(vm, args[0])))


def native_iter(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    iterator = vm.get_iter(_contents(vm, args[0]))
    if isinstance(iterator, IteratorValue) and iterator.over:
        iterator.over = [args[0]]  # the object, not its part
    return iterator


def native_contains(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return boolean(subscripts.contains(vm, _contents(vm, args[0]), args[1]))


def _compared(symbol: str) -> Handler:
    """`__eq__` and `__ne__` of a container, which says nothing of what is no such container."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        left, right = vm.native(args[0]), vm.native(args[1])
        cls = left.python_type()
        kinds = next((kinds for kinds in _COMPARED if issubclass(cls, kinds)), None)
        if kinds is not None and not issubclass(right.python_type(), kinds):
            return Constant(NotImplemented)
        return comparison.compare(vm, symbol, left, right)

    return handler


_COMPARED: tuple[tuple[type, ...], ...] = (
    (list,), (tuple,), (collections.deque,), (dict,), (set, frozenset),
)  # fmt: skip
COMMON_METHODS: dict[str, Handler] = {
    "__len__": native_len, "__iter__": native_iter, "__contains__": native_contains,
    "__getitem__": sequence_getitem, "__setitem__": sequence_setitem,
    "__delitem__": sequence_delitem, "__eq__": _compared("=="), "__ne__": _compared("!="),
}  # fmt: skip


def method_table(classes: tuple[type, ...], handlers: dict[str, Handler]) -> dict[Any, Handler]:
    """The handlers of methods by the descriptors that these classes have of their own."""
    return {
        attr: handler
        for cls in classes
        for name, handler in handlers.items()
        if (attr := cls.__dict__.get(name)) is not None and isinstance(attr, Hashable)
    }


def _set(vm: Interpreter, value: Value) -> SetValue:
    native = vm.native(value)
    if not isinstance(native, SetValue):
        raise GraphBreakSignal(f"a set method on {value.describe()}")
    return native


def set_add(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    add_member(vm.session, _set(vm, args[0]), args[1])
    return NONE


def set_discard(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _set(vm, args[0])
    key = member_key(vm.session, target, args[1])
    target.left += target.by_key.pop(key, None) is not None
    target.mutated = True
    return NONE


def set_remove(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _set(vm, args[0])
    if member_key(vm.session, target, args[1]) not in target.by_key:
        vm.raise_exception(KeyError, [args[1]])
    return set_discard(vm, args, kwargs)


def set_update(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _set(vm, args[0])
    for other in args[1:]:
        target.update(vm.iterate(other), vm.native(other))
    target.mutated = True
    return NONE


def set_copy(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _set(vm, args[0])
    return target if target is args[0] and target.cls is frozenset else target.copy()


def set_pop(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _set(vm, args[0])
    for key, item in target.in_order():
        del target.items[key]
        target.left += 1
        target.mutated = True
        return item
    return vm.raise_error(KeyError, "pop from an empty set")


def set_init(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _set(vm, args[0])
    if len(args) > 1 and target.cls is set:
        target.items, target.copied = {}, None
        target.left += 1
        target.update(vm.iterate(args[1]), vm.native(args[1]))
    return NONE


def set_clear(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _set(vm, args[0])
    target.items, target.copied, target.mutated = {}, None, True
    target.left += 1
    return NONE


def _other_set(vm: Interpreter, target: SetValue, other: Value, symbol: str) -> SetValue:
    """The set of an operand. Since Python 3.12 an iterator is asked for an intersection only until
    all members of the target have come."""
    made = SetValue([])
    missing = set(target.items)
    stops = symbol == "&" and VERSION >= (3, 12)
    for item in vm.iterate(other):
        made.items.setdefault(hash_key(item), item)
        missing.discard(hash_key(item))
        if stops and target.items and not missing:
            break
    return made


def set_operation(symbol: str) -> Handler:
    """`union`, `intersection`, `difference`, `symmetric_difference`."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        result: Value = vm.native(args[0])
        for other in args[1:]:
            right = _other_set(vm, _set(vm, result), other, symbol)
            result = operators.binary(vm, symbol, result, right, False)
        return _set(vm, result).copy() if len(args) == 1 else result

    return handler


def set_update_with(symbol: str) -> Handler:
    """`intersection_update`, `difference_update`, `symmetric_difference_update`."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        target = _set(vm, args[0])
        for other in args[1:]:
            right = _other_set(vm, target, other, symbol)
            operators.binary(vm, symbol, target, right, True)
        return NONE

    return handler


def set_issubset(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = _set(vm, args[0])
    second = _other_set(vm, target, args[1], "&")
    return boolean(target.items.keys() <= second.items.keys())


def set_issuperset(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`issuperset`: an iterator is asked up to the first item that is not there."""
    items = _set(vm, args[0]).items
    return boolean(all(hash_key(item) in items for item in vm.iterate(args[1])))


def set_isdisjoint(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`isdisjoint`: an iterator is asked up to the first item that is there."""
    items = _set(vm, args[0]).items
    return boolean(not any(hash_key(item) in items for item in vm.iterate(args[1])))


_SET_METHODS: dict[str, Handler] = {
    **COMMON_METHODS,
    "__init__": set_init, "pop": set_pop,
    "add": set_add, "discard": set_discard, "remove": set_remove, "update": set_update,
    "copy": set_copy, "clear": set_clear, "union": set_operation("|"),
    "intersection": set_operation("&"), "difference": set_operation("-"),
    "symmetric_difference": set_operation("^"), "issubset": set_issubset,
    "issuperset": set_issuperset, "isdisjoint": set_isdisjoint,
    "intersection_update": set_update_with("&"), "difference_update": set_update_with("-"),
    "symmetric_difference_update": set_update_with("^"),
}  # fmt: skip
HANDLERS = method_table((set, frozenset), _SET_METHODS)
