"""Products whose rows a GPU's library does not like, on padded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.lowering import aligned
from dovetail_inductor.lowering.aligned import padded_sizes
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime.plan import CallAten, LaunchTriton, Plan
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

GPU = InductorOptions(triton=True, combine=False)
M, K, ODD, EVEN = 96, 80, 69, 72


@pytest.fixture(autouse=True)
def small_products_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter is slow: what pays for hundreds of rows is done for few."""
    monkeypatch.setattr(aligned, "PRODUCT_RATE", 3e13)


def compiled(fn: Callable[..., object], inputs: Sequence[Tensor]) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return compile_graph(gm, list(inputs), options=GPU)


def product_strides(plan: Plan) -> list[int]:
    """The row lengths in memory of what products write."""
    specs = {s.name: s.spec for s in plan.steps if hasattr(s, "spec")}
    names = [dict(s.kwargs)["out"].name for s in plan.steps if isinstance(s, CallAten)]
    return [specs[name].stride[0] for name in names]


def check(fn: Callable[..., object], inputs: Sequence[Tensor]) -> Plan:
    """Values and strides as eager's."""
    plan = compiled(fn, inputs)
    got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    wanted = fn(*inputs)
    for mine, eager in zip(got, wanted, strict=True):
        assert mine.stride() == eager.stride() and mine.dtype == eager.dtype
        torch.testing.assert_close(mine.float(), eager.float(), atol=0.5, rtol=2e-2)
        assert not mine.isnan().any()
    return plan


