"""Attributes of objects: data descriptors, fields, methods, `__getattr__`, modules' children."""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import torch
from dovetail_guards import clauses as c

from dovetail_capture._frame_hook import Switched
from dovetail_capture.interpreter.protocols import class_attributes, dicts, sequences
from dovetail_capture.interpreter.protocols.weak_targets import is_proxy, target_of_proxy
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, boolean
from dovetail_capture.interpreter.values.containers import DictValue, TupleValue
from dovetail_capture.interpreter.values.functions import BoundMethod, NativeMethod
from dovetail_capture.interpreter.values.objects import ObjectValue, ProgramException

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

_NAMED_TUPLE_FIELD: type = type(
    __import__("collections").namedtuple("_Probe", "a").__dict__["a"]  # the C field descriptor
)
_MODULE_GETATTR = torch.nn.Module.__getattr__
_EXCEPTION_FIELDS = {"args", "__cause__", "__context__", "__traceback__"}


def object_attr(vm: Interpreter, obj: ObjectValue, name: str) -> Value:
    """`obj.name`, by a `__getattribute__` of its class or the generic rules."""
    cls = obj.cls
    if is_proxy(cls):
        return vm.get_attr(target_of_proxy(vm, obj), name)
    _, getter = class_attributes.class_lookup(vm, cls, "__getattribute__")
    if type(getter) is types.FunctionType:
        try:
            return vm.call(vm.held(getter), [obj, Constant(name)], {})
        except ProgramException as error:
            if not issubclass(error.value.python_type(), AttributeError):
                raise
            return _fallback(vm, obj, name)
    try:
        found = generic_lookup(vm, obj, name)
    except ProgramException as error:  # of a property, an empty slot: `__getattr__` is asked then
        if not issubclass(error.value.python_type(), AttributeError):
            raise
        if class_attributes.class_lookup(vm, cls, "__getattr__")[1] is class_attributes.MISSING:
            raise
        return _fallback(vm, obj, name)
    if found is not None:
        return found
    if (
        obj.real is not None
        and class_attributes.class_lookup(vm, cls, "__getattr__")[1] is class_attributes.MISSING
    ):
        # Only code of C runs here: that of a class which finds attributes in its own way.
        found_by_c = hasattr(obj.real, name)
        if found_by_c and cls.__dictoffset__ and name in obj.real.__dict__:
            found_by_c = False
        if found_by_c:
            raise GraphBreakSignal(f"the attribute `{name}` that C code of {cls.__name__} gives")
    return _fallback(vm, obj, name)


def generic_get_attr(vm: Interpreter, obj: Value, name: str) -> Value:
    """`object.__getattribute__(obj, name)`."""
    if isinstance(obj, ObjectValue):
        found = generic_lookup(vm, obj, name)
        return found if found is not None else class_attributes.missing(vm, obj, name)
    return vm.get_attr(obj, name)


def generic_lookup(vm: Interpreter, obj: ObjectValue, name: str) -> Value | None:
    """`object.__getattribute__` without the AttributeError."""
    cls = obj.cls
    written = class_attributes.written_data(vm, cls, name)
    if written is not None:
        found = dicts.get(vm, obj.fields, name)
        return written if found is None else found
    owner, attr = class_attributes.class_lookup(vm, cls, name)
    if name == "__dict__" and not isinstance(attr, property):
        has_dict = getattr(cls, "__dictoffset__", 0) or not obj.fields.is_instance_dict
        return obj.fields if has_dict else None
    if attr is not class_attributes.MISSING and class_attributes.is_data_descriptor(vm, attr):
        return data_descriptor(vm, obj, owner, name, attr)
    found = dicts.get(vm, obj.fields, name)
    if found is not None:
        return found
    if attr is class_attributes.MISSING:
        return None
    return bind_to_instance(vm, obj, owner, name, attr)


