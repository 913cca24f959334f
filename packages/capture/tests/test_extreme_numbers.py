"""Ints near the ends of 64 bits and beyond, infinities and NaNs, where numbers are symbolic."""

from __future__ import annotations

import math

import pytest
import torch
from dovetail_capture import optimize, run_graph

INTS = [-(2**63), 2**63 - 1, -(2**63) + 1, 2**62, 2**62 - 1, -(2**62), 2**63, -(2**64), 2**100, 0]
FLOATS = [math.inf, -math.inf, math.nan, 1e308, -0.0, 5e-324, -2.5, 1e19, 9.3e18]
OF_INTS = {
    "add and multiply": lambda x, k: x * (k + 1),
    "negate": lambda x, k: x + (-k),
    "abs": lambda x, k: x * abs(k),
    "compare": lambda x, k: x * 2 if k < 0 else x * 3,
    "divide": lambda x, k: x + k // 3,
    "remainder": lambda x, k: x + k % 7,
    "shift": lambda x, k: x + (k >> 1),
    "text": lambda x, k: x * len(str(k)),
    "subtract": lambda x, k: k - x,
    "xor": lambda x, k: x ^ k,
    "range": lambda x, k: x * len(range(k)),
    "full": lambda x, k: torch.full((2,), k),
}
OF_FLOATS = {
    "int": lambda x, k: x * int(k),
    "round": lambda x, k: x * round(k),
    "floor": lambda x, k: x * math.floor(k),
    "ceil": lambda x, k: x * math.ceil(k),
    "trunc": lambda x, k: x * math.trunc(k),
    "equals itself": lambda x, k: x * 2 if k == k else x * 3,
    "isinf": lambda x, k: x * 2 if math.isinf(k) else x * 3,
    "multiply": lambda x, k: torch.ones(2) * (k * 2),
}


def outcome(function, *args):
    try:
        result = function(*args)
    except Exception as error:
        return type(error).__name__
    return f"{result.dtype} {result.tolist()}"


@pytest.mark.parametrize("name", [*OF_INTS, *OF_FLOATS])
@pytest.mark.filterwarnings("ignore:.*recompile limit")
def test_extreme_numbers(name):
    program = OF_INTS.get(name) or OF_FLOATS[name]
    numbers, first = (INTS, (3, 5)) if name in OF_INTS else (FLOATS, (3.5, 5.5))
    x = torch.ones(2, dtype=torch.int64)
    for number in numbers:
        compiled = optimize(program, run_graph)
        for earlier in first:  # from now on it is symbolic
            compiled(x, earlier)
        assert outcome(compiled, x, number) == outcome(program, x, number), number
