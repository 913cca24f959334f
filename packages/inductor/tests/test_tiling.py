"""Which tiles the kernels of a GPU get from the strides of what they access."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.targets import CUDA, Target
from dovetail_inductor.targets.cuda import tiling
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime.plan import Allocate, LaunchTriton, Plan, TritonKernel
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

LAST = torch.channels_last


def compiled(fn: Callable[[Tensor], Tensor], x: Tensor, target: Target = CUDA) -> Plan:
    gm = trace_aten(fn, x, decompositions=core_aten_table())
    return compile_graph(gm, [x], options=InductorOptions(target=target))


def source_of(plan: Plan) -> str:
    return "".join(k.source for k in plan.kernels if isinstance(k, TritonKernel))


def check(fn: Callable[[Tensor], Tensor], x: Tensor, plan: Plan) -> None:
    (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x)
    wanted = fn(x)
    assert isinstance(got, Tensor) and got.stride() == wanted.stride()
    torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("pool", [F.avg_pool2d, F.max_pool2d])
def test_windows_of_channels_in_rows_are_stored_through_tiles(
    pool: Callable[[Tensor, int], Tensor],
) -> None:
    """Four loads and a bias lie along the channels and only one store along a row, but a store
    across its row moves sixteen times its bytes."""
    bias = torch.randn(64, 1, 1)

    def fn(x: Tensor) -> Tensor:
        return pool(torch.tanh(x + bias), 2).contiguous()

    x = torch.randn(2, 64, 40, 40).to(memory_format=LAST)
    plan = compiled(fn, x)
    assert "def transpose_" in source_of(plan)
    check(fn, x, plan)


def test_a_reduction_reads_along_what_lies_side_by_side() -> None:
    """The results' loops run along their rows; what is read lies along the channels."""

    def fn(x: Tensor) -> Tensor:
        return x.mean(2).contiguous()

    x = torch.randn(2, 64, 16, 12, 12).to(memory_format=torch.channels_last_3d)
    plan = compiled(fn, x)
    along = re.search(r"(v\d+) = x % 64\n", source_of(plan))
    assert along is not None
    assert re.search(rf"tl\.load\(p0 \+ \([^)]*\b{along[1]} \+", source_of(plan))
    check(fn, x, plan)


@pytest.mark.parametrize("side, tile", [(63, "[64, 128]"), (64, "[64, 64]")])
def test_rows_that_begin_within_lines_are_stored_in_longer_pieces(side: int, tile: str) -> None:
    x = torch.empty(9, 64, side, side).to(memory_format=LAST)
    assert tile in source_of(compiled(lambda x: (x * 2).contiguous(), x))


def test_gathered_rows_are_read_and_added_along_themselves() -> None:
    """Neighbours among the weights are other heads of an edge; in the rows of nodes, which are all
    the bytes, they lie side by side."""
    source, target = torch.randint(0, 30, (2, 100))
    weights = torch.rand(100, 8)

    def fn(x: Tensor) -> Tensor:
        messages = x[source] * weights[..., None]
        return torch.zeros(30, 8, 32).index_add(0, target, messages)

    x = torch.randn(30, 8, 32)
    plan = compiled(fn, x)
    (text,) = (k.source for k in plan.kernels if "tl.atomic_add" in k.source)  # type: ignore[union-attr]
    along = re.search(r"(v\d+) = x % 32\n", text)
    heads = re.search(r"(v\d+) = \(x // 32\) % 8\n", text)
    assert along is not None and heads is not None
    assert f"32 * {heads[1]} + {along[1]} + 256 * t" in text
    check(fn, x, plan)


def test_as_many_pieces_as_wanted_where_sizes_have_no_divisors() -> None:
    """254 = 2 * 127: pieces of equal size would be 4 or far too many."""

    def fn(x: Tensor) -> Tensor:
        return x.square().mean((2, 3))

    plan = compiled(fn, torch.empty(64, 64, 254, 254, device="meta").to(memory_format=LAST))
    first = next(s for s in plan.steps if isinstance(s, LaunchTriton))
    programs = first.grid[0]
    assert isinstance(programs, int) and 400 <= programs <= 600


