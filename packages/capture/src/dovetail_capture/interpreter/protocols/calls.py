"""The call protocol: what is called decides whether it is inlined, instantiated (by `__new__`,
`__init__`, metaclasses) or called as C."""

from __future__ import annotations

import functools
import logging
import types
import typing
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import torch
from dovetail_prims.wrappers import is_wrapper_type
from torch import nn

from dovetail_capture.interpreter.changes import messages
from dovetail_capture.interpreter.protocols import class_attributes, inlining, object_attributes
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.protocols.native_calls import (
    call_handler,
    call_native,
    check_arguments,
)
from dovetail_capture.interpreter.protocols.operands import returned
from dovetail_capture.interpreter.session import cached_calls
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values import functions
from dovetail_capture.interpreter.values.base import NONE, Constant, Lazy, Value, is_numpy
from dovetail_capture.interpreter.values.containers import TupleValue, hash_key
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue
from dovetail_capture.marks import reason_of, substitute_of

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter
    from dovetail_capture.interpreter.machine.machine import Args, Handler, Kwargs


def instantiate(
    vm: Interpreter,
    cls: type,
    args: Args,
    kwargs: Kwargs,
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
        return inlining.inline(vm, meta_call, [class_value, *args], kwargs)
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


def _check_tensor_class(cls: type, own_new: bool, args: Args, kwargs: Kwargs) -> None:
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
    args: Args,
    kwargs: Kwargs,
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


def native_new(vm: Interpreter, owner: type, cls: type, args: Args, kwargs: Kwargs) -> Value:
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


_SCRIPTED = "_torchdynamo_inline"  # what torch.jit calls the Python function behind a script

# Of whose classes `cls[int]()` is `cls()`: instances have no place to remember the alias.
_WITHOUT_ALIAS = ("builtins", "collections")


def call(vm: Interpreter, fn: Value, args: Args, kwargs: Kwargs) -> Value:
    """`fn(*args, **kwargs)`."""
    if type(fn) is functions.BoundMethod:
        return call(vm, fn.function, [fn.receiver, *args], kwargs)
    if type(fn) is Constant:
        real = fn.value
        kind = type(real)
        substitute = substitute_of(real)
        if substitute is not None:
            return call(vm, vm.held(substitute), args, kwargs)
        if kind is types.FunctionType:
            return inlining.call_function(vm, fn, real, args, kwargs)
        if isinstance(real, type):
            return instantiate(vm, real, args, kwargs, fn)
        if kind is types.GenericAlias and real.__origin__.__module__ in _WITHOUT_ALIAS:
            return call(vm, vm.held(real.__origin__), args, kwargs)
        if kind is functools._lru_cache_wrapper:
            if args and issubclass(args[0].python_type(), logging.Logger):
                # "Warn once": the cache is what makes it once, so the cached call itself is made.
                messages.defer(vm, real, args, kwargs)
                return NONE
            return _call_cached(vm, real, args, kwargs)
        if kind is types.MethodType:
            bound = [vm.held(real.__self__), *args]
            return call(vm, vm.held(real.__func__), bound, kwargs)
        if callable(real):
            handler = _handler_of_calls(vm, kind)
            if handler is not None:
                return handler(vm, [fn, *args], kwargs)
            return call_native(vm, real, args, kwargs)
        return vm.raise_error(TypeError, f"'{kind.__name__}' object is not callable")
    if type(fn) is functions.NativeMethod:
        receiver = fn.receiver
        substitute = substitute_of(fn.descriptor)
        if substitute is not None:
            return call(vm, vm.held(substitute), [receiver, *args], kwargs)
        return call_native(vm, fn.descriptor, [receiver, *args], kwargs)
    if type(fn) is functions.FunctionValue:
        return inlining.call_made_function(vm, fn, args, kwargs)
    if type(fn) is ObjectValue:
        owner, method = class_attributes.class_lookup(vm, fn.cls, "__call__")
        if method is class_attributes.MISSING:
            name = fn.python_type().__name__
            return vm.raise_error(TypeError, f"'{name}' object is not callable")
        inner = _inner_function(vm, fn)
        if inner is not None:
            return call(vm, inner, args, kwargs)
        handler = _handler_of_calls(vm, fn.python_type())
        if handler is not None:
            return handler(vm, [fn, *args], kwargs)
        return call(
            vm, object_attributes.bind_to_instance(vm, fn, owner, "__call__", method), args, kwargs
        )
    if type(fn) is functions.TransformValue:
        return fn.called(vm, fn, args, kwargs)
    raise GraphBreakSignal(f"a call of {fn.describe()}")


def _handler_of_calls(vm: Interpreter, cls: type) -> Handler | None:
    """What is done instead of a call of a `cls`, if anything is."""
    method = getattr(cls, "__call__", None)  # noqa: B004
    return vm.handlers.get(method) if isinstance(method, Hashable) else None


def _call_cached(vm: Interpreter, real: Any, args: Args, kwargs: Kwargs) -> Value:
    """A call through `functools.cache`: interpreted once for equal arguments (`cached_calls`)."""
    parts = [*args, *kwargs.values()]
    typed = real.cache_parameters()["typed"]
    kinds = tuple(part.python_type() for part in parts) if typed else ()
    key = (id(real), len(args), *kwargs, *map(_cache_key, parts), *kinds)
    known = vm.session.objects.cached_calls.get(key)
    if known is None:
        name, before = getattr(real, "__qualname__", repr(real)), cached_calls.changes(vm.session)
        result = call(vm, vm.held(real.__wrapped__), args, kwargs)
        if cached_calls.changes(vm.session) != before:
            raise GraphBreakSignal(f"a call of `{name}`, which is cached and changes something")
        known = cached_calls.keep(name, result, vm.frames[0].steps)
        if known is None:
            raise GraphBreakSignal(f"an object that `{name}` made and keeps in its cache")
        if known.parts and all(map(_is_plain, parts)):
            given = [vm.as_python(part) for part in parts]
            if UNKNOWN not in given:  # then it is Python's own object, which others may change
                named = dict(zip(kwargs, given[len(args) :], strict=True))
                known = cached_calls.Kept(name, vm.held(real(*given[: len(args)], **named)), (), 0)
        vm.session.objects.cached_calls[key] = known
    return known.result


def _cache_key(part: Value) -> Any:
    """As `hash_key`; numbers that depend on sizes stay symbolic, one key for one expression."""
    if isinstance(part, SymbolicNumber) and part.value.node.constant is None:
        return SymbolicNumber, part.python_type(), part.value.node.expr
    if isinstance(part, TupleValue) and part.cls in (tuple, torch.Size):
        return tuple(_cache_key(_forced(item)) for item in part.items)
    return hash_key(part)


def _is_plain(part: Value) -> bool:
    """Is it something that the cache itself can be asked with: without symbols?"""
    if isinstance(part, TupleValue):
        return all(_is_plain(_forced(item)) for item in part.items)
    return isinstance(part, Constant)


def _forced(item: Any) -> Value:
    return item.looked_at() if isinstance(item, Lazy) else item


def _inner_function(vm: Interpreter, fn: ObjectValue) -> Value | None:
    """The function inside one of our own wrappers (`optimize`, `disable`), already in capture, or
    the one that a TorchScript function was made from."""
    if fn.cls is torch.jit.ScriptFunction:
        if fn.source is None or not hasattr(fn.real, _SCRIPTED):
            raise GraphBreakSignal(
                "a call of a TorchScript function whose Python source is not there",
                "call the Python function in its stead",
            )
        source = vm.session.sources.attr(fn.source, _SCRIPTED)
        return vm.wrap(getattr(fn.real, _SCRIPTED), source)
    if issubclass(fn.cls, torch.jit.ScriptModule):
        raise GraphBreakSignal(
            f"a call of a TorchScript module, a {fn.cls.__name__}",
            "compile the module that it was made from",
        )
    if fn.cls.__module__ != "dovetail_capture._frame_hook" or fn.source is None:
        return None
    if fn.real.context is None:
        reason = reason_of(fn.real)
        raise GraphBreakSignal(
            f"a call of a function that is disabled for capture{reason and ': '}{reason}"
        )
    source = vm.session.sources.attr(fn.source, "function")
    return vm.wrap(fn.real.function, source)
