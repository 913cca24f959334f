"""`weakref.ref` and `weakref.proxy`: made in the frame, or there before, and used."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from typing import Any

from dovetail_capture.interpreter.machine.handler_types import PASS, Args, Handler, Kwargs
from dovetail_capture.interpreter.machine.machine import Interpreter
from dovetail_capture.interpreter.protocols.class_attributes import MISSING, class_lookup
from dovetail_capture.interpreter.protocols.weak_targets import (
    PROXIES,
    is_proxy,
    target_of,
    target_of_proxy,
)
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import TensorValue


def _new(vm: Interpreter, cls: type, what: str, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1 or kwargs:
        raise GraphBreakSignal(f"a weak {what} with a callback")
    of = args[0].python_type()
    if not of.__weakrefoffset__ and not isinstance(args[0], TensorValue):
        vm.raise_error(TypeError, f"cannot create weak reference to '{of.__name__}' object")
    made = vm.session.objects.weak_references
    known = made.get((id(args[0]), cls))
    if known is not None:
        return known
    reference = ObjectValue(cls)
    reference.base_new = cls
    reference.slots["target"] = args[0]
    made[id(args[0]), cls] = reference
    return reference


def weakref_new(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`weakref.ref(target)`, without a callback."""
    return _new(vm, weakref.ReferenceType, "reference", args, kwargs)


def proxy_new(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`weakref.proxy(target)`, without a callback, of an object of the program's."""
    if not args or not isinstance(args[0], ObjectValue):
        raise GraphBreakSignal("a weak proxy of no object of the program's")
    is_callable = class_lookup(vm, args[0].cls, "__call__")[1] is not MISSING
    return _new(vm, PROXIES[is_callable], "proxy", args, kwargs)


def weakref_call(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`reference()`."""
    reference = args[0]
    assert isinstance(reference, ObjectValue)
    if reference.real is None:
        return target_of(vm, reference)
    target = reference.real()
    if target is None or reference.source is None:
        raise GraphBreakSignal("a weak reference whose target is gone")
    # The guard pins the reference and keeps its target alive: it will always give this one.
    vm.session.guards.pin(reference.source, reference.real)
    return vm.held(target)


def _forwarded(function: Callable[..., Any]) -> Handler:
    """A special method of a proxy: `function` of its target."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        proxy = args[0] if args else None
        if not isinstance(proxy, ObjectValue) or not is_proxy(proxy.cls):
            return PASS
        return vm.call(vm.held(function), [target_of_proxy(vm, proxy), *args[1:]], kwargs)

    return handler


def _call(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    proxy = args[0]
    if not isinstance(proxy, ObjectValue) or not is_proxy(proxy.cls):
        return PASS
    return vm.call(target_of_proxy(vm, proxy), args[1:], kwargs)


_SPECIAL: dict[str, Callable[..., Any]] = {
    "__len__": len,
    "__bool__": bool,
    "__iter__": iter,
    "__getitem__": operator.getitem,
    "__setitem__": operator.setitem,
    "__contains__": operator.contains,
}
HANDLERS: dict[Any, Handler] = {
    weakref.ReferenceType.__call__: weakref_call,
    weakref.ReferenceType: weakref_new,
    weakref.proxy: proxy_new,
    weakref.CallableProxyType.__call__: _call,
    **{
        getattr(cls, name): _forwarded(function)
        for cls in PROXIES
        for name, function in _SPECIAL.items()
    },
}
