"""Float inputs: their keys, comparisons as guards, and the native check of these."""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_guards.clauses import ConstantIs, ShapeRelation
from dovetail_guards.evaluate import FrameView
from dovetail_guards.explain import clause_text
from dovetail_guards.float_expr import INFINITE_KEY, float_of_key, key_of
from dovetail_guards.guard_set import GuardSet
from dovetail_guards.shape_env import ShapeEnv
from dovetail_guards.source import LocalSource

VALUES = [0.37, -2.5, 1.0, 0.0, 1e300, -1e300, 5e-324, math.inf, -math.inf, 0.1, 3.0]


def f(lr: float) -> None:
    """What the guards are for."""


def made(hint: float) -> tuple[ShapeEnv, Any]:
    env = ShapeEnv()
    return env, env.symfloat(env.create_float(hint, LocalSource("lr")))


def texts(env: ShapeEnv) -> list[str]:
    return [clause_text(clause) for clause in env.clauses()]


def test_keys_order_as_floats_do() -> None:
    assert [float_of_key(key_of(v)) for v in VALUES] == VALUES
    ordered = sorted(VALUES)
    assert sorted(map(key_of, VALUES)) == [key_of(v) for v in ordered]
    assert key_of(-0.0) == key_of(0.0) and key_of(math.nan) > key_of(math.inf)


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge,
                                     operator.eq, operator.ne])  # fmt: skip
def test_a_comparison_holds_for_what_its_guard_lets_through(compare: Callable[..., bool]) -> None:
    for hint, number, swap in itertools.product(VALUES, [*VALUES, 0, 1, -3], (False, True)):
        env, x = made(hint)
        truth = bool(compare(number, x) if swap else compare(x, number))
        assert truth == (compare(number, hint) if swap else compare(hint, number))
        guards = GuardSet(env.clauses())
        native = guards.compile(f.__code__)
        assert guards.check_slow(FrameView((hint,), f))
        for value in (*VALUES, math.nan, -0.0, 0.38):
            holds = guards.check_slow(FrameView((value,), f))
            assert native((value,), f) == holds
            if holds:
                assert (compare(number, value) if swap else compare(value, number)) == truth


# Each keeps or turns around the order of floats; what they raise for, the program raises for.
STEPS: list[Callable[[Any, Any], Any]] = [
    lambda x, c: x + c, lambda x, c: x - c, lambda x, c: c - x, lambda x, c: x * c,
    lambda x, c: x / c, lambda x, c: c / x, lambda x, c: -x, lambda x, c: abs(x),
    lambda x, c: torch.sym_max(x, c), lambda x, c: torch.sym_min(x, c),
    lambda x, c: (torch.sym_sqrt if isinstance(x, torch.SymFloat) else math.sqrt)(abs(x)),
]  # fmt: skip
ANSWERS: list[Callable[[Any, Any], Any]] = [
    lambda x, c: bool(x < c), lambda x, c: bool(x >= c), lambda x, c: bool(c > x),
    lambda x, c: bool(x == c), lambda x, c: bool(x != c), lambda x, c: bool(x),
    lambda x, c: int(math.floor(x) * 1), lambda x, c: int(math.ceil(x) * 1),
    lambda x, c: int(x), lambda x, c: int(round(x) * 1),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(300))
def test_what_follows_from_a_float_is_as_its_guard_lets_through(seed: int) -> None:
    """Compared or rounded: the guard holds in this call, and whatever it holds for has the same
    answer, up to the very floats at its bounds."""
    draw = random.Random(seed)
    numbers = [0.1, -0.7, 3.0, 2, -5, 1e-3, 1e10, 0.0, draw.gauss(0, 3)]
    steps = [(draw.choice(STEPS), draw.choice(numbers)) for _ in range(draw.randint(1, 3))]
    answer, number = draw.choice(ANSWERS), draw.choice(numbers)

    def program(x: Any) -> Any:
        for step, constant in steps:
            x = step(x, constant)
        return answer(x, number)

    hint = draw.choice([draw.gauss(0, 2), abs(draw.gauss(0, 50)), 1.0, -3.5])
    try:
        wanted = program(hint)
    except (ArithmeticError, ValueError):
        return
    env, x = made(hint)
    assert program(x) == wanted
    guards = GuardSet(env.clauses())
    native = guards.compile(f.__code__)
    assert guards.check_slow(FrameView((hint,), f)) and native((hint,), f)
    relations = [c.expr for c in env.clauses() if isinstance(c, ShapeRelation)]
    bounds = [r.args[0] for r in relations if r.free_symbols() == {"f0"}]
    edges = [-bound.evaluate({"f0": 0}) * sign for bound in bounds for sign in (1, -1)]
    near = [key + off for key in (*edges, key_of(hint)) for off in (-1, 0, 1)]
    floats = [float_of_key(key) for key in near if abs(key) <= INFINITE_KEY]
    for value in [*floats, *VALUES, *(draw.gauss(0, 3) for _ in range(20))]:
        holds = guards.check_slow(FrameView((value,), f))
        assert native((value,), f) == holds
        if holds:
            with contextlib.suppress(ZeroDivisionError):  # (the program that runs asks about it)
                assert program(value) == wanted, (value, texts(env))


