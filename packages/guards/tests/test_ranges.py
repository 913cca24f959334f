"""Ranges and congruences against brute force."""

from __future__ import annotations

import itertools
import math
import os
import random

from dovetail_guards import expr as e
from dovetail_guards import relations as rel
from dovetail_guards.learned import Learned
from dovetail_guards.ranges import Congruence, Facts, Range, range_if_nonpositive
from test_expr import random_expr

SEED = int(os.environ.get("DOVETAIL_FUZZ_SEED", "11"))


def random_facts(r: random.Random) -> tuple[Facts, list[dict[str, int]]]:
    """Random facts, and values that obey them."""
    ranges, congruences, values = {}, {}, {}
    for name in ("a", "b", "c"):
        lower = r.choice((-9, -1, 0, 1, 2, 5))
        upper = lower + r.choice((0, 3, 20))
        congruence = Congruence(r.choice((1, 1, 2, 4)), r.randrange(4))
        allowed = [v for v in range(lower, upper + 1) if v in congruence]
        if not allowed:
            congruence, allowed = Congruence(), list(range(lower, upper + 1))
        open_ended = r.random() < 0.3
        ranges[name] = Range(lower, float("inf")) if open_ended else Range(lower, upper)
        congruences[name] = congruence
        values[name] = r.sample(allowed, min(3, len(allowed)))
    cases = [
        dict(zip(values, choice, strict=True)) for choice in itertools.product(*values.values())
    ]
    return Facts(ranges, congruences), cases


def test_facts_hold_for_every_value() -> None:
    r = random.Random(SEED)
    decided = 0
    for _ in range(400):
        facts, cases = random_facts(r)
        expr, _ = random_expr(r, r.choice((1, 2, 3)))
        other, _ = random_expr(r, 1)
        seen, congruence = facts.range_of(expr), facts.congruence_of(expr)
        simpler = facts.simplify(expr)
        relations = [rel.eq(expr, other), rel.le(expr, other), rel.ne(expr, 3)]
        relations.append(rel.or_(relations[0], relations[1]))
        verdicts = [facts.decide(relation) for relation in relations]
        decided += sum(v is not None for v in verdicts)
        for values in cases:
            try:
                value = expr.evaluate(values)
                truths = [relation.evaluate(values) for relation in relations]
            except ZeroDivisionError:
                continue
            where = (SEED, str(expr), values, facts)
            assert value in seen, where
            assert value in congruence, where
            assert simpler.evaluate(values) == value, (*where, str(simpler))
            for relation, verdict, truth in zip(relations, verdicts, truths, strict=True):
                assert verdict is None or verdict == truth, (*where, str(relation))
    assert decided > 100


