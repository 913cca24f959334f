"""Triton kernels without a GPU: run by Triton's interpreter on CPU tensors, and compiled for an
H100 ahead of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor.loop_ir.loops import LoopNest, Strided
from dovetail_inductor.lowering.lower import lower
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.pipeline import compile_graph
from dovetail_inductor.scheduler.fuse import fuse
from dovetail_inductor.scheduler.kernels import FusedKernel, KernelGraph
from dovetail_inductor.targets import CUDA
from dovetail_inductor.targets.cuda.assemble import EmittedKernel
from dovetail_inductor.targets.cuda.kernel import emit_kernel
from dovetail_inductor.targets.cuda.triton_ops import UnsupportedOp, emit_op
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime.plan import CallAten, LaunchCpp, LaunchTriton, TritonKernel
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor, TritonLauncher
from torch import Tensor

Fn = Callable[..., Tensor]


def scheduled(fn: Fn, inputs: tuple[Tensor, ...]) -> tuple[KernelGraph, list[EmittedKernel]]:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    graph = fuse(lower(gm), InductorOptions())
    kernels = [s for s in graph.steps if isinstance(s, FusedKernel)]
    assert len(kernels) == len(graph.steps), "these graphs need no library call"
    return graph, [emit_kernel(k, dict(graph.buffers)) for k in kernels]


def run(interpreter: TritonLauncher, fn: Fn, inputs: tuple[Tensor, ...]) -> Tensor:
    """The function's output, computed by its Triton kernels alone."""
    graph, emitted = scheduled(fn, inputs)
    memory: dict[str, Tensor] = dict(graph.constants)
    memory |= {name: t for name, t in zip(graph.inputs, inputs, strict=True) if name is not None}
    for kernel in emitted:
        for name in kernel.tensors:
            if name not in memory:
                b = graph.buffers[name]
                empty = torch.empty_strided(b.shape, b.stride, dtype=b.dtype)
                memory[name] = empty.fill_(float("nan") if b.dtype.is_floating_point else 1)
        interpreter(kernel.kernel, [memory[name] for name in kernel.tensors], kernel.grid)
    (out,) = graph.outputs
    assert isinstance(out, Strided)
    return memory[out.buffer].as_strided(out.shape, out.stride, out.offset)


def chain(x: Tensor, y: Tensor) -> Tensor:
    z = torch.tanh(torch.relu(x * y + 1.0)) - torch.sigmoid(x)
    return torch.where(z > 0, z.exp(), torch.log1p(z.abs())) * 0.5


def layer_norm_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x, (x.shape[-1],), w, b))


def bias_gradient(g: Tensor) -> Tensor:
    return g.sum(0)


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target)


def embedding(table: Tensor, ids: Tensor) -> Tensor:
    return F.embedding(ids, table) * 2


