"""Attributes of classes: looked up in the MRO, bound to the class."""

from __future__ import annotations

import enum
import threading
import types
from typing import TYPE_CHECKING, Any, NoReturn

from dovetail_guards.clauses import MRO, ConstantIs, LengthIs, TypeIs
from dovetail_guards.source import AttrSource

from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.functions import BoundMethod, NativeMethod
from dovetail_capture.interpreter.values.objects import ProgramException

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
MISSING = object()


def class_lookup(vm: Interpreter, cls: type, name: str) -> tuple[Any, Any]:
    """(owner, raw attribute) of `name` in the MRO of `cls`, or (None, MISSING)."""
    key = (cls, name)
    found = vm.class_attributes.get(key)
    if found is None:
        found = (None, MISSING)
        for owner in type.__dict__["__mro__"].__get__(cls):
            attributes = type.__dict__["__dict__"].__get__(owner)
            if id(owner) in vm.session.effects.attribute_writes:
                written = vm.session.effects.attribute_writes[id(owner)][1]
                if name in written.entries:
                    raise GraphBreakSignal(
                        f"the class attribute {owner.__name__}.{name}, assigned in this graph, "
                        "read through an instance"
                    )
            if name in attributes:
                found = (owner, attributes[name])
                break
        vm.class_attributes[key] = found
        vm.class_reads.setdefault(key, found[1])
        vm.classes_read[cls] = None
    return found


def written_data(vm: Interpreter, cls: type, name: str) -> Value | None:
    """The number, text or the like that the frame assigned to this attribute of a class, or of a
    base that the class has it from."""
    writes = vm.session.effects.attribute_writes
    if not writes:
        return None
    owners = type.__dict__["__mro__"].__get__(cls)
    before = [type.__dict__["__dict__"].__get__(owner) for owner in owners]
    for owner, held in zip(owners, before, strict=True):
        if id(owner) in writes and name in writes[id(owner)][1].entries:
            value = writes[id(owner)][1].entries[name][1]
            if not isinstance(value, Value) or value.python_type() not in _DATA:
                return None
            found = next((names[name] for names in before if name in names), MISSING)
            vm.class_reads.setdefault((cls, name), found)
            vm.classes_read[cls] = None
            if vm.session.late_reads.watch is not None:
                vm.session.late_reads.watch.written(name)
            return value
        if name in held:
            return None
    return None


_DATA = (int, float, bool, str, types.NoneType)


def guard_number(vm: Interpreter, cls: type, name: str) -> bool:
    """Guard of a number that a class has, or a base of it, only where it is and its type, if that
    is enough: its value is guarded where it is used. (A program may count in a class.)"""
    if type(cls) is not type:
        return False  # its class may say otherwise what its attributes are
    owners = (o for o in cls.__mro__ if name in type.__dict__["__dict__"].__get__(o))
    owner = next(owners)
    value = vm.class_attribute_values.get((owner, name))
    if value is None or not isinstance(value.source, AttrSource):
        return False
    session = vm.session
    place = session.sources.attr(session.sources.held(cls), name)
    if owner is not cls:
        session.guards.add(TypeIs, place, type(owner.__dict__[name]))
        session.guards.same(place, value.source)
    return True


def read_mro(vm: Interpreter, cls: type) -> tuple[type, ...]:
    """The MRO of a class, guarded."""
    mro: tuple[type, ...] = type.__dict__["__mro__"].__get__(cls)
    vm.class_reads[(cls, MRO)] = mro
    return mro


def is_changeable(vm: Interpreter, cls: type) -> bool:
    """Can a class that was there before be another in another call? One written in C cannot."""
    return not cls.__flags__ & _IMMUTABLE_TYPE and id(cls) not in vm.session.objects.stand_ins


def read_names(vm: Interpreter, cls: type) -> None:
    """Guard the names of a class."""
    if not is_changeable(vm, cls):
        return
    session = vm.session
    held = session.sources.held(cls)
    for name in _NAMES:
        session.guards.add(ConstantIs, session.sources.attr(held, name), getattr(cls, name))


def read_members(vm: Interpreter, cls: type) -> None:
    """Guard how many members an enumeration has, if the class is one: packages add members."""
    names = cls.__dict__.get("_member_names_") if isinstance(cls, enum.EnumMeta) else None
    if isinstance(names, list) and is_changeable(vm, cls):
        place = vm.session.sources.instance_attr(vm.session.sources.held(cls), "_member_names_")
        vm.session.guards.add(LengthIs, place, len(names))


def read_names_in(vm: Interpreter, text: str) -> None:
    """Guard the names of the classes that the text of an error speaks of."""
    for cls in vm.classes_read:
        if is_changeable(vm, cls) and cls.__name__ in text:
            read_names(vm, cls)


def is_subclass(vm: Interpreter, cls: type, other: Any) -> bool:
    """Is `other` in the MRO of a class? What a metaclass would say is not asked."""
    return other in read_mro(vm, cls)


def note_classes(vm: Interpreter, real: Any) -> None:
    """Guard what a function may ask of the classes that it is given: their names and bases."""
    if isinstance(real, type):
        read_names(vm, real)
        read_mro(vm, real)
        read_members(vm, real)
    elif type(real) in (tuple, list, set, frozenset):
        for part in real:
            note_classes(vm, part)
    elif type(real) is dict:
        note_classes(vm, tuple(real))
        note_classes(vm, tuple(real.values()))


_NAMES = ("__name__", "__qualname__")


def is_data_descriptor(vm: Interpreter, attr: Any) -> bool:
    """Does the class attribute take precedence over the instance dictionary?"""
    return any(special_of(vm, attr, name) is not None for name in ("__set__", "__delete__"))


