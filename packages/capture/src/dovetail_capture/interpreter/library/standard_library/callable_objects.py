"""Objects of C that are called: `functools.partial`, made and called, and the getters of `operator`
that the program made before."""

from __future__ import annotations

import functools
import operator
from typing import Any

from dovetail_capture.interpreter.machine.handler_types import Args, Handler, Kwargs
from dovetail_capture.interpreter.machine.machine import Interpreter
from dovetail_capture.interpreter.protocols import dicts
from dovetail_capture.interpreter.protocols.class_attributes import class_lookup
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import DictValue, TupleValue
from dovetail_capture.interpreter.values.objects import ObjectValue


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


HANDLERS: dict[Any, Handler] = {
    functools.partial: partial_new, functools.partial.__call__: partial_call,
    functools.partial.__new__: partial_by_name,
    operator.itemgetter.__call__: getter_call, operator.attrgetter.__call__: getter_call,
    operator.methodcaller.__call__: getter_call,
}  # fmt: skip
