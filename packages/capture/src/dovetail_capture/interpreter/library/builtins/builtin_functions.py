"""Built-in functions and classes: attributes, and what exceptions, functions and types do."""

from __future__ import annotations

import builtins
import collections
import types
from typing import Any

from dovetail_capture.interpreter.library.builtins.conversions import to_text
from dovetail_capture.interpreter.machine.machine import Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import (
    assignment,
    attributes,
    builtin_attributes,
    calls,
    class_attributes,
    comparison,
    dicts,
    object_attributes,
)
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values import containers
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, boolean
from dovetail_capture.interpreter.values.functions import BoundMethod
from dovetail_capture.interpreter.values.objects import ObjectValue

# --- attributes: getattr and its like, what `object` gives all classes, vars, locals, globals -----


def _name(vm: Interpreter, value: Value) -> str:
    if not isinstance(value, Constant) or not isinstance(value.value, str):
        kind = value.python_type().__name__
        vm.raise_error(TypeError, f"attribute name must be string, not '{kind}'")
    assert isinstance(value, Constant)
    return value.value


def getattr_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    name = _name(vm, args[1])
    if len(args) == 2:
        return vm.get_attr(args[0], name)
    value = vm.find_attr(args[0], name)
    return args[2] if value is None else value


def hasattr_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return boolean(vm.find_attr(args[0], _name(vm, args[1])) is not None)


def setattr_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    vm.set_attr(args[0], _name(vm, args[1]), args[2])
    return NONE


def delattr_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    vm.del_attr(args[0], _name(vm, args[1]))
    return NONE


def object_getattribute(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return object_attributes.generic_get_attr(vm, args[0], _name(vm, args[1]))


def object_setattr(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    assignment.generic_set_attr(vm, args[0], _name(vm, args[1]), args[2])
    return NONE


def object_delattr(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    assignment.generic_del_attr(vm, args[0], _name(vm, args[1]))
    return NONE


def _is_objects(vm: Interpreter, cls: type, name: str) -> bool:
    """Does a class inherit this method from `object`?"""
    return class_attributes.class_lookup(vm, cls, name)[1] is object.__dict__[name]


def object_init(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`object.__init__`, which takes arguments only for a class with a `__new__` alone."""
    if len(args) > 1 or kwargs:
        cls = args[0].python_type()
        rest = "__init__() takes exactly one argument (the instance to initialize)"
        if not _is_objects(vm, cls, "__init__"):
            vm.raise_error(TypeError, f"object.{rest}")
        if _is_objects(vm, cls, "__new__"):
            vm.raise_error(TypeError, f"{cls.__name__}.{rest}")
    return NONE


def object_new(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`object.__new__`, which takes arguments only for a class with an `__init__` alone."""
    from dovetail_capture.interpreter.protocols.calls import native_new

    cls = vm.as_python(args[0])
    if len(args) > 1 or kwargs:
        if not _is_objects(vm, cls, "__new__"):
            text = "object.__new__() takes exactly one argument (the type to instantiate)"
            vm.raise_error(TypeError, text)
        if _is_objects(vm, cls, "__init__"):
            vm.raise_error(TypeError, f"{cls.__name__}() takes no arguments")
    return native_new(vm, object, vm.as_python(args[0]), args[1:], kwargs)


def object_eq(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    same = comparison.is_same(vm, args[0], args[1])
    return boolean(True) if same else Constant(NotImplemented)


def vars_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if not args:
        return locals_(vm, args, kwargs)
    return vm.get_attr(args[0], "__dict__")


def locals_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    frame = vm.frames[-1]
    if frame.namespace is not None:  # of a class body, which fills it
        return frame.namespace
    result = containers.DictValue()
    for name, item in zip(frame.decoded.slot_names, frame.slots, strict=True):
        if item is None:
            continue
        value = attributes.resolve(vm, item)
        from dovetail_capture.interpreter.values.functions import CellValue

        if isinstance(value, CellValue):
            if value.content is None:
                continue
            value = vm.resolve_cell(value)
        dicts.put(vm, result, Constant(name), value)
    return result


def globals_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return builtin_attributes.global_names(vm, vm.frames[-1].globals_)


# --- exceptions, functions, types ----------------------------------------------------------------


def exception_init(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    assert isinstance(args[0], ObjectValue)
    if len(args) > 2 and issubclass(args[0].cls, (OSError, SyntaxError, UnicodeError)):
        # C code takes these apart; an OSError even becomes one of another class.
        raise GraphBreakSignal(f"creation of a {args[0].cls.__name__} of several parts")
    if kwargs:
        _check_fields(vm, args[0].cls, kwargs)
    args[0].slots["args"] = containers.TupleValue(args[1:])
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
    return calls.instantiate(vm, cls, args[1:], kwargs, args[0], by_type=True)


def namespace_init(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = args[0]
    assert isinstance(target, ObjectValue)
    for other in args[1:]:
        dicts.update(vm, target.fields, other)
    for name, value in kwargs.items():
        dicts.put(vm, target.fields, Constant(name), value)
    return NONE


HANDLERS: dict[Any, Handler] = {
    getattr: getattr_, hasattr: hasattr_, setattr: setattr_, delattr: delattr_, vars: vars_,
    locals: locals_, globals: globals_, object.__getattribute__: object_getattribute,
    object.__setattr__: object_setattr, object.__delattr__: object_delattr,
    object.__init__: object_init, object.__new__: object_new, object.__eq__: object_eq,
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
    value = ObjectValue(cls, native=containers.DictValue(base))
    value.base_new = base
    return value


def new_namespace(vm: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> Value:
    value = ObjectValue(cls)
    value.base_new = types.SimpleNamespace
    return value


def new_list(vm: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> Value:
    value = ObjectValue(cls, native=containers.ListValue([]))
    value.base_new = list
    return value


def new_tuple(vm: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> Value:
    if kwargs and class_attributes.class_lookup(vm, cls, "__init__")[1] is object.__init__:
        vm.raise_error(TypeError, "tuple() takes no keyword arguments")
    items = list(vm.iterate(args[0])) if args else []
    if cls is tuple:
        return containers.TupleValue(items)
    value = ObjectValue(cls, native=containers.TupleValue(items))
    value.base_new = tuple
    return value


def new_set(vm: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> Value:
    value = ObjectValue(cls, native=containers.SetValue([]))  # `__init__` takes what it is made of
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
