"""Kernels of a GPU that go over their rows more than once: what joins them, and how they read."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.targets.cuda import tiling
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime.plan import LaunchTriton, Plan, TritonKernel
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor


def compiled(fn: Callable[..., Tensor], *inputs: Tensor) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return compile_graph(gm, inputs, options=InductorOptions(triton=True))


def sources(plan: Plan) -> list[str]:
    """The kernels' sources, in order of launch."""
    by_symbol = {k.symbol: k for k in plan.kernels}
    launched = [by_symbol[s.kernel] for s in plan.steps if isinstance(s, LaunchTriton)]
    return [k.source for k in launched if isinstance(k, TritonKernel)]


def check(fn: Callable[..., Tensor], *inputs: Tensor) -> Plan:
    plan = compiled(fn, *inputs)
    (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    torch.testing.assert_close(got, fn(*inputs), rtol=2e-5, atol=2e-5)
    return plan


def l2_normalised(x: Tensor) -> Tensor:
    return x / x.square().sum(1, keepdim=True).sqrt()


def test_rows_that_are_read_again_stay_in_the_cache() -> None:
    """Long rows: few on their way at a time, kept until the last pass has read them."""
    (source,) = sources(compiled(l2_normalised, torch.empty(4096, 65536)))
    assert re.findall('eviction_policy="(.*)"', source) == ["evict_last", "evict_first"]
    (kernel,) = compiled(l2_normalised, torch.empty(4096, 65536)).kernels
    assert isinstance(kernel, TritonKernel) and kernel.num_warps == 32
    # Rows of which the cache holds all that are on their way need no more warps than others.
    (kernel,) = compiled(l2_normalised, torch.empty(128, 20000)).kernels
    assert isinstance(kernel, TritonKernel) and kernel.num_warps < 32
    # What one pass reads comes and goes.
    (source,) = sources(compiled(lambda x: x.square().sum(1), torch.empty(4096, 65536)))
    assert "eviction_policy" not in source


def test_rows_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, small: rows that no program holds at once, with scans and without."""
    monkeypatch.setattr(tiling, "PERSISTENT_LIMIT", 64)
    monkeypatch.setattr(tiling, "HEAVY_PERSISTENT_LIMIT", 64)
    monkeypatch.setattr(tiling, "CACHE_BYTES", 0)
    x = torch.rand(20, 4200) + 0.5
    plan = check(l2_normalised, x)
    assert any("evict_last" in source for source in sources(plan))
    wide = torch.rand(70, 4200) + 0.5
    for fn in (
        lambda x: x.cumsum(1),
        lambda x: (x / x.sum(1, keepdim=True)).cumsum(1),
        lambda x: x.cumsum(1) / x.sum(1, keepdim=True),
        lambda x: ((x - 1) * 0.01).cumsum(1).log_softmax(1),
    ):
        plan = check(fn, wide)
        assert any("for start in" in source for source in sources(plan))


def test_a_loss_needs_no_memory_for_its_elements() -> None:
    """The whole tensor's elements are used three times, so they might have been stored."""
    x, y = torch.randn(64, 1024), torch.randn(64, 1024)
    plan = check(lambda x, y: F.smooth_l1_loss(x, y), x, y)
    assert "pointwise" not in "".join(sources(plan)) and len(sources(plan)) == 2


def test_a_loss_of_a_softmax_is_computed_where_the_softmax_is() -> None:
    """The sum over all elements is cut by rows."""

    def fn(x: Tensor, y: Tensor) -> Tensor:
        return F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean")

    plan = check(fn, torch.randn(140, 500), torch.randn(140, 500))
    assert len(sources(plan)) == 2
    # In few rows there would be too little to do side by side.
    assert len(sources(compiled(fn, torch.randn(4, 40000), torch.randn(4, 40000)))) > 2


def test_a_maximum_alone_is_not_looked_for() -> None:
    """Where nobody asks for its place, a window's maximum needs no comparisons."""
    x = torch.randn(2, 3, 20, 20)
    x[0, 0, 3, 3] = torch.nan
    plan = compiled(lambda x: F.max_pool2d(x, 3, 2, 1), x)
    (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x)
    torch.testing.assert_close(got, F.max_pool2d(x, 3, 2, 1), rtol=0, atol=0, equal_nan=True)
    assert "!=" not in "".join(sources(plan))
