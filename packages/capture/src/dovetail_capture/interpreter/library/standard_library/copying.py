"""`copy.copy` and `copy.deepcopy`, of modules with their parameters too."""

from __future__ import annotations

import copy
import copyreg
import enum
import operator
import re
import struct
import types
import weakref
from typing import Any

import torch
from dovetail_guards import clauses as c
from torch.nn import Module, Parameter

from dovetail_capture.interpreter.library.torch_functions.made_tensors import parameter
from dovetail_capture.interpreter.machine.machine import Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import class_attributes, dicts, operands, sequences
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value, is_none
from dovetail_capture.interpreter.values.containers import (
    Copies,
    DictValue,
    ListValue,
    MemoValue,
    SetValue,
    TupleValue,
)
from dovetail_capture.interpreter.values.functions import BoundMethod, FunctionValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import TensorValue

# A copy of one of these is it itself.
_SHARED = (
    int, float, complex, str, bytes, type, range, type(None), type(...), type(NotImplemented),
    property, weakref.ref, enum.Enum, re.Pattern, torch.dtype, torch.device, torch.layout,
    torch.memory_format, types.CodeType, types.FunctionType, types.BuiltinFunctionType,
)  # fmt: skip


def copy_copy(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = args[0]
    if isinstance(value, TupleValue) or _is_shared(value):
        return value
    if isinstance(value, ListValue):
        return ListValue(sequences.items(vm, value), value.cls)
    if isinstance(value, DictValue):
        dicts.note_no_attributes(vm, value)
        return dicts.copy_entries(vm, value)
    if isinstance(value, SetValue):
        return value if value.cls is frozenset else value.copy()
    if isinstance(value, ObjectValue):
        method = operands.dunder(vm, value, "__copy__")
        if method is not None:
            return vm.call(method, [], {})
        if _is_copied_by_parts(vm, value):
            return _by_parts(vm, value, ObjectValue(value.cls), None)
    raise GraphBreakSignal(f"copy.copy of {value.describe()}")


def deep_copy(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    memo = args[1] if len(args) > 1 else kwargs.get("memo")
    if memo is None or is_none(memo):
        return _deep(vm, args[0], {})
    if isinstance(memo, MemoValue):
        return _deep(vm, args[0], memo.copies)
    raise GraphBreakSignal("copy.deepcopy with a memo, which keeps the ids of what it copied")


def _deep(vm: Interpreter, value: Value, memo: Copies) -> Value:
    if (known := memo.get(id(value))) is not None:
        return known[1]
    new: Value
    if _is_shared(value):
        return value
    if isinstance(value, BoundMethod):
        new = BoundMethod(value.function, _deep(vm, value.receiver, memo))
    elif isinstance(value, TupleValue):
        items = list(vm.iterate(value))
        copies = [_deep(vm, item, memo) for item in items]
        same = value.cls is tuple and all(map(operator.is_, copies, items))
        new = value if same else TupleValue(copies, value.cls)
    elif isinstance(value, ListValue):
        new = ListValue([], value.cls)
        memo[id(value)] = value, new
        new.maxlen = value.maxlen
        new.items = [_deep(vm, item, memo) for item in sequences.items(vm, value)]
    elif isinstance(value, DictValue):
        dicts.note_no_attributes(vm, value)
        new = DictValue(value.cls)
        memo[id(value)] = value, new
        if value.default_factory is not None:
            new.default_factory = _deep(vm, value.default_factory, memo)
        for key, item in dicts.items(vm, value):
            dicts.put(vm, new, _deep(vm, key, memo), _deep(vm, item, memo))
    elif isinstance(value, SetValue):
        new = SetValue([_deep(vm, item, memo) for item in value.items.values()], value.cls)
    elif isinstance(value, ObjectValue) and (method := operands.dunder(vm, value, "__deepcopy__")):
        new = vm.call(method, [MemoValue(memo, vm.frames[0].steps)], {})
    elif isinstance(value, ObjectValue) and _is_copied_by_parts(vm, value):
        made = ObjectValue(value.cls)
        memo[id(value)] = value, made
        new = _by_parts(vm, value, made, memo)
    elif isinstance(value, TensorValue) and value.python_type() is Parameter:
        new = _parameter(vm, value)
    elif isinstance(value, TensorValue) and _is_plain_tensor(vm, value):
        storage = value.fake._storage
        if memo.setdefault(id(storage), (storage, value))[1] is not value:
            raise GraphBreakSignal("copy.deepcopy of two tensors that share memory")
        new = vm.record("call_method", "clone", [value], {})
        assert isinstance(new, TensorValue)
        if tuple(new.fake._strides) != tuple(value.fake._strides):
            raise GraphBreakSignal("copy.deepcopy of a tensor with gaps or overlaps")
    else:
        raise GraphBreakSignal(f"copy.deepcopy of {value.describe()}")
    memo[id(value)] = value, new
    return new


def _is_plain_tensor(vm: Interpreter, value: TensorValue) -> bool:
    """Is it a tensor whose deep copy is its clone?"""
    fake = value.fake
    if fake.requires_grad or value.attributes or value.python_type() is not torch.Tensor:
        return False
    if value.source is not None:
        if vm.as_python(vm.get_attr(value, "grad")) is not None or vars(value.real):
            return False
        vm.session.guards.add(c.LengthIs, vm.session.sources.attr(value.source, "__dict__"), 0)
    return bool(fake.storage_offset() == 0) and fake.layout == torch.strided


def _is_shared(value: Value) -> bool:
    if isinstance(value, FunctionValue) or value.python_type() in (int, float, bool, str):
        return True  # (a text or a number of sizes is not looked at)
    return isinstance(value, Constant) and isinstance(value.value, _SHARED)


def _parameter(vm: Interpreter, value: TensorValue) -> Value:
    """The copy of a parameter, as `Parameter.__deepcopy__` makes it."""
    data = vm.record("call_method", "detach", [value], {})
    copied = vm.record("call_method", "clone", [data], {})
    return parameter(vm, copied, value.fake.requires_grad)


def _by_parts(
    vm: Interpreter, value: ObjectValue, new: ObjectValue, memo: Copies | None
) -> ObjectValue:
    """Fill a copy with the attributes and slots of `value`, or (with `memo`) copies of them."""
    state = DictValue()
    for key, item in dicts.items(vm, value.fields):
        dicts.put(vm, state, key, item)
    slots: dict[str, Value] = {}
    for name in _slot_names(value.cls):
        found = vm.find_attr(value, name)
        if found is not None:
            slots[name] = found
    getter = getattr(value.cls, "__getstate__")  # noqa: B009
    setter = getattr(value.cls, "__setstate__", None)
    if slots and (getter is not _GETSTATE or setter is not None):
        raise GraphBreakSignal(f"a copy of {value.describe()}, with slots and a state of its own")
    if getter is not _GETSTATE:
        given = vm.call(vm.get_attr(value, "__getstate__"), [], {})
        if not isinstance(given, DictValue):
            raise GraphBreakSignal(f"a copy of {value.describe()}, whose state is no dict")
        state = given
    if memo is not None:
        copied = _deep(vm, state, memo)
        assert isinstance(copied, DictValue)
        state = copied
        slots = {name: _deep(vm, item, memo) for name, item in slots.items()}
    empty = not state.entries and getter is _GETSTATE
    if setter is None or empty or _is_updated(setter, state):
        for key, item in dicts.items(vm, state):
            dicts.put(vm, new.fields, key, item)
        new.slots.update(slots)
    else:
        vm.call(vm.get_attr(new, "__setstate__"), [state], {})
    return new


def _is_updated(setter: Any, state: DictValue) -> bool:
    """Does `__setstate__` set these attributes and no other?"""
    names = {key.value for key, _ in state.entries.values() if isinstance(key, Constant)}
    return setter is Module.__setstate__ and names >= _OF_MODULES


_OF_MODULES = vars(Module()).keys() - {"training"}
_POINTER = struct.calcsize("P")
_COPY_HOOKS = ("__reduce_ex__", "__reduce__")
_STATE_HOOKS = ("__new__", "__getnewargs__", "__getnewargs_ex__", "__getstate__", "__setstate__")
_GETSTATE = object.__getstate__


def _is_copied_by_parts(vm: Interpreter, value: ObjectValue) -> bool:
    """Is a copy of this object made of copies of its attributes and slots?"""
    cls = value.cls
    for name in (*_COPY_HOOKS, *_STATE_HOOKS):
        class_attributes.class_lookup(vm, cls, name)  # (guards that it stays so)
    if value.native is not None or issubclass(cls, BaseException):
        return False
    registered = vm.held(copyreg.dispatch_table)
    assert isinstance(registered, DictValue)
    if dicts.contains(vm, registered, cls):
        return False
    made_by_object = cls.__new__ is object.__new__
    plain = all(getattr(cls, name) is getattr(object, name) for name in _COPY_HOOKS)
    if hasattr(cls, "__getnewargs__") or hasattr(cls, "__getnewargs_ex__"):
        return False
    # C code that keeps more in its objects than attributes cannot be copied so.
    parts = [cls.__dictoffset__ > 0, cls.__weakrefoffset__ > 0, *_slot_names(cls)]
    size = object.__basicsize__ + _POINTER * sum(map(bool, parts))
    return made_by_object and plain and cls.__basicsize__ <= size


def _slot_names(cls: type) -> list[str]:
    """The names of a class's `__slots__`, those of its bases included."""
    return [
        name
        for owner in cls.__mro__
        for name, attr in vars(owner).items()
        if isinstance(attr, types.MemberDescriptorType)
    ]


HANDLERS: dict[Any, Handler] = {copy.copy: copy_copy, copy.deepcopy: deep_copy}
