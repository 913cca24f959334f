"""The standard library's C parts, and pure Python parts that are cheaper to run than interpret."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import importlib.metadata
import importlib.util
import inspect
import itertools
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
import weakref
from typing import TYPE_CHECKING, Any

from dovetail_guards import clauses as c

from dovetail_capture.interpreter.library.handlers import Args, Handler, Kwargs
from dovetail_capture.interpreter.protocols import (
    comparison,
    containment,
    dicts,
    identity,
    operators,
    subscripts,
)
from dovetail_capture.interpreter.protocols.attributes import resolve
from dovetail_capture.interpreter.protocols.class_attributes import class_lookup
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, boolean
from dovetail_capture.interpreter.values.containers import DictValue, TupleValue
from dovetail_capture.interpreter.values.functions import FunctionValue, IteratorValue
from dovetail_capture.interpreter.values.objects import ObjectValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


# --- operator ------------------------------------------------------------------------------------


def _binary(symbol: str, inplace: bool = False) -> Handler:
    return lambda vm, args, kwargs: operators.binary(vm, symbol, args[0], args[1], inplace)


def _compare(symbol: str) -> Handler:
    return lambda vm, args, kwargs: comparison.compare(vm, symbol, args[0], args[1])


def _unary(symbol: str) -> Handler:
    return lambda vm, args, kwargs: operators.unary(vm, symbol, args[0])


def op_getitem(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return subscripts.getitem(vm, args[0], args[1])


def op_setitem(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    subscripts.setitem(vm, args[0], args[1], args[2])
    return NONE


def op_delitem(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    subscripts.delitem(vm, args[0], args[1])
    return NONE


def op_contains(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return boolean(containment.contains(vm, args[0], args[1]))


def op_not(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return boolean(not vm.truth(args[0]))


def op_truth(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return boolean(vm.truth(args[0]))


def op_is(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return boolean(identity.is_object(vm, args[0], args[1]))


def op_is_not(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return boolean(not identity.is_object(vm, args[0], args[1]))


def op_index(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return Constant(subscripts.index_of(vm, args[0], ""))


# --- functools -----------------------------------------------------------------------------------


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
        vm.dict_update(keywords, parts[2])
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


def reduce_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    iterator = vm.get_iter(args[1])
    total = args[2] if len(args) > 2 else vm.next_value(iterator)
    if total is None:
        vm.raise_error(TypeError, "reduce() of empty iterable with no initial value")
    assert total is not None
    for item in vm.iterate(iterator):
        total = vm.call(args[0], [total, item], {})
    return total


# --- itertools -----------------------------------------------------------------------------------


def chain_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return IteratorValue((item for part in args for item in vm.iterate(part)), itertools.chain)


def chain_from_iterable(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    parts = vm.get_iter(args[-1])
    items = (item for part in vm.iterate(parts) for item in vm.iterate(part))
    return IteratorValue(items, itertools.chain)


def islice_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    bounds = [vm.as_python(arg) for arg in args[1:]]
    try:
        items = itertools.islice(vm.iterate(vm.get_iter(args[0])), *bounds)
    except (TypeError, ValueError) as error:
        return vm.raise_real(error)
    return IteratorValue(items, itertools.islice)


def repeat_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1 and not kwargs:
        return IteratorValue(itertools.repeat(args[0]), itertools.repeat, over=[args[0]])
    times = vm.as_python(args[1] if len(args) > 1 else kwargs["times"])
    return IteratorValue(itertools.repeat(args[0], times), itertools.repeat, True)


def count_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    bounds = [vm.as_python(arg) for arg in args]
    named = {name: vm.as_python(arg) for name, arg in kwargs.items()}
    if any(bound is UNKNOWN for bound in (*bounds, *named.values())):
        raise GraphBreakSignal("itertools.count() of unusual numbers")
    try:
        numbers = itertools.count(*bounds, **named)
    except TypeError as error:
        return vm.raise_real(error)
    items = (Constant(number) for number in numbers)
    return IteratorValue(items, itertools.count)


def cycle_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    items = itertools.cycle(vm.iterate(vm.get_iter(args[0])))
    return IteratorValue(items, itertools.cycle)


def _combinatoric(fn: Any) -> Handler:
    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        items = list(vm.iterate(args[0]))
        rest = [vm.as_python(arg) for arg in args[1:]]
        try:
            found = fn(items, *rest)
        except (TypeError, ValueError) as error:
            return vm.raise_real(error)
        rows = (TupleValue(row) for row in found)
        return IteratorValue(rows, fn, True)

    return handler


def product_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    repeat = vm.as_python(kwargs.get("repeat", Constant(1)))
    pools = [list(vm.iterate(arg)) for arg in args]
    rows = (TupleValue(row) for row in itertools.product(*pools, repeat=repeat))
    return IteratorValue(rows, itertools.product, True)


def pairwise_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    items = vm.iterate(vm.get_iter(args[0]))
    rows = (TupleValue(row) for row in itertools.pairwise(items))
    return IteratorValue(rows, itertools.pairwise)


def zip_longest_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    fill = kwargs.get("fillvalue", NONE)
    parts = [vm.iterate(vm.get_iter(arg)) for arg in args]
    rows = (TupleValue(row) for row in itertools.zip_longest(*parts, fillvalue=fill))
    return IteratorValue(rows, itertools.zip_longest)


def starmap_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    rows = vm.get_iter(args[1])
    items = (vm.call(args[0], list(vm.iterate(row)), {}) for row in vm.iterate(rows))
    return IteratorValue(items, itertools.starmap, over=[args[0], rows])


# --- messages: written after the graph has run ---------------------------------------------------


def deferred(fn: Any) -> Handler:
    """A call whose only effect is a message: made after the graph, in order."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        vm.session.calls_for_effect.append((fn, list(args), dict(kwargs)))
        return NONE

    return handler


