"""Attributes of functions, and the dictionaries that these keep."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from dovetail_capture.interpreter.protocols import dicts, sequences
from dovetail_capture.interpreter.protocols.class_attributes import missing
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value
from dovetail_capture.interpreter.values.containers import DictValue, TupleValue
from dovetail_capture.interpreter.values.functions import FunctionValue, NativeMethod

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


def global_names(vm: Interpreter, real: dict[str, Any]) -> Value:
    """The dictionary of a module's globals."""
    if any(place == id(real) for place, _ in vm.session.effects.global_writes):
        raise GraphBreakSignal("globals() where a global was assigned in this graph")
    return vm.held(real)


# What no guard of a function that is given speaks of before it is read.
_GENERIC = ("__type_params__",) if sys.version_info >= (3, 12) else ()
_OF_GIVEN = ("__name__", "__qualname__", "__doc__", "__module__", *_GENERIC)


def function_attr(vm: Interpreter, obj: FunctionValue, name: str) -> Value:
    """An attribute of a function made in the frame, or given to it anew by each call."""
    found = obj.special.get(name)
    if found is None and name not in FUNCTION_FIELDS and obj.attributes is not None:
        found = dicts.get(vm, obj.attributes, name)
    if found is not None:
        return found
    if name in _OF_GIVEN and obj.given is not None and obj.source is not None:
        return vm.wrap(getattr(obj.given, name), vm.session.sources.attr(obj.source, name))
    match name:
        case "__name__":
            return Constant(obj.name)
        case "__qualname__":
            return Constant(obj.code.co_qualname)
        case "__code__":
            return Constant(obj.code)
        case "__dict__":
            if obj.attributes is None:
                obj.attributes = _own_dict(vm, obj, name)
            return obj.attributes
        case "__module__":
            return vm.constant(obj.globals_.get("__name__"))
        case "__doc__":
            consts = obj.code.co_consts
            text = consts[0] if consts and isinstance(consts[0], str) else None
            return Constant(text)
        case "__defaults__":
            return TupleValue(obj.defaults) if obj.defaults else NONE
        case "__kwdefaults__":
            return obj.kwdefaults or NONE
        case "__globals__":
            return global_names(vm, obj.globals_)
        case "__closure__":
            return TupleValue(obj.closure) if obj.closure else NONE
        case "__annotations__":
            if isinstance(obj.annotations, TupleValue):  # names and values in turn
                flat = sequences.items(vm, obj.annotations)
                obj.annotations = DictValue()
                for of_what, annotation in zip(flat[::2], flat[1::2], strict=True):
                    dicts.put(vm, obj.annotations, of_what, annotation)
            elif obj.annotations is None:
                obj.annotations = _own_dict(vm, obj, name)
            return obj.annotations
        case "__type_params__" if _GENERIC:
            return TupleValue([])
        case "__class__":
            return Constant(types.FunctionType)
        case "__get__":
            return NativeMethod(types.FunctionType.__get__, obj, name)
        case "__call__":
            return obj
    if name != "__text_signature__" and hasattr(types.FunctionType, name):
        raise GraphBreakSignal(f"a function's {name}")
    return missing(vm, obj, name)


FUNCTION_FIELDS = frozenset(
    name for name, attr in vars(types.FunctionType).items() if hasattr(attr, "__set__")
)
"""The attributes of functions that are not in their `__dict__`."""


def _own_dict(vm: Interpreter, obj: FunctionValue, name: str) -> DictValue:
    """What a function keeps as `name`, a dictionary: its own one if it is given."""
    if obj.given is None or obj.source is None:
        return DictValue()
    found = vm.wrap(getattr(obj.given, name), vm.session.sources.attr(obj.source, name))
    assert isinstance(found, DictValue)
    return found


def function_fields(obj: FunctionValue) -> DictValue:
    """The `__dict__` of a function made in the frame."""
    if obj.attributes is None:
        obj.attributes = DictValue()
    return obj.attributes
