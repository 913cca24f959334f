"""Indices whose range follows from how they are computed need no check; reads of places that data
tell are not done where nothing asks for them; and what is out of range still raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph, compile_to_callable
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime.plan import CallAten, Plan
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

NAN, INF = float("nan"), float("inf")
ROWS = torch.randn(8, 5)
PICKS = torch.randint(-30, 30, (40,))


def triton_plan(fn: Callable[..., Any], *inputs: Tensor) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return compile_graph(gm, inputs, options=InductorOptions(triton=True))


def check_both(check: Any, fn: Callable[..., Any], *inputs: Tensor, tol: float = 1e-5) -> str:
    """Compare C++ and Triton kernels with eager; the Triton text."""
    check(fn, *inputs, rtol=tol, atol=tol)
    plan = triton_plan(fn, *inputs)
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    for mine, wanted in zip(got, fn(*inputs), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=tol, atol=tol, equal_nan=True)
    return "\n".join(kernel.source for kernel in plan.kernels)


KNOWN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "clamped": lambda x, i: x[i.clamp(0, 7)],
    "remainder": lambda x, i: x[i % 8],
    "shifted": lambda x, i: x[(i & 0).clamp(0, 15) >> 1],
    "chosen": lambda x, i: x[torch.where(i > 3, i.clamp(2, 5), 1)],
    "sum": lambda x, i: x[i.clamp(-4, 0) + i.clamp(4, 7)],
    "difference": lambda x, i: x[i.clamp(4, 7) - i.clamp(0, 4)],
    "truth": lambda x, i: x[(i > 0).long()],
    "of either sign": lambda x, i: x[(-i.clamp(-3, 7)).abs()],
    "narrow": lambda x, i: x[i.clamp(0, 7).int()],
    "gathered": lambda x, i: x.gather(0, i.clamp(0, 7)[:, None].expand(40, 5)),
    "embedded": lambda x, i: F.embedding(i.clamp(0, 7), x),
    "picked twice": lambda x, i: x[(torch.arange(8) * 0 + 3)[i.clamp(0, 7)].clamp(0, 7)],
}
UNKNOWN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "from the input": lambda x, i: x[i],
    "one end": lambda x, i: x[i.clamp(max=7)],
    "the other end": lambda x, i: x[i.clamp(min=0)],
    "too many": lambda x, i: x[i.clamp(0, 8)],
    "wraps around": lambda x, i: x[(i.clamp(0, 2).to(torch.int8) + 127 + 127).long()],
    "sum": lambda x, i: x[i.clamp(0, 7) + i.clamp(0, 1)],
    "float": lambda x, i: x[i.float().clamp(0, 7).long()],
    "through no bounds": lambda x, i: x[i.clamp(0, 7) ^ 0],
}


@pytest.mark.parametrize("name", KNOWN)
def test_known(check: Any, name: str) -> None:
    text = check_both(check, lambda x, i: (KNOWN[name](x, i) * 2,), ROWS, PICKS)
    assert "device_assert" not in text and "+ tl.full([1], 8" not in text


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown(check: Any, name: str) -> None:
    text = check_both(check, lambda x, i: (UNKNOWN[name](x, i) * 2,), ROWS, PICKS % 7)
    assert "device_assert" in text


def test_in_memory(check: Any) -> None:
    """What a kernel has stored."""

    def fn(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        place = (i * 3 + i // 2 - i * i).clamp(0, 7)
        return place, x[place].sum(), x[place, place % 5]

    text = check_both(check, fn, ROWS, PICKS)
    assert "device_assert" not in text


@pytest.mark.parametrize("other", [0.0, -0.0, 1.5, NAN])
def test_only_what_is_asked_for(check: Any, other: float) -> None:
    def fn(x: Tensor, i: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        rows = x[i]
        kept = torch.where((m > 0)[:, None], rows, other)
        both = torch.where((m > 0.5)[:, None], torch.where((m < 1)[:, None], rows, 0.0), other)
        return kept, both, torch.where(m > 0, x[i, 2], other) + x[i, 2]

    x = torch.randn(6, 5)
    x[2] = NAN
    x[3] = INF
    text = check_both(check, fn, x, torch.randint(-6, 6, (30,)), torch.randn(30))
    assert ", other=0" in text


def test_what_nobody_asks_for_still_raises() -> None:
    def fn(x: Tensor, i: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        return (torch.where(m, x[i], 0.0) * 2,)

    x, i = torch.randn(6), torch.tensor([1, 6])
    run = compile_to_callable(trace_aten(fn, x, i % 6, i > 3, decompositions=core_aten_table()))
    with pytest.raises(IndexError, match="index 6 is out of bounds"):
        run(x, i, i < 3)
    plan = triton_plan(fn, x, i, i < 3)
    assert plan.kernels[0].asserts and "device_assert" in plan.kernels[0].source


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [False, True])
def test_images_at_computed_places(check: Any, mode: str, padding: str, corners: bool) -> None:
    def fn(x: Tensor, grid: Tensor) -> tuple[Tensor, ...]:
        return (F.grid_sample(x, grid, mode, padding, corners),)

    grid = torch.randn(2, 4, 5, 2)
    x = torch.randn(2, 3, 6, 7)
    text = check_both(check, fn, x, grid, tol=1e-4)
    assert "device_assert" not in text
    grid[0, 1, 2] = torch.tensor([1e6, -1e6])  # far outside
    check_both(check, fn, x.to(memory_format=torch.channels_last), grid, tol=1e-3)


def test_many_places_column_after_column(check: Any) -> None:
    def fn(x: Tensor, grid: Tensor) -> tuple[Tensor, ...]:
        return (F.grid_sample(x, grid, align_corners=False),)

    inputs = torch.randn(2, 6, 6, 7), torch.randn(2, 133, 65, 2)
    text = check_both(check, fn, *inputs, tol=1e-4)
    assert "tl.range(0, 6, 1, loop_unroll_factor=4)" in text


@pytest.mark.parametrize("length", [1, 2, 5, 8, 31, 200])
@pytest.mark.parametrize("right", [False, True])
def test_search(check: Any, length: int, right: bool) -> None:
    def fn(rows: Tensor, row: Tensor, x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.searchsorted(rows, x, right=right),
            torch.searchsorted(row, x, right=right, out_int32=True),
            torch.bucketize(x, row, right=right),
            torch.searchsorted(row.long(), i, right=right),
        )

    rows = (torch.randn(3, length) * 2).round().sort().values
    rows[0, -1] = NAN
    row = (torch.randn(length) * 2).round().sort().values
    x = (torch.randn(3, 20) * 3).round()
    x[:, :3] = torch.tensor([NAN, INF, -INF])
    text = check_both(check, fn, rows, row, x, torch.randint(-5, 5, (20,)))
    assert "device_assert" not in text
    if length > 1:  # in no order the same places are looked at
        check_both(check, fn, rows.flip(1), torch.randn(length), x, torch.randint(-5, 5, (20,)))
