"""Classes made in the frame: `class` statements, `type(...)`, named tuples, dataclasses.

The class body is interpreted. What it gives becomes a real class, the *stand-in*: it answers what
is asked of the class (its MRO, what `isinstance` says, its attributes) while the frame is captured,
and never leaves it. A function of the frame is represented in it by an empty function that the
session knows the value of, and any other value by a `StandIn`. Each run of the program makes a
class of its own, so a class that is still alive where the captured stretch ends is left to Python.
"""

from __future__ import annotations

import abc
import builtins
import collections
import dataclasses
import enum
import functools
import types
import typing
from typing import Any

import torch

from dovetail_capture import recipe as r
from dovetail_capture.interpreter.machine.frame import Frame
from dovetail_capture.interpreter.machine.machine import Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import class_attributes, dicts
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value
from dovetail_capture.interpreter.values.containers import DictValue, TupleValue
from dovetail_capture.interpreter.values.functions import CellValue, FunctionValue
from dovetail_capture.interpreter.values.objects import ObjectValue, StandIn
from dovetail_capture.skip import module_of

# Metaclasses that do nothing but make the class.
_METACLASSES = frozenset(
    {type, abc.ABCMeta, enum.EnumMeta, type(typing.Protocol), typing.NamedTupleMeta}  # type: ignore[attr-defined]
)
_ATOMS = (str, int, float, bool, type(None), torch.dtype)
_QUIET_MODULES = ("abc", "builtins", "enum", "typing", "torch", "collections")
_WRAPPERS = (property, staticmethod, classmethod, functools.cached_property)


