"""What raises for its data in a `try` with a `finally`, in graphs that write to their inputs:
they hold it, and the block is left as Python leaves it.

PYTEST_DONT_REWRITE: pytest would put code of its own into the assertions of the programs.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from construct_cases import CountingBackend
from dovetail_capture import graph_break, optimize
from torch import Tensor

X = torch.arange(9.0).reshape(3, 3) + torch.eye(3)
INSIDE, OUTSIDE = torch.tensor([1, 2]), torch.tensor([1, 5])
EVENTS: list[Any] = []
DEPTH: contextvars.ContextVar[int] = contextvars.ContextVar("DEPTH", default=0)
LOCK = threading.Lock()
OTHERS = (KeyError, NotImplementedError)


class State:
    """What programs change."""

    flag, count = False, 0


STATE = State()


def restored(x: Tensor, i: Tensor) -> Tensor:
    x.add_(1)
    before, STATE.flag = STATE.flag, True
    try:
        return F.embedding(i, x)
    finally:
        STATE.flag = before


def counted(x: Tensor, i: Tensor) -> Tensor:
    x.add_(1)
    try:
        return x[i]
    finally:
        STATE.count += 1
        EVENTS.append("left")


def told(x: Tensor, i: Tensor) -> Tensor:
    x.add_(1)
    try:
        y = x[i]
    finally:
        EVENTS.append(type(sys.exc_info()[1]).__name__)
    return y


def set_in_context(x: Tensor, i: Tensor) -> Tensor:
    x.add_(1)
    token = DEPTH.set(DEPTH.get() + 1)
    try:
        return x[i] * DEPTH.get()
    finally:
        DEPTH.reset(token)


def called(x: Tensor, i: Tensor) -> Tensor:
    def pick(table: Tensor) -> Tensor:
        try:
            EVENTS.append("picks")
            return table.index_select(0, i)
        finally:
            EVENTS.append("picked")

    x.mul_(2)
    try:
        return pick(x) + 1
    finally:
        EVENTS.append("done")


def repeated(x: Tensor, i: Tensor) -> Tensor:
    """Each turn is in the block anew."""
    x.add_(1)
    STATE.flag = True
    try:
        for _ in range(3):
            x = x + x[i].sum()
    finally:
        STATE.flag = False
        EVENTS.append(x.ndim)
    return x


def for_others(x: Tensor, i: Tensor) -> Tensor:
    """The clauses are for nothing that an operation raises for its data."""
    x.add_(1)
    try:
        x.index_copy_(0, i, x[:2] * 1)
    except NotImplementedError:
        x[i] = 0
    except OTHERS as error:
        return x + len(str(error))
    return x * 2


def for_others_too(x: Tensor, i: Tensor) -> Tensor:
    x.add_(1)
    try:
        try:
            return x[i]
        except (StopIteration, torch.OutOfMemoryError):
            return x
        finally:
            EVENTS.append("inner")
    except AttributeError:
        return x - 1
    finally:
        EVENTS.append("outer")


ONE_GRAPH = [restored, counted, told, set_in_context, called, repeated, for_others, for_others_too]


def outcome(function: Callable[..., Any], i: Tensor) -> Any:
    EVENTS.clear()
    STATE.__dict__.clear()
    x = X.clone()
    try:
        result: Any = function(x, i)
    except Exception as error:
        result = (type(error).__name__, str(error))
    return repr(result), list(EVENTS), dict(vars(STATE)), x.tolist(), DEPTH.get()


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("program", ONE_GRAPH)
def test_one_graph_and_the_block_is_left(program: Callable[..., Any], fullgraph: bool) -> None:
    backend = CountingBackend()
    captured = optimize(program, backend, fullgraph=fullgraph)
    for i in (INSIDE, OUTSIDE, INSIDE):
        assert outcome(captured, i) == outcome(program, i)
    assert len(backend.graphs) == 1


def stops(x: Tensor, i: Tensor) -> Any:
    x.add_(1)
    for _ in range(2):
        try:
            y = x[i]
            break
        finally:
            continue  # noqa: B012
    return y if len(i) == 7 else x


def returns(x: Tensor, i: Tensor) -> Any:
    x.add_(1)
    try:
        return x[i]
    finally:
        return x * 2  # noqa: B012


def asked_for(x: Tensor, i: Tensor) -> Any:
    def errors() -> type:
        return IndexError

    x.add_(1)
    try:
        return x[i]
    except errors():
        return x


def computes(x: Tensor, i: Tensor) -> Any:
    x.add_(1)
    try:
        return x[i]
    finally:
        x.sub_(3)


def keeps_what_was_computed(x: Tensor, i: Tensor) -> Any:
    x.add_(1)
    STATE.last = x * 2
    try:
        return x[i]
    finally:
        STATE.last = repr(STATE.last.tolist())


def unlocks(x: Tensor, i: Tensor) -> Any:
    x.add_(1)
    LOCK.acquire()
    try:
        return x[i]
    finally:
        LOCK.release()
        EVENTS.append(LOCK.locked())


def two_blocks(x: Tensor, i: Tensor) -> Any:
    x.add_(1)
    try:
        x.index_add_(0, INSIDE, x[INSIDE])
    finally:
        EVENTS.append("first")
    try:
        return x[i]
    finally:
        EVENTS.append("second")


def behind_a_break(x: Tensor, i: Tensor) -> Any:
    x.add_(1)
    try:
        graph_break()
        x.mul_(2)
        return x[i]
    finally:
        EVENTS.append("left")


def in_both(x: Tensor, i: Tensor) -> Any:
    try:
        graph_break()
        x.mul_(2)
        try:
            return x[i]
        finally:
            EVENTS.append("inner")
    finally:
        EVENTS.append("outer")


@contextlib.contextmanager
def noting() -> Iterator[None]:
    EVENTS.append("enters")
    try:
        yield
    finally:
        EVENTS.append("leaves")


def in_a_managers_block(x: Tensor, i: Tensor) -> Any:
    with noting():
        graph_break()
        x.mul_(2)
        return x[i]


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    try:
        yield
    except IndexError:
        EVENTS.append("kept")


def in_one_that_keeps(x: Tensor, i: Tensor) -> Any:
    with keeping():
        graph_break()
        x.mul_(2)
        return x[i]
    return x + 1


@contextlib.contextmanager
def several(*names: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.nullcontext())
        for _ in names:
            stack.enter_context(noting())
        yield


def in_a_stack(x: Tensor, i: Tensor) -> Any:
    with several(), contextlib.ExitStack() as stack:
        stack.callback(EVENTS.append, "called")
        x.mul_(2)
        return x[i]


def in_a_stack_that_keeps(x: Tensor, i: Tensor) -> Any:
    with contextlib.ExitStack() as stack:
        stack.enter_context(keeping())
        x.mul_(2)
        return x[i]
    return x + 1


OTHER_NUMBERS = {
    stops: None, returns: None, asked_for: None, computes: None, keeps_what_was_computed: None,
    unlocks: None, two_blocks: None, behind_a_break: 2, in_both: 1, in_a_managers_block: 1,
    in_one_that_keeps: None, in_a_stack_that_keeps: None,
}  # fmt: skip


@pytest.mark.parametrize("program", OTHER_NUMBERS)
def test_the_block_is_left(program: Callable[..., Any]) -> None:
    backend = CountingBackend()
    captured = optimize(program, backend)
    for i in (INSIDE, OUTSIDE, INSIDE):
        assert outcome(captured, i) == outcome(program, i)
    number = OTHER_NUMBERS[program]
    assert number is None or len(backend.graphs) == number


def test_blocks_on_a_stack_break_nothing() -> None:
    backend = CountingBackend()
    captured = optimize(in_a_stack, backend)
    for i in (INSIDE, OUTSIDE, INSIDE):
        assert outcome(captured, i) == outcome(in_a_stack, i)
    assert len(backend.graphs) == 1


def checked(x: Tensor, i: Tensor) -> Tensor:
    try:
        if (i > 3).any():
            raise ValueError("too large")
        return x[i]
    finally:
        EVENTS.append("left")


def test_a_check_of_data_in_a_block() -> None:
    backend = CountingBackend()
    captured = optimize(checked, backend, fullgraph=True)
    for i in (INSIDE, OUTSIDE, INSIDE):
        assert outcome(captured, i) == outcome(checked, i)
    assert len(backend.graphs) == 1
