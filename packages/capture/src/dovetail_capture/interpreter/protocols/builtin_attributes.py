"""Attributes of what C implements: of functions, with the dictionaries that these keep; of tensors,
and of tensors that wrap others."""

from __future__ import annotations

import dataclasses
import sys
import types
from typing import TYPE_CHECKING, Any

import torch
from dovetail_guards import clauses as c
from dovetail_prims.wrappers import is_wrapper, is_wrapper_type, take_apart

from dovetail_capture.interpreter.inputs.rebound_names import is_settled
from dovetail_capture.interpreter.protocols import class_attributes, dicts, sequences
from dovetail_capture.interpreter.protocols.object_attributes import bind_to_instance
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value
from dovetail_capture.interpreter.values.containers import DictValue, TupleValue
from dovetail_capture.interpreter.values.functions import BoundMethod, FunctionValue, NativeMethod
from dovetail_capture.interpreter.values.tensors import ArraySource, TensorValue
from dovetail_capture.skip import module_of

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
    return class_attributes.missing(vm, obj, name)


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


SECOND_NAMES = {"_grad": "grad", "_grad_fn": "grad_fn"}
"""Attributes of tensors that are others by a second name."""


def tensor_attr(vm: Interpreter, obj: TensorValue, name: str) -> Value:
    """An attribute of a tensor."""
    name = SECOND_NAMES.get(name, name)
    if name in obj.attributes:
        return obj.attributes[name]
    if name == "__class__":
        return vm.held(obj.cls)
    owner, attr = class_attributes.class_lookup(vm, obj.cls, name)
    if (
        attr is not class_attributes.MISSING
        and obj.source is not None
        and not class_attributes.is_data_descriptor(vm, attr)
    ):
        own = _own_attr_of_tensor(vm, obj, name)
        if own is not None:
            return own
    if attr is class_attributes.MISSING:
        if is_wrapper_type(obj.cls):
            return _wrapper_attr(vm, obj, name)
        if obj.real is not None and obj.source is not None:
            fields = obj.real.__dict__
            if name in fields:
                source = vm.session.sources.instance_attr(obj.source, name)
                return vm.wrap(fields[name], source)
            vm.session.guards.add(c.HasInstanceAttr, obj.source, name, False)
        return class_attributes.missing(vm, obj, name)
    kind = type(attr)
    if kind is types.MemberDescriptorType and is_wrapper_type(obj.cls):
        return _wrapper_attr(vm, obj, name)
    if kind in class_attributes.C_METHODS:
        return NativeMethod(attr, obj, name)
    if kind is types.FunctionType:
        return BoundMethod(vm.held(attr), obj)
    if kind is property and obj.overrides and not issubclass(torch.Tensor, owner):
        return vm.call(vm.held(attr.fget), [obj], {})
    if kind is property and owner is torch.Tensor and not is_settled(module_of(attr.fget)):
        return vm.call(vm.held(attr.fget), [obj], {})  # the program put it there
    if kind is types.GetSetDescriptorType or kind is property:
        return vm.tensor_property(obj, name)
    return bind_to_instance(vm, obj, owner, name, attr)


def _own_attr_of_tensor(vm: Interpreter, obj: TensorValue, name: str) -> Value | None:
    """What an input has itself under the name of a method of its class; None, which is guarded,
    if it has nothing."""
    if obj.real is None or isinstance(obj.source, (type(None), ArraySource)):
        return None
    fields = obj.real.__dict__
    if name in fields:
        return vm.wrap(fields[name], vm.session.sources.instance_attr(obj.source, name))
    vm.session.guards.add(c.HasInstanceAttr, obj.source, name, False)
    return None


def _wrapper_attr(vm: Interpreter, obj: TensorValue, name: str) -> Value:
    """An attribute of an instance that wraps tensors. A tensor inside of an input is an input
    itself: to autograd it is another one than that around it."""
    if obj.make_node is not None:  # all that it has was set in the frame
        return class_attributes.missing(vm, obj, name)
    absent = object()
    known = getattr(obj.fake, name, absent)
    if obj.real is not None and obj.source is not None:
        fields, sources = obj.real.__dict__, vm.session.sources
        if name in fields:
            found = vm.wrap(fields[name], sources.instance_attr(obj.source, name))
        elif known is not absent and hasattr(obj.cls, name):  # it lies in a slot
            found = vm.wrap(getattr(obj.real, name), sources.attr(obj.source, name))
        else:
            vm.session.guards.add(c.HasInstanceAttr, obj.source, name, False)
            return class_attributes.missing(vm, obj, name)
        if isinstance(known, torch.Tensor) and not _is_same(getattr(found, "fake", None), known):
            raise GraphBreakSignal(f"`{name}` of a {obj.cls.__name__} that was replaced")
        return found
    if isinstance(known, torch.Tensor):  # what it wraps is known of a value made in the frame, too
        run = vm.session.recorder.record
        return run("call_function", getattr, [obj, Constant(name)], {}, getattr)
    if known is absent:
        return class_attributes.missing(vm, obj, name)
    if dataclasses.is_dataclass(known):
        return vm.held(known)
    return vm.session.recorder.fold(known)


def _is_same(one: Any, other: torch.Tensor) -> bool:
    """Are they one stand-in, or ones around the same?"""
    if one is other or not is_wrapper(other) or type(one) is not type(other):
        return one is other
    (layout, inner), (other_layout, other_inner) = take_apart(one), take_apart(other)
    return layout == other_layout and list(map(id, inner)) == list(map(id, other_inner))
