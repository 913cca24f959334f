"""getattr and its like, what `object` gives all classes, vars, locals, globals."""

from __future__ import annotations

from typing import Any

from dovetail_capture.interpreter.machine.handler_types import Args, Handler, Kwargs
from dovetail_capture.interpreter.machine.machine import Interpreter
from dovetail_capture.interpreter.protocols import (
    assignment,
    attributes,
    class_attributes,
    comparison,
    dicts,
    object_attributes,
)
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, boolean
from dovetail_capture.interpreter.values.containers import DictValue


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
    from dovetail_capture.interpreter.protocols.instantiation import native_new

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
    result = DictValue()
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
    return attributes.global_names(vm, vm.frames[-1].globals_)


HANDLERS: dict[Any, Handler] = {
    getattr: getattr_, hasattr: hasattr_, setattr: setattr_, delattr: delattr_, vars: vars_,
    locals: locals_, globals: globals_, object.__getattribute__: object_getattribute,
    object.__setattr__: object_setattr, object.__delattr__: object_delattr,
    object.__init__: object_init, object.__new__: object_new, object.__eq__: object_eq,
}  # fmt: skip
