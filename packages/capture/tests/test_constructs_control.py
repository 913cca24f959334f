"""Constructs: exceptions, `with` and `match`.

PYTEST_DONT_REWRITE: pytest would put code of its own into the programs' assertions.
"""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Sequence

import pytest
import torch
from construct_cases import LOG, Case, Manager, OwnError, Table, fails, run_case

construct = Table()


@construct()
def try_without_error(x):
    try:
        y = x + 1
    except ValueError:
        y = x
    else:
        y = y * 2
    finally:
        z = y - 1
    return y, z


@construct()
def caught_across_calls(x):
    try:
        return fails(x)
    except OwnError as error:
        return x * error.code, str(error), error.args


@construct()
def caught_by_base_class(x):
    try:
        fails(x)
    except (KeyError, ValueError) as error:
        return x + 1, type(error).__name__, isinstance(error, OwnError)


@construct()
def not_caught_by_others(x):
    try:
        try:
            fails(x)
        except KeyError:
            return 0
        finally:
            x = x + 1
    except Exception:
        return x


@construct()
def reraised(x):
    try:
        try:
            fails(x)
        except OwnError:
            raise
    except ValueError as error:
        return x + error.code


@construct()
def raised_from(x):
    try:
        try:
            {}["a"]
        except KeyError as error:
            raise RuntimeError("outer") from error
    except RuntimeError as error:
        return (
            type(error.__cause__).__name__,
            str(error.__cause__),
            error.__suppress_context__,
            x + 1,
        )


@construct()
def implicit_context(x):
    try:
        try:
            [][1]
        except IndexError:
            raise RuntimeError("second")  # noqa: B904
    except RuntimeError as error:
        return type(error.__context__).__name__, error.__cause__, x + 1


@construct()
def finally_returns(x):
    def inner():
        try:
            fails(x)
        finally:
            return x + 3  # noqa: B012

    return inner()


@construct()
def finally_order(x):
    log = []

    def inner():
        try:
            log.append("body")
            return x + 1
        finally:
            log.append("finally")

    return inner(), log


@construct()
def loop_with_try(x):
    total = x
    for i in range(4):
        try:
            if i == 1:
                continue
            if i == 3:
                break
            total = total + 1 // i
        except ZeroDivisionError:
            total = total + 100
        finally:
            total = total + 1
    return total


@construct()
def exception_name_is_deleted(x):
    try:
        raise ValueError("v")
    except ValueError as e:
        text = str(e)
    try:
        e
    except UnboundLocalError:
        return text, x + 1


@construct()
def exception_objects(x):
    e = OwnError("m", code=3)
    return (
        e.args,
        e.code,
        repr(e),
        str(e),
        isinstance(e, Exception),
        KeyError("k").args,
        str(KeyError("k")),
        x + 1,
    )


@construct()
def returned_exception(x):
    return OwnError("m", code=3), x + 1


@construct()
def exception_attributes(x):
    try:
        raise StopIteration(5)
    except StopIteration as s:
        value = s.value
    try:
        x.nothing
    except AttributeError as a:
        return value, a.name, x + 1


@construct()
def exception_notes(x):
    e = ValueError("v")
    e.add_note("note")
    return e.__notes__, x + 1


@construct()
def assertion_caught(x):
    try:
        assert x.dim() == 5, "dims"
    except AssertionError as error:
        return str(error), x + 1


@construct()
def exception_group(x):
    try:
        raise ExceptionGroup("g", [ValueError("a"), KeyError("b")])
    except* ValueError as group:
        n = len(group.exceptions)
    except* KeyError:
        pass
    return n, x + 1


construct.cases[-1] = Case(exception_group, None, None, construct.cases[-1].make, (3, 11))


@construct(graphs=0, breaks=None)
def uncaught(x):
    return fails(x)


@construct(graphs=1, breaks=None)
def uncaught_after_work(x):
    y = x * 2
    LOG["events"].append("before")
    return fails(y, f"shape {y.shape}")


uncaught_after_work.world = LOG


@construct(graphs=1, breaks=None)
def uncaught_key_error(x):
    y = x + 1
    return {"a": y}["b"]


@construct(graphs=0, breaks=None)
def uncaught_tensor_error(x):
    return x @ x


@construct(graphs=1, breaks=1)
def caught_tensor_error(x):
    try:
        return x @ x
    except RuntimeError as error:
        return x + len(str(error))


@construct(graphs=0, breaks=None)
def uncaught_attribute_error(x):
    return x.nonsense


@construct(graphs=0, breaks=None)
def uncaught_type_error(x):
    return len(3) + x


@construct()
def with_own_manager(x):
    log = []
    with Manager(log) as m, Manager(log):
        y = x + len(m.log)
    return y, log


@construct()
def with_swallows(x):
    log = []
    with Manager(log, swallow=True):
        fails(x)
        log.append("never")
    return x + 1, log


@construct()
def with_and_return(x):
    log = []

    def inner():
        with Manager(log):
            return x + 1

    return inner(), log


@construct()
def with_in_loop(x):
    log = []
    for i in range(3):
        with Manager(log):
            if i == 1:
                break
            x = x + 1
    return x, log


@contextlib.contextmanager
def managed(log, k):
    log.append("in")
    try:
        yield k * 2
    finally:
        log.append("out")


