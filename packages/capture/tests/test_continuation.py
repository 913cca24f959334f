"""Steps and continuations: every function, run one instruction at a time, equals itself."""

# ruff: noqa: B012, B023, E731  (programs as users write them)

from __future__ import annotations

import contextlib
import sys
import traceback
from typing import Any

import pytest
from capture_fakes import SingleStepper, context_of
from dovetail_capture._frame_hook import Switched
from dovetail_capture.frames.frame_versions import RegionSettings

GLOBAL = 10


class Thing:
    def __init__(self, value: int = 1) -> None:
        self.value = value

    def method(self, a: int, b: int = 2) -> int:
        return self.value + a * b

    def with_super(self) -> str:
        return super().__repr__()[:5] + str(self.value)


class Base:
    def greet(self, name: str) -> str:
        return "base " + name


class Derived(Base):
    def greet(self, name: str) -> str:
        return super().greet(name) + "!"


@contextlib.contextmanager
def noted(log: list[str]) -> Any:
    log.append("in")
    try:
        yield "ctx"
    finally:
        log.append("out")


def straight(a, b=3, *rest, k=4, **more):
    c = a + b
    d = [c, *rest, k]
    e = {**more, "d": d}
    return c, d, e, f"{a!r:>5} {b}"


def calls(a):
    t = Thing(a)
    x = t.method(a, b=3) + max(a, 2, key=lambda v: -v)
    y = dict(a=a, **{"z": 1})
    z = print_nothing(*[a], **{"k": 2})
    t.value += 5
    return x, y, z, t.value, (lambda q, r=a: q + r)(1)


def print_nothing(*args, **kwargs):
    return args, kwargs


def branches(a):
    if a > 2 and a < 10:
        b = "mid"
    elif a is None or not a or a == 1:
        b = "low"
    else:
        b = "high"
    c = a or "none"
    return b, c, 1 < a < 5 if a else None, "x" if b == "mid" else "y"


def closure(a):
    n = a

    def bump():
        nonlocal n
        n += 1
        return n + a

    first = bump()
    a = 100
    return first, bump(), n


