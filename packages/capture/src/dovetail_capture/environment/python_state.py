"""What a capture sets aside of Python: handlers of signals, and the garbage collector; and whether
`builtins` are Python's own.

Python runs a handler between any two instructions of the main thread, also where what it raises is
caught for another reason (`except Exception`) or cannot be raised at all (the callback of a weak
reference). Capture is written in Python: where `builtins.len` is another function, it cannot run.
"""

from __future__ import annotations

import builtins
import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from types import TracebackType
from typing import Any


@contextmanager
def handlers_raise() -> Iterator[None]:
    """Raise at the end the first error that a handler of signals raised in the block, wherever
    that was caught. Other threads run no handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    errors: list[tuple[BaseException, TracebackType | None]] = []
    watched: dict[int, _Watched] = {}
    try:
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler):
                watched[number] = _Watched(handler, errors)
                signal.signal(number, watched[number])
        yield
    except BaseException as error:
        _put_back(watched)
        if errors and error is not errors[0][0]:
            raise _first(errors) from errors[0][0].__cause__
        raise
    _put_back(watched)
    if errors:
        raise _first(errors)


def _first(errors: list[tuple[BaseException, TracebackType | None]]) -> BaseException:
    """The first error, with the traceback that it had (who caught it may have taken that away)."""
    error, where = errors[0]
    return error.with_traceback(where)


class _Watched:
    """A handler of signals that keeps what it raises."""

    def __init__(
        self, handler: Callable[..., Any], errors: list[tuple[BaseException, TracebackType | None]]
    ) -> None:
        self.handler, self.errors = handler, errors

    def __call__(self, number: int, frame: Any) -> None:
        try:
            self.handler(number, frame)
        except BaseException as error:
            self.errors.append((error, error.__traceback__))
            raise


def _put_back(watched: dict[int, _Watched]) -> None:
    """Let the program's handlers be called again, but for those replaced meanwhile."""
    for number, watching in watched.items():
        now: object = signal.getsignal(number)
        if now is watching:
            signal.signal(number, watching.handler)


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collections within: a stage makes many small objects that live until its end, and looking
    through them (and all modules that are loaded) in between costs a third of its time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


# What programs replace that capture does not call. (It imports some of itself when it needs it.)
_NOT_CALLED = frozenset(
    "print input open breakpoint help exit quit copyright credits license "
    "__debug__ __doc__ __name__ __package__ __loader__ __spec__ _".split()
)
_NAMES = tuple(name for name in vars(builtins) if name not in _NOT_CALLED)
_READ = itemgetter(*_NAMES)
_OBJECTS = _READ(vars(builtins))
_PAIRS = tuple(zip(_NAMES, _OBJECTS, strict=True))


def replaced_builtin() -> str | None:
    """The name of a built-in function or class that was replaced, if there is one. Calls none."""
    now = builtins.__dict__
    try:
        if _READ(now) == _OBJECTS:
            return None
    except KeyError:
        pass
    for name, real in _PAIRS:
        if name not in now or now[name] is not real:
            return name
    return None