def bind_to_instance(vm: Interpreter, obj: Value, owner: type, name: str, attr: Any) -> Value:
    """A non-data class attribute as read through an instance."""
    kind = type(attr)
    if kind is types.FunctionType:
        return BoundMethod(vm.wrap_class_attr(owner, name, attr), obj)
    if kind in class_attributes.C_METHODS:
        return NativeMethod(attr, obj, name)
    if kind is staticmethod:
        return vm.wrap_class_attr(owner, name, attr.__func__)
    cls = obj.python_type()
    if kind is classmethod:
        return BoundMethod(class_attributes.method_of_class(vm, attr), vm.held(cls))
    if kind is types.ClassMethodDescriptorType:
        return NativeMethod(attr, vm.held(cls), name)
    if kind is functools.cached_property:
        value = vm.call(vm.held(attr.func), [obj], {})
        vm.set_attr(obj, name, value)
        return value
    if kind is functools._lru_cache_wrapper:
        return BoundMethod(vm.held(attr), obj)
    if kind is Switched:  # a method that `optimize` or `disable` gave
        return BoundMethod(vm.wrap_class_attr(owner, name, attr), obj)
    if kind is functools.partialmethod:
        call = [vm.held(attr), obj, vm.held(cls)]
        return vm.call(Constant(_partial_method), call, {})
    if kind is functools.singledispatchmethod:
        return vm.call(Constant(_dispatching_method), [vm.held(attr), obj, vm.held(cls)], {})
    getter = class_attributes.special_of(vm, attr, "__get__")
    if isinstance(getter, types.FunctionType):
        return vm.call(vm.held(getter), [vm.held(attr), obj, vm.held(cls)], {})
    if getter is not None and not isinstance(attr, type):
        raise GraphBreakSignal(f"the descriptor {kind.__name__} of {cls.__name__}.{name}")
    return vm.wrap_class_attr(owner, name, attr)


def _partial_method(method: Any, obj: Any, cls: Any) -> Any:
    """Interpreted: what a `functools.partialmethod` in a class gives, read through an instance."""
    function = method.func.__get__(obj, cls)
    made = functools.partial(function, *method.args, **method.keywords)
    if hasattr(function, "__self__"):
        made.__self__ = function.__self__  # type: ignore[attr-defined]
    return made


def _dispatching_method(method: Any, obj: Any, cls: Any) -> Any:
    """Interpreted: what a `functools.singledispatchmethod` in a class gives."""

    def dispatching(*args: Any, **kwargs: Any) -> Any:
        return method.dispatcher.dispatch(args[0].__class__).__get__(obj, cls)(*args, **kwargs)

    for name in functools.WRAPPER_ASSIGNMENTS:
        if hasattr(method.func, name):
            setattr(dispatching, name, getattr(method.func, name))
    return dispatching


# What guards read as `obj.name`, which only gives what this descriptor does if no class hides it.
_KNOWN_BY_NAME = (types.MemberDescriptorType, types.GetSetDescriptorType)


