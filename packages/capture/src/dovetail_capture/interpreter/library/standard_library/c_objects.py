"""Objects of C: `functools.partial` and the getters of `operator`, `contextvars.ContextVar`, weak
references and proxies.

What a context variable holds is guarded; setting it is replayed after the graph.
"""

from __future__ import annotations

import contextvars
import functools
import operator
import weakref
from collections.abc import Callable
from typing import Any

from dovetail_guards import clauses as c
from dovetail_guards import iterators

from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import dicts
from dovetail_capture.interpreter.protocols.class_attributes import MISSING, class_lookup
from dovetail_capture.interpreter.protocols.weak_targets import (
    PROXIES,
    is_proxy,
    target_of,
    target_of_proxy,
)
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value
from dovetail_capture.interpreter.values.containers import DictValue, TupleValue
from dovetail_capture.interpreter.values.objects import ContextWrite, ObjectValue, TokenValue
from dovetail_capture.interpreter.values.tensors import TensorValue


class _OwnCall(functools.partial):  # type: ignore[type-arg]
    __slots__ = ()

    def __call__(self, *args: Any) -> Any: ...


# Up to Python 3.12 only partials that are called as the class itself is.
_TAKES_ALL_APART = functools.partial(_OwnCall(len)).func is len
_PARTIAL_PARTS = ("func", "args", "keywords")


def partial_new(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return partial_of_class(vm, functools.partial, args, kwargs)


def partial_by_name(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`functools.partial.__new__(cls, function, ...)`."""
    cls = vm.as_python(args[0])
    if not isinstance(cls, type) or not issubclass(cls, functools.partial):
        raise GraphBreakSignal("`partial.__new__` of what is no partial's class")
    return partial_of_class(vm, cls, list(args[1:]), kwargs)


def partial_of_class(vm: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> Value:
    """A new partial of `cls`. One that Python would refuse is left to it."""
    if not args or not issubclass(cls, functools.partial):
        raise GraphBreakSignal(f"a {cls.__name__} of no function")
    if not vm.truth(vm.call(Constant(callable), [args[0]], {})):
        vm.raise_error(TypeError, "the first argument must be callable")
    if any(class_lookup(vm, cls, name)[0] is not functools.partial for name in _PARTIAL_PARTS):
        raise GraphBreakSignal(f"creation of a {cls.__name__}, which hides what partials have")
    value = ObjectValue(cls)
    value.base_new = functools.partial
    keywords = DictValue()
    function, first = args[0], list(args[1:])
    if _is_taken_apart(vm, function.python_type()) and not _has_attributes(function):
        parts = _partial_parts(vm, function)
        function, first = parts[0], [*vm.iterate(parts[1]), *first]
        dicts.update(vm, keywords, parts[2])
    for name, item in kwargs.items():
        dicts.put(vm, keywords, Constant(name), item)
    value.slots.update(func=function, args=TupleValue(first), keywords=keywords)
    return value


def _is_taken_apart(vm: Interpreter, cls: type) -> bool:
    """Does a partial of a `cls` hold what that one holds, not the `cls` itself?"""
    if not issubclass(cls, functools.partial):
        return False
    return _TAKES_ALL_APART or class_lookup(vm, cls, "__call__")[0] is functools.partial


def _partial_parts(vm: Interpreter, partial: Value) -> list[Value]:
    """The function, arguments and keywords of a partial, as C reads them: not by their names,
    which a subclass may use for attributes of its own."""
    if isinstance(partial, Constant):
        real = partial.value
        return [vm.held(functools.partial.__dict__[n].__get__(real)) for n in _PARTIAL_PARTS]
    cls = partial.python_type()
    for name in (*_PARTIAL_PARTS, "__getattribute__"):
        if class_lookup(vm, cls, name)[0] not in (functools.partial, object):
            raise GraphBreakSignal(f"a {cls.__name__}, whose `{name}` is not that of partial")
    return [vm.get_attr(partial, name) for name in _PARTIAL_PARTS]


def _has_attributes(value: Value) -> bool:
    """Was an attribute set on this partial? Then it is kept whole inside of another."""
    real = value.value if isinstance(value, Constant) else getattr(value, "real", None)
    return bool(getattr(real, "__dict__", None)) or bool(
        isinstance(value, ObjectValue) and value.fields.entries
    )


def partial_call(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    function, first, keywords = _partial_parts(vm, args[0])
    native = vm.native(keywords)
    assert isinstance(native, DictValue)
    merged = {vm.as_python(key): value for key, value in dicts.items(vm, native)}
    merged.update(kwargs)
    return vm.call(function, [*vm.iterate(first), *args[1:]], merged)


def getter_call(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """What a new one, made of the same parts in the frame, gives. (They cannot change.)"""
    make, parts = vm.as_python(args[0]).__reduce__()
    made = vm.call(vm.held(make), [vm.held(part) for part in parts], {})
    return vm.call(made, list(args[1:]), kwargs)


def _real(value: Value) -> Any:
    real = getattr(value, "real", None) or getattr(value, "value", None)
    if not isinstance(real, contextvars.ContextVar):
        raise GraphBreakSignal(f"{value.describe()} used as a ContextVar")
    return real


def context_get(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`variable.get()`, `variable.get(default)`."""
    real, session = _real(args[0]), vm.session
    if session.late_reads.watch is not None:
        raise GraphBreakSignal("a ContextVar that a backward or a hook reads")
    written = session.effects.context_writes.get(real)
    if written is not None:
        return written.value
    source = session.sources.held(real, f"context variable {real.name}")
    place = session.sources.iterator_part(source, "context")
    found = iterators.context(real)
    session.guards.add(c.LengthIs, place, len(found))
    if found:
        return vm.wrap(found[0], session.sources.item(place, 0))
    if len(args) > 1:
        return args[1]
    try:
        return vm.held(real.get())
    except LookupError:
        return vm.raise_exception(LookupError, [args[0]])


def context_set(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`variable.set(value)`; the token that it gives stays in the graph."""
    real, session = _real(args[0]), vm.session
    token = TokenValue(real, session.effects.context_writes.get(real), vm.frames[0].steps)
    session.effects.context_writes[real] = ContextWrite(args[0], args[1])
    return token


def context_reset(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`variable.reset(token)`."""
    real, session, token = _real(args[0]), vm.session, args[1]
    if not isinstance(token, TokenValue) or token.used or token.variable is not real:
        raise GraphBreakSignal("a ContextVar reset by a token that another graph gave")
    token.used = True
    if token.before is None:
        session.effects.context_writes.pop(real, None)
    else:
        session.effects.context_writes[real] = token.before
    return NONE


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
    functools.partial: partial_new, functools.partial.__call__: partial_call,
    functools.partial.__new__: partial_by_name,
    operator.itemgetter.__call__: getter_call, operator.attrgetter.__call__: getter_call,
    operator.methodcaller.__call__: getter_call,
    contextvars.ContextVar.get: context_get,
    contextvars.ContextVar.set: context_set,
    contextvars.ContextVar.reset: context_reset,
    weakref.ReferenceType.__call__: weakref_call,
    weakref.ReferenceType: weakref_new,
    weakref.proxy: proxy_new,
    weakref.CallableProxyType.__call__: _call,
    **{
        getattr(cls, name): _forwarded(function)
        for cls in PROXIES
        for name, function in _SPECIAL.items()
    },
}  # fmt: skip