def rows_and_pixels(x: Tensor, count: int, side: int) -> tuple[Tensor, Tensor]:
    """Two tensors of (count, 64, side, side): in rows, and with the channels side by side."""
    pixels = x[1].view(count, side, side, 64).permute(0, 3, 1, 2)
    return x[0].view(count, 64, side, side), pixels


def test_a_reduction_of_what_lies_both_ways_is_read_along_both() -> None:
    """Gradients in rows and a value with its channels side by side, as behind a convolution: a
    program has a stripe of channels, and blocks of a row, though more lies along the rows."""

    def of(count: int, side: int) -> Callable[[Tensor], Tensor]:
        def fn(x: Tensor) -> Tensor:
            rows, pixels = rows_and_pixels(x, count, side)
            return (rows * x[2].view(rows.shape) * pixels.relu()).sum((2, 3))

        return fn

    large = torch.empty(3, 256 * 64 * 126 * 126, device="meta")
    source = source_of(compiled(of(256, 126), large))
    assert re.search(r"v\d+ = x % 64\n", source) and "[64, 64]" in source
    x = torch.randn(3, 2 * 64 * 24 * 24)
    check(of(2, 24), x, compiled(of(2, 24), x))


def test_columns_run_as_memory_does() -> None:
    """Of the loops that are summed over, that along which most lies side by side is the last."""

    def fn(x: Tensor) -> Tensor:
        rows, pixels = rows_and_pixels(x, 2, 16)
        more = rows_and_pixels(x[1:], 2, 16)[1]
        return (pixels * more * rows).sum((1, 2, 3))

    x = torch.rand(3, 2 * 64 * 16 * 16)  # whose sums are large beside their rounding
    plan = compiled(fn, x)
    assert re.search(r"(v\d+) = r % 64\n", source_of(plan))
    check(fn, x, plan)