@construct()
def generator_context_manager(x):
    log = []
    with managed(log, x) as y:
        z = y + 1
    return z, log


@construct()
def generator_context_manager_and_error(x):
    log = []
    try:
        with managed(log, x):
            raise OwnError("in with")
    except OwnError:
        return x + 1, log


@construct()
def context_decorator(x):
    log = []

    @managed(log, 3)
    def inner(y):
        return y + 1

    return inner(x), log


@construct()
def contextlib_tools(x):
    with contextlib.nullcontext(x + 1) as y, contextlib.suppress(KeyError):
        {}["a"]
    log = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(Manager(log))
        stack.callback(log.append, "callback")
        z = y * 2
    return y, z, log


@construct()
def no_grad_block(x):
    with torch.no_grad():
        a = x * 2
        inside = torch.is_grad_enabled()
    with torch.enable_grad():
        b = a + 1
    return a, b, inside, torch.is_grad_enabled()


@construct(graphs=None, breaks=None)
def no_grad_decorator(x):
    @torch.no_grad()
    def inner(y):
        return y * 2, torch.is_grad_enabled()

    return inner(x), torch.is_grad_enabled()


@construct(graphs=1)
def no_grad_decorator_of_a_generator(x):
    @torch.no_grad()
    def doubled(y):
        while True:
            try:
                sent = yield y * 2, torch.is_grad_enabled()
                y = y + sent
            except ValueError:
                yield "thrown", torch.is_grad_enabled()
                return "returned"

    log = []
    with torch.enable_grad():
        steps = doubled(x)
        log.append((next(steps), torch.is_grad_enabled()))
        log.append((steps.send(1), torch.is_grad_enabled()))
        log.append((steps.throw(ValueError), torch.is_grad_enabled()))
        try:
            next(steps)
        except StopIteration as stop:
            log.append(stop.value)
        closed = doubled(x)
        next(closed)
        closed.close()
    return log, inspect.isgeneratorfunction(doubled)


@construct()
def set_grad_enabled_block(x):
    with torch.set_grad_enabled(False):
        a = x + torch.ones(3, requires_grad=True)
    return a, a.requires_grad


@construct(graphs=None, breaks=None)
def inference_mode_block(x):
    with torch.inference_mode():
        a = x * 2
        inside = torch.is_inference_mode_enabled()
    return a.is_inference(), inside, x + 1


@construct()
def autocast_block(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.T
    return y, y.dtype, (x @ x.T).dtype


@construct()
def autocast_disabled_inside(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            y = x @ x.T
        z = x @ x.T
    return y, z


@construct()
def match_values(x):
    def kind(v):
        match v:
            case 0 | 1:
                return "small"
            case int(n) if n > 100:
                return f"big {n}"
            case str():
                return "text"
            case [a, *rest]:
                return a, rest
            case {"k": value, **others}:
                return value, others
            case None:
                return "none"
            case _:
                return "other"

    return [kind(v) for v in (0, 500, "s", [1, 2, 3], {"k": 1, "z": 2}, None, 2.5)], x + 1


class P:
    __match_args__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


@construct()
def match_classes(x):
    match P(1, x):
        case P(2, _):
            return 0
        case P(1, b=y):
            return y + 1


@construct()
def match_tensor_or_number(x):
    match x:
        case torch.Tensor():
            y = x + 1
        case _:
            y = 0
    match (1, (2, 3)):
        case (a, (b, c)):
            return y * a * b * c


@construct()
def import_inside(x):
    import math
    from collections import OrderedDict as Od

    return x * math.pi, Od(a=1)


def averages():
    total, count, value = 0.0, 0, None
    while True:
        try:
            item = yield value
        except KeyError:
            total, count = 0.0, 0
            continue
        if item is None:
            return total
        total, count = total + item, count + 1
        value = total / count


@construct()
def generator_protocol(x):
    g = averages()
    next(g)
    seen = [g.send(4), g.send(6), g.throw(KeyError("reset")), g.send(2)]
    try:
        g.send(None)
    except StopIteration as stop:
        seen.append(stop.value)
    return x + seen[0], seen


class Three(Sequence):
    """Iterated by `Sequence.__iter__`, a generator that waits in `try: ... except IndexError`."""

    def __init__(self, x):
        self.x = x

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if index >= 3:
            raise IndexError(index)
        return self.x * index


@construct()
def generators_left_in_a_harmless_try(x):
    waiting = iter(Three(x))
    next(waiting)
    total = next(waiting) + next(iter(Three(x)))
    for p, q in zip([1, 2], Three(x)):
        total = total + q * p
    return total


@construct()
def generators_of_tensors(x):
    def windows(t, n):
        for i in range(n):
            got = yield t + i
            if got:
                t = t * got

    def chained(t):
        last = yield from windows(t, 2)
        yield t - 1
        return last

    total = sum(chained(x))
    g = windows(x, 3)
    first, second = next(g), g.send(2)
    g.close()
    return total, first + second


async def answer(t):
    return t + 1


@construct(graphs=None, breaks=None)
def coroutines(x):
    c = answer(x)
    try:
        c.send(None)
    except StopIteration as stop:
        return stop.value * 2


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)
