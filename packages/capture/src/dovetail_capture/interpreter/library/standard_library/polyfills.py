"""Functions of the standard library that are written in C, said in Python.

The interpreter runs these bodies where a program calls the original, so that functions given to
them are captured like any other code. Each does what the documentation of the original says.
"""

from __future__ import annotations

import abc
import bisect
import collections
import dataclasses
import enum
import functools
import heapq
import inspect
import operator
import re
import reprlib
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Kwargs
from dovetail_capture.interpreter.protocols import inlining
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, is_none
from dovetail_capture.interpreter.values.containers import TupleValue
from dovetail_capture.interpreter.values.functions import TracebackValue


class _Key:
    """What `functools.cmp_to_key(compare)` makes of an object."""

    def __init__(self, obj: Any, compare: Any) -> None:
        self.obj, self.compare = obj, compare

    def __lt__(self, other: Any) -> bool:
        return bool(self.compare(self.obj, other.obj) < 0)

    def __gt__(self, other: Any) -> bool:
        return bool(self.compare(self.obj, other.obj) > 0)

    def __le__(self, other: Any) -> bool:
        return bool(self.compare(self.obj, other.obj) <= 0)

    def __ge__(self, other: Any) -> bool:
        return bool(self.compare(self.obj, other.obj) >= 0)

    def __eq__(self, other: Any) -> bool:
        return bool(self.compare(self.obj, other.obj) == 0)

    __hash__ = None  # type: ignore[assignment]


def cmp_to_key(mycmp: Any) -> Any:
    return lambda obj: _Key(obj, mycmp)


def dispatch(registry: Any, cls: Any) -> Any:
    """The implementation that `functools.singledispatch` finds where no ABC is registered."""
    for base in cls.__mro__:
        if base in registry:
            return registry[base]
    return registry[object]


def iterate_until(function: Any, sentinel: Any) -> Iterator[Any]:
    """`iter(function, sentinel)`."""
    while True:
        try:
            item = function()
        except StopIteration:
            return
        if sentinel is item or sentinel == item:
            return
        yield item


def add_note(self: Any, note: str) -> None:
    """`BaseException.add_note`."""
    if not isinstance(note, str):
        raise TypeError(f"note must be a str, not '{type(note).__name__}'")
    if not hasattr(self, "__notes__"):
        self.__notes__ = []
    if not isinstance(self.__notes__, list):
        raise TypeError("Cannot add note: __notes__ is not a list")
    self.__notes__.append(note)


def itemgetter(item: Any, /, *items: Any) -> Callable[[Any], Any]:
    if not items:
        return lambda obj: obj[item]
    return lambda obj: (obj[item], *(obj[other] for other in items))


def _attribute(obj: Any, path: str) -> Any:
    for name in path.split("."):
        obj = getattr(obj, name)
    return obj


def attrgetter(attr: str, /, *attrs: str) -> Callable[[Any], Any]:
    if not attrs:
        return lambda obj: _attribute(obj, attr)
    return lambda obj: (_attribute(obj, attr), *(_attribute(obj, other) for other in attrs))