def handled(a):
    log = []
    try:
        log.append(10 // a)
        log.append([1, 2][a])
    except ZeroDivisionError as error:
        log.append(str(error))
    except IndexError:
        log.append("index")
    else:
        log.append("fine")
    finally:
        log.append("finally")
    return log


def handled_in_turn(a):
    log = []
    for value in (a, 0, "x"):
        try:
            try:
                log.append(10 // value)
            except ZeroDivisionError as error:
                log.append((str(error), sys.exc_info()[0]))
                try:
                    [][value]
                except LookupError as inner:
                    log.append((repr(inner), repr(inner.__context__), str(sys.exc_info()[1])))
                    if a == 2:
                        raise KeyError(a) from inner
                log.append(sys.exc_info()[0])
                raise
            finally:
                log.append(("finally", sys.exc_info()[0]))
        except (KeyError, ArithmeticError) as outer:
            log.append((repr(outer), repr(outer.__context__), repr(outer.__cause__)))
        except TypeError:
            log.append("type")
            continue
        log.append(sys.exc_info())
    return log


def leaves_a_handler(a):
    for value in (1, a):
        try:
            10 // value
        except ZeroDivisionError:
            if a == 0:
                return sys.exc_info()[0]
            break
        finally:
            if a == 5:
                return "from finally"
    return sys.exc_info()


def handled_in_with(a):
    log = []
    with contextlib.suppress(ZeroDivisionError):
        with noted(log):
            log.append(10 // a)
    try:
        with noted(log):
            raise ValueError(a)
    except ValueError as error:
        log.append(str(error))
    return log, sys.exc_info()


def with_block(a):
    log = []
    with noted(log) as c:
        log.append(c)
        with contextlib.suppress(ValueError):
            if a:
                raise ValueError(a)
            log.append("not raised")
        log.append("inner done")
    return log


def returns_in_with(a):
    log = []
    with noted(log):
        return a, log


def loops(a):
    total = 0
    for i in range(a):
        if i == 3:
            continue
        total += i
    while total > 5:
        total -= 3
    return total, [i * a for i in range(a) if i], {i: i for i in range(a)}, sum(i for i in range(a))


def comprehensions(a):
    i = "outer"
    cells = [lambda: (i, a) for i in range(a)]
    names = {j: [i for i in range(j)] for j in range(a)}
    i = i + "!"
    return (
        [cell() for cell in cells],
        names,
        i,
        [k for i in range(a) if (k := i)],
        [i * n for n in (1, 2)],
    )


def keeps_its_cell(a):
    i = 1
    first = lambda: i
    seen = [first() + i for i in range(a)]
    i += 1
    return first(), seen, [lambda: i + n for n in range(a)][-1]() if a else None


def unpacking(a):
    x, (y, *z) = a, [1, 2, 3]
    (p, q), r = (x, y), z
    del x
    s = r[0:1]
    r[0] = p
    u = q, r, s
    return u, a[:1] if isinstance(a, list) else a


def globals_and_imports(a):
    global GLOBAL
    before = GLOBAL
    GLOBAL = a
    import os.path as path
    from math import floor

    after, GLOBAL = GLOBAL, before
    return before, after, path.sep, floor(2.5)


def walrus_and_format(a):
    if (n := a + 1) > 2:
        return f"{n:03d}|{a}"
    assert n <= 2, "no"
    return -n, ~n, not n, n**2, n @ Mat(), a is not n


class Mat:
    def __rmatmul__(self, other):
        return ("mat", other)


def makes_class(a):
    class Local(Thing):
        field = a

        def get(self):
            return self.field, a

    return Local(3).get(), Local.field


def matching(a):
    match a:
        case 0 | 1:
            return "small"
        case [x, y]:
            return x + y
        case {"k": v}:
            return v
        case Thing(value=v):
            return ("thing", v)
        case _:
            return "other"


def methods(a):
    return Thing(a).with_super(), Derived().greet(str(a))


def annotated(a):
    def inner(x: int, *, k: str = "s") -> list[int]:
        return [x, k]

    return inner(a), inner.__annotations__, inner.__kwdefaults__


def raises(a):
    b = a + 1
    if b:
        raise KeyError(b) from ValueError("cause")
    return b


FUNCTIONS: list[tuple[Any, list[Any]]] = [
    (straight, [1]),
    (calls, [3]),
    (branches, [0, 3, 20]),
    (closure, [1]),
    (handled, [0, 1, 5]),
    (handled_in_turn, [0, 1, 2]),
    (leaves_a_handler, [0, 1, 5]),
    (handled_in_with, [0, 1]),
    (with_block, [0, 1]),
    (returns_in_with, [1]),
    (loops, [0, 6]),
    (comprehensions, [0, 3]),
    (keeps_its_cell, [0, 3]),
    (unpacking, [1, [4, 5]]),
    (globals_and_imports, [7]),
    (walrus_and_format, [0, 5]),
    (makes_class, [2]),
    (matching, [0, [1, 2], {"k": 5}, 9]),
    (methods, [1]),
    (annotated, [1]),
]


@pytest.mark.parametrize("function, inputs", FUNCTIONS, ids=lambda v: getattr(v, "__name__", ""))
def test_one_instruction_at_a_time(function, inputs):
    for value in inputs:
        stepper = SingleStepper()
        context = context_of(stepper, region=RegionSettings(recompile_limit=1000))
        stepped = Switched(function, context.hook)
        expected = function(value)
        for _ in range(2):  # the second call runs from the entries
            assert stepped(value) == expected
        stops = stepper.stops
        assert stepped(value) == expected and stepper.stops == stops
        assert stops > 5
        plain = [event.text for event in context.log.events if event.kind == "plain"]
        assert all("closes over its variable" in text for text in plain)


def test_all_kinds_of_arguments():
    context = context_of(SingleStepper())
    stepped = Switched(straight, context.hook)
    assert stepped(1, 2, 3, 4, k=5, z=6) == straight(1, 2, 3, 4, k=5, z=6)


def test_match_on_objects():
    context = context_of(SingleStepper())
    thing = Thing(4)
    assert Switched(matching, context.hook)(thing) == ("thing", 4)


def test_exceptions_keep_type_cause_and_the_user_s_lines():
    context = context_of(SingleStepper())
    stepped = Switched(raises, context.hook)
    with pytest.raises(KeyError) as info:
        stepped(1)
    assert isinstance(info.value.__cause__, ValueError)
    frames = traceback.extract_tb(info.value.__traceback__)
    ours = [f for f in frames if f.name == "raises"]
    assert ours and all(f.filename == __file__ for f in ours)
    assert ours[-1].line is not None and "raise KeyError(b)" in ours[-1].line


def test_breaks_in_a_loop_do_not_nest_calls():
    stepper = SingleStepper()
    context = context_of(stepper, region=RegionSettings(recompile_limit=1000))

    def endless(n):
        while True:
            n -= 1
            if n < 0:
                return n

    assert Switched(endless, context.hook)(5000) == -1
    assert not [event for event in context.log.events if event.kind == "plain"]
