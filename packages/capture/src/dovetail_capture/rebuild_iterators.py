"""What is left of iterators of `itertools` that a frame has begun, made anew where its replacement
code needs them: of what they go through, at the place where that is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Function = Callable[[Any, Any], Any] | None


def chained(current: Iterator[Any], parts: Iterable[Any]) -> Iterator[Any]:
    """A `chain` that has begun with its `current` part, with more `parts` to come."""
    return itertools.chain.from_iterable(itertools.chain((current,), parts))


def cycled(items: Iterator[Any], again: int, *saved: Any) -> Iterator[Any]:
    """A `cycle` that has `saved` items, and has given so many of them again."""
    made = itertools.cycle(itertools.chain(saved, items))
    for _ in range(len(saved) + again):
        next(made)
    return made


def paired(last: Any, items: Iterator[Any]) -> Iterator[Any]:
    """A `pairwise` that has come to `last`."""
    return itertools.pairwise(itertools.chain((last,), items))


def zipped_longest(fill: Any, *parts: Iterator[Any]) -> Iterator[Any]:
    """`zip_longest`."""
    return itertools.zip_longest(*parts, fillvalue=fill)


def accumulated(items: Iterator[Any], function: Function, initial: Any) -> Iterator[Any]:
    """`accumulate`."""
    return itertools.accumulate(items, function, initial=initial)


def accumulated_from(items: Iterator[Any], function: Function, total: Any) -> Iterator[Any]:
    """An `accumulate` that has come to this total."""
    made = itertools.accumulate(itertools.chain((total,), items), function)
    next(made)
    return made


def no_longer_dropped(items: Iterator[Any]) -> Iterator[Any]:
    """A `dropwhile` that drops nothing any more."""
    return itertools.dropwhile(_never, items)


def _never(item: Any) -> bool:
    return False


__all__ = [
    "accumulated", "accumulated_from", "chained", "cycled", "no_longer_dropped", "paired",
    "zipped_longest",
]  # fmt: skip
