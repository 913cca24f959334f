"""Shared launches, two-stage reductions on a GPU, and a whole training graph, without a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor.loop_ir.loops import LoopGraph
from dovetail_inductor.lowering.lower import lower
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.pipeline import compile_graph
from dovetail_inductor.scheduler.combine import (
    LEAST_BYTES,
    MAX_KERNELS,
    PEAK_BYTES,
    combine,
)
from dovetail_inductor.scheduler.fuse import fuse
from dovetail_inductor.scheduler.kernels import CombinedKernel, KernelGraph
from dovetail_inductor.scheduler.lifetimes import live_bytes
from dovetail_inductor.scheduler.split_reductions import split_reductions
from dovetail_inductor.targets.cuda.tiling import choose
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.plan import LaunchTriton, Plan, TritonKernel
from dovetail_runtime.triton_build import TritonBuilder
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

GPU = InductorOptions(triton=True)


def plan_of(fn: Callable[..., Any], *inputs: Tensor, options: InductorOptions = GPU) -> Plan:
    return compile_graph(trace_aten(fn, *inputs, decompositions=core_aten_table()), options=options)


def launches(plan: Plan) -> list[LaunchTriton]:
    return [s for s in plan.steps if isinstance(s, LaunchTriton)]


def check(fn: Callable[..., Any], *inputs: Tensor, options: InductorOptions = GPU) -> Plan:
    """Compiled and interpreted equals eager."""
    plan = plan_of(fn, *inputs, options=options)
    got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    for mine, expected in zip(got, fn(*inputs), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    return plan


def scheduled(fn: Callable[..., Any], *inputs: Tensor) -> KernelGraph:
    loops: LoopGraph = lower(trace_aten(fn, *inputs, decompositions=core_aten_table()))
    return fuse(split_reductions(loops, GPU), GPU)


def linears(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """Every weight is cast just before its use, as autocast does."""
    for w in weights:
        x = x.half() @ w.half()
    return (x,)


def test_casts_of_weights_share_a_launch() -> None:
    inputs = [torch.randn(40, 16), *(torch.randn(16, 16) / 4 for _ in range(6))]
    assert len(launches(plan_of(linears, *inputs, options=replace(GPU, combine=False)))) == 7
    plan = check(linears, *inputs)
    (launch,) = launches(plan)
    (kernel,) = plan.kernels
    assert kernel.source.count("def part") == 2  # x is of another size, the weights are alike
    assert len(launch.args) == 14


def test_graphs_for_a_cpu_are_left_alone() -> None:
    inputs = [torch.randn(8, 16), *(torch.randn(16, 16) / 4 for _ in range(3))]
    graph = scheduled(linears, *inputs)
    assert combine(graph, InductorOptions()).steps == graph.steps


def test_what_waits_or_comes_early_is_bounded() -> None:
    each = 64 * 64 * 2  # bytes of a weight cast
    inputs = [torch.randn(40, 64), *(torch.randn(64, 64) / 8 for _ in range(20))]
    few = replace(GPU, combine_bytes=8 * each)
    sizes = []
    for step in combine(scheduled(linears, *inputs), few).steps:
        if isinstance(step, CombinedKernel):
            sizes.append(len(step.kernels))
            names = step.reads() | step.writes()
            graph = scheduled(linears, *inputs)
            total = sum(graph.buffers[n].nbytes for n in names)
            assert total <= few.combine_bytes
    assert sizes and max(sizes) < 20, "some share a launch, but not all"
    check(linears, *inputs, options=few)


def test_cold_operands_may_be_more() -> None:
    """Neither what was just computed nor what is read next."""

    def steps(w: Tensor, *pairs: Tensor) -> tuple[Tensor, ...]:
        return tuple(p - 0.1 * g for p, g in zip(pairs[::2], pairs[1::2], strict=True))

    def computed(w: Tensor, *pairs: Tensor) -> tuple[Tensor, ...]:
        return tuple(p - 0.1 * (g @ w) for p, g in zip(pairs[::2], pairs[1::2], strict=True))

    def read_next(w: Tensor, *pairs: Tensor) -> tuple[Tensor, ...]:
        return tuple(p @ w for p in steps(w, *pairs))

    inputs = [torch.randn(256, 256) for _ in range(1 + 2 * 12)]
    few = replace(GPU, combine_bytes=4 * inputs[0].nbytes)

    def sizes(fn: Callable[..., Any]) -> list[int]:
        made = combine(scheduled(fn, *inputs), few).steps
        return [len(s.kernels) for s in made if isinstance(s, CombinedKernel)]

    assert sizes(steps) == [10, 2]  # each moves three quarters of what one may
    assert sizes(computed) == sizes(read_next) == []


def test_what_comes_early_does_not_raise_the_peak() -> None:
    def wide_in_the_middle(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        early, late = weights[:2], weights[2:]
        (x,) = linears(x, *early)
        return linears((x @ x.t()) @ x, *late)

    inputs = [torch.randn(2048, 256), *(torch.randn(256, 256) / 16 for _ in range(8))]
    graph = scheduled(wide_in_the_middle, *inputs)
    combined = combine(graph, GPU)
    assert live_bytes(graph).bytes > 2 * LEAST_BYTES
    assert live_bytes(combined).bytes <= live_bytes(graph).bytes + PEAK_BYTES
    # Two launches instead of one: before the peak (with the first operand's cast), and behind it.
    assert [len(s.kernels) for s in combined.steps if isinstance(s, CombinedKernel)] == [3, 6]


def test_what_waits_does_not_raise_the_peak() -> None:
    def gradients(x: Tensor, wide: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        results: list[Tensor] = []
        for w in weights:
            h = x @ w
            results += [h.t() @ wide, h[0] * 2]
        return tuple(results)

    inputs = [torch.randn(1024, 256), torch.randn(1024, 4096)]
    graph = scheduled(gradients, *inputs, *(torch.randn(256, 256) for _ in range(40)))
    combined = combine(graph, GPU)
    assert live_bytes(combined).bytes <= live_bytes(graph).bytes + PEAK_BYTES
    assert any(isinstance(step, CombinedKernel) for step in combined.steps)


def test_a_launch_has_a_largest_number_of_kernels() -> None:
    inputs = [torch.randn(32) for _ in range(MAX_KERNELS + 3)]
    plan = check(lambda *ts: [t + 1 for t in ts], *inputs)
    sizes = sorted(len(step.args) // 2 for step in launches(plan))
    assert sizes == [3, MAX_KERNELS]


def test_dependent_kernels_keep_their_order() -> None:
    def chain(a: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        first = (a + 1) @ w  # each sum must wait for the product before
        second = (first + b) @ w
        return first * 2, (second + b) @ w, a.sum(0), b.exp()

    check(chain, torch.randn(8, 8), torch.randn(8, 8), torch.randn(8, 8))


def test_what_only_a_reduction_of_nothing_reads_is_not_computed() -> None:
    """No kernel is left that writes nothing."""
    for size in (0, 3):
        check(lambda x: (torch.var_mean(x, 0, correction=0)[0].exp(),), torch.randn(size, 31))


def test_members_of_different_types_are_told_apart() -> None:
    tensors = [torch.randn(300), torch.randn(300).half(), torch.arange(300), torch.randn(300) > 0]
    plan = check(lambda *ts: [t.float() * 2 for t in ts], *tensors)
    assert len(launches(plan)) == 1


def test_text_of_a_shared_launch() -> None:
    plan = plan_of(lambda a, b: (a + 1, b + 1), torch.randn(2048), torch.randn(1024))
    (kernel,) = plan.kernels
    assert kernel.source.replace(kernel.symbol, "k") == (
        "import triton\n"
        "import triton.language as tl\n"
        "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait\n"
        "\n\n"
        "@triton.jit\n"
        "def part0(pid, p0, p1):\n"
        "    x = (pid) * 1024 + tl.arange(0, 1024)\n"
        "    v0 = x\n"
        "    t0 = tl.load(p0 + (v0))\n"
        "    t1 = (t0 + tl.full([1], 1.0, tl.float32))\n"
        "    tl.store(p1 + tl.broadcast_to(v0, [1024]), "
        "tl.broadcast_to(t1, [1024]).to(tl.float32))\n"
        "\n\n"
        "@triton.jit\n"
        "def k(p0, p1, p2, p3):\n"
        "    gdc_launch_dependents()\n"
        "    gdc_wait()\n"
        "    pid = tl.program_id(0)\n"
        "    if pid < 1:\n"
        "        c0_0 = pid\n"
        "        c0_1 = p0\n"
        "        c0_2 = p1\n"
        "    else:\n"
        "        c0_0 = pid - 1\n"
        "        c0_1 = p2\n"
        "        c0_2 = p3\n"
        "    part0(c0_0, c0_1, c0_2)\n"
    )


@pytest.mark.parametrize(("elements", "waits"), [(1 << 20, True), (1 << 24, False)])
def test_kernels_of_very_many_programs_do_not_wait_for_themselves(
    elements: int, waits: bool
) -> None:
    x = torch.empty(elements, dtype=torch.bfloat16, device="meta")
    plan = plan_of(lambda x: (x + 1,), x)
    (launch,) = launches(plan)
    (kernel,) = plan.kernels
    assert launch.dependent == waits == ("gdc_wait()" in kernel.source)


def test_text_of_a_row_reduction() -> None:
    plan = plan_of(lambda x: (x.exp().sum(1),), torch.randn(300, 600).half())
    (kernel,) = plan.kernels
    assert kernel.source.split("\n\n\n", 1)[1].replace(kernel.symbol, "k") == (
        "@triton.jit\n"
        "def k(p0, p1):\n"
        "    gdc_launch_dependents()\n"
        "    gdc_wait()\n"
        "    pid = tl.program_id(0)\n"
        "    x = pid\n"
        "    v0 = x\n"
        "    r = 0 + tl.arange(0, 1024)[None, :]\n"
        "    rmask = r < 600\n"
        "    v1 = r\n"
        "    t0 = tl.load(p0 + (600 * v0 + v1), rmask, other=0).to(tl.float32)\n"
        "    t1 = tl.exp(t0)\n"
        "    t2 = tl.broadcast_to(t1, [1, 1024])\n"
        "    t3 = tl.where(rmask, t2, tl.full([1, 1], 0, tl.float32))\n"
        "    t4 = tl.sum(t3, 1)[:, None]\n"
        "    tl.store(p1 + tl.broadcast_to(v0, [1, 1]), "
        "tl.broadcast_to(t4, [1, 1]).to(tl.float16))\n"
    )


@pytest.mark.parametrize("shape", [(4096, 768), (512, 768), (16384, 64), (1 << 22, 1)])
def test_sums_to_few_results_fill_the_gpu(shape: tuple[int, int]) -> None:
    graph = scheduled(lambda x: x.sum(0), torch.empty(shape, dtype=torch.bfloat16))
    first, second = graph.kernels
    assert graph.buffers[first.nests[-1].buffer].dtype is torch.float32
    assert choose(first, graph.buffers).programs >= 132
    assert second.column_points >= 8


def test_two_sums_over_the_same_data_stay_together() -> None:
    def norm_gradients(g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return (g * x).sum(0), g.sum(0)

    inputs = (torch.randn(1200, 96), torch.randn(1200, 96))
    assert [len(k.nests) for k in scheduled(norm_gradients, *inputs).kernels] == [2, 1, 1]
    assert len(launches(check(norm_gradients, *inputs))) == 2


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_norm_fills_the_gpu(layout: torch.memory_format) -> None:
    def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.relu(torch.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)[0])

    x = torch.empty(32, 64, 56, 56).contiguous(memory_format=layout)
    graph = scheduled(norm, x, torch.empty(64), torch.empty(64))
    for kernel in graph.kernels:
        if kernel.row_points * kernel.column_points >= x.numel():
            assert choose(kernel, graph.buffers).programs >= 132, kernel.as_text()
    small = torch.randn(8, 6, 40, 40).contiguous(memory_format=layout)
    check(lambda *t: (norm(*t),), small, torch.randn(6), torch.randn(6))


def test_rows_that_fill_the_gpu_are_not_cut() -> None:
    for rows, columns in ((4096, 768), (128, 768), (256, 30522)):
        assert len(scheduled(lambda x: x.sum(1), torch.empty(rows, columns)).kernels) == 1


def test_total_sum_in_two_stages() -> None:
    # an odd number of elements: the last piece is shorter
    check(lambda x: (x.sum(), x.amax()), torch.randn(70_001))


def test_unaligned_input_is_not_promised_aligned() -> None:
    whole = torch.randn(101)
    plan = check(lambda x: (x * 2,), whole[1:])
    (kernel,) = plan.kernels
    assert isinstance(kernel, TritonKernel) and kernel.aligned == ("p1",)


def test_kernels_of_equal_text_and_other_types_differ() -> None:
    plan = plan_of(
        lambda a, b: (a * 2, b * 2),
        torch.empty(64).half(),
        torch.empty(64).bfloat16(),
        options=replace(GPU, combine=False),
    )
    assert len({k.symbol for k in plan.kernels}) == len(plan.kernels) == 2


# --- a transformer block, forward and backward, its weights cast as autocast does -----------------

HEADS = 4
aten = torch.ops.aten


def block_gradients(
    x: Tensor, wqkv: Tensor, wo: Tensor, gamma: Tensor, beta: Tensor,
    w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, grad: Tensor, low: torch.dtype,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The block's output and the gradients of x and all parameters, by the chain rule."""
    batch, tokens, width = x.shape
    size = width // HEADS
    low_qkv, low_o, low_1, low_2 = (w.to(low) for w in (wqkv, wo, w1, w2))

    def split(t: Tensor) -> Tensor:
        return t.reshape(batch, tokens, HEADS, size).transpose(1, 2)

    def merge(t: Tensor) -> Tensor:
        return t.transpose(1, 2).reshape(batch * tokens, width)

    flat = x.reshape(-1, width).to(low)
    q, k, v = (split(t) for t in (flat @ low_qkv).split(width, -1))
    scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(size)
    weights = torch.softmax(scores, -1)
    attended = merge(weights.to(low) @ v)
    residual = x.reshape(-1, width) + (attended @ low_o).float()
    normed, mean, rstd = aten.native_layer_norm(residual, [width], gamma, beta, 1e-5)
    wide = normed.to(low) @ low_1 + b1.to(low)
    active = F.gelu(wide)
    out = (active @ low_2 + b2.to(low)).float() + normed

    g_out = grad.reshape(-1, width)
    g_low = g_out.to(low)
    g_b2, g_w2 = g_low.sum(0).float(), (active.t() @ g_low).float()
    g_wide = aten.gelu_backward(g_low @ low_2.t(), wide)
    g_b1, g_w1 = g_wide.sum(0).float(), (normed.to(low).t() @ g_wide).float()
    g_normed = g_out + (g_wide @ low_1.t()).float()
    g_residual, g_gamma, g_beta = aten.native_layer_norm_backward(
        g_normed, residual, [width], mean, rstd, gamma, beta, [True, True, True]
    )
    g_attended = split((g_residual.to(low) @ low_o.t()).reshape(batch, tokens, width))
    g_wo = (attended.t() @ g_residual.to(low)).float()
    g_v = weights.to(low).transpose(-1, -2) @ g_attended
    g_weights = (g_attended @ v.transpose(-1, -2)).float()
    g_scores = aten._softmax_backward_data(g_weights, weights, -1, torch.float32)
    g_scores = (g_scores / math.sqrt(size)).to(low)
    g_q, g_k = g_scores @ k, g_scores.transpose(-1, -2) @ q
    g_qkv = torch.cat([merge(g_q), merge(g_k), merge(g_v)], -1)
    g_wqkv = (flat.t() @ g_qkv).float()
    g_x = g_residual + (g_qkv @ low_qkv.t()).float()
    return (
        out.reshape(x.shape), g_x.reshape(x.shape), g_wqkv, g_wo, g_gamma, g_beta,
        g_w1, g_b1, g_w2, g_b2,
    )  # fmt: skip