def test_a_bounded_quotient_bounds_what_is_divided() -> None:
    """Neither more nor less, whatever the signs."""
    x = e.symbol("s0")
    choices = ((-3, -1, 1, 2), range(-7, 8, 3), (1, 2, 5), (-2, -1, 1, 3), (-4, 0, 3))
    for factor, summand, divisor, slope, start in itertools.product(*choices):
        expr = (slope * x + start) // divisor * factor + summand
        found = range_if_nonpositive(expr)
        if found is None:
            assert sum(bool(m) for m, _ in expr.terms) > 1  # a whole part of it was taken out
            continue
        for value in range(-30, 31):
            assert (expr.evaluate({"s0": value}) <= 0) == (value in found[1]), (expr, found)
    assert range_if_nonpositive(x // e.symbol("s1")) is None


def test_a_quotient_that_is_a_number_is_one_everywhere() -> None:
    learned = Learned(set())
    a, b = e.symbol("s0"), e.symbol("s1")
    learned.learn(rel.eq((a + 1) // 2 - 1, e.constant(1)))
    assert learned.facts.ranges["s0"] == Range(3, 4)
    assert learned.facts.simplify((a + 1) // 2 * b * 3 - b * 3) is 3 * b


def test_a_quotient_rounded_up_is_a_divisor_above_zero() -> None:
    """Its own terms' ranges do not tell: it is a size less a part of it."""
    x = e.symbol("s0")
    up = -((-x) // 8)
    facts = Facts({"s0": Range(2, math.inf)})
    for padded in (up, 8 * up):
        assert facts.range_of((x - 7) % padded).lower == 0
        assert facts.range_of(x // padded).lower == 0
        assert facts.decide(rel.le(((-2) % padded) % padded, e.constant(-1))) is False
    assert Facts().range_of(x % up).lower == -math.inf


def test_a_quotient_without_a_rest_multiplied_again() -> None:
    a, b = e.symbol("a"), e.symbol("b")
    facts = Facts({}, {"a": Congruence(6, 4)})
    assert facts.simplify(a // 3 * b * 3) is (a - 1) * b
    assert facts.simplify(a // 2 * 4) is 2 * a
    assert facts.decide(rel.eq(a // 2 * 2, a)) is True
    for kept in (a // 4 * 4, b // 2 * 2, a // 2 * b, (a // 2) * (a // 2) * 4):
        assert facts.simplify(kept) is kept


def test_what_an_equation_says_is_left_over() -> None:
    a, b = e.symbol("s0"), e.symbol("s1")
    for relation in (rel.eq(a // 4 * 4 + 3, a), rel.eq(a - 3, a // 4 * 4)):
        learned = Learned(set())
        learned.learn(relation)
        assert learned.facts.congruences["s0"] == Congruence(4, 3)
        assert learned.facts.simplify(a // 4 * 4 * b) is (a - 3) * b
    for relation in (rel.eq(a // 4 * 4 + b, a), rel.eq(a // 4 * 2, a), rel.eq(a // 4 * 4, b)):
        learned = Learned(set())
        learned.learn(relation)
        assert not learned.facts.congruences


def test_a_dominated_argument_goes_away() -> None:
    a, b = e.symbol("a"), e.symbol("b")
    facts = Facts({"a": Range(2, 10), "b": Range(20, 30)})
    assert facts.simplify(e.min_(a, b)) is a
    assert facts.simplify(e.max_(a, b, 100)).value == 100
    assert facts.simplify(a % b) is a
    assert facts.simplify(a // b) is e.ZERO


def test_what_is_learned_later_is_asked_anew() -> None:
    a = e.symbol("a")
    facts = Facts({"a": Range(0, 20)})
    for _ in range(2):
        assert facts.simplify(a % 8) is a % 8
        assert facts.simplify(a // 8) is a // 8
        assert facts.range_of(a // 8) == Range(0, 2)
        assert facts.decide(rel.lt(a // 8, 1)) is None
    facts.set_range("a", Range(0, 7))
    assert facts.simplify(a % 8) is a
    assert facts.simplify(a // 8) is e.ZERO
    assert facts.range_of(a // 8) == Range(0, 0)
    assert facts.decide(rel.lt(a // 8, 1)) is True
    assert facts.simplify(a % 4) is a % 4
    facts.set_congruence("a", Congruence(4, 3))
    assert facts.simplify(a % 4).value == 3


def test_divisions_in_divisions_are_gone_through_once() -> None:
    class Counted(Facts):
        asked = 0

        def _range_of_operation(self, atom: e.Atom) -> Range:
            self.asked += 1
            return super()._range_of_operation(atom)

    facts = Counted({"a": Range(2), "b": Range(2)})
    height, width, depth = e.symbol("a"), e.symbol("b"), 12
    for _ in range(depth):  # sizes behind convolutions with a stride of 2
        height, width = (height - 1) // 2 + 1, (width - 1) // 2 + 1
        area = facts.simplify(height * width * 64)
        facts.decide(rel.le(area, 1 << 20))
    asked = facts.asked
    assert asked <= 2 * depth
    facts.decide(rel.le(facts.simplify(height * width * 64), 1 << 20))
    assert facts.asked == asked
