"""Methods that all containers have: length, items, iteration, containment, comparison."""

from __future__ import annotations

import collections
from collections.abc import Hashable
from typing import Any

from dovetail_capture.interpreter.machine.handler_types import Args, Handler, Kwargs
from dovetail_capture.interpreter.machine.machine import Interpreter
from dovetail_capture.interpreter.protocols import (
    comparison,
    containment,
    subscripts,
    truth_and_length,
)
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, boolean
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
    return boolean(containment.contains(vm, _contents(vm, args[0]), args[1]))


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
