"""Expressions against brute force and sympy."""

from __future__ import annotations

import itertools
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from dovetail_guards import expr as e
from dovetail_guards import relations as rel
from dovetail_guards.native import compile_program
from expr_sympy import from_sympy, to_sympy

SEED = int(os.environ.get("DOVETAIL_FUZZ_SEED", "7"))
NAMES = ("a", "b", "c")
VALUES = [
    dict(zip(NAMES, v, strict=True)) for v in itertools.product((-7, -1, 0, 2, 5, 12), repeat=3)
]

Plain = Callable[[dict[str, int]], int]
UNDEFINED = "undefined"


def value_of(function: Callable[[dict[str, int]], Any], values: dict[str, int]) -> Any:
    try:
        return function(values)
    except ZeroDivisionError:
        return UNDEFINED


def random_expr(r: random.Random, depth: int) -> tuple[e.Expr, Plain]:
    """An expression built by our operators, and the same built from Python ints."""
    if depth == 0 or r.random() < 0.2:
        if r.random() < 0.6:
            name = r.choice(NAMES)
            return e.symbol(name), lambda v: v[name]
        number = r.choice((-8, -3, -1, 0, 1, 2, 3, 4, 6, 8, 16))
        return e.constant(number), lambda v: number
    (x, f), (y, g) = random_expr(r, depth - 1), random_expr(r, depth - 1)
    kind = r.choice(("add", "sub", "mul", "floordiv", "floordiv", "mod", "mod", "min", "max"))
    if kind in ("floordiv", "mod") and r.random() < 0.6:
        divisor = r.choice((2, 3, 4, 8, -4))
        y, g = e.constant(divisor), lambda v: divisor
    if kind in ("floordiv", "mod") and y.value == 0:
        kind = "add"
    match kind:
        case "add":
            return x + y, lambda v: f(v) + g(v)
        case "sub":
            return x - y, lambda v: f(v) - g(v)
        case "mul":
            return x * y, lambda v: f(v) * g(v)
        case "floordiv":
            return x // y, lambda v: f(v) // g(v)
        case "mod":
            return x % y, lambda v: f(v) % g(v)
        case "min":
            return e.min_(x, y), lambda v: min(f(v), g(v))
    return e.max_(x, y), lambda v: max(f(v), g(v))


def test_every_rewrite_keeps_the_value() -> None:
    r = random.Random(SEED)
    for _ in range(600):
        expr, plain = random_expr(r, r.choice((1, 2, 3)))
        for values in r.sample(VALUES, 25):
            expected = value_of(plain, values)
            if expected != UNDEFINED:
                assert expr.evaluate(values) == expected, (SEED, str(expr), values)


def test_relations_keep_their_truth() -> None:
    r = random.Random(SEED)
    relations: list[tuple[Any, Callable[[int, int], bool]]] = [
        (rel.eq, lambda x, y: x == y),
        (rel.ne, lambda x, y: x != y),
        (rel.le, lambda x, y: x <= y),
        (rel.lt, lambda x, y: x < y),
        (rel.ge, lambda x, y: x >= y),
        (rel.gt, lambda x, y: x > y),
    ]
    for _ in range(250):
        parts = []
        for _ in range(2):
            (x, f), (y, g) = random_expr(r, 2), random_expr(r, 1)
            make, plain = r.choice(relations)
            parts.append((make(x, y), lambda v, f=f, g=g, p=plain: p(f(v), g(v))))
        (p, fp), (q, fq) = parts
        cases: list[tuple[rel.BoolExpr, Callable[[bool, bool], bool]]] = [
            (rel.and_(p, q), lambda x, y: x and y),
            (rel.or_(p, rel.not_(q)), lambda x, y: x or not y),
            (rel.not_(rel.and_(p, q)), lambda x, y: not (x and y)),
        ]
        for values in r.sample(VALUES, 15):
            x, y = value_of(fp, values), value_of(fq, values)
            if UNDEFINED in (x, y):
                continue
            for relation, plain in cases:
                assert relation.evaluate(values) == plain(x, y), (SEED, str(relation), values)


def test_sympy_agrees_and_round_trips() -> None:
    r = random.Random(SEED)
    for _ in range(40):
        expr, _ = random_expr(r, 2)
        other = to_sympy(expr)
        values = [v for v in r.sample(VALUES, 5) if value_of(expr.evaluate, v) != UNDEFINED]
        for v in values:
            assert int(
                other.subs({to_sympy(e.symbol(n)): x for n, x in v.items()})
            ) == expr.evaluate(v), (SEED, str(expr), v)
        try:
            back = from_sympy(other)
        except ValueError:
            continue  # sympy turned a quotient into a fraction
        for v in values:
            assert value_of(back.evaluate, v) == expr.evaluate(v)


def test_canonical_forms() -> None:
    a, b = e.symbol("a"), e.symbol("b")
    assert (a + b) * (a - b) is a * a - b * b
    assert (8 * a) // 8 is a
    assert (8 * a + b) // 8 is a + b // 8
    assert (2 * a) // 4 is a // 2
    assert (a // 2) // 3 is a // 6
    assert (a * b * 4) // (2 * b) is 2 * a
    assert ((a + 1) * b) // (a + 1) is b
    assert (8 * a + b) % 8 is b % 8
    assert (a * b) % b is e.ZERO
    assert (a % 8) % 4 is a % 4
    assert e.min_(a, a + 1) is a and e.max_(a, 3, a) is e.max_(3, a)
    assert rel.eq(2 * a, 2 * b) is rel.eq(b, a)
    assert rel.eq(2 * a, 3) is rel.FALSE
    assert rel.lt(a, a + 1) is rel.TRUE
    assert rel.le(2 * a, 5) is rel.le(a, 2)
    assert str(rel.le(2 * a, b)) == "2*a <= b"
    assert str(rel.ge(a, 2)) == "a >= 2"
    assert str(rel.ne(a, b)) == "a != b"
    assert str((a * b + 3) // 4) == "((a*b + 3) // 4)"


def test_division_by_zero_is_refused() -> None:
    a = e.symbol("a")
    with pytest.raises(ZeroDivisionError):
        a // 0
    with pytest.raises(ZeroDivisionError):
        a % 0


def test_pickling_interns_again() -> None:
    expr = e.min_(e.symbol("a") // 3, e.symbol("b") % 5) * 2 + 1
    assert pickle.loads(pickle.dumps(expr)) is expr
    relation = rel.lt(expr, 7)
    assert pickle.loads(pickle.dumps(relation)) is relation


def test_substitution() -> None:
    a, b = e.symbol("a"), e.symbol("b")
    assert ((a + b) // 4).substitute({"a": 4 * b}) is b + b // 4
    assert rel.lt(a, b).substitute({"a": 1, "b": 2}) is rel.TRUE


def test_programs_name_missing_symbols() -> None:
    with pytest.raises(ValueError, match="without a source: b"):
        compile_program(e.symbol("b") + 1, ("a",))


def test_importing_the_package_does_not_import_sympy_again() -> None:
    # torch itself may import sympy; our modules must not.
    code = (
        "import sys, torch; before = 'sympy' in sys.modules\n"
        "import dovetail_guards, dovetail_guards.shape_env, dovetail_guards.sym_node\n"
        "assert ('sympy' in sys.modules) == before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
