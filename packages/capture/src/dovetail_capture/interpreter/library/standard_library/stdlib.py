"""The standard library's C parts, and pure Python parts that are cheaper to run than interpret."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
import inspect
import logging
import math
import operator
import os
import pickle
import re
import threading
import types
import typing
import warnings
from typing import Any

from dovetail_guards import clauses as c

from dovetail_capture.interpreter.changes import messages
from dovetail_capture.interpreter.machine.machine import (
    PASS,
    Args,
    Handler,
    Interpreter,
    Kwargs,
    answering,
    doing,
    telling,
)
from dovetail_capture.interpreter.protocols import (
    class_attributes,
    comparison,
    inlining,
    operators,
    subscripts,
)
from dovetail_capture.interpreter.protocols.attributes import resolve
from dovetail_capture.interpreter.protocols.choices import BINARY, COMPARE, INPLACE, UNARY
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, boolean
from dovetail_capture.interpreter.values.functions import BoundMethod, FunctionValue
from dovetail_capture.interpreter.values.objects import ObjectValue

# --- operator ------------------------------------------------------------------------------------


def _binary(symbol: str, inplace: bool = False) -> Handler:
    return answering(lambda vm, left, right: operators.binary(vm, symbol, left, right, inplace))


def _compare(symbol: str) -> Handler:
    return answering(lambda vm, left, right: comparison.compare(vm, symbol, left, right))


def _unary(symbol: str) -> Handler:
    return answering(lambda vm, operand: operators.unary(vm, symbol, operand))


def op_call(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return vm.call(args[0], args[1:], kwargs)


_OPERATORS: dict[Any, Handler] = {
    **{function: _binary(symbol) for symbol, (function, _) in BINARY.items()},
    **{function: _binary(symbol, True) for symbol, function in INPLACE.items()},
    **{function: _compare(symbol) for symbol, (function, *_) in COMPARE.items()},
    **{function: _unary(symbol) for symbol, (function, _) in UNARY.items()},
    operator.iconcat: _binary("+", True),
    operator.getitem: answering(subscripts.getitem),
    operator.setitem: doing(subscripts.setitem),
    operator.delitem: doing(subscripts.delitem),
    operator.contains: telling(subscripts.contains),
    operator.not_: telling(lambda vm, value: not vm.truth(value)),
    operator.truth: telling(lambda vm, value: vm.truth(value)),
    operator.is_: telling(comparison.is_object),
    operator.is_not: telling(lambda vm, left, right: not comparison.is_object(vm, left, right)),
    operator.index: answering(lambda vm, value: Constant(subscripts.index_of(vm, value, ""))),
    operator.call: op_call,
}


# --- functools -----------------------------------------------------------------------------------


def reduce_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    iterator = vm.get_iter(args[1])
    total = args[2] if len(args) > 2 else vm.next_value(iterator)
    if total is None:
        vm.raise_error(TypeError, "reduce() of empty iterable with no initial value")
    assert total is not None
    for item in vm.iterate(iterator):
        total = vm.call(args[0], [total, item], {})
    return total


# --- messages: written after the graph has run ---------------------------------------------------


def _deferred(fn: Any) -> Handler:
    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        messages.defer(vm, fn, args, kwargs)
        return NONE

    return handler


# --- dataclasses, copy ---------------------------------------------------------------------------


def dataclass_fields(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = args[0]
    if isinstance(value, Constant):
        if isinstance(value.value, type):
            _note_fields(vm, value.value)
        return vm.fold(dataclasses.fields, args, kwargs)
    _note_fields(vm, value.python_type())
    return vm.held(dataclasses.fields(value.python_type()))


def _note_fields(vm: Interpreter, cls: type) -> None:
    """Guard which fields a dataclass has."""
    _, fields = class_attributes.class_lookup(vm, cls, "__dataclass_fields__")
    if type(fields) is not dict or not class_attributes.is_changeable(vm, cls):
        return
    sources, guard = vm.session.sources, vm.session.guards.add
    table = sources.held(fields, f"{cls.__qualname__}.__dataclass_fields__")
    guard(c.DictKeysAre, table, tuple(fields))
    for name, field in fields.items():
        vm.session.guards.pin(sources.item(table, name), field)


def is_dataclass(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = args[0]
    target = value.value if isinstance(value, Constant) else value.python_type()
    cls = target if isinstance(target, type) else type(target)
    return boolean(
        class_attributes.class_lookup(vm, cls, "__dataclass_fields__")[1]
        is not class_attributes.MISSING
    )


# --- locks: taken around the effects instead of around the interpretation ------------------------


def lock_enter(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`lock.__enter__()`: the changes made under the lock are replayed under it."""
    lock = args[0]
    if lock.source is None or len(args) > 1 or kwargs:
        raise GraphBreakSignal("a lock made in the frame, or taken with a timeout")
    session = vm.session
    if any(held is lock for held, _ in session.modes.open_locks):
        raise GraphBreakSignal("a lock taken twice")
    if not any(known is lock for known in session.modes.locks):
        if len(session.modes.locks) > len(session.modes.open_locks):
            raise GraphBreakSignal("a lock taken after another was released")  # not within it
        session.modes.locks.append(lock)
    session.modes.open_locks.append((lock, vm.frames[0].steps))
    return boolean(True)


