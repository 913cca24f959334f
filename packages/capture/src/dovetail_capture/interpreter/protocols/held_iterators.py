"""Steps of built-in iterators that existed before the frame ran: begun before a graph break, say.

What such an iterator has still to give is read, not taken: each item is known by its place in the
rest of it, and guarded there. The steps are taken before the other changes that the frame made are
replayed, in the order in which the program takes them. Of an iterator over a container that the
frame has changed, Python takes the next step itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dovetail_guards import clauses as c
from dovetail_guards import iterators

from dovetail_capture.interpreter.inputs.input_relations import changed_container
from dovetail_capture.interpreter.protocols import operators
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Lazy, Value, is_none
from dovetail_capture.interpreter.values.containers import TupleValue
from dovetail_capture.interpreter.values.functions import HeldIterator

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

ValueStep = Callable[[], Value | None]
Step = Callable[[], Value | Lazy | None]
_PLAIN = (int, float, bool, str)
_HINT = "iterate over a list or tuple, or make the iterator in the compiled function"


def next_item(vm: Interpreter, value: HeldIterator, lazily: bool = False) -> Any:
    """The next item, or None at the end. With `lazily` it may be one that was not looked at: what
    number it is matters only if it is used."""
    if value.step is None:
        kind = type(value.real)
        value.step = _MAKERS.get(kind, _through_container)(vm, value)
    item = value.step()
    return item if lazily or not isinstance(item, Lazy) else vm.wrap(item.real, item.source)


def cannot_step(value: Value, why: str = "") -> GraphBreakSignal:
    """The break at a step that is left to Python."""
    name = value.python_type().__name__
    return GraphBreakSignal(f"a step of a {name} that was made outside of the graph{why}", _HINT)


def _part(vm: Interpreter, value: HeldIterator, place: int, found: tuple[Any, ...]) -> Value:
    sources = vm.session.sources
    base = sources.iterator_part(value.origin, "parts")
    return vm.wrap(found[place], sources.item(base, place))


def _parts_of(vm: Interpreter, value: HeldIterator) -> list[Value]:
    """The values of an iterator's parts, their number guarded."""
    found = iterators.parts(value.real)
    base = vm.session.sources.iterator_part(value.origin, "parts")
    vm.session.guards.add(c.LengthIs, base, len(found))
    return [_part(vm, value, place, found) for place in range(len(found))]


# --- iterators over containers -------------------------------------------------------------------


def _through_container(vm: Interpreter, value: HeldIterator) -> Step:
    session = vm.session
    try:
        rest = iterators.rest(value.real)
    except (TypeError, RuntimeError) as error:
        raise cannot_step(value, f": {error}") from None
    container = iterators.over(value.real)
    session.objects.keep_alive.append(
        rest
    )  # what only it holds must not be taken for another object
    source = session.sources.iterator_part(value.origin, "rest")
    place = 0

    def step() -> Value | Lazy | None:
        nonlocal place
        if container is not None and changed_container(session, container):
            raise cannot_step(value, ", whose container the frame has changed")
        if place == iterators.MOST_READ:
            raise cannot_step(value, f", {place} items after the first")
        session.iterators.note_step(value)
        if place == len(rest):
            session.guards.add(c.LengthIs, source, place)
            return None
        real, item = rest[place], session.sources.item(source, place)
        place += 1
        if type(real) not in _PLAIN:
            return vm.wrap(real, item)
        session.guards.add(c.TypeIs, item, type(real))
        return Lazy(real, item)

    return step


# --- iterators over iterators --------------------------------------------------------------------


def rows(vm: Interpreter, children: list[Value], strict: bool) -> ValueStep:
    """The steps of a `zip`."""

    def step() -> Value | None:
        row: list[Value] = []
        for place, child in enumerate(children):
            item = vm.next_value(child)
            if item is None:
                if strict:
                    _check_strict(vm, children, place)
                return None
            row.append(item)
        return TupleValue(row) if row else None

    return step


def _check_strict(vm: Interpreter, children: list[Value], ended: int) -> None:
    """The error of `zip(strict=True)` when the iterator at place `ended` ends first."""
    if ended:
        earlier = " " if ended == 1 else "s 1-"
        text = f"zip() argument {ended + 1} is shorter than argument{earlier}{ended}"
        vm.raise_error(ValueError, text)
    for place, child in enumerate(children[1:], 1):
        if vm.next_value(child) is not None:
            earlier = " " if place == 1 else "s 1-"
            text = f"zip() argument {place + 1} is longer than argument{earlier}{place}"
            vm.raise_error(ValueError, text)


def mapped(vm: Interpreter, fn: Value, children: list[Value]) -> ValueStep:
    """The steps of a `map`."""
    row_of = rows(vm, children, False)

    def step() -> Value | None:
        row = row_of()
        return vm.call(fn, list(row.items), {}) if isinstance(row, TupleValue) else None

    return step


def filtered(vm: Interpreter, fn: Value, child: Value) -> ValueStep:
    """The steps of a `filter`."""
    plain = is_none(fn)

    def step() -> Value | None:
        while True:
            item = vm.next_value(child)
            if item is None or vm.truth(item if plain else vm.call(fn, [item], {})):
                return item

    return step


def _zip(vm: Interpreter, value: HeldIterator) -> Step:
    strict, *children = _parts_of(vm, value)
    return rows(vm, children, vm.truth(strict))


def _map(vm: Interpreter, value: HeldIterator) -> Step:
    fn, *children = _parts_of(vm, value)
    return mapped(vm, fn, children)


def _filter(vm: Interpreter, value: HeldIterator) -> Step:
    return filtered(vm, *_parts_of(vm, value))


def _enumerate(vm: Interpreter, value: HeldIterator) -> Step:
    """It counts, which only a step of its own does: those of what it goes through are in it."""
    child, start = _parts_of(vm, value)
    if not _steps_run_no_code(vm, child):
        raise cannot_step(value)
    number = start

    def step() -> Value | None:
        nonlocal number
        with _steps_within(vm):
            item = vm.next_value(child)
        vm.session.iterators.note_step(value)
        if item is None:
            return None
        before, number = number, operators.binary(vm, "+", number, Constant(1), False)
        return TupleValue([before, item])

    return step


def _count(vm: Interpreter, value: HeldIterator) -> Step:
    try:
        number, by = _parts_of(vm, value)
    except TypeError as error:
        raise cannot_step(value, f": {error}") from None

    def step() -> Value:
        nonlocal number
        vm.session.iterators.note_step(value)
        before, number = number, operators.binary(vm, "+", number, by, False)
        return before

    return step


def _steps_run_no_code(vm: Interpreter, value: Value) -> bool:
    """Can a step of this iterator be taken natively, for one that goes through it?"""
    if not isinstance(value, HeldIterator):
        return False
    kind = type(value.real)
    if kind is enumerate:
        return _steps_run_no_code(vm, _parts_of(vm, value)[0])
    if kind is zip:
        return all(_steps_run_no_code(vm, child) for child in _parts_of(vm, value)[1:])
    return kind is not map and kind is not filter


@contextmanager
def _steps_within(vm: Interpreter) -> Iterator[None]:
    """Steps that another iterator's step takes."""
    vm.session.iterators.steps_within += 1
    try:
        yield
    finally:
        vm.session.iterators.steps_within -= 1


_MAKERS: dict[type, Callable[[Interpreter, HeldIterator], Step]] = {
    zip: _zip, map: _map, filter: _filter, enumerate: _enumerate, itertools.count: _count,
}  # fmt: skip