def narrow(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def test_which_sizes_are_rounded_up() -> None:
    row, column = (K, 1), (1, M)
    assert padded_sizes(((M, K), row), ((K, ODD), (ODD, 1))) == (M, K, EVEN)
    assert padded_sizes(((M, K), row), ((K, ODD), (1, K))) == (M, K, EVEN)  # the result's rows
    assert padded_sizes(((M, ODD), (ODD, 1)), ((ODD, K), (K, 1))) == (M, EVEN, K)
    assert padded_sizes(((ODD, K), (1, ODD)), ((K, M), (M, 1))) == (EVEN, K, M)
    assert padded_sizes(((ODD, K), row), ((K, M), (M, 1))) is None  # no row of that length
    assert padded_sizes(((M, K), column), ((K, M), (M, 1))) is None
    assert padded_sizes(((4, K), row), ((K, ODD), (ODD, 1))) is None  # the copies cost more


def test_a_head_of_odd_width_and_its_gradients() -> None:
    def fn(x: Tensor, w: Tensor, d: Tensor) -> tuple[Tensor, ...]:
        return x @ w.t(), d @ w, d.t() @ x

    plan = check(fn, (narrow(M, K), narrow(ODD, K), narrow(M, ODD)))
    assert sorted(product_strides(plan)) == [EVEN, K, K]
    # w and d are padded once each, though two products read them; the third kernel lays out x @ w
    assert sum(isinstance(s, LaunchTriton) for s in plan.steps) == 3


def test_what_kernels_compute_is_written_padded() -> None:
    def fn(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        d = (g.float().sigmoid() * 2).to(torch.bfloat16)
        return d @ w, d.t() @ x

    plan = check(fn, (narrow(M, K), narrow(ODD, K), narrow(M, ODD)))
    assert product_strides(plan) == [K, K]
    assert sum(isinstance(s, LaunchTriton) for s in plan.steps) == 2  # d, and w's copy


def test_rows_of_several_dimensions_are_written_padded() -> None:
    """As a loss over the classes of each token gives its gradient to the head."""

    def fn(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        wide = (g.float().sigmoid() * 2).view(4, -1, ODD).to(torch.bfloat16)
        return wide.view(M, ODD) @ w, wide.flatten(0, 1).t() @ x

    plan = check(fn, (narrow(M, K), narrow(ODD, K), narrow(M, ODD)))
    assert product_strides(plan) == [K, K]
    assert sum(isinstance(s, LaunchTriton) for s in plan.steps) == 2  # d, and w's copy

    def read_otherwise(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        wide = (g.float().sigmoid() * 2).view(4, -1, ODD).to(torch.bfloat16)
        return wide.view(M, ODD) @ w, wide.sum(1), wide

    check(read_otherwise, (narrow(M, K), narrow(ODD, K), narrow(M, ODD)))


def test_views_of_one_product_are_views_of_one_copy() -> None:
    """Logits are both a result and saved for the backward."""

    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y = x @ w.t()
        return y.view(4, -1, ODD), y, y.view(2, 2, -1, ODD), y.clone(), y[1:], y.t()

    inputs = (narrow(M, K), narrow(ODD, K))
    plan = check(fn, inputs)
    got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    same, same2, same3, clone, part, turned = (t.data_ptr() for t in got)
    assert same == same2 == same3 and len({same, clone, part, turned}) == 4


def test_infinities_beside_the_padding_stay_where_they_are() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y = x @ w.t()
        return (y @ w,)

    x, w = narrow(M, K), narrow(ODD, K) / 64
    plan = compiled(fn, (x, w))
    x[3, 5] = float("inf")
    (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x, w)
    finite = torch.arange(M) != 3
    torch.testing.assert_close(got[finite].float(), fn(x, w)[0][finite].float(), atol=1, rtol=5e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_is_padded_on_a_cpu(dtype: torch.dtype) -> None:
    x, w = torch.randn(M, K, dtype=dtype), torch.randn(ODD, K, dtype=dtype)
    gm = trace_aten(lambda x, w: x @ w.t(), x, w, decompositions=core_aten_table())
    assert product_strides(compile_graph(gm, [x, w])) == [ODD]


def test_a_matrix_without_adjacent_elements_is_copied_by_rows() -> None:
    check(lambda x, w: (x[:, ::2] @ w,), (narrow(M, 2 * K), narrow(K, ODD)))
    check(lambda x, w: (x @ w[::2, ::2],), (narrow(M, K), narrow(2 * K, 2 * ODD)))


def test_a_permutation_that_turns_nothing() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        scaled = torch.empty_strided((K, ODD), (1, K), dtype=w.dtype).copy_(w * 2)
        return (x @ scaled.permute(0, 1), x @ w.t().contiguous().t().permute(0, 1))

    check(fn, (narrow(M, K), narrow(K, ODD)))
    check(lambda x, w: (x @ w.permute(0, 1),), (narrow(M, K), narrow(ODD, K).t()))


def test_padded_rows_are_read_in_whole_vectors(build_for_h100: Any) -> None:
    """Masks of loads end at a multiple of 8; what they read beyond is masked where it counts."""

    def loss(x: Tensor, w: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        logits = (x @ w.t()).float()
        chosen = logits.gather(1, labels.unsqueeze(1)).squeeze(1)
        return (logits.logsumexp(1) - chosen, (logits * 2).to(torch.bfloat16) @ w)

    rows = 130
    x, w = narrow(rows, K) / 8, narrow(ODD, K) / 8
    plan = check(loss, (x, w, torch.randint(0, ODD, (rows,))))
    sources = [k.source for k in plan.kernels]
    assert any(f"< {EVEN}), other=0" in source for source in sources)  # a row of the reduction
    assert any("tl.where" in source and f"// {EVEN}" in source for source in sources)  # the copy
    build_for_h100(plan.kernels)


@pytest.mark.parametrize(("rows", "depth"), [(64, 128), (64, 120), (63, 128)])
def test_a_matrix_times_a_column_is_a_row_times_the_transposed_matrix(
    rows: int, depth: int
) -> None:
    def fn(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.mv(a, x), torch.mm(a, x[:, None]) + 1

    plan = check(fn, [narrow(rows, depth), narrow(depth)])
    assert bool(product_strides(plan)) == (rows == 63)
