"""Classes called: `__new__`, `__init__`, metaclasses."""

from __future__ import annotations

import types
import typing
from typing import TYPE_CHECKING, Any

import torch
from dovetail_prims.wrappers import is_wrapper_type
from torch import nn

from dovetail_capture.interpreter.protocols import class_attributes
from dovetail_capture.interpreter.protocols.inlining import inline
from dovetail_capture.interpreter.protocols.native_calls import (
    call_handler,
    call_native,
    check_arguments,
)
from dovetail_capture.interpreter.protocols.operands import returned
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.containers import TupleValue
from dovetail_capture.interpreter.values.known_types import is_numpy
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


def instantiate(
    vm: Interpreter,
    cls: type,
    args: list[Value],
    kwargs: dict[str, Value],
    class_value: Value | None = None,
    by_type: bool = False,
) -> Value:
    """`cls(*args, **kwargs)`; `by_type`: whatever its metaclass's `__call__` does."""
    handler = vm.handlers.get(cls)
    if handler is not None:
        check_arguments(vm, cls, args, kwargs)
        result = call_handler(vm, handler, cls, args, kwargs)
        if result is not NotImplemented:
            return result
    if typing.is_typeddict(cls):
        return instantiate(vm, dict, args, kwargs)
    if cls in vm.pure_classes or is_numpy(cls, "generic"):
        return vm.fold(cls, args, kwargs)
    class_value = class_value or vm.held(cls)
    meta_call = class_attributes.class_lookup(vm, type(cls), "__call__")[1]
    if not by_type and isinstance(meta_call, types.FunctionType):
        handler = vm.handlers.get(meta_call)
        if handler is not None:
            return handler(vm, [class_value, *args], kwargs)
        return inline(vm, meta_call, [class_value, *args], kwargs)
    if isinstance(getattr(cls, "__del__", None), types.FunctionType):
        raise GraphBreakSignal(
            f"creation of a {cls.__name__}, whose `__del__` runs when the program lets go of it"
        )
    owner, new = class_attributes.class_lookup(vm, cls, "__new__")
    if isinstance(new, staticmethod):
        new = new.__func__
    own_new = isinstance(new, types.FunctionType)
    if issubclass(cls, torch.Tensor):
        _check_tensor_class(cls, own_new, args, kwargs)
    if own_new:
        instance = vm.call(vm.held(new), [class_value, *args], kwargs)
    elif issubclass(cls, torch.Tensor):
        instance = vm.tensor_of_class(args[0], cls)
    else:
        instance = native_new(vm, owner, cls, args, kwargs)
    if cls in instance.python_type().__mro__:  # a metaclass's __subclasscheck__ is not asked
        _initialise(vm, cls, instance, new, args, kwargs)
    return instance


def _check_tensor_class(
    cls: type, own_new: bool, args: list[Value], kwargs: dict[str, Value]
) -> None:
    """Only a tensor by its class's own `__new__`, or of one tensor, can be made in a graph."""
    flagged = issubclass(cls, (nn.Parameter, nn.Buffer)) and cls is not nn.Parameter
    given = len(args) == 1 and isinstance(args[0], TensorValue) and not kwargs
    wraps = is_wrapper_type(cls) and not own_new
    if wraps or flagged or not (own_new or given):
        raise GraphBreakSignal(
            f"creation of a {cls.__name__}", "create it before the compiled function runs"
        )


def _initialise(
    vm: Interpreter,
    cls: type,
    instance: Value,
    new: Any,
    args: list[Value],
    kwargs: dict[str, Value],
) -> None:
    # `__new__` may have made one of a subclass, whose `__init__` it is then.
    init_owner, init = class_attributes.class_lookup(vm, instance.python_type(), "__init__")
    if isinstance(init, types.FunctionType):
        made = vm.call(vm.wrap_class_attr(init_owner, "__init__", init), [instance, *args], kwargs)
        returned(vm, made, types.NoneType, "__init__() should return None, not '{}'")
    elif init is not object.__init__:
        call_native(vm, init, [instance, *args], kwargs)
    elif (args or kwargs) and new is object.__new__:
        vm.raise_error(TypeError, f"{cls.__name__}() takes no arguments")


def native_new(
    vm: Interpreter, owner: type, cls: type, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """`owner.__new__(cls, *args)` where `owner` is a C class."""
    if owner is object:
        class_attributes.class_lookup(vm, cls, "__abstractmethods__")
        if getattr(cls, "__abstractmethods__", None):
            try:
                object.__new__(cls)
            except TypeError as error:
                vm.raise_real(error)
        return ObjectValue(cls)
    maker = vm.new_handlers.get(owner)
    if maker is not None:
        return maker(vm, cls, args, kwargs)
    if issubclass(owner, BaseException):
        value = ObjectValue(cls)
        value.base_new = owner
        value.slots["args"] = TupleValue(args)
        return value
    raise GraphBreakSignal(f"creation of a {cls.__module__}.{cls.__qualname__}")
