"""Whole numbers rounded from floats: their symbols, and guards that compute them again."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from dovetail_guards.evaluate import FrameView
from dovetail_guards.explain import clause_text
from dovetail_guards.float_expr import ComputedSource
from dovetail_guards.guard_set import GuardSet
from dovetail_guards.shape_env import Dim, ShapeEnv
from dovetail_guards.source import LocalSource, SizeSource


def f(x: torch.Tensor, n: int, lr: float) -> None:
    """What the guards are for."""


def made(rows: int, n: int, lr: float) -> tuple[ShapeEnv, list[Any], dict[str, Any]]:
    env, inputs = ShapeEnv(), {}
    env.make_input = lambda source, hint, expr: inputs.update({str(source): (source, hint)})
    size = env.symint(env.create_size(rows, SizeSource(LocalSource("x"), 0), Dim.DYNAMIC))
    number = env.symint(env.create_int(n, LocalSource("n")))
    return env, [size, number, env.symfloat(env.create_float(lr, LocalSource("lr")))], inputs


def test_each_is_an_input_once() -> None:
    env, (size, n, lr), inputs = made(20, 7, 0.3)
    share = torch.sym_int(size * 0.3)
    assert isinstance(share, torch.SymInt) and share.node.hint == 6
    assert torch.sym_int(size * 0.3).node.expr is share.node.expr
    assert list(inputs) == ["floor((x.size(0) * 0.3))"]
    source, hint = inputs["floor((x.size(0) * 0.3))"]
    assert isinstance(source, ComputedSource) and hint == 6 and source.of(17) == 5
    again = math.ceil(share * lr * n)
    assert again.node.hint == math.ceil(6 * 0.3 * 7)
    frame = FrameView((torch.ones(20), 7, 0.3), f)
    assert bool(again > 9)
    assert all(GuardSet((clause,)).check_slow(frame) for clause in env.clauses())
    env.make_input = None
    assert math.floor(size * 0.7).node.constant == 14  # tied to its value


def test_none_or_one_and_what_has_no_value_stay_numbers() -> None:
    _, (size, _, lr), inputs = made(3, 7, 0.3)
    assert torch.sym_int(size * 0.3) == 0 and math.ceil(size * 0.3) == 1 and not inputs
    with pytest.raises(OverflowError):
        math.floor(lr * 1e308 * 1e308)


@pytest.mark.parametrize("seed", range(60))
def test_guards_let_through_what_has_the_same_answers(seed: int) -> None:
    draw = random.Random(seed)
    plan = [(draw.randrange(7), draw.choice([0.3, 1.7, 2.5, 0.01, -3.0])) for _ in range(6)]
    pick = [draw.randrange(1000) for _ in range(20)]

    def program(size: Any, n: Any, lr: Any) -> tuple[list[bool], list[Any]]:
        values: list[Any] = [size, n]
        path: list[bool] = []
        for (kind, c), at in zip(plan, pick, strict=False):
            a, b = values[at % len(values)], values[at // 7 % len(values)]
            if kind < 4:
                rounded = (math.floor, math.ceil, torch.sym_int, round)[kind]
                values.append(rounded(a * c if at % 2 else a * lr * c))
            elif kind == 4:
                path.append(bool(a * lr < b * 0.5))
            elif kind == 5:
                path.append(bool(a <= b + 2))
            else:
                values.append(a + b)
        return path, values

    env, symbols, _ = made(24, 9, 0.45)
    path, values = program(*symbols)
    guards = GuardSet(env.clauses())
    native = guards.compile(f.__code__)
    assert native((torch.empty(24), 9, 0.45), f), [clause_text(c) for c in env.clauses()]
    tried = [(draw.randrange(2, 60), draw.randrange(2, 30), draw.random()) for _ in range(60)]
    for rows, n, lr in [*tried, *((r, 9, 0.45) for r in range(2, 60)), (24, 9, 0.46)]:
        args = (torch.empty(rows), n, lr)
        held = native(args, f)
        assert held == guards.check_slow(FrameView(args, f))
        if held:
            now, found = program(rows, n, lr)
            assert now == path
            known = {"s0": rows, "s1": n}
            for name, source in env.sources.items():
                if isinstance(source, ComputedSource):
                    known[name] = source.of(
                        *(
                            {"x.size(0)": rows, "n": n, "lr": lr}.get(str(place), known.get(symbol))
                            for symbol, place in source.symbols
                        )
                    )
            for value, expected in zip(values, found, strict=True):
                if isinstance(value, torch.SymInt):
                    assert env.replace(value.node.expr).evaluate(known) == expected
                else:
                    assert value == expected
