"""`min` and `max` of tensors without dimensions: one graph where only the number matters, eager's
very object elsewhere."""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_capture import optimize


def _clamped(x, t):
    return x * min(max(t, 0), 1)


def _scaled(x, t):
    return x * (1 - 0.5 * max(t, 0.0)) / 2


def _of_parts(x, t):
    return x / max([x[0], x[1], x[2]]) + min(x[0], 3.0)


def _running(x, t):
    best = 0.0
    for place in range(3):
        best = max(best, x[place])
    return x - best


def _compared(x, t):
    return x > min(t, 1), min(t, 1) <= x


def _by_methods(x, t):
    x = x.mul(max(t, 0)).add_(min(t, 3.0))
    x *= max(t, 2.0)
    return torch.sub(x, max(t, 0))


def _of_whole_numbers(x, t):
    whole = max((t * 3).nan_to_num().long(), 2)
    return x * whole, x.long() * whole


def _kept_in_a_container(x, t):
    held = {"scale": min(1.0 / (x.norm() + 1e-6), 1.0)}
    return x * [held["scale"]][0]


def _returned(x, t):
    return x + 1, max(t, 0), max(x[0], x[1])


def _by_identity(x, t):
    return x + 1, max(t, 0) is t, type(max(t, 0)).__name__, f"{min(t, 0.5)}"


def _as_a_number(x, t):
    return x * float(max(t, 0.25)), x + (1 if max(t, 0) > 0 else 2)


def _divided_by(x, t):
    return x * (1 / max(t, 0.5))


def _written_to_since(x, t):
    y = x * 2
    first, second = max(y[0], y[1]), max(t, 0.5)
    y.add_(5)
    t.add_(1)
    return y * first * second


def _changed(x, t):
    y = x.clone()
    first = max(y[0], y[1])
    first += 1
    return y


def _of_other_dtypes(x, t):
    return x.double() * max(t, 0.1), max(t.double(), t) * x


def _of_many(x, t):
    return max(x[:1], 0) * x


ONE_GRAPH = [
    _clamped, _scaled, _of_parts, _running, _compared, _by_methods, _of_whole_numbers,
    _kept_in_a_container,
]  # fmt: skip
BROKEN = [
    _returned, _by_identity, _as_a_number, _divided_by, _written_to_since, _changed,
    _of_other_dtypes, _of_many,
]  # fmt: skip


def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    return gm.forward


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [*ONE_GRAPH, *BROKEN])
def test_as_eager_chooses(program: Callable[..., Any], grad: bool) -> None:
    captured = optimize(program, backend, fullgraph=program in ONE_GRAPH and not grad)
    torch.manual_seed(0)
    for number in (-1.0, 0.0, 0.5, 2.0, math.nan, -0.0):
        x, t = torch.randn(3), torch.tensor(number)
        results, leaves = [], []
        for call in (program, captured):
            leaf = t.clone().requires_grad_(grad)
            scale = leaf * 1
            given = x.clone()
            results.append(call(given, scale))
            leaves.append((given, scale, leaf))
        assert repr(results[0]) == repr(results[1])
        assert repr(leaves[0]) == repr(leaves[1])
