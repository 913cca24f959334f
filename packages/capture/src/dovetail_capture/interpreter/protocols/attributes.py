"""The attribute protocol: reading.

Follows CPython's rules: data descriptors of the type, then the instance dictionary, then other
class attributes, then `__getattr__`. What is found in an instance is guarded there; what is found
in a class is guarded to be absent from the instance where it could be shadowed. Attributes of
classes are in `class_attributes`, those of objects in `object_attributes`; here are all others.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from dovetail_guards import clauses as c

from dovetail_capture.interpreter.inputs.rebound_names import is_settled
from dovetail_capture.interpreter.machine.frame import GeneratorValue
from dovetail_capture.interpreter.protocols import dicts, object_attributes, sequences
from dovetail_capture.interpreter.protocols.builtin_attributes import function_attr, tensor_attr
from dovetail_capture.interpreter.protocols.class_attributes import (
    C_METHODS,
    MISSING,
    bind_to_class,
    class_attr,
    class_lookup,
    is_data_descriptor,
    method_of_class,
    missing,
    read_mro,
)
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values import containers, functions
from dovetail_capture.interpreter.values.base import (
    EQUALITY_TYPES,
    NONE,
    Constant,
    Lazy,
    Value,
    boolean,
)
from dovetail_capture.interpreter.values.objects import ObjectValue, ProgramException
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import ArrayValue, TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


def get_attr(vm: Interpreter, obj: Value, name: str) -> Value:
    """`obj.name`."""
    reader = _READERS.get(obj.__class__)
    if reader is not None:
        return reader(vm, obj, name)  # type: ignore[no-any-return]
    return _native_attr(vm, obj, name)


def find_attr(vm: Interpreter, obj: Value, name: str) -> Value | None:
    """`getattr(obj, name, None)` that tells absence by None."""
    try:
        return get_attr(vm, obj, name)
    except ProgramException as error:
        if issubclass(error.value.python_type(), AttributeError):
            return None
        raise


# --- constants: modules, classes, functions, numbers ---------------------------------------------


def _constant_attr(vm: Interpreter, obj: Constant, name: str) -> Value:
    real = obj.value
    writes = vm.session.effects.attribute_writes
    if type(real) in _HAVE_DICT:
        _refuse_second_name(vm, real, name)
    if writes and id(real) in writes:
        found = dicts.get(vm, writes[id(real)][1], name)
        if found is not None:
            if vm.session.late_reads.watch is not None:
                vm.session.late_reads.watch.written(name)
            return found
    if isinstance(real, types.ModuleType):
        return _module_attr(vm, obj, real, name)
    if isinstance(real, type):
        return class_attr(vm, obj, real, name)
    owner, attr = class_lookup(vm, type(real), name)
    kind = type(attr)
    if attr is not MISSING and not is_data_descriptor(vm, attr):
        own = _own_attr_of_constant(vm, obj, name)
        if own is not None:
            return own
    if kind in C_METHODS:
        return functions.NativeMethod(attr, obj, name)
    if kind is types.FunctionType:
        return functions.BoundMethod(vm.wrap_class_attr(owner, name, attr), obj)
    if kind is classmethod:
        return functions.BoundMethod(method_of_class(vm, attr), vm.held(type(real)))
    if kind is staticmethod:
        return vm.held(attr.__func__)
    if kind is property and type(attr.fget) is types.FunctionType:
        if not is_settled(attr.fget.__module__ or ""):
            return _of_property(vm, obj, attr.fget, name)
    source = obj.source if obj.source is not None else vm.session.sources.held(real)
    if attr is MISSING and name not in getattr(real, "__dict__", ()):
        getter = class_lookup(vm, type(real), "__getattr__")[1]
        if type(getter) is types.FunctionType and not is_settled(getter.__module__ or ""):
            vm.session.guards.add(c.HasInstanceAttr, source, name, False)
            return vm.call(vm.held(getter), [obj, Constant(name)], {})
    try:
        found = getattr(real, name)
    except AttributeError:
        if hasattr(real, "__dict__"):
            vm.session.guards.add(c.HasInstanceAttr, source, name, False)
        return missing(vm, obj, name)
    if isinstance(real, (int, float, str, bytes, torch.dtype, torch.device, range)):
        return vm.constant(found)
    if callable(found) and isinstance(found, (types.MethodType, types.BuiltinMethodType)):
        return vm.held(found)
    return vm.wrap(found, vm.session.sources.attr(source, name))


_HAVE_DICT = (types.FunctionType, types.ModuleType)


def _refuse_second_name(vm: Interpreter, real: Any, name: str) -> None:
    """Break where a function's or a module's attributes were changed in this graph and are read by
    another name: as `f.k` after `f.__dict__["k"] = 1`, or the other way round."""
    attributes = real.__dict__
    if name == "__dict__":
        changed = id(real) in vm.session.effects.attribute_writes or any(
            place == id(attributes) for place, _ in vm.session.effects.global_writes
        )
    else:
        opened = vm.session.objects.known.get(id(attributes))
        changed = isinstance(opened, containers.DictValue) and opened.mutated
    if changed:
        raise GraphBreakSignal(f"`{name}` of {real!r}, whose attributes this graph changed")


def _own_attr_of_constant(vm: Interpreter, obj: Constant, name: str) -> Value | None:
    """What a constant (a member of an enumeration, say) has itself under the name of a method of
    its class; None, which is guarded, if it has nothing."""
    real = obj.value
    if type(real) in EQUALITY_TYPES or isinstance(real, types.BuiltinFunctionType):
        return None
    fields = getattr(real, "__dict__", None)
    if type(fields) is not dict:
        return None
    source = obj.source if obj.source is not None else vm.session.sources.held(real)
    if name in fields:
        return vm.wrap(fields[name], vm.session.sources.instance_attr(source, name))
    vm.session.guards.add(c.HasInstanceAttr, source, name, False)
    return None


def _of_property(vm: Interpreter, obj: Constant, getter: types.FunctionType, name: str) -> Value:
    """What a property of a constant's class gives, or its `__getattr__` if that finds nothing."""
    try:
        return vm.call(vm.held(getter), [obj], {})
    except ProgramException as error:
        if not issubclass(error.value.python_type(), AttributeError):
            raise
        fallback = class_lookup(vm, type(obj.value), "__getattr__")[1]
        if type(fallback) is not types.FunctionType:
            raise
        return vm.call(vm.held(fallback), [obj, Constant(name)], {})