def padded_cat(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([F.pad(x, (1, 2)), y], dim=0) + 1


CASES: dict[str, tuple[Fn, tuple[Tensor, ...]]] = {
    "chain": (chain, (torch.randn(37, 53), torch.randn(37, 53))),
    "broadcast": (lambda x, y: x + y * 2, (torch.randn(8, 1, 33), torch.randn(5, 33))),
    "softmax": (lambda x: torch.softmax(x, -1), (torch.randn(6, 100),)),
    "softmax_long": (lambda x: torch.softmax(x * 1.5, -1), (torch.randn(2, 20000),)),
    "softmax_columns": (lambda x: torch.softmax(x, 0), (torch.randn(70, 48),)),
    "layer_norm_gelu": (layer_norm_gelu, (torch.randn(9, 200), torch.randn(200), torch.randn(200))),
    "shifted_transpose_add": (
        lambda x, y: x.relu()[:, :64] * 3 + x[:, 1:65] + x[:, 2:66] - x[:, 3:67] + x[:, 4:] + y.t(),
        (torch.randn(64, 68), torch.randn(64, 64)),
    ),
    "transpose_add": (lambda x, y: x.t() + y, (torch.randn(70, 90), torch.randn(90, 70))),
    "bias_gradient": (bias_gradient, (torch.randn(300, 40),)),
    "cross_entropy": (cross_entropy, (torch.randn(16, 1000), torch.randint(0, 1000, (16,)))),
    "embedding": (embedding, (torch.randn(50, 24), torch.randint(0, 50, (3, 7)))),
    "padded_cat": (padded_cat, (torch.randn(3, 5), torch.randn(4, 8))),
    "argmax": (lambda x: x.argmax(-1), (torch.randn(11, 77),)),
    "argmin_long": (lambda x: x.argmin(-1), (torch.randn(2, 30000),)),
    "max_nan": (lambda x: x.amax(-1), (torch.tensor([[1.0, float("nan"), 2.0], [3.0, 1.0, 2.0]]),)),
    "integers": (lambda x, y: (x // y) + (x % y), (torch.arange(-20, 20), torch.full((40,), 7))),
    "any": (lambda x: (x > 2).any(-1), (torch.randn(13, 40),)),
    "total": (lambda x: x.sum(), (torch.randn(40, 30),)),
}


@pytest.mark.parametrize("name", CASES)
def test_interpreted_equals_eager(name: str, interpreter: TritonLauncher) -> None:
    fn, inputs = CASES[name]
    expected = fn(*inputs)
    got = run(interpreter, fn, inputs)
    assert got.dtype == expected.dtype and got.stride() == expected.stride()
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5, equal_nan=True)


def test_neighbours_in_memory_count_once() -> None:
    """Reads of one row, some elements on, do not outweigh what lies across: it is transposed."""
    (kernel,) = scheduled(*CASES["shifted_transpose_add"])[1]
    assert kernel.kernel.symbol.startswith("transpose")


def test_float16_is_computed_in_float32(interpreter: TritonLauncher) -> None:
    x, w, b = torch.randn(8, 128), torch.randn(128), torch.randn(128)
    # not bfloat16: Triton's interpreter truncates to it, where a GPU rounds
    narrow = tuple(t.half() for t in (x, w, b))
    got = run(interpreter, layer_norm_gelu, narrow)
    reference = layer_norm_gelu(*(t.double() for t in narrow))
    eager_error = (layer_norm_gelu(*narrow).double() - reference).abs().max()
    assert (got.double() - reference).abs().max() <= eager_error * 1.01


@pytest.mark.parametrize("name", ["erf", "tanh"])
def test_the_cheaper_functions_of_narrow_results_are_exact_enough(
    name: str, interpreter: TritonLauncher
) -> None:
    """For a 2-byte result: to half a rounding of float16, over the whole range, ends and NaN."""
    function: Callable[[Tensor], Tensor] = getattr(torch, name)
    special = torch.tensor([0.0, -0.0, 65504.0, -65504.0, torch.inf, -torch.inf, torch.nan])
    x = torch.cat([torch.linspace(-6, 6, 4001), torch.logspace(-7, 0, 200), special]).half()
    kernels = scheduled(function, (x,))[1]
    assert any(f"dv_{name}_narrow" in k.kernel.source for k in kernels)
    got = run(interpreter, function, (x,))
    exact = function(x.double())
    rounding = 2.0**-11 * exact.abs().clamp(min=2.0**-14)
    assert ((got.double() - exact).abs() <= 1.3 * rounding)[:-1].all() and got[-1].isnan()


@pytest.mark.parametrize("shape", [(360, 3, 2048)])
def test_columns_that_repeat_for_every_row(
    shape: tuple[int, ...], interpreter: TritonLauncher
) -> None:
    """Large enough that a program takes several rows, whose weights it loads once."""

    def scaled(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.relu(x * w + b)

    inputs = (torch.randn(shape), torch.randn(shape[-1]), torch.randn(shape[-1]))
    (kernel,) = scheduled(scaled, inputs)[1]
    assert "[16, 256]" in kernel.kernel.source
    torch.testing.assert_close(run(interpreter, scaled, inputs), scaled(*inputs))


@pytest.mark.parametrize("rows", [7, 512, 515])
def test_rows_of_a_reduction_that_share_weights(rows: int, interpreter: TritonLauncher) -> None:
    inputs = (torch.randn(rows, 128), torch.randn(128), torch.randn(128))
    expected = layer_norm_gelu(*inputs)
    torch.testing.assert_close(
        run(interpreter, layer_norm_gelu, inputs), expected, rtol=2e-5, atol=2e-5
    )


def test_long_rows_of_a_softmax_are_folded(interpreter: TritonLauncher) -> None:
    """Rows that no program holds: a thread rescales its sum once for several of its elements."""

    def softmax(x: Tensor) -> Tensor:
        return (x * 2).softmax(-1)

    x = torch.randn(16, 16385) * 4
    x[0, 5:9000] = -torch.inf
    x[1, :-1] = -torch.inf
    x[2, 3000] = torch.nan
    (kernel,) = scheduled(softmax, (x,))[1]
    assert "tl.arange(0, 16)[:, None]" in kernel.kernel.source
    torch.testing.assert_close(
        run(interpreter, softmax, (x,)), softmax(x), rtol=2e-5, atol=1e-9, equal_nan=True
    )


def test_every_kernel_compiles_for_an_h100(build_for_h100: Any) -> None:
    kernels = [k.kernel for fn, inputs in CASES.values() for k in scheduled(fn, inputs)[1]]
    narrow = tuple(torch.randn(16, 64, dtype=torch.bfloat16) for _ in range(2))
    kernels += [k.kernel for k in scheduled(chain, narrow)[1]]
    build_for_h100(kernels)


def test_equal_kernels_of_repeated_layers_have_equal_text() -> None:
    inputs = (torch.randn(8, 64), torch.randn(64), torch.randn(64))
    (first,) = scheduled(layer_norm_gelu, inputs)[1]
    (second,) = scheduled(lambda x, w, b: layer_norm_gelu(x, w, b), inputs)[1]
    assert first.kernel == second.kernel


def test_plan_with_library_calls_runs_interpreted() -> None:
    def block(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.gelu(F.layer_norm(x, (24,), None, None) @ w + b).softmax(-1) + x

    inputs = (torch.randn(10, 24), torch.randn(24, 24), torch.randn(24))
    gm = trace_aten(block, *inputs, decompositions=core_aten_table())
    plan = compile_graph(gm, inputs, options=InductorOptions(triton=True))
    assert any(isinstance(s, LaunchTriton) for s in plan.steps)
    assert not any(isinstance(s, LaunchCpp) for s in plan.steps)
    (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    torch.testing.assert_close(got, block(*inputs))


def test_op_without_a_triton_form_is_refused() -> None:
    with pytest.raises(UnsupportedOp, match="no_such_op"):
        emit_op("no_such_op", ["x"], torch.float32, torch.float32)


def test_rows_stored_in_other_widths_than_they_are_loaded_in_are_not_folded() -> None:
    """Then threads would exchange what they hold in every turn."""

    def head(x: Tensor) -> tuple[Tensor, Tensor]:
        part = x[:, :20001]  # whose rows are aligned, and those of its copy are not
        return part.clone(), part.float().softmax(-1).sum(-1)

    x = torch.randn(300, 20008).half()
    gm = trace_aten(head, x, decompositions=core_aten_table())
    graph = fuse(lower(gm), InductorOptions())
    kernels = [s for s in graph.steps if isinstance(s, FusedKernel)]
    texts = [emit_kernel(k, dict(graph.buffers)).kernel.source for k in kernels]
    assert any("for start in range" in text for text in texts)
    assert not any("[:, None] + tl.arange" in text for text in texts)
    (folded,) = scheduled(lambda x: x.softmax(-1), (x[:, :16384].float().repeat(1, 2),))[1]
    assert "[:, None] + tl.arange" in folded.kernel.source


def residual_stream(x: Tensor, *pieces: Tensor) -> tuple[Tensor, ...]:
    """As a transformer's blocks in narrow floats, of which only the norms are in float32."""
    found = []
    for piece in pieces:
        x = x + piece
        found.append(F.layer_norm(x.float(), (x.shape[-1],)).to(x.dtype))
    return tuple(found)


@pytest.mark.parametrize(
    ("dtype", "rows", "stored"),
    [(torch.bfloat16, 8200, 1), (torch.bfloat16, 64, 4), (torch.float32, 8200, 5)],
)
def test_every_fourth_sum_of_a_narrow_residual_stream_is_stored(
    dtype: torch.dtype, rows: int, stored: int
) -> None:
    """And each where it has few bytes, but the last, which one kernel alone reads."""
    inputs = tuple(torch.randn(rows, 32, dtype=dtype) for _ in range(6))
    gm = trace_aten(residual_stream, *inputs, decompositions=core_aten_table())
    graph = lower(gm, CUDA)
    sums = [n for n in graph.nodes if isinstance(n, LoopNest) and "add" in n.origin]
    of_size = [n for n in sums if graph.buffers[n.buffer].shape == (rows, 32)]
    assert len(of_size) == stored, graph.as_text()
    if dtype is torch.bfloat16:
        assert {graph.buffers[n.buffer].dtype for n in of_size} == {torch.float32}


def test_rare_ops_as_triton_kernels(build_for_h100: Any) -> None:
    """What decomposes to arithmetic alone, scans of pairs, and searches: in the interpreter, and
    compiled for an H100."""

    def fn(x: Tensor, row: Tensor) -> tuple[Tensor, ...]:
        return (
            *x.cummax(1), x.logcumsumexp(1), torch.searchsorted(row, x), torch.cdist(x, x, 1.0),
            torch.linspace(0, 1, 9),
        )  # fmt: skip

    inputs = (torch.randn(3, 20) * 3, torch.randn(9).sort().values)
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    plan = compile_graph(gm, inputs, options=InductorOptions(triton=True))
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    for mine, wanted in zip(got, fn(*inputs), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)
    build_for_h100([k for k in plan.kernels if isinstance(k, TritonKernel)])
