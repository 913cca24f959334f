"""isinstance, issubclass, type, super, callable, id, hash."""

from __future__ import annotations

import abc
import inspect
import sys
import types
import typing
from typing import Any

import torch
from dovetail_guards import clauses as c
from dovetail_guards import iterators
from dovetail_guards.check_clauses import counts_as
from dovetail_guards.source import AttrSource, ClosureSource, GlobalSource, InstanceAttrSource
from dovetail_prims.node_facts import STATIC

from dovetail_capture.interpreter.library.builtins import local_classes
from dovetail_capture.interpreter.machine.machine import Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import attributes, class_attributes, operands, sequences
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.protocols.operands import returned
from dovetail_capture.interpreter.protocols.weak_targets import is_proxy, target_of_proxy
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values import functions
from dovetail_capture.interpreter.values.base import Constant, Value, boolean
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    ListValue,
    SetValue,
    TupleValue,
)
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.symbolic import IdOf
from dovetail_capture.interpreter.values.tensors import TensorValue
from dovetail_capture.interpreter.values.texts import LateText
from dovetail_capture.skip import module_of


def is_instance(vm: Interpreter, value: Value, classinfo: Value) -> bool:
    """`isinstance(value, classinfo)`."""
    if isinstance(classinfo, TupleValue):
        return any(
            is_instance(vm, value, sequences.item(vm, classinfo, index))
            for index in range(len(classinfo.items))
        )
    if not isinstance(classinfo, Constant):
        raise GraphBreakSignal(f"isinstance with {classinfo.describe()}")
    wanted = classinfo.value
    if isinstance(wanted, types.UnionType):
        return any(is_instance(vm, value, vm.held(part)) for part in wanted.__args__)
    if type(wanted) is _BARE_ALIAS:  # `typing.Mapping`
        return issubclass(value.python_type(), _origin(vm, value.python_type(), wanted))
    cls = value.python_type()
    if isinstance(value, ObjectValue) and is_proxy(cls) and not is_proxy(wanted):
        return is_instance(vm, target_of_proxy(vm, value), classinfo)
    if isinstance(wanted, type) and cls is not wanted:  # or no `__instancecheck__` is asked
        _, check = class_attributes.class_lookup(vm, type(wanted), "__instancecheck__")
        if isinstance(check, types.FunctionType) and not _asks_by_class(type(wanted), check):
            return vm.truth(vm.call(vm.held(check), [classinfo, value], {}))
    if isinstance(value, Constant):
        class_attributes.read_mro(vm, cls)
        _note_abstract(vm, cls, wanted)
        real = "" if isinstance(value, LateText) else value.example
        try:
            return isinstance(real, wanted)
        except TypeError as error:
            vm.raise_real(error)
    if not isinstance(wanted, type):
        vm.raise_error(TypeError, "isinstance() arg 2 must be a type, a tuple of types, or a union")
    if isinstance(value, TensorValue):
        if cls not in (torch.Tensor, torch.nn.Parameter):
            class_attributes.read_mro(vm, cls)
        flag = None if issubclass(cls, wanted) else _FLAGS.get(wanted)
        if flag is not None and _is_flagged(vm, value, flag):
            return True
        if wanted.__module__ == "torch" and wanted.__name__.endswith("Tensor"):
            if wanted is not torch.Tensor:  # torch.FloatTensor and its like
                fake = value.fake
                on_cpu = fake.device.type == "cpu"
                return on_cpu and bool(fake.dtype == getattr(wanted, "dtype", None))
            return True
        return issubclass(cls, wanted)
    class_attributes.read_mro(vm, cls)
    if cls is wanted:
        return True
    if getattr(wanted, "_is_protocol", False):
        names = sorted(_protocol_members(wanted))
        has_all = all([_has_member(vm, value, cls, name) for name in names])
        real = getattr(value, "real", None)
        return has_all if real is None else isinstance(real, wanted)
    _note_abstract(vm, cls, wanted)
    return issubclass(cls, wanted) or issubclass(_class_it_says(vm, value, cls), wanted)


def _class_it_says(vm: Interpreter, value: Value, cls: type) -> type:
    """What an object of a class with a `__class__` of its own gives for it, as proxies do."""
    attr = class_attributes.class_lookup(vm, cls, "__class__")[1]
    if attr is _CLASS_OF_OBJECTS or not isinstance(value, ObjectValue):
        return cls
    said = vm.as_python(vm.get_attr(value, "__class__"))
    return said if isinstance(said, type) else cls


