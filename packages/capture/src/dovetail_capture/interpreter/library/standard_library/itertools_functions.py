"""The iterators of `itertools`, over values. Those made lazily know what they go on with (`over`,
`remake`), step by step, so that what is left of them can be made anew behind a graph.
"""

from __future__ import annotations

import collections
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from dovetail_guards import iterators

from dovetail_capture import rebuild
from dovetail_capture.interpreter.library.builtins.iteration_functions import Steps
from dovetail_capture.interpreter.library.standard_library.polyfills import (
    batched,
    batched_strictly,
    interpreted,
)
from dovetail_capture.interpreter.machine.machine import Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import inlining
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value
from dovetail_capture.interpreter.values.containers import TupleValue
from dovetail_capture.interpreter.values.functions import IteratorValue


def _number(vm: Interpreter, value: Value, what: str) -> Any:
    found = vm.as_python(value)
    if found is UNKNOWN:
        raise GraphBreakSignal(f"{what} of unusual numbers")
    return found


# --- of several iterables ------------------------------------------------------------------------


def chain_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return chain_from_iterable(vm, [TupleValue(args)], kwargs)


def chain_from_iterable(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    parts = vm.get_iter(args[-1])
    current: Value | None = None

    def step() -> Value | None:
        nonlocal current
        while True:
            if current is None:
                part = vm.next_value(parts)
                if part is None:
                    return None
                current = vm.get_iter(part)
                made.over, made.remake = [current, parts], rebuild.chained
            item = vm.next_value(current)
            if item is not None:
                return item
            current = None
            made.over, made.remake = [parts], itertools.chain.from_iterable

    remake = itertools.chain.from_iterable
    made = IteratorValue(Steps(step), itertools.chain, over=[parts], remake=remake)
    return made


def zip_longest_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    fill = kwargs.get("fillvalue", NONE)
    parts = [vm.get_iter(arg) for arg in args]
    rows = (
        TupleValue(row)
        for row in itertools.zip_longest(*(vm.iterate(part) for part in parts), fillvalue=fill)
    )
    remake = rebuild.zipped_longest
    return IteratorValue(rows, itertools.zip_longest, over=[fill, *parts], remake=remake)


def starmap_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    rows = vm.get_iter(args[1])
    items = (vm.call(args[0], list(vm.iterate(row)), {}) for row in vm.iterate(rows))
    return IteratorValue(items, itertools.starmap, over=[args[0], rows])


# --- of one --------------------------------------------------------------------------------------


def islice_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    bounds = [_number(vm, arg, "itertools.islice()") for arg in args[1:]]
    items = vm.get_iter(args[0])
    try:
        itertools.islice((), *bounds)
    except (TypeError, ValueError) as error:
        return vm.raise_real(error)
    start, stop, stride = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    stride = 1 if stride is None else stride
    place, following = 0, start or 0  # of the next item that is taken, and that is given

    def step() -> Value | None:
        nonlocal place, following
        while place <= following:
            if place == following and stop is not None and place >= stop:
                return None
            item = vm.next_value(items)
            if item is None:
                return None
            place += 1
        following += stride
        if stop is not None:
            following = min(following, stop)
        left = NONE if stop is None else Constant(stop - place)
        made.over = [items, Constant(following - place), left, Constant(stride)]
        return item

    over = [items, Constant(start), Constant(stop), Constant(stride)]
    made = IteratorValue(Steps(step), itertools.islice, over=over)
    return made


def cycle_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    items = vm.get_iter(args[0])
    saved: list[Value] = []
    again = 0  # the place of what is given next, once all items are saved

    def step() -> Value | None:
        nonlocal again
        item = vm.next_value(items)
        if item is not None:
            saved.append(item)
        elif not saved:
            return None
        else:
            item = saved[again]
            again = (again + 1) % len(saved)
        made.over, made.remake = [items, Constant(again), *saved], rebuild.cycled
        return item

    made = IteratorValue(Steps(step), itertools.cycle, over=[items])
    return made


def pairwise_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    items = vm.get_iter(args[0])
    last: Value | None = None

    def step() -> Value | None:
        nonlocal last
        first = vm.next_value(items) if last is None else last
        if first is None:
            return None
        last = vm.next_value(items)
        if last is None:
            return None
        made.over, made.remake = [last, items], rebuild.paired
        return TupleValue([first, last])

    made = IteratorValue(Steps(step), itertools.pairwise, over=[items])
    return made


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


# --- of none -------------------------------------------------------------------------------------


def repeat_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1 and not kwargs:
        return IteratorValue(itertools.repeat(args[0]), itertools.repeat, over=[args[0]])
    times = _number(vm, args[1] if len(args) > 1 else kwargs["times"], "itertools.repeat()")
    items = itertools.repeat(args[0], times)
    if times <= iterators.MOST_READ:
        return IteratorValue(items, itertools.repeat, True)

    def step() -> Value | None:
        made.over = [args[0], Constant(items.__length_hint__() - 1)]
        return next(items, None)

    made = IteratorValue(Steps(step), itertools.repeat, over=[args[0], Constant(times)])
    return made


def count_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    bounds = [_number(vm, arg, "itertools.count()") for arg in args]
    named = {name: _number(vm, arg, "itertools.count()") for name, arg in kwargs.items()}
    try:
        numbers = itertools.count(*bounds, **named)
    except TypeError as error:
        return vm.raise_real(error)
    stride = Constant((*bounds, 1)[1] if len(bounds) > 1 else named.get("step", 1))
    following = Constant(next(numbers))

    def step() -> Value:
        nonlocal following
        found, following = following, Constant(next(numbers))
        made.over = [following, stride]
        return found

    made = IteratorValue(Steps(step), itertools.count, over=[following, stride])
    return made


# --- said in Python ------------------------------------------------------------------------------

_MISSING: Any = type("_Missing", (), {})


def takewhile(predicate: Any, iterable: Any) -> Iterator[Any]:
    for item in iterable:
        if not predicate(item):
            return
        yield item


def dropwhile(predicate: Any, iterable: Any) -> Iterator[Any]:
    dropping = True
    for item in iterable:
        dropping = dropping and predicate(item)
        if not dropping:
            yield item


def filterfalse(predicate: Any, iterable: Any) -> Iterator[Any]:
    for item in iterable:
        if not (item if predicate is None else predicate(item)):
            yield item


def compress(data: Any, selectors: Any) -> Iterator[Any]:
    for item, selected in zip(data, selectors):  # noqa: B905 - the shorter one ends it
        if selected:
            yield item


def accumulate(iterable: Any, func: Any = None, *, initial: Any = None) -> Iterator[Any]:
    iterator = iter(iterable)
    total = initial
    if initial is None:
        for first in iterator:
            total = first
            break
        else:
            return
    yield total
    for item in iterator:
        total = total + item if func is None else func(total, item)
        yield total


def groupby(iterable: Any, key: Any = None) -> Iterator[Any]:
    """Each group is complete when it is handed out, which only a key function with side effects
    could tell from the original's."""
    group: list[Any] = []
    last: Any = _MISSING
    for item in iterable:
        this = item if key is None else key(item)
        if last is not _MISSING and not this == last:
            yield last, iter(group)
            group = []
        last = this
        group.append(item)
    if last is not _MISSING:
        yield last, iter(group)


def tee(iterable: Any, n: int = 2) -> Any:
    """Generators that share one iterator, each with the items that it has not given yet."""
    if n < 0:
        raise ValueError("n must be >= 0")
    iterator = iter(iterable)
    waiting: list[Any] = [collections.deque() for _ in range(n)]

    def items(own: Any) -> Iterator[Any]:
        while True:
            if not own:
                for item in iterator:
                    for queue in waiting:
                        queue.append(item)
                    break
                else:
                    return
            yield own.popleft()

    return tuple(items(queue) for queue in waiting)


def _in_python(
    cls: Any, said: Any, *iterables: str, begun: Callable[[IteratorValue, Value], None] | None
) -> Handler:
    """The iterator `cls`, whose steps are those of the generator function `said`, of the arguments
    that are `iterables`. `begun` sets what it goes on with, once it has given an item."""
    signature = inspect.signature(said)

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return inlining.inline(vm, said, args, kwargs)  # raises it
        bound.apply_defaults()
        given: Kwargs = {
            name: value if isinstance(value, Value) else Constant(value)
            for name, value in bound.arguments.items()
        }
        for name in iterables:
            given[name] = vm.get_iter(given[name])
        steps = inlining.inline(vm, said, [], given)

        def step() -> Value | None:
            item = vm.next_value(steps)
            if item is not None and begun is not None:
                begun(made, item)
            return item

        made = IteratorValue(Steps(step), cls, over=list(given.values()))
        if cls is itertools.accumulate:
            made.remake = rebuild.accumulated
        return made

    return handler


def _accumulate_begun(made: IteratorValue, total: Value) -> None:
    assert made.over is not None
    made.over = [*made.over[:2], total]
    made.remake = rebuild.accumulated_from


def _dropwhile_begun(made: IteratorValue, item: Value) -> None:
    assert made.over is not None
    made.over, made.remake = made.over[-1:], rebuild.no_longer_dropped


def _groupby_begun(made: IteratorValue, item: Value) -> None:
    made.over = None  # it has read on


HANDLERS: dict[Any, Handler] = {
    itertools.chain: chain_,
    itertools.chain.__dict__["from_iterable"]: chain_from_iterable,
    itertools.islice: islice_, itertools.repeat: repeat_, itertools.count: count_,
    itertools.cycle: cycle_, itertools.combinations: _combinatoric(itertools.combinations),
    itertools.permutations: _combinatoric(itertools.permutations),
    itertools.combinations_with_replacement: _combinatoric(
        itertools.combinations_with_replacement
    ),
    itertools.product: product_, itertools.pairwise: pairwise_,
    itertools.zip_longest: zip_longest_, itertools.starmap: starmap_,
    itertools.tee: interpreted(tee),
    itertools.takewhile: _in_python(
        itertools.takewhile, takewhile, "iterable", begun=None
    ),
    itertools.dropwhile: _in_python(
        itertools.dropwhile, dropwhile, "iterable", begun=_dropwhile_begun
    ),
    itertools.filterfalse: _in_python(
        itertools.filterfalse, filterfalse, "iterable", begun=None
    ),
    itertools.compress: _in_python(
        itertools.compress, compress, "data", "selectors", begun=None
    ),
    itertools.accumulate: _in_python(
        itertools.accumulate, accumulate, "iterable", begun=_accumulate_begun
    ),
    itertools.groupby: _in_python(
        itertools.groupby, groupby, "iterable", begun=_groupby_begun
    ),
}  # fmt: skip
if sys.version_info >= (3, 12):
    newest = sys.version_info >= (3, 13)  # which has `strict`
    HANDLERS[itertools.batched] = interpreted(batched_strictly if newest else batched)
