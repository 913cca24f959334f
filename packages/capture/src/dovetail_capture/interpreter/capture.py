"""`capture_frame`: interpret a frame; at a construct that cannot be captured, start again and end
the capture just before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

from dovetail_guards.guard_set import GuardSet

from dovetail_capture.captured_frame import AfterGraph, AttemptOptions, CapturedFrame, GraphBreak
from dovetail_capture.environment.python_state import collector_paused
from dovetail_capture.errors import NotCapturable
from dovetail_capture.interpreter.attempts.attempt import Attempt, Break, End
from dovetail_capture.interpreter.attempts.finished import captured_frame
from dovetail_capture.interpreter.changes.counters import counters
from dovetail_capture.options import CaptureOptions
from dovetail_capture.recipe import Const, FrameEnd

_DEFAULTS = CaptureOptions()
# Makes an attempt that stops before this step (-1: at no step).
NewAttempt = Callable[[int, AttemptOptions], Attempt]
_MOST_ROUNDS = 3  # in which ints are found that the frame both reads and writes


def capture_frame(
    code: CodeType,
    func: FunctionType,
    args: tuple[Any, ...],
    *,
    options: CaptureOptions = _DEFAULTS,
) -> CapturedFrame:
    """Capture the frame of a call of `func` (whose code is `code`).

    `args` are the raw arguments in `co_varnames` order: positional, keyword-only, then the
    `*args` tuple and the `**kwargs` dict where the code has them. Nothing of the user's is
    changed, whether capture succeeds or fails.
    """
    attempts: list[Attempt] = []

    def attempt(stop_at: int, attempt_options: AttemptOptions) -> Attempt:
        attempts.append(Attempt(code, func, args, options, stop_at, attempt_options))
        return attempts[-1]

    with collector_paused():
        try:
            return _with_counters(attempt, options.exports)
        finally:
            for one in attempts:
                one.let_go()


def leave_frame(
    code: CodeType,
    func: FunctionType,
    args: tuple[Any, ...],
    error: BaseException,
    *,
    attempt_options: AttemptOptions,
    options: CaptureOptions = _DEFAULTS,
) -> CapturedFrame | None:
    """What a frame of which the graph raised `error` does as it passes: that of its `finally`
    blocks, and what it did before, as effects without a graph; None if that is nothing."""
    with collector_paused():
        for row, _ in enumerate(attempt_options.leaves):
            asked = replace(attempt_options, checks=False, leaves=attempt_options.leaves[:row])
            attempt = Attempt(code, func, args, options, -1, asked, error)
            try:
                outcome = attempt.run()
                if attempt_options.admits(row) and attempt.leaves_by(outcome) == "effects":
                    assert isinstance(outcome, End)
                    effects_, end = tuple(outcome.rebuilder.effects), FrameEnd(returns=Const(None))
                    return CapturedFrame(code, None, (), GuardSet(()), AfterGraph(effects_, end))
            finally:
                attempt.let_go()
    return None


def _with_counters(new_attempt: NewAttempt, exports: bool) -> CapturedFrame:
    """Capture a frame; again with the ints symbolic that it both reads and writes, if that does
    not end it earlier, nor gives the graph a number that it may not have."""
    best = _capture(new_attempt, exports, AttemptOptions())
    for _ in range(_MOST_ROUNDS):
        found = counters(best.attempt.session)
        if not found:
            break
        try:
            other = _capture(new_attempt, exports, AttemptOptions(counters=best.counters | found))
        except NotCapturable:
            break
        session = other.attempt.session
        if other.stop_at != best.stop_at or (
            session.shapes.static and session.inputs.takes_numbers()
        ):
            break
        best = other
    finished = captured_frame(best.attempt, best.end, best.break_)
    best.attempt.recorder.warned.say()
    return finished


def _capture(new_attempt: NewAttempt, exports: bool, options: AttemptOptions) -> _Captured:
    stop_at = -1
    break_: GraphBreak | None = None
    while True:
        attempt = new_attempt(stop_at, options)
        outcome = attempt.run()
        if attempt.session.checks.raised is not None:  # to see what the program makes of that
            options = replace(options, leaves=(*options.leaves, attempt.leaves_by(outcome)))
            continue
        if attempt.notices:  # which changes no graph, if leaving the blocks can be replayed
            asked = _leaves(new_attempt, stop_at, options, len(attempt.session.checks.rows))
            if all(map(asked.admits, range(len(asked.leaves)))):
                attempt.attempt_options = replace(options, leaves=asked.leaves)
                attempt.cannot_check = False
        if attempt.cannot_check:  # from the beginning: what was left to the end breaks the graph
            stop_at, break_, options = -1, None, replace(options, checks=False)
            continue
        if attempt.raises and attempt.session.asked_compiling and options.compiling:
            # What raises only because it was told that it is compiled is told that it is not.
            other = new_attempt(stop_at, replace(options, compiling=False))
            found = other.run()
            if not other.raises:
                attempt, outcome, options = other, found, other.attempt_options
        if attempt.leaks and attempt.session.applied_functions and not exports:
            # What a forward that nothing differentiates keeps elsewhere is the graph's to give,
            # which guards keep to such calls. (The node of a function would refuse others.)
            other = new_attempt(stop_at, replace(options, inlines=True))
            found = other.run()
            if not other.leaks:
                attempt, outcome, options = other, found, other.attempt_options
        if isinstance(outcome, Break):
            if 0 <= stop_at <= attempt.first_step:
                raise NotCapturable(outcome.graph_break)
            if stop_at >= 0 and outcome.step >= stop_at:
                raise AssertionError(f"capture does not repeat itself: {outcome.graph_break}")
            if break_ is None or not outcome.moves_back:
                break_ = outcome.graph_break
            stop_at = outcome.step
            continue
        return _Captured(attempt, outcome, break_ if stop_at >= 0 else None, stop_at)


def _leaves(
    new_attempt: NewAttempt, stop_at: int, options: AttemptOptions, rows: int
) -> AttemptOptions:
    """These options with what leaving so many rows of blocks does."""
    options = replace(options, checks=False)
    for _ in range(rows):
        attempt = new_attempt(stop_at, options)
        options = replace(options, leaves=(*options.leaves, attempt.leaves_by(attempt.run())))
        if not options.admits(len(options.leaves) - 1):
            break
    return options


class _Captured:
    """An attempt that came to its end, and the break where that was, at `stop_at`."""

    def __init__(self, attempt: Attempt, end: End, break_: GraphBreak | None, stop_at: int) -> None:
        self.attempt = attempt
        self.end = end
        self.break_ = break_
        self.stop_at = stop_at

    @property
    def counters(self) -> frozenset[str]:
        """The ints that were symbolic from the start."""
        return self.attempt.attempt_options.counters