def data_descriptor(vm: Interpreter, obj: ObjectValue, owner: type, name: str, attr: Any) -> Value:
    """What a data descriptor of the class gives: a property, a slot, a field written in C."""
    kind = type(attr)
    if isinstance(attr, property):
        if attr.fget is None:
            return class_attributes.missing(vm, obj, name)
        return vm.call(vm.held(attr.fget), [obj], {})
    if kind is types.GetSetDescriptorType:
        if name == "__dict__":
            return obj.fields
        if name == "__class__":
            return vm.held(obj.cls)
    if kind in _KNOWN_BY_NAME and class_attributes.class_lookup(vm, obj.cls, name)[1] is not attr:
        raise GraphBreakSignal(
            f"the attribute {owner.__name__}.{name} that {obj.cls.__name__} hides"
        )
    if kind is types.MemberDescriptorType or kind is _NAMED_TUPLE_FIELD:
        return _member(vm, obj, name, attr)
    if kind is types.GetSetDescriptorType:
        if name in obj.slots:
            return obj.slots[name]
        if name in _EXCEPTION_FIELDS and obj.real is None:
            return NONE
        if name.startswith(("saved_", "_saved_")) and hasattr(owner, "next_functions"):
            raise GraphBreakSignal(
                f"{name} of a node of autograd: hooks unpack what is saved, at each time it is read"
            )
        if obj.real is not None and obj.source is not None:
            source = vm.session.sources.attr(obj.source, name)
            return vm.wrap(attr.__get__(obj.real), source)
        raise GraphBreakSignal(f"the C attribute {owner.__name__}.{name}")
    getter = class_attributes.special_of(vm, attr, "__get__")
    if isinstance(getter, types.FunctionType):
        return vm.call(vm.held(getter), [vm.held(attr), obj, vm.held(obj.cls)], {})
    if name == "__class__":
        return vm.held(obj.cls)
    if getter is None or getter is class_attributes.MISSING:  # it is written through alone
        own = obj.fields.is_instance_dict and dicts.get(vm, obj.fields, name)
        return own if isinstance(own, Value) else vm.wrap_class_attr(owner, name, attr)
    raise GraphBreakSignal(f"the descriptor {kind.__name__} of {owner.__name__}.{name}")


def _member(vm: Interpreter, obj: ObjectValue, name: str, attr: Any) -> Value:
    """A `__slots__` member or the field of a named tuple."""
    if type(attr) is _NAMED_TUPLE_FIELD:
        assert isinstance(obj.native, TupleValue)
        index: Any = attr.__reduce__()[1][0]
        return sequences.item(vm, obj.native, index)
    if name in obj.slots:
        return obj.slots[name]
    if obj.real is not None and obj.source is not None:
        try:
            real = attr.__get__(obj.real)
        except AttributeError:
            vm.session.guards.add(c.SlotIsEmpty, obj.source, name)
            return class_attributes.missing(vm, obj, name)
        value = vm.wrap(real, vm.session.sources.attr(obj.source, name))
        obj.slots[name] = value
        return value
    if issubclass(obj.cls, BaseException):
        if name == "__suppress_context__":
            return boolean(False)
        parts = obj.slots.get("args")
        if isinstance(parts, TupleValue) and parts.items and name not in ("name", "path", "obj"):
            raise GraphBreakSignal(f"`{name}` of a {obj.cls.__name__} made in the graph")
        return NONE
    return class_attributes.missing(vm, obj, name)


def _fallback(vm: Interpreter, obj: ObjectValue, name: str) -> Value:
    """`__getattr__`, or AttributeError."""
    _, getter = class_attributes.class_lookup(vm, obj.cls, "__getattr__")
    if getter is class_attributes.MISSING:
        return class_attributes.missing(vm, obj, name)
    if getter is _MODULE_GETATTR:
        return _module_child(vm, obj, name)
    return vm.call(vm.held(getter), [obj, Constant(name)], {})


def _module_child(vm: Interpreter, obj: ObjectValue, name: str) -> Value:
    """nn.Module.__getattr__: parameters, buffers, submodules."""
    session = vm.session
    for kind in ("_parameters", "_buffers", "_modules"):
        origin = obj.fields.origin
        real = None if origin is None else origin.get(kind)
        known = session.objects.known.get(id(real)) if real is not None else None
        if real is None or kind in obj.fields.entries or known is not None:
            holder = known if known is not None else dicts.get(vm, obj.fields, kind)
            if isinstance(holder, DictValue):
                found = dicts.get(vm, holder, name)
                if found is not None:
                    return found
            continue
        assert obj.source is not None
        base = session.sources.instance_attr(obj.source, kind)
        if name in real:
            return vm.wrap(real[name], session.sources.item(base, name))
        session.guards.add(c.HasKey, base, name, False)
    return class_attributes.missing(vm, obj, name)
