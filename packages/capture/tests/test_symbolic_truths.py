"""Truth values that depend on sizes, and True and False beside such sizes, in arithmetic: Python's
numbers come out, of Python's types."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_capture import optimize
from torch.fx import GraphModule

BESIDE_A_TRUTH: dict[str, Callable[[Any, bool], Any]] = {
    "add": lambda n, b: (n + b, b + n), "sub": lambda n, b: (n - b, b - n),
    "mul": lambda n, b: (n * b, b * n), "pow": lambda n, b: (n**b, b**n),
    "divided by": lambda n, b: (b / n, b // n, b % n),
    "compare": lambda n, b: (n == b, b != n, n < b, b <= n, n > b, b >= n),
    "bits": lambda n, b: (n & b, b | n, n ^ b), "shift": lambda n, b: (n << b, n >> b, b << 2),
    "extremes": lambda n, b: (min(n, b), max(b, n)), "sum": lambda n, b: sum([n, b, 2]),
    "of floats": lambda n, b: (n * 0.5 + b, b - n / 2),
}  # fmt: skip

OF_TRUTHS: dict[str, Callable[[Any, bool], Any]] = {
    "sum": lambda n, b: (n > 3) + (n > 4) + b, "sign": lambda n, b: (-(n > 3), +(n > 3)),
    "product": lambda n, b: ((n > 3) * n, (n > 3) * 1.5, (n > 3) * 2j),
    "quotient": lambda n, b: ((n > 3) / n, (n > 3) // 2, (n > 3) % 2, divmod(n > 3, 2)),
    "power": lambda n, b: ((n > 3) ** 2, 2 ** (n > 3), pow(n > 3, 2)),
    "bits": lambda n, b: ((n > 3) | n, 4 | (n > 3), (n > 3) ^ (n > 5), (n > 3) << 2),
    "logic": lambda n, b: ((n > 3) & (n > 5), (n > 3) | b, not (n > 3)),
    "compare": lambda n, b: ((n > 3) == (n > 4), (n > 3) < n, (n > 3) == 1, (n > 3) in (1, 2)),
    "extremes": lambda n, b: (min(n > 3, n > 7), max(n > 3, n), sorted([n > 3, n > 7, n])),
    "functions": lambda n, b: (operator.truediv(n > 3, n), operator.lt(n > 3, n > 5),
                               operator.xor(n > 3, b), math.sqrt(n > 3), abs(n > 3), round(n > 3)),
    "count": lambda n, b: sum(v > 3 for v in (n, b, 4)),
    "sequences": lambda n, b: ([4, 5][n > 3], [1, 2, 3][n > 3:], "ab" * (n > 3), [1] * (n > 3)),
    "augmented": lambda n, b: _augmented(n, b),
}  # fmt: skip


def _augmented(n: Any, b: bool) -> Any:
    n += n > 3
    n -= b
    n *= n > 2
    return n


CASES = {
    **{f"beside a truth: {name}": case for name, case in BESIDE_A_TRUTH.items()},
    **{f"of truths: {name}": case for name, case in OF_TRUTHS.items()},
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", CASES)
def test_equals_python(name: str, dynamic: bool | None) -> None:
    case = CASES[name]
    for truth in (True, False):

        def of_number(x: torch.Tensor, n: int) -> Any:
            return x + 1, case(n, truth)  # noqa: B023

        def of_size(x: torch.Tensor) -> Any:
            return x + 1, case(x.shape[0], truth)  # noqa: B023

        number, size = (
            optimize(f, lambda gm, _: gm.forward, fullgraph=True, dynamic=dynamic)
            for f in (of_number, of_size)
        )
        for n in (5, 6, 7, 2, 3, 9):
            x = torch.ones(n)
            wanted = case(n, truth)
            # By their texts: 1, 1.0 and True are equal.
            assert repr(number(x, n)[1]) == repr(wanted)
            assert repr(size(x)[1]) == repr(wanted)


def test_the_graph_holds_whole_numbers() -> None:
    graphs: list[GraphModule] = []

    def backend(gm: GraphModule, examples: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    def fn(x: torch.Tensor) -> Any:
        return x * (x.shape[0] + True)

    run = optimize(fn, backend, fullgraph=True, dynamic=True)
    for n in (4, 7):
        torch.testing.assert_close(run(torch.ones(n)), fn(torch.ones(n)), rtol=0, atol=0)
    assert len(graphs) == 1