def methodcaller(name: str, /, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    return lambda obj: getattr(obj, name)(*args, **kwargs)


def count_elements(mapping: Any, iterable: Iterable[Any]) -> None:
    """`collections._count_elements`, of which Counter is made."""
    get = mapping.get
    for item in iterable:
        mapping[item] = get(item, 0) + 1


def rotate(self: Any, n: int = 1) -> None:
    """`deque.rotate`."""
    items = list(self)
    if len(items) > 1:  # (iterators over it see that it was turned, by 0 too)
        n %= len(items)
        self.clear()
        self.extend(items[len(items) - n :] + items[: len(items) - n])


def extendleft(self: Any, iterable: Any) -> None:
    """`deque.extendleft`."""
    for item in iterable:
        self.appendleft(item)


def _batches(items: Iterator[Any], n: int, strict: bool) -> Iterator[Any]:
    batch: list[Any] = []
    for item in items:
        batch.append(item)
        if len(batch) == n:
            yield tuple(batch)
            batch = []
    if batch and strict:
        raise ValueError("batched(): incomplete batch")
    if batch:
        yield tuple(batch)


def batched_strictly(iterable: Any, n: int, *, strict: bool = False) -> Iterator[Any]:
    """`itertools.batched` from 3.13 on."""
    if n < 1:  # at the call, not at the first item
        raise ValueError("n must be at least one")
    return _batches(iter(iterable), n, strict)


def batched(iterable: Any, n: int) -> Iterator[Any]:
    """As 3.12 has it."""
    return batched_strictly(iterable, n)


def interpreted(function: Any) -> Handler:
    """A handler that lets the interpreter run the body of one of these functions."""

    def handler(vm: Any, args: Args, kwargs: Kwargs) -> Any:
        return inlining.inline(vm, function, args, kwargs)

    return handler


_HEAPS: Any = heapq  # its Python functions, which the C ones do not hide


def heappush(heap: Any, item: Any) -> Any:
    heap.append(item)
    _HEAPS._siftdown(heap, 0, len(heap) - 1)


def _pop(heap: Any, sift: Any) -> Any:
    last = heap.pop()
    if not heap:
        return last
    first, heap[0] = heap[0], last
    sift(heap, 0)
    return first


def heappop(heap: Any) -> Any:
    return _pop(heap, _HEAPS._siftup)


def heappop_max(heap: Any) -> Any:
    return _pop(heap, _HEAPS._siftup_max)


def _replace(heap: Any, item: Any, sift: Any) -> Any:
    first, heap[0] = heap[0], item
    sift(heap, 0)
    return first


def heapreplace(heap: Any, item: Any) -> Any:
    return _replace(heap, item, _HEAPS._siftup)


def heapreplace_max(heap: Any, item: Any) -> Any:
    return _replace(heap, item, _HEAPS._siftup_max)


def heappushpop(heap: Any, item: Any) -> Any:
    return _replace(heap, item, _HEAPS._siftup) if heap and heap[0] < item else item


def heapify(heap: Any) -> Any:
    for place in reversed(range(len(heap) // 2)):
        _HEAPS._siftup(heap, place)


def heapify_max(heap: Any) -> Any:
    for place in reversed(range(len(heap) // 2)):
        _HEAPS._siftup_max(heap, place)


def insort_right(items: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> Any:
    wanted = x if key is None else key(x)
    items.insert(bisect.bisect_right(items, wanted, lo, hi, key=key), x)


def insort_left(items: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> Any:
    wanted = x if key is None else key(x)
    items.insert(bisect.bisect_left(items, wanted, lo, hi, key=key), x)


def unwrap(func: Any, *, stop: Any = None) -> Any:
    seen = [func]
    while (stop is None or not stop(func)) and hasattr(func, "__wrapped__"):
        func = func.__wrapped__
        if any(func is one for one in seen):
            raise ValueError(f"wrapper loop when unwrapping {seen[0]!r}")
        seen.append(func)
    return func


def view_isdisjoint(view: Any, other: Any) -> bool:
    return not any(item in view for item in other)


def substituted(pattern: Any, repl: Any, string: Any, count: int = 0) -> tuple[Any, int]:
    """`pattern.subn` with a function."""
    parts, place, done = [], 0, 0
    for match in pattern.finditer(string):
        if count and done >= count:
            break
        if place < match.start():
            parts.append(string[place : match.start()])
        made = repl(match)
        if made is not None:
            parts.append(made)
        place, done = match.end(), done + 1
    if place < len(string):
        parts.append(string[place:])
    return string[:0].join(parts), done


def pattern_sub(self: Any, repl: Any, string: Any, count: int = 0) -> Any:
    return substituted(self, repl, string, count)[0]


def re_sub(pattern: Any, repl: Any, string: Any, count: int = 0, flags: Any = 0) -> Any:
    return substituted(re.compile(pattern, flags), repl, string, count)[0]


def re_subn(pattern: Any, repl: Any, string: Any, count: int = 0, flags: Any = 0) -> Any:
    return substituted(re.compile(pattern, flags), repl, string, count)


_C_FUNCTIONS: dict[Any, Any] = {
    inspect.unwrap: unwrap,
    type({}.keys()).isdisjoint: view_isdisjoint,
    type({}.items()).isdisjoint: view_isdisjoint,
    **{
        getattr(heapq, f.__name__): f
        for f in (heappush, heappop, heapreplace, heappushpop, heapify)
    },
    _HEAPS._heappop_max: heappop_max,
    _HEAPS._heapreplace_max: heapreplace_max,
    _HEAPS._heapify_max: heapify_max,
    bisect.insort_right: insort_right,
    bisect.insort_left: insort_left,
    BaseException.add_note: add_note,
    functools.cmp_to_key: cmp_to_key,
    operator.itemgetter: itemgetter,
    operator.attrgetter: attrgetter,
    operator.methodcaller: methodcaller,
    collections.deque.rotate: rotate,
    collections.deque.extendleft: extendleft,
    collections._count_elements: count_elements,  # type: ignore[attr-defined]
}


def _exc_info(vm: Any, args: Args, kwargs: Kwargs) -> Any:
    error = vm.handled_exception()
    if error is None:
        return TupleValue([NONE, NONE, NONE])
    trace = vm.get_attr(error, "__traceback__")
    return TupleValue([Constant(error.python_type()), error, trace])


def _exception(vm: Any, args: Args, kwargs: Kwargs) -> Any:
    error = vm.handled_exception()
    return NONE if error is None else error


def _clear_frames(vm: Any, args: Args, kwargs: Kwargs) -> Any:
    """`traceback.clear_frames`: the frames of an exception that the program raised have ended,
    or still run and keep what they hold."""
    if kwargs or len(args) != 1 or not (is_none(args[0]) or isinstance(args[0], TracebackValue)):
        return PASS
    return NONE


def _dispatch(vm: Any, real: Any, args: Args, kwargs: Kwargs) -> Any:
    """`dispatch(cls)` of a `functools.singledispatch` function, by its registry."""
    place = real.__code__.co_freevars.index("registry")
    registry = real.__closure__[place]
    if any(isinstance(cls, abc.ABCMeta) for cls in registry.cell_contents):
        raise GraphBreakSignal("a singledispatch function with an implementation for an ABC")
    held = vm.wrap(registry, vm.session.sources.held(registry))
    return vm.call(Constant(dispatch), [vm.resolve_cell(held), *args], kwargs)


def _plain_repr(vm: Any, real: Any, args: Args, kwargs: Kwargs) -> Any:
    """A dataclass's `__repr__` without its watch over recursion, which asks for ids and threads."""
    place = real.__code__.co_freevars.index("user_function")
    return vm.call(vm.held(real.__closure__[place].cell_contents), args, kwargs)


# Closures of the standard library, by their code: each of them is a function of its own.
CODE_HANDLERS: dict[types.CodeType, Callable[..., Any]] = {
    functools.singledispatch(len).dispatch.__code__: _dispatch,
    reprlib.recursive_repr()(repr).__code__: _plain_repr,
}
if hasattr(dataclasses, "_recursive_repr"):  # until 3.12
    CODE_HANDLERS[dataclasses._recursive_repr(repr).__code__] = _plain_repr


def _enum_members(vm: Any, args: Args, kwargs: Kwargs) -> Any:
    """`Color.__members__`: the members of an enum do not change."""
    return vm.constant(dict(vm.as_python(args[0]).__members__))


def _with_function(function: Any) -> Handler:
    """A handler of a substitution that leaves one by a text to `re`."""

    def handler(vm: Any, args: Args, kwargs: Kwargs) -> Any:
        repl = kwargs["repl"] if len(args) < 2 else args[1]
        if repl.python_type() in (str, bytes):
            return PASS
        return inlining.inline(vm, function, args, kwargs)

    return handler


HANDLERS: dict[Any, Handler] = {
    re.Pattern.sub: _with_function(pattern_sub),
    re.Pattern.subn: _with_function(substituted),
    re.sub: _with_function(re_sub),
    re.subn: _with_function(re_subn),
    vars(enum.EnumType)["__members__"].fget: _enum_members,
    **{original: interpreted(function) for original, function in _C_FUNCTIONS.items()},
    sys.exc_info: _exc_info,
    sys.exception: _exception,
    traceback.clear_frames: _clear_frames,
}
