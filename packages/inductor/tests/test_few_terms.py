"""Reductions of a few elements, which are arithmetic; what masks are needed for; and kernels that
would leave most of a GPU idle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime import load
from dovetail_runtime.plan import LaunchCpp, LaunchTriton, Plan, TritonKernel
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

Result = Tensor | tuple[Tensor, ...]


def plan_of(fn: Callable[..., Result], inputs: Sequence[Tensor], triton: bool) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return compile_graph(gm, inputs, options=InductorOptions(triton=triton))


def check(fn: Callable[..., Result], *inputs: Tensor, run: bool = True) -> Plan:
    """The plan for a GPU; it (in Triton's interpreter) and the CPU's agree with `fn`."""
    plan = plan_of(fn, inputs, True)
    wanted: Any = fn(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    runs: list[Callable[..., Any]] = [load(plan_of(fn, inputs, False))]
    if run:
        runs.append(ReferenceExecutor(plan, launch_triton=run_in_interpreter))
    for call in runs:
        for got, expected in zip(call(*inputs), wanted, strict=True):
            assert got.dtype == expected.dtype and got.stride() == expected.stride()
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    return plan


def launches(plan: Plan) -> list[str]:
    """The sources of the kernels in order of launch."""
    by_symbol = {k.symbol: k.source for k in plan.kernels}
    return [by_symbol[s.kernel] for s in plan.steps if isinstance(s, LaunchTriton | LaunchCpp)]


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("name", ["sum", "amax", "amin", "mean"])
def test_a_few_terms_are_arithmetic(name: str, keepdim: bool) -> None:
    """The parts of a split attention, say: added up where they are read, in any layout."""
    x = drawn(2, 3, 16, 16, 16)
    x[0, 1, 2, 3, 4] = torch.nan  # which extremes keep

    def fn(x: Tensor) -> Tensor:
        return getattr(x.relu(), name)(1, keepdim) + 1

    (source,) = launches(check(fn, x))
    assert "tl.sum" not in source and "tl.reduce" not in source


def test_terms_of_two_dimensions_and_their_dtypes() -> None:
    def fn(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        return (
            x.sum((1, 3)),
            x.prod(1),
            n.sum(1),
            n.amax(1),
            (n > 0).any(1),
            (n > 0).amax(1),
            n.sum(1).float(),
        )

    x = drawn(64, 2, 128, 2)
    check(fn, x, (x * 9).to(torch.int32))


def test_terms_of_half_precision_are_added_in_float32() -> None:
    x = drawn(2, 4, 64, 64).half() + 1000
    (got,) = load(plan_of(lambda x: x.sum(1), (x,), False))(x)
    assert torch.equal(got, x.sum(1))


def test_more_terms_or_few_elements_stay_loops() -> None:
    for x in (drawn(16, 8, 256), drawn(2, 4, 8)):
        (source,) = launches(plan_of(lambda x: x.sum(1), (x,), True))
        assert "tl.sum" in source


def test_what_is_everywhere_in_bounds_needs_no_mask() -> None:
    """A pooling of what was normalised: statistics and weights are read once for all places of a
    window, not once behind the mask of each."""

    def fn(x: Tensor, w: Tensor) -> Tensor:
        mean, deviation = x.mean((1, 2, 3), keepdim=True), x.std((1, 2, 3), keepdim=True)
        normalised = (x - mean) / deviation * w[None, :, None, None]
        return F.avg_pool2d(normalised, 3, 1, 1, count_include_pad=False) - normalised

    inputs = drawn(2, 4, 9, 9), drawn(4)
    plan = check(fn, *inputs)
    last = launches(plan)[-1]
    assert last.count("tl.load") <= 9 + 4, last


def test_masks_that_keep_reads_in_bounds_stay() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        padded = F.pad(w, (2, 3))
        return F.pad(x * w, (1, 2)), torch.cat([w, w.exp(), x[0]]), padded.roll(1) * padded

    check(fn, drawn(3, 8), drawn(8))


def gating_gradients(g: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Of a product over positions with a bias for each: `v` lies across."""
    scaled = g * v.mT
    return scaled, (g * u).sum((0, 2))


def test_a_row_of_programs_is_not_all_that_runs() -> None:
    """Both read `g`, but 196 rows of which 16 make a program would leave a GPU idle."""
    inputs = [torch.empty(32, 196, 768), torch.empty(32, 196, 768), torch.empty(32, 768, 196)]
    plan = plan_of(gating_gradients, inputs, True)
    kernels = {k.symbol: k for k in plan.kernels if isinstance(k, TritonKernel)}
    grids = [s.grid for s in plan.steps if isinstance(s, LaunchTriton)]
    assert kernels and all(isinstance(g[0], int) and g[0] >= 132 for g in grids), grids
    check(gating_gradients, drawn(3, 20, 32), drawn(3, 20, 32), drawn(3, 32, 20))
