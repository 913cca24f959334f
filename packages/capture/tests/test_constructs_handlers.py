"""Constructs: graph breaks and native exceptions in and around exception handlers.

PYTEST_DONT_REWRITE: pytest would put code of its own into the programs' assertions.
"""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import contextlib
import sys
import traceback

import pytest
import torch
from construct_cases import LOG, Case, Manager, OwnError, Table, fails, loud, run_case

construct = Table()


@construct(graphs=2, breaks=1)
def break_in_except(x):
    y = x + 1
    try:
        fails(x)
    except OwnError as error:
        y = y * error.code
        print("caught", error, error.code)
        y = y - 1
    return y * 2


@construct(graphs=3, breaks=2)
def two_breaks_in_except(x):
    try:
        y = x * 3
        fails(y, "deep")
    except OwnError as error:
        z = y + 1
        print("first", str(error))
        z = z * 2
        print("second", error.args)
        z = z - error.code
    return z


@construct(graphs=2, breaks=1)
def break_in_finally_after_error(x):
    y = x
    try:
        try:
            y = x + 1
            fails(x)
        finally:
            y = y * 2
            print("finally", sys.exc_info()[0])
            y = y + 3
    except OwnError:
        y = y - 1
    return y


@construct(graphs=2, breaks=1)
def break_in_finally_without_error(x):
    try:
        y = x + 1
    finally:
        print("finally", sys.exc_info())
        y = y * 2
    return y


@construct(graphs=2, breaks=1)
def bare_raise_after_a_break(x):
    y = x + 1
    try:
        try:
            fails(x, "again")
        except OwnError:
            y = y * 2
            print("log and raise")
            y = y + 1
            raise
    except ValueError as error:
        return y * 3, str(error), error.code


@construct(graphs=2, breaks=1)
def raise_from_after_a_break(x):
    y = x + 1
    try:
        try:
            fails(x, "cause")
        except OwnError as error:
            print("wrapping")
            y = y * 2
            raise KeyError("wrapped") from error
    except KeyError as error:
        cause, context = error.__cause__, error.__context__
        return y, repr(error), repr(cause), cause is context, error.__suppress_context__


@construct(graphs=3, breaks=2)
def nested_handlers(x):
    y = x + 1
    try:
        fails(x, "outer")
    except OwnError as outer:
        print("outer", sys.exc_info()[1])
        y = y * 2
        try:
            {}["inner"]
        except KeyError as inner:
            print("inner", sys.exc_info()[1], repr(inner.__context__))
            y = y + 1
        y = y * outer.code
        seen = str(sys.exc_info()[1])
    return y, seen, sys.exc_info()


@construct(graphs=2, breaks=1)
def return_in_except_after_a_break(x):
    y = x + 1
    try:
        fails(x)
    except OwnError:
        print("leaving")
        return y * 2
    return y


@construct(graphs=None, breaks=None)
def break_in_except_in_a_loop(x):
    y = x
    for n in range(4):
        try:
            y = y + n
            if n % 2:
                fails(x, f"odd {n}")
        except OwnError as error:
            print(error)
            y = y * 2
            continue
        y = y - 1
    return y


@construct(graphs=2, breaks=1)
def item_in_except(x):
    try:
        fails(x)
    except OwnError:
        n = int(x.sum().item())
        y = x + n
    return y


@construct(graphs=2, breaks=1)
def native_error_is_caught(x):
    y = x + 1
    try:
        y = y * 2
        int(str(print("native")) + "x")
    except ValueError as error:
        y = y - len(str(error))
    return y * 3


def native(log, error=None):
    print("native")
    if error is not None:
        log.append("raises")
        raise error
    return 1


@construct(graphs=2, breaks=3)
def error_of_a_call_that_breaks(x):
    log = []
    y = x + 1
    try:
        native(log, KeyError("k"))
        y = y - 100
    except KeyError as error:
        y = y * 2
        log.append(repr(error))
    except ValueError:
        y = y - 1
    return y + 1, log


@construct(graphs=2, breaks=3)
def error_of_a_call_in_with(x):
    log = []
    y = x + 1
    with contextlib.suppress(KeyError):
        native(log, KeyError("k"))
        y = y - 100
    return y * 2, log


