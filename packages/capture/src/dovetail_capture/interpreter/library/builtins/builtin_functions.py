"""Built-in functions and classes: their table, and what exceptions, functions and types do."""

from __future__ import annotations

import builtins
import collections
import types
from typing import Any

from dovetail_capture.interpreter.library.builtins.conversions import (
    to_text,
)
from dovetail_capture.interpreter.machine.handler_types import Args, Handler, Kwargs
from dovetail_capture.interpreter.machine.machine import Interpreter
from dovetail_capture.interpreter.protocols import class_attributes, dicts, instantiation
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    ListValue,
    SetValue,
    TupleValue,
)
from dovetail_capture.interpreter.values.functions import BoundMethod
from dovetail_capture.interpreter.values.objects import ObjectValue


def exception_init(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    assert isinstance(args[0], ObjectValue)
    if len(args) > 2 and issubclass(args[0].cls, (OSError, SyntaxError, UnicodeError)):
        # C code takes these apart; an OSError even becomes one of another class.
        raise GraphBreakSignal(f"creation of a {args[0].cls.__name__} of several parts")
    if kwargs:
        _check_fields(vm, args[0].cls, kwargs)
    args[0].slots["args"] = TupleValue(args[1:])
    if issubclass(args[0].cls, StopIteration):
        args[0].slots["value"] = args[1] if len(args) > 1 else NONE
    for name in ("name", "path", "obj"):  # of one that is initialised again
        args[0].slots.pop(name, None)
    for name, value in kwargs.items():
        args[0].slots[name] = value
    return NONE


def _check_fields(vm: Interpreter, cls: type[BaseException], kwargs: Kwargs) -> None:
    """Raise what Python raises of keywords that an exception does not take."""
    base = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    try:
        base(**dict.fromkeys(kwargs))
    except TypeError as error:
        text = str(error).replace(f"{base.__name__}() takes no", f"{cls.__name__}() takes no")
        vm.raise_error(TypeError, text)


def exception_with_traceback(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    vm.set_attr(args[0], "__traceback__", args[1])
    return args[0]


def exception_str(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return Constant(to_text(vm, args[0], "str"))


def function_get(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[1], Constant) and args[1].value is None:
        return args[0]
    return BoundMethod(args[0], args[1])


def method_type(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return BoundMethod(args[0], args[1])


def type_call(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`type.__call__(cls, ...)`: what a metaclass's own `__call__` builds upon."""
    cls = vm.as_python(args[0])
    return instantiation.instantiate(vm, cls, args[1:], kwargs, args[0], by_type=True)


def namespace_init(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = args[0]
    assert isinstance(target, ObjectValue)
    for other in args[1:]:
        dicts.update(vm, target.fields, other)
    for name, value in kwargs.items():
        dicts.put(vm, target.fields, Constant(name), value)
    return NONE


HANDLERS: dict[Any, Handler] = {
    type.__call__: type_call, types.SimpleNamespace.__init__: namespace_init,
    BaseException.__init__: exception_init, StopIteration.__init__: exception_init,
    BaseException.with_traceback: exception_with_traceback, BaseException.__str__: exception_str,
    types.FunctionType.__get__: function_get, types.MethodType: method_type,
    builtins.__import__: lambda vm, args, kwargs: vm.fold(__import__, args, kwargs),
}  # fmt: skip
for _cls in list(vars(builtins).values()):
    if isinstance(_cls, type) and issubclass(_cls, BaseException):
        if "__init__" in _cls.__dict__:
            HANDLERS[_cls.__dict__["__init__"]] = exception_init
        if "__str__" in _cls.__dict__:
            HANDLERS[_cls.__dict__["__str__"]] = exception_str


def new_dict(vm: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> Value:
    """`dict.__new__(cls)` and its like for a subclass."""
    base = next(b for b in cls.__mro__ if b in (collections.OrderedDict, collections.defaultdict,
                                                dict))  # fmt: skip
    if base is collections.defaultdict:
        raise GraphBreakSignal(f"creation of a {cls.__name__}, a class of defaultdicts")
    value = ObjectValue(cls, native=DictValue(base))
    value.base_new = base
    return value


def new_namespace(vm: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> Value:
    value = ObjectValue(cls)
    value.base_new = types.SimpleNamespace
    return value


def new_list(vm: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> Value:
    value = ObjectValue(cls, native=ListValue([]))
    value.base_new = list
    return value


def new_tuple(vm: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> Value:
    if kwargs and class_attributes.class_lookup(vm, cls, "__init__")[1] is object.__init__:
        vm.raise_error(TypeError, "tuple() takes no keyword arguments")
    items = list(vm.iterate(args[0])) if args else []
    if cls is tuple:
        return TupleValue(items)
    value = ObjectValue(cls, native=TupleValue(items))
    value.base_new = tuple
    return value


def new_set(vm: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> Value:
    value = ObjectValue(cls, native=SetValue([]))  # `__init__` takes what it is made of
    value.base_new = set
    return value


def tuple_new(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`tuple.__new__(cls, items)` called by name, as named tuples do."""
    return new_tuple(vm, vm.as_python(args[0]), args[1:], kwargs)


def dict_new(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return new_dict(vm, vm.as_python(args[0]), args[1:], kwargs)


HANDLERS[tuple.__new__] = tuple_new
HANDLERS[dict.__new__] = dict_new

NEW_HANDLERS: dict[type, Any] = {
    dict: new_dict, collections.OrderedDict: new_dict, collections.defaultdict: new_dict,
    types.SimpleNamespace: new_namespace, list: new_list, tuple: new_tuple, set: new_set,
}  # fmt: skip