def build_class(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`__build_class__(body, name, *bases)`."""
    body, name = args[0], vm.as_python(args[1])
    metaclass = vm.as_python(kwargs.get("metaclass", NONE))
    if not isinstance(body, FunctionValue) or set(kwargs) - {"metaclass"}:
        raise GraphBreakSignal(f"creation of the class {name} with keyword arguments")
    namespace = DictValue()
    frame = Frame(vm, body.code, body.globals_, [], body.closure)
    frame.namespace = namespace
    vm.run_frame(frame)
    cell = dicts.get(vm, namespace, "__classcell__")
    dicts.delete(vm, namespace, "__classcell__")
    made = make_class(vm, name, args[2:], namespace, metaclass)
    if isinstance(cell, CellValue):
        cell.content, cell.mutated = made, True
    return made


def type_three(vm: Interpreter, args: Args) -> Value:
    """`type(name, bases, namespace)`."""
    namespace = vm.native(args[2])
    if not isinstance(namespace, DictValue):
        raise GraphBreakSignal(f"creation of a class from {namespace.describe()}")
    copied = dicts.copy_entries(vm, namespace)
    if dicts.get(vm, copied, "__module__") is None:
        module = vm.frames[-1].globals_.get("__name__")
        dicts.put(vm, copied, Constant("__module__"), Constant(module))
    return make_class(vm, vm.as_python(args[0]), list(vm.iterate(args[1])), copied, type)


def make_class(
    vm: Interpreter, name: str, bases: Args, namespace: DictValue, metaclass: Any
) -> Value:
    """The stand-in of a class with these bases and attributes."""
    real_bases = tuple(vm.as_python(base) for base in bases)
    resolved = types.resolve_bases(real_bases) if _are_known(real_bases) else ()
    if not _are_known(real_bases) or not all(isinstance(base, type) for base in resolved):
        raise GraphBreakSignal(f"creation of the class {name} with unusual bases")
    keywords = {} if metaclass is None else {"metaclass": metaclass}
    meta, entries, _ = types.prepare_class(name, resolved, keywords)
    if meta not in _METACLASSES:
        raise GraphBreakSignal(f"creation of the class {name}, whose metaclass is {meta.__name__}")
    for base in resolved:
        class_attributes.class_lookup(vm, base, "__init_subclass__")  # (guards that it stays so)
        hook = getattr(base.__init_subclass__, "__func__", None)
        if hook is not None and module_of(hook).partition(".")[0] not in _QUIET_MODULES:
            raise GraphBreakSignal(f"creation of the class {name}: {hook.__qualname__} runs then")
    if resolved is not real_bases:
        entries["__orig_bases__"] = real_bases
    try:
        known = {vm.as_python(key): value for key, value in dicts.items(vm, namespace)}
        for key, value in known.items():
            entries[key] = _entry(vm, key, value)
            if meta is enum.EnumMeta:
                _check_member(name, key, entries[key])
        made = meta(name, resolved, entries)
    except GraphBreakSignal:
        raise
    except Exception as error:
        vm.raise_real(error)
    return note_stand_in(vm, made)


def _entry(vm: Interpreter, name: str, value: Value) -> Any:
    """An entry of a class's namespace. Those with special names say what class it is to be."""
    if name == "__annotations__" and isinstance(value, DictValue):
        return {vm.as_python(key): stand_in(vm, item) for key, item in dicts.items(vm, value)}
    if name.startswith("__") and not isinstance(value, FunctionValue):
        real = vm.as_python(value)
        if real is not UNKNOWN:
            return real
    return stand_in(vm, value)


def _check_member(name: str, key: str, value: Any) -> None:
    """The members of an enum are made with it: by its own functions, and of plain data."""
    if key in ("__init__", "__new__", "_generate_next_value_", "_missing_"):
        raise GraphBreakSignal(f"creation of the enum {name}, which runs functions of its own")
    if isinstance(value, StandIn):
        raise GraphBreakSignal(f"creation of the enum {name} of more than plain data")


def _are_known(reals: tuple[Any, ...]) -> bool:
    return all(real is not UNKNOWN for real in reals)


def note_stand_in(vm: Interpreter, made: Any) -> Value:
    """Remember that an object was made for this capture only."""
    vm.session.objects.note_stand_in(made, vm.frames[0].steps)
    return Constant(made)


def stand_in(vm: Interpreter, value: Value) -> Any:
    """What stands for a value in a stand-in class."""
    if isinstance(value, Constant):
        return _plain(value.value)
    if isinstance(value, TupleValue):
        real = vm.as_python(value)
        return StandIn(value) if real is UNKNOWN else real
    if isinstance(value, FunctionValue):
        return _function(vm, value)
    cls = value.python_type()
    if isinstance(value, ObjectValue) and (hasattr(cls, "__get__") or hasattr(cls, "__set_name__")):
        raise GraphBreakSignal(f"a {cls.__name__} as an attribute of a class made in the frame")
    return StandIn(value)


def _plain(real: Any) -> Any:
    if isinstance(getattr(type(real), "__set_name__", None), types.FunctionType):
        if type(real).__module__ not in ("dataclasses", "enum", "functools"):
            raise GraphBreakSignal(f"{type(real).__name__}.__set_name__ runs as a class is made")
    return real


def _function(vm: Interpreter, value: FunctionValue) -> types.FunctionType:
    cells = tuple(types.CellType() for _ in value.closure)
    real = types.FunctionType(value.code, value.globals_, value.name, None, cells)
    if value.attributes is not None:
        for key, item in dicts.items(vm, value.attributes):
            name = vm.as_python(key)
            real.__dict__[name] = _entry(vm, name, item)
    for name, item in value.special.items():
        setattr(real, name, _entry(vm, name, item))
    if isinstance(value.annotations, DictValue):
        real.__annotations__ = _entry(vm, "__annotations__", value.annotations)
    elif isinstance(value.annotations, TupleValue):
        names = [vm.as_python(item) for item in vm.iterate(value.annotations)]
        real.__annotations__ = dict(zip(names[::2], names[1::2], strict=True))
    vm.session.objects.bind(real, value)
    vm.session.objects.note_stand_in(real, vm.frames[0].steps)
    return real


def set_class_attr(vm: Interpreter, cls: type, name: str, value: Value) -> None:
    """`cls.name = value` of a stand-in."""
    vm.session.objects.class_recipes.pop(id(cls), None)
    type.__setattr__(cls, name, stand_in(vm, value))
    forget(vm, cls)


def forget(vm: Interpreter, cls: type) -> None:
    """A stand-in was changed: what was read of it is read again."""
    vm.class_attributes.clear()
    for key in [key for key in vm.class_attribute_values if key[0] is cls]:
        del vm.class_attribute_values[key]


def is_stand_in(vm: Interpreter, value: Value) -> bool:
    """Is this a class (or a function in one) made in the frame?"""
    return isinstance(value, Constant) and id(value.value) in vm.session.objects.stand_ins


def wrapper_of(cls: type) -> Handler:
    """`property(f)`, `staticmethod(f)` and the like, of functions made in the frame."""

    def make(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        if not all(isinstance(arg, (Constant, FunctionValue)) for arg in (*args, *kwargs.values())):
            raise GraphBreakSignal(f"creation of a {cls.__name__}")
        parts = [stand_in(vm, arg) for arg in args]
        return note_stand_in(vm, cls(*parts, **{k: stand_in(vm, v) for k, v in kwargs.items()}))

    return make


def _property_part(name: str) -> Handler:
    """`prop.setter(f)` and the like."""

    def make(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        return note_stand_in(vm, getattr(vm.as_python(args[0]), name)(stand_in(vm, args[1])))

    return make


def _for_real(fn: Any) -> Handler:
    """A library function that makes or fills a class: run on the stand-in."""

    def run(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        if not any(is_stand_in(vm, arg) for arg in args):
            raise GraphBreakSignal(f"{fn.__name__}() of a class that was not made in the frame")
        made = fn(
            *_known(vm, args), **dict(zip(kwargs, _known(vm, [*kwargs.values()]), strict=True))
        )
        forget(vm, made)
        return note_stand_in(vm, made)

    return run


def _known(vm: Interpreter, values: Args) -> list[Any]:
    reals = [vm.as_python(value) for value in values]
    if not _are_known(tuple(reals)):
        raise GraphBreakSignal("creation of a class from what only a call tells")
    return reals


def _namedtuple(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`collections.namedtuple(...)`, which the program calls again where the class is returned."""
    known: Any = dict(zip(kwargs, _known(vm, [*kwargs.values()]), strict=True))
    known.setdefault("module", vm.frames[-1].globals_.get("__name__"))
    reals = _known(vm, args)
    try:
        made = collections.namedtuple(*reals, **known)  # type: ignore[misc]
    except (TypeError, ValueError) as error:
        vm.raise_real(error)
    if all(map(_is_of_atoms, (*reals, *known.values()))):
        vm.session.objects.class_recipes[id(made)] = r.CallFunction(
            r.Const(collections.namedtuple),
            tuple(map(r.Const, reals)),
            tuple((name, r.Const(real)) for name, real in known.items()),
        )
    return note_stand_in(vm, made)


def _is_of_atoms(real: Any) -> bool:
    """Can nobody change it, or is it a list that the call only reads?"""
    if type(real) in (list, tuple):
        return all(type(item) in _ATOMS for item in real)
    return type(real) in _ATOMS


def _field(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`dataclasses.field(...)`."""
    parts: Any = {name: stand_in(vm, value) for name, value in kwargs.items()}
    return note_stand_in(vm, dataclasses.field(**parts))


HANDLERS: dict[Any, Handler] = {
    builtins.__build_class__: build_class,
    collections.namedtuple: _namedtuple,
    dataclasses.field: _field,
    dataclasses._process_class: _for_real(dataclasses._process_class),  # type: ignore[attr-defined]
    enum.auto: lambda vm, args, kwargs: Constant(enum.auto()),
    functools.total_ordering: _for_real(functools.total_ordering),
    **{cls: wrapper_of(cls) for cls in _WRAPPERS},
    **{vars(property)[name]: _property_part(name) for name in ("getter", "setter", "deleter")},
}
