"""Scatters that are added up, against eager; and what they take of memory."""

from __future__ import annotations

import pytest
import torch
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.graph_passes.scatter_sums import scatter_sums
from dovetail_inductor.lowering.lower import lower
from dovetail_inductor.scheduler.fuse import fuse
from dovetail_inductor.scheduler.lifetimes import live_bytes
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

ROWS, WIDTH = 512, 256


def scattered(rows: Tensor, values: Tensor, dtype: torch.dtype) -> Tensor:
    """The gradient of a tensor of which rows were read, as a half type's is computed."""
    wide = torch.zeros(ROWS, WIDTH).index_put((rows,), values.float(), accumulate=True)
    return wide.to(dtype)


def of_steps(rows: Tensor, values: Tensor) -> Tensor:
    """The sum over several readings, each of what the one before decides."""
    total = scattered(rows[0], values[0], values.dtype)
    for row, value in zip(rows[1:], values[1:], strict=True):
        total = total + scattered(row, value * 2, values.dtype)
    return total


def inputs(steps: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    torch.manual_seed(steps)
    return torch.randint(0, ROWS, (steps, 1000)), torch.randn(steps, 1000, WIDTH).to(dtype)


def peak(fn, *given: Tensor) -> int:
    gm = trace_aten(fn, *given, decompositions=core_aten_table())
    return live_bytes(fuse(lower(scatter_sums(gm)), InductorOptions())).bytes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_one_tensor_takes_all_scatters(check, dtype: torch.dtype) -> None:
    given = inputs(5, dtype)
    result = ROWS * WIDTH * 2
    assert peak(of_steps, *given) <= 2 * result + result + 1000 * WIDTH * 2
    exact = of_steps(given[0], given[1].double())
    got = check(of_steps, *given, rtol=2e-2, atol=0.15).outputs[0]
    eager = of_steps(*given)
    assert (got - exact).abs().mean() <= (eager - exact).abs().mean()


def test_in_one_type_sums_stay_as_they_are() -> None:
    """Many small numbers are not added to a large one, one after another."""
    gm = trace_aten(of_steps, *inputs(3, torch.float32), decompositions=core_aten_table())
    assert scatter_sums(gm) is gm


def after_a_product(x: Tensor, w: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """The gradient of an embedding whose weight makes the logits, too."""
    return x @ w + scattered(rows, values, x.dtype)


def before_a_product(x: Tensor, w: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """The scatter is there first: what is added to it comes too late to begin with."""
    early = scattered(rows, values, x.dtype)
    return early + (x + early[:1, :32]) @ w


def read_twice(x: Tensor, w: Tensor, rows: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    part = scattered(rows, values, x.dtype)
    return x @ w + part, part * 2


def twice_itself(x: Tensor, w: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    part = scattered(rows, values, x.dtype)
    return part + part


def into_others(x: Tensor, w: Tensor, rows: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """What the scatter goes into is no zeros; and a sum of other shape."""
    held = x.float().index_put((rows % 7,), values[:, :32].float(), accumulate=True)
    row = torch.zeros(WIDTH).scatter_add(0, rows % WIDTH, values[:, 0].float()).to(x.dtype)
    return x + held.to(x.dtype), x @ w + row


@pytest.mark.parametrize(
    ("fn", "changed"),
    [
        (after_a_product, True),
        (before_a_product, False),
        (read_twice, False),
        (twice_itself, False),
        (into_others, False),
    ],
)
def test_what_may_begin_a_scatter(check, fn, changed: bool) -> None:
    torch.manual_seed(0)
    rows, values = torch.randint(0, ROWS, (900,)), torch.randn(900, WIDTH).bfloat16()
    given = (torch.randn(ROWS, 32).bfloat16(), torch.randn(32, WIDTH).bfloat16(), rows, values)
    gm = trace_aten(fn, *given, decompositions=core_aten_table())
    code = gm.code
    assert (scatter_sums(gm).code != code) == changed and gm.code == code
    check(fn, *given, rtol=3e-2, atol=0.2)


def test_on_a_gpu() -> None:
    rows, values = inputs(3, torch.bfloat16)
    rows, values = rows[:, :60], values[:, :60]
    gm = trace_aten(of_steps, rows, values, decompositions=core_aten_table())
    plan = compile_graph(gm, options=InductorOptions(triton=True))
    (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(rows, values)
    torch.testing.assert_close(got, of_steps(rows, values), rtol=2e-2, atol=3e-2)
