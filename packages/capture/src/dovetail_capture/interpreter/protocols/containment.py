"""Containment: `item in container`."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from dovetail_capture.interpreter.protocols import dicts
from dovetail_capture.interpreter.protocols.class_attributes import class_lookup
from dovetail_capture.interpreter.protocols.comparison import compare, is_same
from dovetail_capture.interpreter.protocols.constants import UNKNOWN, as_python
from dovetail_capture.interpreter.protocols.dicts import member_key
from dovetail_capture.interpreter.protocols.operands import dunder, has_own
from dovetail_capture.interpreter.protocols.truth_and_length import truth
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import DictValue, DictView, SetValue, TupleValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


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
