"""Messages are written after the graph: they show what they showed when the program wrote them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from dovetail_capture import optimize, run_graph

LOGGER = logging.getLogger("dovetail.tests.messages")
LOGGER.propagate = False
ITEMS: list[Any] = []


class Lines(logging.Handler):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


LINES = Lines()


class Counter:
    """Has a number in its text."""

    n = 0

    def __repr__(self) -> str:
        return f"Counter({self.n})"


COUNTER = Counter()


def level_after(x):
    LOGGER.info("told")
    LOGGER.setLevel(logging.ERROR)
    return x + 1


def level_before(x):
    LOGGER.setLevel(logging.ERROR)
    LOGGER.info("not told")
    return x + 1


def disabled_meanwhile(x):
    LOGGER.disabled = True
    LOGGER.info("not told")
    LOGGER.disabled = False
    return x + 1


def all_disabled_after(x):
    LOGGER.info("told")
    logging.disable(logging.CRITICAL)
    return x + 1


def handler_goes(x):
    LOGGER.info("told")
    LOGGER.removeHandler(LINES)
    return x + 1


def level_of_a_handler(x):
    LOGGER.info("told")
    LINES.setLevel(logging.ERROR)
    return x + 1


def list_grows(x):
    LOGGER.info("%s", ITEMS)
    ITEMS.append(1)
    return x + 1


def list_made_here_grows(x):
    items = [1]
    LOGGER.info("%s", items)
    items.append(2)
    LOGGER.info("%s", items)
    return x + 1


def list_within(x):
    items = [[1]]
    LOGGER.info("%s", items)
    items[0].append(2)
    return x + 1


def object_changes(x):
    LOGGER.info("%s", COUNTER)
    COUNTER.n += 1
    return x + 1


def tensor_is_written_to(x):
    y = x + 1
    LOGGER.info("%s", y)
    y.add_(1)
    return y


def view_is_written_to(x):
    y = x + 1
    LOGGER.info("%s", y)
    y.view(-1)[0] = 5
    return y


def warning_before_filters(x):
    warnings.warn("told", stacklevel=1)
    warnings.simplefilter("ignore")
    return x + 1


def warnings_around_a_block(x):
    warnings.warn("told", stacklevel=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = x + 1
        warnings.warn("not told", stacklevel=1)
    return x


FUNCTIONS: tuple[Callable[..., Any], ...] = (
    level_after,
    level_before,
    disabled_meanwhile,
    all_disabled_after,
    handler_goes,
    level_of_a_handler,
    list_grows,
    list_made_here_grows,
    list_within,
    object_changes,
    tensor_is_written_to,
    view_is_written_to,
    warning_before_filters,
    warnings_around_a_block,
)


def told(function: Callable[..., Any]) -> tuple[Any, ...]:
    """What a call gives and tells."""
    LOGGER.handlers[:], LOGGER.disabled = [LINES], False
    LOGGER.setLevel(logging.INFO)
    LINES.setLevel(logging.NOTSET)
    logging.disable(logging.NOTSET)
    LINES.lines.clear()
    ITEMS.clear()
    COUNTER.n = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(torch.ones(2))
    return result.tolist(), list(LINES.lines), [str(one.message) for one in caught]


@pytest.fixture(autouse=True)
def _messages_again() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_message_shows_what_it_showed(function: Callable[..., Any]) -> None:
    compiled = optimize(function, run_graph)
    expected = told(function)
    assert [told(compiled) for _ in range(2)] == [expected] * 2


def test_other_changes_break_nothing() -> None:
    def function(x):
        LOGGER.info("%s %d", x.shape, len(ITEMS))
        ITEMS.append(1)
        COUNTER.n += 1
        if LOGGER.isEnabledFor(logging.INFO):
            LOGGER.warning("seen")
        return x + COUNTER.n

    compiled = optimize(function, run_graph, fullgraph=True)
    expected = told(function)
    assert [told(compiled) for _ in range(2)] == [expected] * 2
