"""Products of 2-byte matrices on a GPU, which go to cuBLASLt without ATen: every layout."""

from __future__ import annotations

import pytest
import torch
from dovetail_runtime import (
    Allocate,
    CallAten,
    Plan,
    PlanInput,
    Ref,
    SizeExpr,
    SymbolBinding,
    TensorSpec,
    load,
)
from dovetail_runtime.cuda_graphs import GraphedArtifact, GraphPool
from dovetail_runtime.plan import Step
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.library_products,
]

CUDA = torch.device("cuda:0")


def spec_of(t: Tensor) -> TensorSpec:
    return TensorSpec(tuple(t.shape), tuple(t.stride()), t.dtype, CUDA)


def plan_of(
    inputs: tuple[PlanInput, ...], *steps: Step, symbols: tuple[SymbolBinding, ...] = ()
) -> Plan:
    return Plan("product", "cuda", inputs, symbols, (), (), steps, (), ("y",))


def product(name: str, *inputs: Tensor, out: Tensor) -> Plan:
    names = [f"x{i}" for i in range(len(inputs))]
    return plan_of(
        tuple(PlanInput(n, spec_of(t)) for n, t in zip(names, inputs, strict=True)),
        Allocate("y", spec_of(out), None),
        CallAten(name, tuple(Ref(n) for n in names), (("out", Ref("y")),), (None,)),
    )


def check(name: str, *inputs: Tensor, direct: bool = True, out: Tensor | None = None) -> None:
    op = getattr(torch, name.split("::")[1].split(".")[0])
    wanted = op(*(t.double() for t in inputs))
    like = out if out is not None else torch.empty(wanted.shape, dtype=inputs[0].dtype, device=CUDA)
    run = load(product(name, *inputs, out=like))
    run(*inputs)
    with profile(activities=[ProfilerActivity.CPU]) as events:
        (got,) = run(*inputs)
    # The executor's own range has the overload's name (`aten::mm.out`), ATen's call has none.
    called = any(e.key in ("aten::mm", "aten::addmm", "aten::bmm") for e in events.key_averages())
    assert called != direct
    assert got.stride() == like.stride()
    scale = float(wanted.abs().max()) + 1e-3
    assert float((got.double() - wanted).abs().max()) <= 8e-3 * scale


def matrix(rows: int, columns: int, layout: str, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    t = torch.randn(rows, columns, device=CUDA, dtype=dtype)
    if layout == "columns":
        return t.t().contiguous().t()
    if layout == "part":  # of a wider one: rows further apart, and not aligned
        return torch.randn(rows, columns + 5, device=CUDA, dtype=dtype)[:, 3 : 3 + columns]
    return t


LAYOUTS = ["rows", "columns", "part"]
SIZES = [(64, 96, 128), (1, 64, 48), (33, 7, 65), (40, 1, 24), (16, 24, 1)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_mm(sizes: tuple[int, int, int], left: str, right: str) -> None:
    m, k, n = sizes
    check("aten::mm.out", matrix(m, k, left), matrix(k, n, right))
    check("aten::mm.out", matrix(m, k, left, torch.half), matrix(k, n, right, torch.half))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("right", LAYOUTS)
def test_addmm(sizes: tuple[int, int, int], right: str) -> None:
    m, k, n = sizes
    a, b = matrix(m, k, "rows"), matrix(k, n, right)
    row = torch.randn(n, device=CUDA, dtype=torch.bfloat16)
    check("aten::addmm.out", row, a, b)
    check("aten::addmm.out", row.expand(m, n), a, b)
    check("aten::addmm.out", matrix(m, n, "part"), a, b)


def test_bmm() -> None:
    a = torch.randn(6, 17, 24, device=CUDA, dtype=torch.bfloat16)
    b = torch.randn(6, 24, 40, device=CUDA, dtype=torch.bfloat16)
    check("aten::bmm.out", a, b)
    check("aten::bmm.out", a.mT.contiguous().mT, b.mT.contiguous().mT)
    check("aten::bmm.out", a.transpose(0, 1).contiguous().transpose(0, 1), b)
    check("aten::bmm.out", a[:1].expand(6, 17, 24), b)


def test_what_stays_with_aten() -> None:
    a, b = (torch.randn(32, 32, device=CUDA) for _ in range(2))
    check("aten::mm.out", a, b, direct=False)
    narrow = torch.randn(32, 64, device=CUDA, dtype=torch.bfloat16)[:, ::2]
    check("aten::mm.out", narrow, b.bfloat16(), direct=False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        check("aten::mm.out", a.bfloat16(), b.bfloat16(), direct=False)
    finally:
        torch.use_deterministic_algorithms(False)


def test_sizes_and_addresses_that_change() -> None:
    n = SizeExpr("sym", ("n",))
    plan = plan_of(
        (
            PlanInput("a", TensorSpec((n, 48), (48, 1), torch.bfloat16, CUDA)),
            PlanInput("b", TensorSpec((48, 40), (40, 1), torch.bfloat16, CUDA)),
            PlanInput("c", TensorSpec((40,), (1,), torch.bfloat16, CUDA)),
        ),
        Allocate("y", TensorSpec((n, 40), (40, 1), torch.bfloat16, CUDA), None),
        CallAten("aten::addmm.out", (Ref("c"), Ref("a"), Ref("b")), (("out", Ref("y")),)),
        symbols=(SymbolBinding("n", 0, 0),),
    )
    run = load(plan)
    for rows in (8, 9, 8, 200, 1, 31):
        a, b = matrix(rows, 48, "rows"), matrix(48, 40, "rows")
        c = torch.randn(40, device=CUDA, dtype=torch.bfloat16)
        (got,) = run(a, b, c)
        wanted = torch.addmm(c.double(), a.double(), b.double())
        assert float((got.double() - wanted).abs().max()) <= 8e-3 * float(wanted.abs().max())


def test_a_recorded_graph_replays_products() -> None:
    a, b = matrix(64, 64, "rows"), matrix(64, 64, "columns")
    run = load(product("aten::mm.out", a, b, out=torch.empty_like(a)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (y,) = run(a, b)
    a.copy_(matrix(64, 64, "rows"))
    graph.replay()
    wanted = a.double() @ b.double()
    assert float((y.double() - wanted).abs().max()) <= 8e-3 * float(wanted.abs().max())


def test_recorded_products_hold_no_memory_to_work_in() -> None:
    """Neither the library nor ATen keeps any, 32 MiB each, on the stream that graphs are recorded
    on: what a product needs lies in the graph's own memory."""
    a, b = (torch.randn(512, 512, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    wanted = a @ b  # ATen's own, on this stream
    graphed = GraphedArtifact(load(product("aten::mm.out", a, b, out=wanted)), GraphPool())
    before = torch.cuda.memory_allocated()
    for _ in range(6):
        (got,) = graphed(a, b)
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-1)
        torch.cuda.synchronize()
    del got
    assert graphed.recorded == 1, graphed.skips()
    assert torch.cuda.memory_allocated() - before < 8 << 20


def test_recorded_products_of_the_library_have_theirs() -> None:
    """Of float32 ATen multiplies."""
    a, b = (torch.randn(512, 512, device=CUDA) for _ in range(2))
    wanted = a @ b
    graphed = GraphedArtifact(load(product("aten::mm.out", a, b, out=wanted)), GraphPool())
    for _ in range(6):
        torch.testing.assert_close(graphed(a, b)[0], wanted, rtol=1e-3, atol=1e-2)
        torch.cuda.synchronize()
    assert graphed.recorded == 1, graphed.skips()
    assert graphed.artifact.run.aten_operators() == {"aten::mm.out"}
