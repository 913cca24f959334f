"""Attributes of tensors, and of tensors that wrap others."""

from __future__ import annotations

import dataclasses
import types
from typing import TYPE_CHECKING, Any

import torch
from dovetail_guards import clauses as c
from dovetail_prims.wrappers import is_wrapper, is_wrapper_type, take_apart

from dovetail_capture.interpreter.inputs.rebound_names import is_settled
from dovetail_capture.interpreter.protocols.class_attributes import (
    C_METHODS,
    MISSING,
    class_lookup,
    is_data_descriptor,
    missing,
)
from dovetail_capture.interpreter.protocols.object_attributes import bind_to_instance
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.functions import BoundMethod, NativeMethod
from dovetail_capture.interpreter.values.tensors import ArraySource, TensorValue
from dovetail_capture.skip import module_of

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

SECOND_NAMES = {"_grad": "grad", "_grad_fn": "grad_fn"}
"""Attributes of tensors that are others by a second name."""


def tensor_attr(vm: Interpreter, obj: TensorValue, name: str) -> Value:
    """An attribute of a tensor."""
    name = SECOND_NAMES.get(name, name)
    if name in obj.attributes:
        return obj.attributes[name]
    if name == "__class__":
        return vm.held(obj.cls)
    owner, attr = class_lookup(vm, obj.cls, name)
    if attr is not MISSING and obj.source is not None and not is_data_descriptor(vm, attr):
        own = _own_attr_of_tensor(vm, obj, name)
        if own is not None:
            return own
    if attr is MISSING:
        if is_wrapper_type(obj.cls):
            return _wrapper_attr(vm, obj, name)
        if obj.real is not None and obj.source is not None:
            fields = obj.real.__dict__
            if name in fields:
                source = vm.session.sources.instance_attr(obj.source, name)
                return vm.wrap(fields[name], source)
            vm.session.guards.add(c.HasInstanceAttr, obj.source, name, False)
        return missing(vm, obj, name)
    kind = type(attr)
    if kind is types.MemberDescriptorType and is_wrapper_type(obj.cls):
        return _wrapper_attr(vm, obj, name)
    if kind in C_METHODS:
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
        return missing(vm, obj, name)
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
            return missing(vm, obj, name)
        if isinstance(known, torch.Tensor) and not _is_same(getattr(found, "fake", None), known):
            raise GraphBreakSignal(f"`{name}` of a {obj.cls.__name__} that was replaced")
        return found
    if isinstance(known, torch.Tensor):  # what it wraps is known of a value made in the frame, too
        run = vm.session.recorder.record
        return run("call_function", getattr, [obj, Constant(name)], {}, getattr)
    if known is absent:
        return missing(vm, obj, name)
    if dataclasses.is_dataclass(known):
        return vm.held(known)
    return vm.session.recorder.fold(known)


def _is_same(one: Any, other: torch.Tensor) -> bool:
    """Are they one stand-in, or ones around the same?"""
    if one is other or not is_wrapper(other) or type(one) is not type(other):
        return one is other
    (layout, inner), (other_layout, other_inner) = take_apart(one), take_apart(other)
    return layout == other_layout and list(map(id, inner)) == list(map(id, other_inner))
