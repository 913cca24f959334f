"""Iterators that go on: interpreted generators, resumed, thrown into, and dropped while they wait;
and built-in iterators that existed before the frame ran, begun before a graph break, say.

What such a built-in iterator has still to give is read, not taken: each item is known by its place
in the rest of it, and guarded there. The steps are taken before the other changes that the frame
made are replayed, in the order in which the program takes them. Of an iterator over a container
that the frame has changed, Python takes the next step itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dovetail_guards import clauses as c
from dovetail_guards import iterators

from dovetail_capture.interpreter.inputs.input_relations import changed_container
from dovetail_capture.interpreter.machine import decoding
from dovetail_capture.interpreter.machine.frame import (
    MAKE_GENERATOR,
    YIELD,
    Frame,
    GeneratorValue,
    lets_generator_exit_pass,
)
from dovetail_capture.interpreter.protocols import operators, raising
from dovetail_capture.interpreter.signals import CannotRebuild, GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Lazy, Value, is_none
from dovetail_capture.interpreter.values.containers import TupleValue
from dovetail_capture.interpreter.values.functions import HeldIterator
from dovetail_capture.interpreter.values.objects import ObjectValue, ProgramException

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


def resume(vm: Interpreter, generator: GeneratorValue, sent: Value | None) -> Value | None:
    """Run a generator to its next value; None when it ends (its frame's result is then what
    it returned)."""
    if generator.finished:
        generator.frame.result = NONE
        return None
    if generator.running:
        vm.raise_error(ValueError, "generator already executing")
    if not generator.started and sent is not None and not is_none(sent):
        if not isinstance(sent, Constant) or sent.value is not None:
            text = "can't send non-None value to a just-started generator"
            vm.raise_error(TypeError, text)
    frame = generator.frame
    frame.stack.append(sent or NONE)
    generator.started = generator.running = True
    left = 0
    vm.frames.append(frame)
    try:
        left = _run_generator(vm, frame)
    except GraphBreakSignal as signal:
        vm.note_break(signal)
        raise
    finally:
        vm.frames.pop()
        generator.running = False
        if left != YIELD:
            generator.finished = True
    assert left != MAKE_GENERATOR
    return frame.result if left == YIELD else None


def _run_generator(vm: Interpreter, frame: Frame) -> int:
    if decoding.VERSION >= (3, 12):  # an instruction of the generator's does it
        return frame.run()
    try:
        return frame.run()
    except ProgramException as error:
        if issubclass(error.value.python_type(), StopIteration):
            raising.raise_for_stop(vm, error.value)
        raise


def check_generators(vm: Interpreter) -> None:
    """A generator that is dropped while it waits in a `try` or `with` block runs the end of
    the block at that moment, which only Python knows: let Python make it then. (`except`
    clauses for ordinary errors are no such end.)"""
    for generator in vm.generators:
        if not generator.started or generator.finished:
            continue
        frame = generator.frame
        row = frame.decoded.entry_for(frame.current.index)
        while row is not None:
            handles = frame.decoded.instructions[row.target].opname == "PUSH_EXC_INFO"
            if handles and not lets_generator_exit_pass(frame, row.target):
                raise CannotRebuild(
                    f"the generator {frame.code.co_qualname}, waiting in a `try` or `with`,",
                    generator.born,
                )
            row = frame.decoded.entry_for(row.target)


def throw_into(vm: Interpreter, generator: GeneratorValue, error: ObjectValue) -> Value | None:
    """`generator.throw(error)`."""
    frame = generator.frame
    if generator.finished or not generator.started:
        generator.finished = True
        raise ProgramException(error)
    generator.running = True
    left = 0
    vm.frames.append(frame)
    try:
        unhandled: ObjectValue | None = error
        send = frame.delegation()
        if send is not None:
            try:
                item = _throw_on(vm, frame.stack[-1], error)
            except ProgramException as raised:
                assert isinstance(raised.value, ObjectValue)
                unhandled = raised.value
            else:
                if item is not None:
                    left, frame.result = YIELD, item
                    return item
                if not issubclass(error.cls, GeneratorExit):
                    unhandled = None
                    frame.end_delegation(send)
        if unhandled is not None:
            frame.current = frame.decoded.instructions[frame.next_index - 1]
            if frame.handled is not None:  # by the generator, where it waits
                raising.set_context(vm, unhandled, frame.handled)
            if not frame._unwind(ProgramException(unhandled)):
                if issubclass(unhandled.cls, StopIteration):
                    raising.raise_for_stop(vm, unhandled)
                raise ProgramException(unhandled)
        left = _run_generator(vm, frame)
    finally:
        vm.frames.pop()
        generator.running = False
        if left != YIELD:
            generator.finished = True
    return frame.result if left == YIELD else None


def _throw_on(vm: Interpreter, receiver: Value, error: ObjectValue) -> Value | None:
    """Throw into what a generator delegates to, or close it: its next item, if it goes on."""
    if issubclass(error.cls, GeneratorExit):
        close = vm.find_attr(receiver, "close")
        if close is not None:
            vm.call(close, [], {})
        return None
    if isinstance(receiver, GeneratorValue):
        return throw_into(vm, receiver, error)
    if vm.find_attr(receiver, "throw") is not None:
        raise GraphBreakSignal(f"an exception thrown into {receiver.describe()}")
    raise ProgramException(error)


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
    zip: _zip, map: _map, enumerate: _enumerate, itertools.count: _count,
    filter: lambda vm, value: filtered(vm, *_parts_of(vm, value)),
}  # fmt: skip