def lock_exit(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`lock.__exit__(...)`."""
    lock = args[0]
    held = vm.session.modes.open_locks
    if not held or held[-1][0] is not lock:
        raise GraphBreakSignal("a lock released that was not taken last")
    held.pop()
    return NONE


_PICKLED = (type(None), bool, int, float, str)


def pickle_dumps(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`pickle.dumps` of a dictionary of plain values, as caches of methods make keys of keyword
    arguments. Two equal strings in it may be one object, which the bytes tell: not those."""
    real = vm.as_python(args[0]) if len(args) == 1 and not kwargs else UNKNOWN
    if type(real) is not dict:
        return PASS
    parts = [*real, *real.values()]
    texts = [part for part in parts if type(part) is str]
    if any(type(part) not in _PICKLED for part in parts) or len(set(texts)) < len(texts):
        return PASS
    return Constant(pickle.dumps(real))


def inspect_signature(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = args[0]
    real = _real_callable(vm, target) or _function_like(vm, target)
    if real is None:
        raise GraphBreakSignal(f"inspect.signature of {target.describe()}")
    function = target.function if isinstance(target, BoundMethod) else target
    _note_signature(vm, function)
    try:
        found = inspect.signature(real)
    except (TypeError, ValueError) as error:
        return vm.raise_real(error)
    return vm.held(found)


def _real_callable(vm: Interpreter, target: Value) -> Any:
    if isinstance(target, Constant):
        return target.value
    if isinstance(target, ObjectValue) and target.real is not None:
        return target.real
    if isinstance(target, BoundMethod):
        function = _real_callable(vm, target.function)
        if function is not None:
            return function.__get__(object(), object)
    return None


def _note_signature(vm: Interpreter, function: Value) -> None:
    """Guard what `inspect` looks at: the function, or those that a class is called by, whether it
    says of itself what its signature is, or which function has it."""
    real = vm.as_python(function)
    if isinstance(real, type):
        for cls, name in ((type(real), "__call__"), (real, "__new__"), (real, "__init__")):
            found = class_attributes.class_lookup(vm, cls, name)[1]
            if isinstance(found, types.FunctionType):
                _note_signature(vm, vm.held(found))
        class_attributes.class_lookup(vm, real, "__signature__")
        return
    wrapped: Value | None = function if isinstance(real, types.FunctionType) else None
    while wrapped is not None:
        real = vm.as_python(wrapped)
        if isinstance(real, types.FunctionType):
            inlining.read_function(vm, real)
        if vm.find_attr(wrapped, "__signature__") is not None:
            return
        wrapped = vm.find_attr(wrapped, "__wrapped__")


def _function_like(vm: Interpreter, target: Value) -> Any:
    """A function with the parameters of a closure; None if not all is known of it."""
    if not isinstance(target, FunctionValue) or target.attributes is not None:
        return None
    defaults = [vm.as_python(resolve(vm, value)) for value in target.defaults]
    named = {} if target.kwdefaults is None else vm.as_python(target.kwdefaults)
    annotations = _annotations(vm, target)
    if UNKNOWN in (named, annotations) or UNKNOWN in (*defaults, *named.values()):
        return None
    cells = tuple(types.CellType() for _ in target.code.co_freevars)
    like = types.FunctionType(target.code, {}, target.name, tuple(defaults) or None, cells)
    like.__kwdefaults__, like.__annotations__ = named or None, annotations
    return like


def _annotations(vm: Interpreter, function: FunctionValue) -> Any:
    """The annotations of a closure; of one that is given, only if there are none."""
    session = vm.session
    if function.source is None or function.given is None:
        return vm.as_python(vm.get_attr(function, "__annotations__"))
    if function.given.__annotations__:
        return UNKNOWN
    session.guards.add(c.LengthIs, session.sources.attr(function.source, "__annotations__"), 0)
    return {}


# --- warnings ------------------------------------------------------------------------------------


def warn(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`warnings.warn`: said after the graph, when filters that hold at this line may not."""
    calls = vm.session.effects.calls
    if any(function is messages.FILTERS_CHANGED for function, _, _ in calls):
        raise GraphBreakSignal("a warning behind a change of the filters for warnings")
    messages.defer_warning(vm, list(args), kwargs)
    return NONE


def cast_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return args[1]


_LOCKS = (type(threading.Lock()), type(threading.RLock()))
HANDLERS: dict[Any, Handler] = {
    **_OPERATORS,
    functools.reduce: reduce_,
    warnings.warn: warn, messages.FILTERS_CHANGED: _deferred(messages.FILTERS_CHANGED),
    dataclasses.fields: dataclass_fields, dataclasses.is_dataclass: is_dataclass,
    inspect.signature: inspect_signature, pickle.dumps: pickle_dumps,
    **{getattr(cls, name): lock_enter for cls in _LOCKS for name in ("__enter__", "acquire")},
    **{getattr(cls, name): lock_exit for cls in _LOCKS for name in ("__exit__", "release")},
    typing.cast: cast_,
}  # fmt: skip
for _name in ("debug", "info", "warning", "error", "critical", "log", "exception"):
    HANDLERS[getattr(logging.Logger, _name)] = _deferred(getattr(logging.Logger, _name))

# The kinds of names in `typing` that take parameters: `List[int]`, `Optional[int]`.
_NAMES = ("Sized", "Tuple", "Callable", "Optional", "Literal")
_SUBSCRIPTED = {
    cls
    for alias in (*(vars(typing)[name] for name in _NAMES), typing.Iterable[int])
    for cls in type(alias).__mro__
    if "__getitem__" in cls.__dict__
}

# C functions without effects, run at capture when their arguments are known.
PURE_MODULES = frozenset({"math", "cmath", "_operator", "_bisect", "_struct", "unicodedata", "re"})
PURE_FUNCTIONS: frozenset[Any] = frozenset(
    {
        str.maketrans, bytes.maketrans, vars(float)["fromhex"], vars(int)["from_bytes"],
        vars(bytes)["fromhex"],
        round, ord, chr, bin, hex, oct, ascii, typing.get_origin, typing.get_args,
        inspect.isfunction, inspect.ismethod, inspect.isclass, inspect.getmodule, re.match,
        re.search, re.sub, re.compile, re.fullmatch, re.split, re.findall, math.prod,
        type.mro, type.__or__, type.__ror__, object.__format__, object.__hash__,
        object.__reduce_ex__, inspect.getfullargspec,
        inspect.isgeneratorfunction, inspect.iscoroutinefunction, os.fspath,
        *(vars(cls)["__getitem__"] for cls in _SUBSCRIPTED),
        # What is installed does not change while a program runs.
        importlib.util.find_spec, importlib.metadata.version,
        importlib.metadata.packages_distributions,
    }
)  # fmt: skip
PURE_TYPES: tuple[type, ...] = (
    str, int, float, bool, complex, bytes, range, re.Pattern, re.Match, inspect.Signature,
    tuple, frozenset, types.GenericAlias, types.UnionType, slice,
)  # fmt: skip
PURE_CLASSES: frozenset[type] = frozenset({range, complex, bytes, inspect.Parameter})