def _module_attr(vm: Interpreter, obj: Constant, module: types.ModuleType, name: str) -> Value:
    attributes = module.__dict__
    sources = vm.session.sources
    place = sources.held(module, module.__name__) if obj.source is None else obj.source
    vm.session.guards.add(c.TypeIs, place, type(module))
    base = sources.held(attributes, f"module {module.__name__}")
    key = (id(attributes), name)
    if key in vm.session.effects.global_writes:
        written = vm.session.effects.global_writes[key]
        return written if written is not None else missing(vm, obj, name)
    getter = class_lookup(vm, type(module), "__getattribute__")[1]
    if isinstance(getter, types.FunctionType):
        return vm.call(vm.held(getter), [obj, Constant(name)], {})
    _, attr = class_lookup(vm, type(module), name)
    taken = attr is not MISSING and is_data_descriptor(vm, attr)  # goes before the dictionary
    if name in attributes and not taken:
        return vm.wrap(attributes[name], sources.item(base, name))
    reader = getattr(type(attr), "__get__", None)
    if taken and isinstance(reader, types.FunctionType):
        return vm.call(vm.held(reader), [vm.held(attr), obj, vm.held(type(module))], {})
    computes = type(module) is not types.ModuleType or "__getattr__" in attributes
    if computes and id(attributes) in vm.session.effects.global_dicts:
        raise GraphBreakSignal(f"`{name}` of a module that the frame has changed")
    absent = object()
    found = getattr(module, name, absent)
    if name in attributes and not taken:
        # What it computes when first asked is kept: operators of torch.ops, modules loaded late.
        return vm.wrap(attributes[name], sources.item(base, name))
    vm.session.guards.add(c.HasKey, base, name, name in attributes)
    if "__getattr__" in attributes:
        vm.session.guards.pin(sources.item(base, "__getattr__"), attributes["__getattr__"])
    else:
        vm.session.guards.add(c.HasKey, base, "__getattr__", False)
    if found is absent:
        return missing(vm, obj, name)
    return vm.wrap(found, sources.attr(sources.held(module, module.__name__), name))


# --- other values --------------------------------------------------------------------------------


# Of an int or float that follows from sizes. (Floats have no numerator: their class says so.)
_PARTS_OF_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "real": lambda number: +number,
    "numerator": lambda number: +number,
    "imag": lambda number: 0.0 if isinstance(number, torch.SymFloat) else 0,
    "denominator": lambda number: 1,
}