_CLASS_OF_OBJECTS = vars(object)["__class__"]
_FLAGS: dict[type, str] = {torch.nn.Parameter: "_is_param", torch.nn.Buffer: "_is_buffer"}
_FLAGGED = frozenset(map(type, _FLAGS))


def _is_flagged(vm: Interpreter, value: TensorValue, flag: str) -> bool:
    """Is a tensor a parameter or a buffer by what it says itself, whatever its class?"""
    found = vm.find_attr(value, flag)
    return found is not None and vm.truth(found)


_BARE_ALIAS = type(typing.Sized)


def _origin(vm: Interpreter, cls: type, alias: Any) -> type:
    """The class that `typing`'s name for it, without parameters, stands for."""
    class_attributes.read_mro(vm, cls)
    _note_abstract(vm, cls, alias.__origin__)
    origin: type = alias.__origin__
    return origin


def _asks_by_class(meta: type, check: types.FunctionType) -> bool:
    """Does the class of an object alone decide (ABCMeta and the like), or what `_FLAGS` says?"""
    return meta in _FLAGGED or module_of(check) in ("abc", "typing", "_py_abc")


def _protocol_members(cls: Any) -> set[str]:
    members = getattr(cls, "__protocol_attrs__", None)
    if members is not None:
        return set(members)
    from typing import _get_protocol_attrs  # type: ignore[attr-defined]

    return set(_get_protocol_attrs(cls))


def _has_member(vm: Interpreter, value: Value, cls: type, name: str) -> bool:
    """Has an object an attribute, its class's or its own? A property is not run for that."""
    if class_attributes.class_lookup(vm, cls, name)[1] is not class_attributes.MISSING:
        return True
    return vm.find_attr(value, name) is not None


def isinstance_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return boolean(is_instance(vm, args[0], args[1]))


def _note_abstract(vm: Interpreter, cls: type, wanted: Any) -> None:
    """Guard that no class is registered with an abstract one, where that may decide."""
    if isinstance(wanted, tuple):
        for part in wanted:
            _note_abstract(vm, cls, part)
    elif isinstance(wanted, abc.ABCMeta) and wanted not in class_attributes.read_mro(vm, cls):
        class_attributes.class_lookup(vm, wanted, "__subclasshook__")
        if id(cls) not in vm.session.objects.stand_ins:  # whose classes are others in each call
            said = counts_as(cls, wanted)
            if not said or class_attributes.is_changeable(vm, cls):  # else it stays registered
                vm.session.objects.abstract_answers[cls, wanted] = said


def issubclass_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 2 and isinstance(args[1], TupleValue):
        parts = (sequences.item(vm, args[1], index) for index in range(len(args[1].items)))
        return boolean(any(vm.truth(issubclass_(vm, [args[0], part], {})) for part in parts))
    cls, wanted = vm.as_python(args[0]), vm.as_python(args[-1])
    if isinstance(wanted, type) and type(wanted) is not type:
        check = class_attributes.class_lookup(vm, type(wanted), "__subclasscheck__")[1]
        if isinstance(check, types.FunctionType) and not _asks_by_class(type(wanted), check):
            return boolean(vm.truth(vm.call(vm.held(check), [args[1], args[0]], {})))
    if isinstance(cls, type):
        class_attributes.read_mro(vm, cls)
        _note_abstract(vm, cls, wanted)
    return vm.fold(issubclass, args, kwargs)


def type_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 3 and not kwargs:
        return local_classes.type_three(vm, args)
    if len(args) != 1:
        raise GraphBreakSignal("creation of a class with keyword arguments")
    return vm.held(args[0].python_type())


def super_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1:
        raise GraphBreakSignal("super() of a class alone")
    if args:
        cls = vm.as_python(args[0])
        return functions.SuperValue(cls, args[1])
    frame = vm.frames[-1]
    if not frame.code.co_argcount and not frame.code.co_flags & inspect.CO_VARARGS:
        vm.raise_error(RuntimeError, "super(): no arguments")
    slot = frame.decoded.slot_of.get("__class__")
    if slot is None:
        vm.raise_error(RuntimeError, "super(): __class__ cell not found")
    cls = vm.as_python(vm.resolve_cell(frame.slots[slot]))
    if frame.slots[0] is None:
        raise GraphBreakSignal("super() without a receiver")
    receiver = attributes.resolve(vm, frame.slots[0])
    from dovetail_capture.interpreter.values.functions import CellValue

    if isinstance(receiver, CellValue):
        receiver = vm.resolve_cell(receiver)
    return functions.SuperValue(cls, receiver)


