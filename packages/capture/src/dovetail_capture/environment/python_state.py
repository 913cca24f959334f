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
from dataclasses import dataclass
from operator import itemgetter
from types import FrameType, TracebackType
from typing import Any


class Handlers:
    """The program's handlers of signals, called by ones that keep the errors that these raise.

    Errors are raised where they come only while `raises` is true: within what may be left anywhere,
    not while a context is entered or left, and not while all is put in order at the end."""

    def __init__(self) -> None:
        self.errors: list[tuple[BaseException, TracebackType | None]] = []
        self.raises = False
        self._watched: dict[int, _Watched] = {}

    def watch(self) -> None:
        """Have the handlers watched. Other threads than the main one run none."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler):
                self._watched[number] = _Watched(handler, self)
                signal.signal(number, self._watched[number])

    def put_back(self) -> None:
        """Let the program's handlers be called again, but for those replaced meanwhile."""
        while self._watched:
            number, watching = next(iter(self._watched.items()))
            try:
                now: object = signal.getsignal(number)
                if now is watching:
                    signal.signal(number, watching.handler)
                del self._watched[number]
            except BaseException as error:  # of a handler that was put back already
                self.errors.append((error, error.__traceback__))

    def first_error(self) -> BaseException:
        """The first error, with the traceback that it had (who caught it may have cleared that)."""
        error, where = self.errors[0]
        return error.with_traceback(where)


@contextmanager
def handlers_raise() -> Iterator[Handlers]:
    """Raise at the end the first error that a handler of signals raised in the block, wherever
    that was caught."""
    handlers = Handlers()
    try:
        handlers.watch()
        yield handlers
    except BaseException as error:
        handlers.put_back()
        if handlers.errors and error is not handlers.errors[0][0]:
            raise handlers.first_error() from handlers.errors[0][0].__cause__
        raise
    handlers.put_back()
    if handlers.errors:
        raise handlers.first_error()


@dataclass(frozen=True, eq=False)
class _Watched:
    """A handler of signals whose errors are kept."""

    handler: Callable[..., Any]
    of: Handlers

    def __call__(self, number: int, frame: Any) -> None:
        try:
            self.handler(number, frame)
        except BaseException as error:
            self.of.errors.append((error, error.__traceback__))
            if self.of.raises and not _manages_context(frame):
                raise


def _manages_context(frame: FrameType | None) -> bool:
    """Does a frame enter or leave a `with` block? Cut short, a generator that does would do the
    rest whenever it is collected, after what is around it."""
    while frame is not None and frame.f_code.co_name not in ("__enter__", "__exit__"):
        frame = frame.f_back
    return frame is not None


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