def _native_attr(vm: Interpreter, obj: Value, name: str) -> Value:
    """Attributes of lists, tuples, dicts, iterators ...: methods of their C type."""
    cls = obj.python_type()
    _, attr = class_lookup(vm, cls, name)
    kind = type(attr)
    if isinstance(obj, ArrayValue):
        found = vm.arrays.array_attr(vm, obj, name)
        if found is not None:
            return found  # type: ignore[no-any-return]
    if kind in C_METHODS:
        return functions.NativeMethod(attr, obj, name)
    if name == "__class__":
        return vm.held(cls)
    if kind is types.ClassMethodDescriptorType:
        return functions.NativeMethod(attr, vm.held(cls), name)
    if isinstance(obj, containers.TupleValue) and attr is not MISSING:
        # The field of a struct sequence: ask the class which position the name stands for.
        try:
            position = getattr(cls(range(len(obj.items))), name)
        except (TypeError, AttributeError):
            position = None
        if isinstance(position, int):
            return sequences.item(vm, obj, position)
    if isinstance(obj, containers.SliceValue) and name in ("start", "stop", "step"):
        return getattr(obj, name)  # type: ignore[no-any-return]
    if isinstance(obj, functions.CellValue) and name == "cell_contents":
        if obj.content is None:
            return vm.raise_error(ValueError, "Cell is empty")
        return vm.resolve_cell(obj)
    if isinstance(obj, containers.ListValue) and name == "maxlen" and obj.cls is collections.deque:
        return Constant(obj.maxlen)
    if isinstance(obj, containers.DictValue) and name == "default_factory":
        return obj.default_factory or NONE
    if isinstance(obj, SymbolicNumber) and name in _PARTS_OF_NUMBERS:
        return vm.constant(_PARTS_OF_NUMBERS[name](obj.value))
    if attr is MISSING:
        if isinstance(obj, containers.DictValue):
            if name in obj.attributes:
                return obj.attributes[name]
            dicts.note_no_attributes(vm, obj, name)
        return missing(vm, obj, name)
    raise GraphBreakSignal(f"the attribute {cls.__name__}.{name}")


def _bound_method_attr(vm: Interpreter, obj: functions.BoundMethod, name: str) -> Value:
    if name == "__func__":
        return obj.function
    if name == "__self__":
        return obj.receiver
    if name == "__class__":
        return Constant(types.MethodType)
    if name == "__call__":
        return obj
    if name in types.MethodType.__dict__ and name != "__doc__":
        return _native_attr(vm, obj, name)
    return get_attr(vm, obj.function, name)


def _native_method_attr(vm: Interpreter, obj: functions.NativeMethod, name: str) -> Value:
    if name == "__self__":
        return obj.receiver
    if name in ("__name__", "__qualname__", "__doc__"):
        return Constant(getattr(obj.descriptor, name))
    return _native_attr(vm, obj, name)


def _super_attr(vm: Interpreter, obj: functions.SuperValue, name: str) -> Value:
    receiver = obj.receiver
    is_class = isinstance(receiver, Constant) and isinstance(receiver.value, type)
    start = receiver.value if is_class else receiver.python_type()  # type: ignore[attr-defined]
    if is_class and not issubclass(start, obj.cls):
        is_class, start = False, type(start)
    mro = read_mro(vm, start)
    for owner in mro[mro.index(obj.cls) + 1 :]:
        attributes = type.__dict__["__dict__"].__get__(owner)
        class_lookup(vm, owner, name)  # also where it is absent: the guards are to know
        if name not in attributes:
            continue
        attr = attributes[name]
        if is_class:
            return bind_to_class(vm, owner, name, attr, receiver, start)
        if is_data_descriptor(vm, attr) and isinstance(receiver, ObjectValue):
            return object_attributes.data_descriptor(vm, receiver, owner, name, attr)
        return object_attributes.bind_to_instance(vm, receiver, owner, name, attr)
    return missing(vm, obj, name)


def _handle_attr(vm: Interpreter, obj: functions.HandleValue, name: str) -> Value:
    owner, attr = class_lookup(vm, obj.python_type(), name)
    if isinstance(attr, types.FunctionType):
        return functions.BoundMethod(vm.wrap_class_attr(owner, name, attr), obj)
    return _native_attr(vm, obj, name)


def _generator_attr(vm: Interpreter, obj: GeneratorValue, name: str) -> Value:
    match name:
        case "gi_code":
            return Constant(obj.frame.code)
        case "gi_running":
            return boolean(obj.running)
        case "gi_suspended":
            return boolean(obj.started and not obj.running and not obj.finished)
        case "gi_frame" | "gi_yieldfrom" if obj.finished:
            return NONE
        case "gi_frame" | "gi_yieldfrom":
            raise GraphBreakSignal(f"a generator's {name}")
    return _native_attr(vm, obj, name)


def resolve(vm: Interpreter, item: Any) -> Value:
    """Look at a lazy child."""
    return vm.wrap(item.real, item.source) if isinstance(item, Lazy) else item


_READERS: dict[type, Any] = {
    Constant: _constant_attr,
    ObjectValue: object_attributes.object_attr,
    TensorValue: tensor_attr,
    functions.BoundMethod: _bound_method_attr,
    functions.NativeMethod: _native_method_attr,
    functions.FunctionValue: function_attr,
    functions.SuperValue: _super_attr,
    GeneratorValue: _generator_attr,
    functions.HandleValue: _handle_attr,
}