def callable_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = args[0]
    if isinstance(value, Constant):
        return boolean(callable("" if isinstance(value, LateText) else value.example))
    if isinstance(value, (functions.BoundMethod, functions.NativeMethod, functions.FunctionValue)):
        return boolean(True)
    _, method = class_attributes.class_lookup(vm, value.python_type(), "__call__")
    return boolean(method is not class_attributes.MISSING)


# A guard on one of these lets an equal one pass.
_HELD_BY_VALUE = (int, float, complex, str, bytes, tuple, frozenset, range, torch.device)


# Where tensors lie that stay from call to call
_LASTING = (AttrSource, InstanceAttrSource, ClosureSource, GlobalSource)
# Objects of which a value stands for one: others are made anew where they are equal.
_HAVE_IDENTITY = (ListValue, DictValue, SetValue, ObjectValue, functions.FunctionValue, TensorValue)


def id_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`id(value)`: of what existed before, the number, with a guard that it is that object; of
    what is made in the frame, a value that is equal to the id of the same object alone."""
    value = args[0]
    if isinstance(value, Constant) and not isinstance(value.value, _HELD_BY_VALUE):
        return Constant(id(value.value))
    if isinstance(value, ObjectValue) and value.pinned:
        return Constant(id(value.real))
    if isinstance(value, TensorValue) and STATIC.holds(value.node):  # a module's, guarded
        return Constant(id(value.real))
    is_one = isinstance(value, _HAVE_IDENTITY) and value.python_type() is not frozenset
    native = vm.native(value)
    if not is_one or isinstance(native, TupleValue):
        raise GraphBreakSignal(f"id() of {value.describe()}")
    is_input = isinstance(value, TensorValue) and not isinstance(value.source, _LASTING)
    if value.source is None or is_input:  # a guard on an input would hold for this call alone
        return IdOf(value)
    real = vm.session.objects.real_of(value)
    if isinstance(value, (ObjectValue, TensorValue)):
        real = value.real
    if real is None or not vm.session.guards.can_relate(value.source, value.source):
        raise GraphBreakSignal(f"id() of {value.describe()}")
    vm.session.guards.pin(value.source, real)
    return Constant(id(real))


class _Hashed:
    """An object with a given hash, to hash a tuple of."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        return self.value


def hash_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], TupleValue) and args[0].cls is tuple:
        if not kwargs and vm.as_python(args[0]) is UNKNOWN:
            parts = [vm.as_python(hash_(vm, [part], {})) for part in vm.iterate(args[0])]
            return Constant(hash(tuple(map(_Hashed, parts))))
    method = operands.dunder(vm, args[0], "__hash__")
    if isinstance(method, functions.BoundMethod):
        text = "__hash__ method should return an integer"
        made = returned(vm, vm.call(method, [], {}), int, text)
        return Constant(_hash_of(made.value)) if isinstance(made, Constant) else made
    return vm.fold(hash, args, kwargs)


def _hash_of(number: int) -> int:
    """The hash of an object whose `__hash__` gives this number."""
    fits = -sys.maxsize - 1 <= number <= sys.maxsize
    return -2 if number == -1 else int(number) if fits else hash(number)


def subclasses(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`cls.__subclasses__()`: others may be derived at any time."""
    session = vm.session
    cls = vm.as_python(args[0])
    if cls is UNKNOWN:
        raise GraphBreakSignal(f"the classes derived from {args[0].describe()}")
    found = iterators.subclasses(cls)
    if any(id(one) in session.objects.stand_ins for one in found):
        raise GraphBreakSignal(f"the classes derived from {cls.__qualname__}, one made here")
    place = session.sources.iterator_part(session.sources.held(cls), "subclasses")
    session.guards.add(c.ConstantIs, place, found)
    return ListValue([vm.held(one) for one in found])


HANDLERS: dict[Any, Handler] = {
    isinstance: isinstance_, issubclass: issubclass_, type: type_, super: super_,
    type.__subclasses__: subclasses, callable: callable_, id: id_, hash: hash_,
}  # fmt: skip