def special_of(vm: Interpreter, attr: Any, name: str) -> Any:
    """A method of the class of a raw class attribute, a descriptor maybe; None if it has none."""
    cls = type(attr)
    if cls.__flags__ & _IMMUTABLE_TYPE:
        return getattr(cls, name, None)
    found = class_lookup(vm, cls, name)[1]
    return None if found is MISSING else found


_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: a class written in C


def missing(vm: Interpreter, obj: Value, name: str, tells: bool = True) -> NoReturn:
    """Raise AttributeError, which `tells` in its fields what was looked for where."""
    cls = obj.python_type()
    kind = "_thread._local" if cls is threading.local else cls.__name__
    text = f"'{kind}' object has no attribute '{name}'"
    if isinstance(obj, Constant) and isinstance(obj.value, types.ModuleType):
        text = f"module '{obj.value.__name__}' has no attribute '{name}'"
    elif isinstance(obj, Constant) and isinstance(obj.value, type):
        text = f"type object '{obj.value.__name__}' has no attribute '{name}'"
    vm.raise_error(AttributeError, text, *((name, obj) if tells else ()))


def class_attr(vm: Interpreter, obj: Value, cls: type, name: str) -> Value:
    """`cls.name`: found, or given by a `__getattr__` of the metaclass, which is also asked where a
    property of it, say, raises AttributeError."""
    fallback = class_lookup(vm, type(cls), "__getattr__")[1]
    own_fallback = isinstance(fallback, types.FunctionType)
    try:
        found = _find_class_attr(vm, obj, cls, name)
    except ProgramException as error:
        if not own_fallback or not issubclass(error.value.python_type(), AttributeError):
            raise
        found = None
    if found is not None:
        return found
    if own_fallback:
        return vm.call(vm.held(fallback), [obj, Constant(name)], {})
    if fallback is not MISSING:
        try:
            return vm.held(getattr(cls, name))
        except AttributeError:
            pass
    return missing(vm, obj, name)


def _find_class_attr(vm: Interpreter, obj: Value, cls: type, name: str) -> Value | None:
    """`cls.name`, by the rules for attributes of classes; None if there is none."""
    meta = type(cls)
    meta_owner, meta_attr = class_lookup(vm, meta, name)
    if meta is not type:
        getter = class_lookup(vm, meta, "__getattribute__")[1]
        if isinstance(getter, types.FunctionType):
            return vm.call(vm.held(getter), [obj, Constant(name)], {})
    if meta_attr is not MISSING and is_data_descriptor(vm, meta_attr):
        if isinstance(meta_attr, property) and meta_attr.fget is not None:
            return vm.call(vm.held(meta_attr.fget), [obj], {})
        found = _of_own_getter(vm, meta_attr, obj, meta)
        return _class_metadata(vm, cls, name) if found is None else found
    written = written_data(vm, cls, name)
    if written is not None:
        return written
    owner, attr = class_lookup(vm, cls, name)
    if attr is not MISSING:
        return bind_to_class(vm, owner, name, attr, obj, cls)
    if meta_attr is not MISSING:
        if isinstance(meta_attr, types.FunctionType):
            return BoundMethod(vm.wrap_class_attr(meta_owner, name, meta_attr), obj)
        if type(meta_attr) in C_METHODS:
            return NativeMethod(meta_attr, obj, name)
        if type(meta_attr) in (int, float):
            return vm.wrap_class_attr(meta_owner, name, meta_attr)
        found = _of_own_getter(vm, meta_attr, obj, meta)
        return vm.held(getattr(cls, name)) if found is None else found
    return None


def _of_own_getter(vm: Interpreter, attr: Any, obj: Value, meta: type) -> Value | None:
    """What a descriptor that the program wrote gives for a class, its metaclass' instance."""
    getter = special_of(vm, attr, "__get__")
    if not isinstance(getter, types.FunctionType):
        return None
    return vm.call(vm.held(getter), [vm.held(attr), obj, vm.held(meta)], {})


def _class_metadata(vm: Interpreter, cls: type, name: str) -> Value:
    """`__name__`, `__mro__`, `__bases__`, `__dict__` ... of a class."""
    if name in _NAMES:
        read_names(vm, cls)
    elif name in ("__mro__", "__bases__", "__base__"):
        read_mro(vm, cls)
    else:
        class_lookup(vm, cls, name)
    try:
        return vm.held(getattr(cls, name))
    except AttributeError:
        vm.raise_error(AttributeError, name, name=name)


def method_of_class(vm: Interpreter, attr: classmethod[Any, Any, Any]) -> Value:
    """The function of a class method. (Up to Python 3.12 other descriptors are asked.)"""
    function: Any = attr.__func__
    if isinstance(function, (property, classmethod)):
        raise GraphBreakSignal(f"a class method of a {type(function).__name__}")
    return vm.held(function)


def bind_to_class(
    vm: Interpreter, owner: type, name: str, attr: Any, receiver: Value, cls: type
) -> Value:
    """A raw class attribute as read through the class."""
    kind = type(attr)
    if kind is staticmethod:
        return vm.wrap_class_attr(owner, name, attr.__func__)
    if kind is classmethod:
        return BoundMethod(method_of_class(vm, attr), receiver)
    if kind is types.ClassMethodDescriptorType:
        return NativeMethod(attr, receiver, name)
    if kind is types.FunctionType or kind in C_METHODS:
        return vm.wrap_class_attr(owner, name, attr)
    if not hasattr(kind, "__get__") or kind in (property, types.MemberDescriptorType):
        return vm.wrap_class_attr(owner, name, attr)
    return vm.held(attr.__get__(None, cls))  # through `super`, cls.name may be another