@construct(graphs=2, breaks=3)
def error_in_own_manager(x):
    log = []
    y = x + 1
    with Manager(log, swallow=True):
        y = y * 2
        native(log, OwnError("swallowed"))
        y = y * 3
    return y + 1, log


@construct(graphs=2, breaks=3)
def error_passes_finally(x):
    log = []
    y = x + 1
    try:
        try:
            native(log, OwnError("through"))
        finally:
            log.append("finally")
            y = y * 2
    except ValueError as error:
        y = y + error.code
    return y, log


@construct(graphs=1, breaks=4)
def error_that_nothing_catches(x):
    log = []
    y = x + 1
    try:
        native(log, OwnError("uncaught"))
    except KeyError:
        y = y * 2
    return y


@construct(graphs=None, breaks=None)
def traceback_in_the_handler(x):
    y = x + 1
    try:
        fails(x)
    except OwnError as error:
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        lines = traceback.format_exception(error)
        y = y * 2
    return y, names, [line.splitlines()[-1] for line in lines]


@construct(graphs=2, breaks=1)
def error_kept_for_later(x):
    kept = None
    try:
        fails(x)
    except OwnError as error:
        kept = error
    y = x + 1
    print("after", kept, sys.exc_info())
    return y * kept.code, kept


class Exits:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, tb):
        print("exit", kind.__name__ if kind else None, tb is None)
        return True


@construct(graphs=2, breaks=2)
def exit_that_breaks(x):
    y = x + 1
    with Exits():
        y = y * 2
        fails(x)
    return y + 1


@construct(graphs=2, breaks=1)
def break_in_with_in_except(x):
    y = x + 1
    try:
        fails(x)
    except OwnError as error:
        with torch.no_grad():
            y = y * 2
            print("inside", torch.is_grad_enabled())
            y = y + error.code
        y = y - 1
    return y, torch.is_grad_enabled()


@construct(graphs=2, breaks=1)
def break_in_else_and_finally(x):
    try:
        y = x + 1
    except ValueError:
        y = x
    else:
        print("else")
        y = y * 2
    finally:
        y = y + 1
    torch._C._log_api_usage_once("x")
    return loud(y) if y.dim() == 3 else y


@construct(graphs=None, breaks=None)
def handler_chooses_by_type(x):
    y = x
    for error in (KeyError("a"), OwnError("b"), None, IndexError("c")):
        try:
            if error is not None:
                print("raising")
                raise error
            y = y + 1
        except (KeyError, IndexError) as caught:
            y = y * 2
            name = type(caught).__name__
        except ValueError as caught:
            y = y - caught.code
            name = "own"
        else:
            name = "none"
        LOG["events"].append(name)
    return y, LOG["events"][-4:]


def _lets_a_stop_out():
    yield 1
    next(iter([]))


@construct()
def stop_iteration_out_of_a_generator(x):
    try:
        list(_lets_a_stop_out())
    except RuntimeError as error:
        cause = error.__cause__
        return x + 1, str(error), type(cause).__name__, cause is error.__context__


@contextlib.contextmanager
def _logged(log):
    log.append("in")
    try:
        yield
    finally:
        log.append("out")


@construct()
def stop_iteration_through_a_context_manager(x):
    log = []
    try:
        with _logged(log):
            next(iter([]))
    except Exception as error:
        log.append(type(error).__name__)
    return x + 1, log


@construct()
def stop_iteration_thrown_in(x):
    def waits():
        yield 1
        yield 2

    g = waits()
    next(g)
    try:
        g.throw(StopIteration("thrown"))
    except RuntimeError as error:
        return x + 1, repr(error.__cause__)


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)


def test_breaks_in_handlers_leave_nothing_uncaptured() -> None:
    """Every handler goes on in a continuation: no frame of these programs runs plainly."""
    from construct_cases import CountingBackend
    from dovetail_capture import optimize

    for case in construct.cases:
        captured = optimize(case.function, CountingBackend())
        with contextlib.suppress(OwnError):
            captured(*case.make())
        events = captured.capture_context.log.events
        plain = [event.text for event in events if event.kind == "plain"]
        assert not plain, (case.function.__name__, plain)
