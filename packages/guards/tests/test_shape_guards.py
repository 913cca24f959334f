"""Shape guards: strides and ints as symbols, what is left out, and how they read."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from dovetail_guards import FrameView, GuardSet, clause_text
from dovetail_guards import expr as e
from dovetail_guards import relations as rel
from dovetail_guards.ranges import Facts, Range
from dovetail_guards.shape_env import Dim, FrozenError, ShapeEnv
from dovetail_guards.source import LocalSource, SizeSource, StrideSource

X = LocalSource("x")


def f(x: Any, n: int) -> Any:
    return x


def holds(env: ShapeEnv, x: torch.Tensor, n: int = 5) -> bool:
    """Slow and native must agree."""
    guards = GuardSet(env.clauses())
    slow = guards.check_slow(FrameView((x, n), f))
    assert guards.compile(f.__code__)((x, n), f) == slow, guards.as_text()
    return slow


def sizes(env: ShapeEnv, *hints: int) -> list[Any]:
    return [
        env.symint(env.create_size(h, SizeSource(X, i), Dim.DYNAMIC)) for i, h in enumerate(hints)
    ]


def test_a_stride_is_tied_to_sizes() -> None:
    env = ShapeEnv()
    _a, b = (env.create_size(h, SizeSource(X, i), Dim.DYNAMIC) for i, h in enumerate((4, 6)))
    env.relate_stride(b, StrideSource(X, 0))
    assert holds(env, torch.empty(4, 6)) and holds(env, torch.empty(9, 3))
    assert not holds(env, torch.empty(6, 4).t())
    assert not holds(env, torch.empty(4, 8)[:, :6])


def test_an_int_input_has_its_own_bounds() -> None:
    env = ShapeEnv()
    n = env.symint(env.create_int(5, LocalSource("n")))
    assert n < 100 and n != 7
    x = torch.empty(2)
    assert holds(env, x, 5) and holds(env, x, 99) and holds(env, x, 2)
    assert not holds(env, x, 7) and not holds(env, x, 100)
    assert not holds(env, x, 1) and not holds(env, x, -4)
    env = ShapeEnv()
    n = env.symint(env.create_int(-5, LocalSource("n")))
    assert n < 0
    assert holds(env, x, -1) and not holds(env, x, 0)
    assert env.create_int(1, LocalSource("one")).value == 1


def test_guards_read_as_a_person_writes_them() -> None:
    env = ShapeEnv()
    a, b = sizes(env, 24, 64)
    assert a <= 128 and a <= 200 and a >= 2 and a > 10  # the last says more than the one before
    assert b * 2 <= a * b  # follows from the bounds
    assert a % 8 == 0
    assert [clause_text(c) for c in env.clauses()] == [
        "x.size(0) >= 11",
        "x.size(0) <= 128",
        "x.size(1) >= 2",
        "(x.size(0) % 8) == 0",
    ]


def test_a_failure_names_the_size() -> None:
    env = ShapeEnv()
    (a,) = sizes(env, 24)
    assert a <= 128
    guards = GuardSet(env.clauses())
    failure = guards.explain_failure(FrameView((torch.empty(200), 1), f))
    assert "expected x.size(0) <= 128, but x.size(0) is 200" in str(failure)


def test_equal_sizes_are_one_equation() -> None:
    env = ShapeEnv()
    a, b = sizes(env, 6, 6)
    assert a == b and a + b == 2 * a
    assert [clause_text(c) for c in env.clauses()][-1] == "x.size(0) == x.size(1)"
    assert holds(env, torch.empty(5, 5)) and not holds(env, torch.empty(5, 4))


def test_nothing_is_assumed_after_the_guards_were_made() -> None:
    env = ShapeEnv()
    (a,) = sizes(env, 24)
    assert a < 100
    env.freeze()
    assert a < 200 and a >= 2
    with pytest.raises(FrozenError):
        bool(a < 50)


@pytest.mark.parametrize("seed", range(30))
def test_decisions_hold_for_all_sizes(seed: int) -> None:
    """What the facts settle is true for every size they allow."""
    rng = random.Random(seed)
    s, t = e.symbol("s0"), e.symbol("s1")
    least = {"s0": rng.choice([0, 1, 2, 3]), "s1": rng.choice([1, 2])}
    facts = Facts({name: Range(low, float("inf")) for name, low in least.items()}, {})

    def term() -> e.Expr:
        base = rng.choice([s, t, s * t, (s + rng.randint(0, 3)) // rng.randint(1, 4), t * t])
        return base * rng.randint(-3, 3)

    settled = 0
    for _ in range(60):
        expr = term() + term() + rng.randint(-6, 6)
        for relation in (rel.le(expr, 0), rel.eq(expr, 0)):
            truth = facts.decide(relation)
            if truth is None:
                continue
            settled += 1
            for a, b in itertools.product(range(12), repeat=2):
                if a >= least["s0"] and b >= least["s1"]:
                    assert relation.evaluate({"s0": a, "s1": b}) == truth, (relation, a, b)
    assert settled
