"""An error of ours behind a graph break leaves the blocks around, as the program's own would.

Each program breaks its graph with `_stop`, and computes something between any two breaks. So that
the graph after the n-th break cannot be compiled is to Python as if the n-th break raised.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from dovetail_capture import BackendError, disable, optimize
from torch import Tensor

EVENTS: list[Any] = []


class Stopped(BaseException):
    """What a break raises where nothing is compiled."""


class Stops:
    """Counts the breaks of a run."""

    calls, raises_at = 0, -1


@disable
def _stop() -> None:
    Stops.calls += 1
    if Stops.calls - 1 == Stops.raises_at:
        raise Stopped


class Refusing:
    """A backend that compiles so many graphs, and no more, or makes others that raise."""

    def __init__(
        self, compiles: int, error: type[BaseException] = RuntimeError, when_run: bool = False
    ) -> None:
        self.left, self.error, self.when_run = compiles, error, when_run

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        if self.left == 0:
            return self.fail if self.when_run else self.fail()
        self.left -= 1
        return gm.forward

    def fail(self, *inputs: Any) -> Any:
        """Raise the error."""
        raise self.error("too many")


class Noting:
    """A context manager that notes what becomes of it, and swallows what it can."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        EVENTS.append(f"enter {self.name}")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        EVENTS.append((self.name, kind is not None, error is not None, trace is not None))
        return kind is not None and issubclass(kind, Exception)


class Table:
    """What programs patch."""

    flag, other = 0, 0


def nested_withs(x: Tensor) -> Tensor:
    with Noting("a"), torch.no_grad(), mock.patch.object(Table, "flag", 5):
        y = x + 1
        _stop()
        with Noting("b"):
            y = y * 2
            _stop()
            y = y * 3
            _stop()
        y = y + Table.flag
        _stop()
        y = y.cos()
    _stop()
    return y.sin()


def finally_blocks(x: Tensor) -> Tensor:
    y = x + 1
    try:
        Table.other = 1
        _stop()
        y = y + Table.other
        try:
            _stop()
            y = y * 2
        finally:
            EVENTS.append("inner")
            y = y + 1
            _stop()
            y = y + 3
        _stop()
    finally:
        Table.other = 0
        y = y * 2
        EVENTS.append("outer")
    _stop()
    return y + 1


def within_clauses(x: Tensor) -> Tensor:
    with Noting("a"):
        try:
            y = x + 1
            _stop()
            y = y + 1
            raise KeyError(len(x))
        except KeyError as error:
            y = y + 2
            _stop()
            y = y + error.args[0]
            with Noting("b"):
                _stop()
                y = y + 3
            _stop()
        y = y * 2
    return y


def returns_from_within(x: Tensor) -> Tensor:
    with Noting("a"):
        for step in range(3):
            try:
                y = x + step
                _stop()
                if step == 1:
                    return y * 2
                y = y * 3
            finally:
                EVENTS.append(step)
    return y


def with_cells(x: Tensor) -> Tensor:
    steps = []
    with Noting("a"):
        y = x + 1
        try:
            _stop()
            y = y + sum(map(lambda step: step + len(steps), [1, 2]))
            _stop()
            y = y + 1
        finally:
            steps.append(len(x))
            EVENTS.append(list(steps))
    return y


def raised_by_the_break(x: Tensor) -> Tensor:
    y = x + 1
    with Noting("a"), mock.patch.object(Table, "flag", 2):
        try:
            _stop()
            y = y + len({}["absent"])
        except KeyError as error:
            with Noting("b"):
                y = y + len(error.args)
                _stop()
                y = y * 2
        finally:
            EVENTS.append("finally")
    return y + 1


PROGRAMS = [
    nested_withs,
    finally_blocks,
    within_clauses,
    returns_from_within,
    with_cells,
    raised_by_the_break,
]


def _run(call: Callable[[Tensor], Tensor], raises_at: int = -1) -> tuple[Any, ...]:
    EVENTS.clear()
    Stops.calls, Stops.raises_at = 0, raises_at
    try:
        result: Any = call(torch.ones(3)).tolist()
    except (Stopped, BackendError):
        result = "stopped"
    grad = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    state = (result, list(EVENTS), Table.flag, Table.other, grad, sys.exc_info())
    Table.flag = Table.other = 0
    return state


@pytest.mark.parametrize("program", PROGRAMS)
def test_blocks_are_left_when_a_continuation_cannot_be_compiled_or_raises(
    program: Callable[[Tensor], Tensor],
) -> None:
    whole = _run(program)
    breaks = Stops.calls
    assert whole[0] != "stopped" and breaks > 1
    for place in range(breaks):
        expected = _run(program, place)
        assert _run(optimize(program, Refusing(1 + place))) == expected, place
        raising = Refusing(1 + place, Stopped, when_run=True)
        assert _run(optimize(program, raising)) == expected, place
    assert _run(optimize(program, Refusing(-1))) == whole


def past_clauses(x: Tensor) -> Tensor:
    y = x
    try:
        with Noting("a"):
            try:
                y = x + 1
                _stop()
                y = y + 1
            except (KeyError, Exception):
                EVENTS.append("never")
            except:
                EVENTS.append("never")
                raise
            finally:
                EVENTS.append("finally")
            _stop()
            y = y * 2
    except Exception:
        EVENTS.append("never")
    return y


def test_no_clause_of_the_program_stops_an_error_of_ours() -> None:
    for compiles in (1, 2):
        result, events, *_ = _run(optimize(past_clauses, Refusing(compiles)))
        left = ("a", True, True, True)
        assert (result, events) == ("stopped", ["enter a", "finally", left])


def returns_in_finally(x: Tensor) -> Tensor:
    try:
        y = x + 1
        _stop()
        y = y * 2
    finally:
        EVENTS.append("finally")
        return x  # noqa: B012


def test_what_is_raised_and_what_it_says() -> None:
    for program in (returns_in_finally, with_cells):
        EVENTS.clear()
        with pytest.raises(KeyboardInterrupt, match="too many"):
            optimize(program, Refusing(1, KeyboardInterrupt))(torch.ones(3))
        assert len(EVENTS) == (1 if program is returns_in_finally else 3)


def leaving_fails(x: Tensor) -> Tensor:
    try:
        y = x + 1
        _stop()
        y = y * 2
    finally:
        raise KeyError(len(x))
    return y


def test_what_leaving_a_block_raises_has_the_error_as_its_context() -> None:
    with pytest.raises(KeyError) as caught:
        optimize(leaving_fails, Refusing(1))(torch.ones(3))
    assert isinstance(caught.value.__context__, BackendError)
