"""`contextvars`: read with a guard, set and reset after the graph, kept over graph breaks."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from construct_cases import CountingBackend, same
from dovetail_capture import graph_break, optimize

EMPTY: contextvars.ContextVar[Any] = contextvars.ContextVar("EMPTY")
SCALE: contextvars.ContextVar[Any] = contextvars.ContextVar("SCALE", default=3)


@contextlib.contextmanager
def scaled_by(factor: int) -> Iterator[None]:
    token = SCALE.set(factor)
    try:
        yield
    finally:
        SCALE.reset(token)


def reads(x: torch.Tensor) -> Any:
    return x * SCALE.get() + EMPTY.get(10)


def finds_none(x: torch.Tensor) -> Any:
    try:
        return x + EMPTY.get()
    except LookupError as error:
        return x - 1, error.args[0] is EMPTY


def sets(x: torch.Tensor) -> Any:
    SCALE.set(x + 1)
    EMPTY.set(4)
    return SCALE.get() * 2, EMPTY.get()


def sets_for_a_while(x: torch.Tensor) -> Any:
    outer = SCALE.set(SCALE.get() + 1)
    y = x * SCALE.get()
    inner = SCALE.set(50)
    y = y + SCALE.get()
    SCALE.reset(inner)
    y = y * SCALE.get()
    SCALE.reset(outer)
    return y, SCALE.get()


def nests(x: torch.Tensor) -> Any:
    with scaled_by(7):
        x = x * SCALE.get()
        with scaled_by(2):
            x = x * SCALE.get()
    return x + SCALE.get()


def breaks_in_between(x: torch.Tensor) -> Any:
    token = SCALE.set(8)
    x = x + 1
    graph_break()
    x = x + SCALE.get()
    SCALE.reset(token)
    return x + SCALE.get(), token.var is SCALE


def resets_twice(x: torch.Tensor) -> Any:
    token = SCALE.set(9)
    SCALE.reset(token)
    try:
        SCALE.reset(token)
    except RuntimeError:
        return x + 1, "used"


WHOLE = (reads, finds_none, sets, sets_for_a_while, nests)
BROKEN = (breaks_in_between, resets_twice)


def _history(function: Callable[..., Any]) -> list[Any]:
    """What calls give while the variables change, and what the variables hold then."""

    def calls() -> list[Any]:
        x = torch.arange(1.0, 3.0)
        found = []
        for change in (None, (SCALE, 5), (EMPTY, 2), (SCALE, 3), (SCALE, 5.5), (EMPTY, x + 4)):
            if change is not None:
                change[0].set(change[1])
            with torch.no_grad():
                found.append((function(x), SCALE.get(), EMPTY.get(None)))
            inside = contextvars.copy_context()
            found.append(inside.run(lambda: (SCALE.set(100), function(x))[1]))
        return found

    return contextvars.copy_context().run(calls)


@pytest.mark.parametrize("function", (*WHOLE, *BROKEN), ids=lambda f: f.__name__)
def test_context_variables(function: Callable[..., Any]) -> None:
    whole = function in WHOLE
    compiled = optimize(function, CountingBackend(), fullgraph=whole, recompile_limit=20)
    assert same(_history(compiled), _history(function))


def test_a_token_that_leaves_resets() -> None:
    def program(x: torch.Tensor) -> Any:
        SCALE.set(9)
        return SCALE.set(x), x + 1

    def calls() -> None:
        token, _ = optimize(program, CountingBackend())(torch.ones(2))
        SCALE.reset(token)
        assert SCALE.get() == 9

    contextvars.copy_context().run(calls)