# --- dataclasses, copy, contextvars --------------------------------------------------------------


def dataclass_fields(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = args[0]
    if isinstance(value, Constant):
        return vm.fold(dataclasses.fields, args, kwargs)
    return vm.held(dataclasses.fields(value.python_type()))


def is_dataclass(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = args[0]
    target = value.value if isinstance(value, Constant) else value.python_type()
    return boolean(dataclasses.is_dataclass(target))


def context_get(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    raise GraphBreakSignal("a ContextVar, whose value no guard can watch")


def weakref_new(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`weakref.ref(target)`, without a callback."""
    if len(args) != 1 or kwargs:
        raise GraphBreakSignal("a weak reference with a callback")
    reference = ObjectValue(weakref.ReferenceType)
    reference.base_new = weakref.ReferenceType
    reference.slots["target"] = args[0]
    return reference


def weakref_call(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    reference = args[0]
    assert isinstance(reference, ObjectValue)
    if reference.real is None:
        wanted = reference.slots["target"]
        if any(wanted is slot for frame in vm.frames for slot in frame.slots):
            return wanted  # a variable keeps it alive
        raise GraphBreakSignal("a call of a weak reference made here: its target may be gone")
    target = reference.real()
    if target is None or reference.source is None:
        raise GraphBreakSignal("a weak reference whose target is gone")
    # The guard pins the reference and keeps its target alive: it will always give this one.
    vm.session.pin(reference.source, reference.real)
    return vm.held(target)


# --- locks: taken around the effects instead of around the interpretation ------------------------


def lock_enter(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`lock.__enter__()`: the changes made under the lock are replayed under it."""
    lock = args[0]
    if lock.source is None or len(args) > 1 or kwargs:
        raise GraphBreakSignal("a lock made in the frame, or taken with a timeout")
    if any(held is lock for held in vm.session.open_locks):
        raise GraphBreakSignal("a lock taken twice")
    vm.session.open_locks.append(lock)
    if not any(known is lock for known in vm.session.locks):
        vm.session.locks.append(lock)
    return boolean(True)


def lock_exit(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`lock.__exit__(...)`."""
    lock = args[0]
    held = vm.session.open_locks
    if not held or held[-1] is not lock:
        raise GraphBreakSignal("a lock released that was not taken last")
    held.pop()
    return NONE


_PICKLED = (type(None), bool, int, float, str)


def pickle_dumps(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`pickle.dumps` of a dictionary of plain values, as caches of methods make keys of keyword
    arguments. Two equal strings in it may be one object, which the bytes tell: not those."""
    real = vm.as_python(args[0]) if len(args) == 1 and not kwargs else UNKNOWN
    if type(real) is not dict:
        return NotImplemented  # type: ignore[no-any-return]
    parts = [*real, *real.values()]
    texts = [part for part in parts if type(part) is str]
    if any(type(part) not in _PICKLED for part in parts) or len(set(texts)) < len(texts):
        return NotImplemented  # type: ignore[no-any-return]
    return Constant(pickle.dumps(real))


def inspect_signature(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = args[0]
    real = _real_callable(vm, target) or _function_like(vm, target)
    if real is None:
        raise GraphBreakSignal(f"inspect.signature of {target.describe()}")
    return vm.held(inspect.signature(real))


def _real_callable(vm: Interpreter, target: Value) -> Any:
    from dovetail_capture.interpreter.values.functions import BoundMethod

    if isinstance(target, Constant):
        return target.value
    if isinstance(target, ObjectValue) and target.real is not None:
        return target.real
    if isinstance(target, BoundMethod):
        function = _real_callable(vm, target.function)
        if function is not None:
            return function.__get__(object(), object)
    return None


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
    if function.source is None:
        return vm.as_python(vm.get_attr(function, "__annotations__"))
    real = next(obj for obj in session.keep_alive if session.known.get(id(obj)) is function)
    if real.__annotations__:
        return UNKNOWN
    session.guard(c.LengthIs, session.sources.attr(function.source, "__annotations__"), 0)
    return {}


# --- warnings ------------------------------------------------------------------------------------


def warn(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`warnings.warn`: said after the graph, when filters that hold at this line may not."""
    calls = vm.session.calls_for_effect
    if any(function is _FILTERS_CHANGED for function, _, _ in calls):
        raise GraphBreakSignal("a warning behind a change of the filters for warnings")
    return deferred(warnings.warn)(vm, args, kwargs)


def cast_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return args[1]


_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_SYMBOLS = {
    "add": "+", "and_": "&", "floordiv": "//", "lshift": "<<", "matmul": "@", "mul": "*",
    "mod": "%", "or_": "|", "pow": "**", "rshift": ">>", "sub": "-", "truediv": "/", "xor": "^",
}  # fmt: skip
_INPLACE = {name: f"i{name.rstrip('_')}" for name in _SYMBOLS}
_COMPARISONS = {"lt": "<", "le": "<=", "eq": "==", "ne": "!=", "gt": ">", "ge": ">="}

_FILTERS_CHANGED: Any = getattr(warnings, "_filters_mutated", None)  # forgets what was decided

HANDLERS: dict[Any, Handler] = {
    **{getattr(operator, name): _binary(symbol) for name, symbol in _SYMBOLS.items()},
    **{getattr(operator, _INPLACE[n]): _binary(symbol, True) for n, symbol in _SYMBOLS.items()},
    operator.iconcat: _binary("+", True),
    operator.delitem: op_delitem,
    **{getattr(operator, name): _compare(symbol) for name, symbol in _COMPARISONS.items()},
    operator.neg: _unary("-"), operator.pos: _unary("+"), operator.invert: _unary("~"),
    operator.getitem: op_getitem, operator.setitem: op_setitem, operator.contains: op_contains,
    operator.not_: op_not, operator.truth: op_truth, operator.is_: op_is,
    operator.is_not: op_is_not, operator.index: op_index,
    functools.partial: partial_new, functools.partial.__call__: partial_call,
    functools.partial.__new__: partial_by_name,
    functools.reduce: reduce_, itertools.chain: chain_,
    itertools.chain.__dict__["from_iterable"]: chain_from_iterable,
    itertools.islice: islice_, itertools.repeat: repeat_, itertools.count: count_,
    itertools.cycle: cycle_, itertools.combinations: _combinatoric(itertools.combinations),
    itertools.permutations: _combinatoric(itertools.permutations),
    itertools.combinations_with_replacement: _combinatoric(
        itertools.combinations_with_replacement
    ),
    itertools.product: product_, itertools.pairwise: pairwise_,
    itertools.zip_longest: zip_longest_, itertools.starmap: starmap_,
    warnings.warn: warn, _FILTERS_CHANGED: deferred(_FILTERS_CHANGED),
    dataclasses.fields: dataclass_fields, dataclasses.is_dataclass: is_dataclass,
    inspect.signature: inspect_signature, pickle.dumps: pickle_dumps,
    contextvars.ContextVar.get: context_get, weakref.ReferenceType.__call__: weakref_call,
    weakref.ReferenceType: weakref_new,
    **{getattr(cls, name): lock_enter for cls in _LOCKS for name in ("__enter__", "acquire")},
    **{getattr(cls, name): lock_exit for cls in _LOCKS for name in ("__exit__", "release")},
    typing.cast: cast_,
}  # fmt: skip
for _name in ("debug", "info", "warning", "error", "critical", "log", "exception"):
    HANDLERS[getattr(logging.Logger, _name)] = deferred(getattr(logging.Logger, _name))

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
        object.__reduce_ex__, type.__subclasses__, inspect.unwrap, inspect.getfullargspec,
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