@pytest.mark.parametrize("seed", range(40))
def test_quotients_of_a_number_of_steps_keep_their_answer(seed: int) -> None:
    draw = random.Random(seed)
    a, b, c, d = (draw.randint(-6, 6) for _ in range(4))
    answer, number = draw.choice(ANSWERS), draw.choice([0.5, 0.9, -1.0, 2, 0.0, 1.25])
    hint = draw.choice([2, 3, 7, 50, 1000, -4])
    if c * hint + d == 0:
        return

    def program(n: Any) -> Any:
        return answer((a * n + b) / (c * n + d), number)

    env = ShapeEnv()
    assert program(env.symint(env.create_int(hint, LocalSource("lr")))) == program(hint)
    guards = GuardSet(env.clauses())
    assert guards.check_slow(FrameView((hint,), f))
    for value in [*range(-60, 120), 999, 10**6, 2**40, -(2**40)]:
        if guards.check_slow(FrameView((value,), f)):
            with contextlib.suppress(ZeroDivisionError):
                assert program(value) == program(hint), (value, texts(env))


def test_a_decay_that_warms_up_has_one_guard() -> None:
    env = ShapeEnv()
    step = env.symint(env.create_int(5, LocalSource("lr")))
    assert torch.sym_min((1 + step) / (10 + step), 0.99) < 0.99
    assert not any("==" in text for text in texts(env)), texts(env)


def test_what_is_computed_of_a_float_is_guarded_by_bounds() -> None:
    env, x = made(0.5)
    assert x * 0.9 > 0.1 and int(x * 8 + 0.5) == 4
    assert texts(env) == ["lr >= 0.4375", "lr < 0.5625"]


def test_guards_read_as_a_person_writes_them() -> None:
    env, x = made(0.5)
    assert x > 0 and x != 1.0
    assert texts(env) == ["lr > 0.0", "lr < 1.0"]
    assert float(x * 2) == 1.0
    assert texts(env) == ["lr == 0.5"]
    assert ConstantIs(LocalSource("lr"), 0.5) in env.clauses()


def test_what_is_never_below_a_bound_needs_no_guard() -> None:
    env, x = made(0.5)
    before = texts(env)
    assert abs(x) >= 0 and abs(x) + 1.5 > 0.5 and not (abs(x) * 2.0 < 0.0)
    assert abs(x) + 0.25 != 0.0
    assert texts(env) == before


def test_truth_and_division() -> None:
    env, x = made(-0.5)
    assert x
    assert texts(env) == ["lr >= -inf", "lr < 0.0"]
    zero_env, zero = made(0.0)
    with pytest.raises(ZeroDivisionError):
        1.0 / zero
    assert texts(zero_env) == ["lr == 0.0"]


def test_nan_and_negative_zero_stay_numbers() -> None:
    env = ShapeEnv()
    assert env.create_float(-0.0, LocalSource("lr")) == 0.0
    assert math.isnan(env.create_float(math.nan, LocalSource("lr")))
    assert not env.clauses()


def test_arithmetic_stays_symbolic() -> None:
    env, x = made(0.5)
    y = -(x * 3 + 1) / 2 - abs(x) % 0.3
    assert isinstance(y, torch.SymFloat) and y.node.hint == -(0.5 * 3 + 1) / 2 - 0.5 % 0.3
    assert y.node.expr.free_symbols() == {"f0"}
    assert texts(env) == ["lr >= -inf", "lr <= inf"]
