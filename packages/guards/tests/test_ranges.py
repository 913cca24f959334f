"""Ranges and congruences against brute force."""

from __future__ import annotations

import itertools
import os
import random

from dovetail_guards import expr as e
from dovetail_guards import relations as rel
from dovetail_guards.ranges import Congruence, Facts, Range
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


def test_a_dominated_argument_goes_away() -> None:
    a, b = e.symbol("a"), e.symbol("b")
    facts = Facts({"a": Range(2, 10), "b": Range(20, 30)})
    assert facts.simplify(e.min_(a, b)) is a
    assert facts.simplify(e.max_(a, b, 100)).value == 100
    assert facts.simplify(a % b) is a
    assert facts.simplify(a // b) is e.ZERO
