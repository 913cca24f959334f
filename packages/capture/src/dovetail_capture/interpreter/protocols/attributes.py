"""The attribute protocol: reading.

Follows CPython's rules: data descriptors of the type, then the instance dictionary, then other
class attributes, then `__getattr__`. What is found in an instance is guarded there; what is found
in a class is guarded to be absent from the instance where it could be shadowed. Attributes of
classes are in `class_attributes`, those of objects in `object_attributes`; here are all others.
"""

from __future__ import annotations

import collections
import dataclasses
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from dovetail_guards import clauses as c
from dovetail_prims.wrappers import is_wrapper, is_wrapper_type, take_apart

from dovetail_capture.interpreter.inputs.stored_names import is_settled
from dovetail_capture.interpreter.machine.frame import GeneratorValue
from dovetail_capture.interpreter.protocols import dicts, sequences
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
from dovetail_capture.interpreter.protocols.object_attributes import (
    bind_to_instance,
    data_descriptor,
    object_attr,
)
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.arrays import ArraySource, ArrayValue
from dovetail_capture.interpreter.values.base import NONE, Constant, Lazy, Value, boolean
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    ListValue,
    SliceValue,
    TupleValue,
)
from dovetail_capture.interpreter.values.functions import (
    BoundMethod,
    CellValue,
    FunctionValue,
    HandleValue,
    NativeMethod,
    SuperValue,
)
from dovetail_capture.interpreter.values.known_types import EQUALITY_TYPES
from dovetail_capture.interpreter.values.objects import ObjectValue, ProgramException
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue
from dovetail_capture.skip import module_of

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
            if vm.session.late.watch is not None:
                vm.session.late.watch.written(name)
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
        return NativeMethod(attr, obj, name)
    if kind is types.FunctionType:
        return BoundMethod(vm.wrap_class_attr(owner, name, attr), obj)
    if kind is classmethod:
        return BoundMethod(method_of_class(vm, attr), vm.held(type(real)))
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
        changed = isinstance(opened, DictValue) and opened.mutated
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


SECOND_NAMES = {"_grad": "grad", "_grad_fn": "grad_fn"}
"""Attributes of tensors that are others by a second name."""


def _tensor_attr(vm: Interpreter, obj: TensorValue, name: str) -> Value:
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


# Of an int or float that follows from sizes. (Floats have no numerator: their class says so.)
_PARTS_OF_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "real": lambda number: +number,
    "numerator": lambda number: +number,
    "imag": lambda number: 0.0 if isinstance(number, torch.SymFloat) else 0,
    "denominator": lambda number: 1,
}


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
        return NativeMethod(attr, obj, name)
    if name == "__class__":
        return vm.held(cls)
    if kind is types.ClassMethodDescriptorType:
        return NativeMethod(attr, vm.held(cls), name)
    if isinstance(obj, TupleValue) and attr is not MISSING:
        # The field of a struct sequence: ask the class which position the name stands for.
        try:
            position = getattr(cls(range(len(obj.items))), name)
        except (TypeError, AttributeError):
            position = None
        if isinstance(position, int):
            return sequences.item(vm, obj, position)
    if isinstance(obj, SliceValue) and name in ("start", "stop", "step"):
        return getattr(obj, name)  # type: ignore[no-any-return]
    if isinstance(obj, CellValue) and name == "cell_contents":
        if obj.content is None:
            return vm.raise_error(ValueError, "Cell is empty")
        return vm.resolve_cell(obj)
    if isinstance(obj, ListValue) and name == "maxlen" and obj.cls is collections.deque:
        return Constant(obj.maxlen)
    if isinstance(obj, DictValue) and name == "default_factory":
        return obj.default_factory or NONE
    if isinstance(obj, SymbolicNumber) and name in _PARTS_OF_NUMBERS:
        return vm.constant(_PARTS_OF_NUMBERS[name](obj.value))
    if attr is MISSING:
        if isinstance(obj, DictValue):
            if name in obj.attributes:
                return obj.attributes[name]
            dicts.note_no_attributes(vm, obj, name)
        return missing(vm, obj, name)
    raise GraphBreakSignal(f"the attribute {cls.__name__}.{name}")


def _bound_method_attr(vm: Interpreter, obj: BoundMethod, name: str) -> Value:
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


def _native_method_attr(vm: Interpreter, obj: NativeMethod, name: str) -> Value:
    if name == "__self__":
        return obj.receiver
    if name in ("__name__", "__qualname__", "__doc__"):
        return Constant(getattr(obj.descriptor, name))
    return _native_attr(vm, obj, name)


def global_names(vm: Interpreter, real: dict[str, Any]) -> Value:
    """The dictionary of a module's globals."""
    if any(place == id(real) for place, _ in vm.session.effects.global_writes):
        raise GraphBreakSignal("globals() where a global was assigned in this graph")
    return vm.held(real)


# What no guard of a function that is given speaks of before it is read.
_GENERIC = ("__type_params__",) if sys.version_info >= (3, 12) else ()
_OF_GIVEN = ("__name__", "__qualname__", "__doc__", "__module__", *_GENERIC)


def _function_attr(vm: Interpreter, obj: FunctionValue, name: str) -> Value:
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


def _super_attr(vm: Interpreter, obj: SuperValue, name: str) -> Value:
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
            return data_descriptor(vm, receiver, owner, name, attr)
        return bind_to_instance(vm, receiver, owner, name, attr)
    return missing(vm, obj, name)


def _handle_attr(vm: Interpreter, obj: HandleValue, name: str) -> Value:
    owner, attr = class_lookup(vm, obj.python_type(), name)
    if isinstance(attr, types.FunctionType):
        return BoundMethod(vm.wrap_class_attr(owner, name, attr), obj)
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
    ObjectValue: object_attr,
    TensorValue: _tensor_attr,
    BoundMethod: _bound_method_attr,
    NativeMethod: _native_method_attr,
    FunctionValue: _function_attr,
    SuperValue: _super_attr,
    GeneratorValue: _generator_attr,
    HandleValue: _handle_attr,
}