def block_inputs(batch: int, tokens: int, width: int) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [
        (batch, tokens, width), (width, 3 * width), (width, width), (width,), (width,),
        (width, 4 * width), (4 * width,), (4 * width, width), (width,), (batch, tokens, width),
    ]  # fmt: skip
    return [torch.randn(shape) / (4 if len(shape) == 2 else 1) for shape in shapes]


def test_formulas_of_the_block_are_autograds() -> None:
    inputs = [t.double().requires_grad_() for t in block_inputs(2, 8, 16)]
    x, wqkv, wo, gamma, beta, w1, b1, w2, b2, grad = inputs
    heads = [t.reshape(2, 8, HEADS, 4).transpose(1, 2) for t in (x @ wqkv).split(16, -1)]
    attended = F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(2, 8, 16)
    normed = F.layer_norm(x + attended @ wo, (16,), gamma, beta)
    out = F.gelu(normed @ w1 + b1) @ w2 + b2 + normed
    gradients = torch.autograd.grad(out, inputs[:-1], grad)
    with torch.no_grad():
        mine = block_gradients(*inputs, low=torch.float32)
    for a, b in zip(mine, (out, *gradients), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("combined", [True, False])
def test_training_graph_interpreted(combined: bool) -> None:
    inputs = block_inputs(2, 12, 32)

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        return block_gradients(*tensors, low=torch.float32)

    plan = check(run, *inputs, options=replace(GPU, combine=combined))
    assert len(launches(plan)) <= (11 if combined else 17)


@pytest.mark.slow
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_training_graph_of_real_size(low: torch.dtype, tmp_path: Path) -> None:
    """The kernels compile for an H100; in float16 (to bfloat16 the interpreter truncates, where a
    GPU rounds) what they compute is as accurate as eager."""

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        return block_gradients(*tensors, low=low)

    plan = plan_of(run, *block_inputs(8, 128, 256))
    builder = TritonBuilder(Knobs.from_environment({"DOVETAIL_CACHE_DIR": str(tmp_path)}), 90)
    try:
        kernels = [k for k in plan.kernels if isinstance(k, TritonKernel)]
        assert set(builder.build(kernels)) == {k.symbol for k in kernels}
    finally:
        builder.close()
    if low is torch.bfloat16:
        return
    inputs = block_inputs(2, 300, 32)  # long enough for two-stage sums
    plan = plan_of(run, *inputs)
    got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    exact = block_gradients(*(t.double() for t in inputs), low=torch.float64)
    for mine, eager, reference in zip(got, run(*inputs), exact, strict=True):
        assert isinstance(mine, Tensor)
        error = (mine.double() - reference).norm()
        assert error <= 1.1 * (eager.double() - reference).norm() + 1e-6 * reference.norm()