@pytest.mark.parametrize("groups", [8, 16])
def test_short_groups_of_channels_are_summed_side_by_side(groups: int) -> None:
    """Each channel of a group for itself: then neighbours in memory are neighbours in a program.
    (Small groups stand for large ones.)"""
    small = replace(CUDA.scheduling.split, elements=1 << 10, short=(64, 1 << 10))
    target = replace(CUDA, scheduling=replace(CUDA.scheduling, split=small))
    weight, bias = torch.randn(64), torch.randn(64)

    def fn(x: Tensor) -> Tensor:
        return F.group_norm(x, groups, weight, bias)

    x = (torch.randn(2, 64, 24, 24) + 3).to(memory_format=LAST)
    plan = compiled(fn, x, target)
    partial = [s.spec for s in plan.steps if isinstance(s, Allocate) and "parts" in s.name]
    assert partial and all(spec.shape[0] % (64 // groups) == 0 for spec in partial)
    check(fn, x, plan)


def test_windows_behind_windows() -> None:
    """The gradient of a pooling of rows: two elements of a window after one another, then windows,
    of which each has a place; beside them what lies along channels."""
    places = torch.randint(0, 2, (3, 2, 32, 64))

    def fn(x: Tensor) -> Tensor:
        rows = x[0].view(2, 32, 64, 2)
        along = x[1].view(2, 2, 64, 32)[:, 0].permute(0, 2, 1)
        of_window = (along * places[0] * places[1] * places[2])[..., None]
        return rows * of_window

    x = torch.randn(2, 2 * 32 * 64 * 2)
    plan = compiled(fn, x)
    assert "def transpose_" in source_of(plan)
    check(fn, x, plan)


@pytest.mark.parametrize("columns", [1023, 1024])
def test_turns_with_narrow_loads_are_unrolled(columns: int) -> None:
    """Rows of odd length begin anywhere, so that each element is read by itself."""
    x = torch.randn(2, 1200, columns)

    def fn(x: Tensor) -> Tensor:
        return x.sum(1)

    gm = trace_aten(fn, x, decompositions=core_aten_table())
    options = InductorOptions(target=CUDA, split_reductions=False)
    plan = compile_graph(gm, [x], options=options)
    assert ("loop_unroll_factor=4" in source_of(plan)) == (columns == 1023)
    check(fn, x, plan)


@pytest.mark.parametrize(
    ("fn", "columns", "warps"),
    [
        (lambda x: x.sum(1), 16, 8),
        (lambda x: x.argmax(1), 32, 16),
        (lambda x: x.softmax(1), 32, 16),
        (lambda x: x.cumsum(1), 64, 8),
    ],
    ids=["sum", "position", "two passes", "scan"],
)
def test_more_threads_share_narrow_loads_of_which_more_is_kept(
    fn: Callable[[Tensor], Tensor], columns: int, warps: int
) -> None:
    """Blocks of what is kept are in registers, as are the elements of several turns."""
    plan = compiled(fn, torch.empty(32, 2048, 1023, device="meta"))
    (kernel,) = (k for k in plan.kernels if isinstance(k, TritonKernel))
    assert f"range(0, 2048, {columns}" in kernel.source and kernel.num_warps == warps


@pytest.mark.parametrize("dim", [0, 1])
def test_rows_found_for_each_element_are_read_column_by_column(
    dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a cache holds the columns of a table that is larger than it."""
    x = torch.randn(300, 300)
    places = torch.randint(0, 300, (70, 300) if dim == 0 else (300, 70))

    def fn(x: Tensor) -> Tensor:
        return x.gather(dim, places)

    assert "pid //" not in source_of(compiled(fn, x))
    monkeypatch.setattr(tiling, "CACHE_BYTES", 1 << 16)
    plan = compiled(fn, x)
    # Of a gather along rows, whole rows are few.
    assert ("x = (pid // 18) * 256" in source_of(plan)) == (dim == 0)
    check(fn, x, plan)


@pytest.mark.parametrize(("dtype", "threads"), [(torch.float32, 16), (torch.float16, 8)])
def test_few_threads_go_along_short_rows_that_begin_anywhere(
    dtype: torch.dtype, threads: int
) -> None:
    x = torch.randn(8700, 43).to(dtype)
    for fn in (lambda x: x.sum(-1), lambda x: x.amax(-1), lambda x: x.float().square().mean(-1)):
        plan = compiled(fn, x)
        assert f"acc0 = tl.full([64, {threads}]" in source_of(plan)
        (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x)
        torch.testing.assert_close(got, fn(x), rtol=2e-3, atol=2e-3)
    # Aligned rows, few rows, and rows that are read again have other tiles.
    for fn, y in (
        (lambda x: x.sum(-1), torch.randn(8700, 48)),
        (lambda x: x.sum(-1), torch.randn(870, 43)),
        (lambda x: x.softmax(-1), x),
        (lambda x: x.var(-1), x),
    ):
        assert f"[64, {threads}]" not in source_of(compiled(fn, y))


@pytest.mark.parametrize(("columns", "rows"), [(49, 8), (27, 16)])
def test_a_short_row_that_begins_anywhere_lies_in_one_warp(columns: int, rows: int) -> None:
    def fn(x: Tensor) -> Tensor:
        return x.softmax(-1)

    x = torch.randn(8700, columns)
    plan = compiled(fn, x)
    (kernel,) = [k for k in plan.kernels if isinstance(k, TritonKernel)]
    assert kernel.num_warps == 1 and f"[{rows}, {512 // rows}]" in kernel.source
    check(fn, x, plan)


def test_many_rows_share_what_they_read_at_any_places() -> None:
    """And several programs the channels, if there is nothing to store of a row itself."""

    def fn(x: Tensor) -> Tensor:
        return F.grid_sample(x, places, align_corners=False)

    x, places = torch.randn(2, 8, 30, 30), torch.randn(2, 96, 96, 2)
    plan = compiled(fn, x)
    assert "tl.arange(0, 1024)" in source_of(plan) and "pid % 4 * 2" in source_of(plan)
    assert [s.grid for s in plan.steps if isinstance(s, LaunchTriton)] == [(4 * 18, 1, 1)]
    check(fn, x, plan)
    plan = compiled(lambda x: (fn(x), places[..., 0] * 2), x)
    assert "pid %" not in source_of(plan)


def test_an_image_is_resized_along_one_dimension_after_the_other() -> None:
    """Of windows of five by five elements, by five elements twice."""

    def fn(x: Tensor) -> Tensor:
        return F.interpolate(x, size=(32, 32), mode="bilinear", antialias=True)

    x = torch.randn(2, 16, 64, 64)
    plan = compiled(fn, x)
    large = [s.spec.shape for s in plan.steps if isinstance(s, Allocate) and len(s.spec.shape) == 4]
    assert (2, 16, 32, 64) in large
    check(fn, x, plan)
