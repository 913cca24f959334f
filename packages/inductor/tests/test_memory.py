"""Where buffers lie: in the slab, or, where the slab would raise the peak, by themselves."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from dovetail_inductor.lowering.lower import lower
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.pipeline import compile_graph
from dovetail_inductor.scheduler.fuse import fuse
from dovetail_inductor.scheduler.kernels import FusedKernel
from dovetail_inductor.scheduler.lifetimes import LARGE_BYTES, live_bytes
from dovetail_inductor.scheduler.memory import (
    GPU_SLAB_PEAK,
    SMALL_BYTES,
    SMALLER_BYTES,
    plan_memory,
)
from dovetail_inductor.scheduler.slabs import MOST_SLABS
from dovetail_inductor.targets.cuda.kernel import emit_kernel
from dovetail_inductor.targets.cuda.passes import reads_before_it_writes
from dovetail_inductor.targets.cuda.tiling import choose
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import Allocate, load
from dovetail_runtime.plan import LaunchCpp, LaunchTriton, Plan
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor


def test_a_large_buffer_that_dies_before_large_results_is_freed(check):
    def fn(x, w):
        early = torch.relu(x) @ w  # a megabyte and more, dead before the results below are made
        small = early.sum(1)
        return [small[:, None] * k + x[:, :1] for k in (w[0], w[1] + 1, w[2])] + [small.sum()]

    checked = check(fn, torch.randn(600, 1024), torch.randn(1024, 1024), rtol=1e-3, atol=1e-1)
    assert checked.plan.slab_bytes == () or checked.plan.slab_bytes[0][1] < 1 << 20


def test_buffers_live_in_the_slab_otherwise(check):
    def fn(x, w):
        return (torch.relu(torch.relu(x) @ w) @ w).sum()

    checked = check(fn, torch.randn(600, 1024), torch.randn(1024, 1024), rtol=1e-2, atol=1e-1)
    own = [s for s in checked.plan.steps if isinstance(s, Allocate) and s.slab_offset is None]
    assert len(own) == 1  # the result


def test_no_slab_of_large_buffers_is_held_beside_much_larger_results() -> None:
    def fn(x: Tensor, w: Tensor) -> list[Tensor]:
        small = (torch.relu(x) @ w).sum(1)  # of 2 MiB each, dead before the 128 MiB below are made
        return [small[:, None] * k + x for k in range(64)]

    inputs = torch.randn(512, 1024), torch.randn(1024, 1024)
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    graph = fuse(lower(gm), InductorOptions())
    assert all(graph.buffers[name].nbytes < LARGE_BYTES for name in plan_memory(graph).offsets)


def on_gpu(fn, *inputs):
    """The kernels of `fn`, as if its tensors were on a GPU."""
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    graph = fuse(lower(gm), InductorOptions())
    gpu = torch.device("cuda", 0)
    return replace(graph, buffers={n: replace(b, device=gpu) for n, b in graph.buffers.items()})


def written_over(plan: Plan) -> int:
    """How many kernels for the CPU write where something is that they read."""
    launches = [s for s in plan.steps if isinstance(s, LaunchCpp)]
    return sum(len(set(s.tensors)) < len(s.tensors) for s in launches)


def narrow(x, w):
    for _ in range(3):
        x = torch.relu(x @ w)
    return x


def narrow_and_wide(rounds):
    """Kernels of `rounds` times products of narrow tensors, then convolutions of a large one, whose
    results the library makes itself."""

    def fn(x, w, image, kernel):
        for _ in range(rounds):
            image = torch.conv2d(image * narrow(x, w).sum(), kernel, padding=1)
            image = torch.conv2d(image, kernel, padding=1)
            x = x * image.sum()
        return x.sum()

    image, kernel = torch.randn(1, 8, 256, 512), torch.randn(8, 8, 3, 3)
    return on_gpu(fn, torch.randn(192, 1024), torch.randn(1024, 1024), image, kernel)


def test_on_a_gpu_smaller_buffers_leave_slabs_that_would_raise_the_peak():
    """Where as many slabs as there may be are not enough."""
    graph = narrow_and_wide(MOST_SLABS + 2)
    memory = plan_memory(graph)
    sizes = {n: graph.buffers[n].nbytes for n in memory.first}
    assert any(SMALLER_BYTES <= size < LARGE_BYTES for size in sizes.values())
    assert all(sizes[n] < SMALLER_BYTES for n in memory.offsets)


def test_on_a_gpu_smaller_buffers_stay_in_slabs_that_are_given_back_in_time():
    graph = narrow_and_wide(1)
    memory = plan_memory(graph)
    assert any(SMALLER_BYTES <= graph.buffers[n].nbytes < LARGE_BYTES for n in memory.offsets)
    outside = [0] * len(graph.steps)
    for name in memory.first.keys() - memory.offsets.keys() - memory.written_over.keys():
        for position in range(memory.first[name], min(memory.last[name] + 1, len(outside))):
            outside[position] += graph.buffers[name].nbytes
    for slab in memory.slabs:
        for position in range(slab.first, slab.last + 1):
            outside[position] += slab.nbytes
    assert max(outside) <= GPU_SLAB_PEAK * live_bytes(graph).bytes


def test_on_a_gpu_buffers_live_in_the_slab_otherwise():
    graph = on_gpu(lambda x, w: narrow(x, w).sum(), torch.randn(192, 1024), torch.randn(1024, 1024))
    memory = plan_memory(graph)
    assert max(graph.buffers[n].nbytes for n in memory.offsets) == 192 * 1024 * 4


def test_on_a_gpu_a_few_small_buffers_leave_slabs_that_raise_the_peak() -> None:
    """Converted weights of early convolutions, in slabs that are still held at the peak."""

    def fn(x: Tensor, small: Tensor, kernel: Tensor) -> Tensor:
        for _ in range(MOST_SLABS + 2):
            weight = torch.relu(kernel * small.sum())
            small = torch.relu(small) * weight.sum()  # lives on while images are made
            image = torch.conv2d(x, weight, padding=1)
            x = torch.conv2d(torch.relu(image), kernel, padding=1) + x
        return x.sum() + small.sum()

    image, kernel = torch.randn(1, 64, 256, 256), torch.randn(64, 64, 3, 3)
    graph = on_gpu(fn, image, torch.randn(64), kernel)
    memory = plan_memory(graph)
    assert kernel.nbytes >= SMALL_BYTES
    assert all(graph.buffers[n].nbytes < SMALL_BYTES for n in memory.offsets)
    assert sum(slab.nbytes for slab in memory.slabs) < SMALL_BYTES


def convolutions(x: Tensor, *weights: Tensor) -> Tensor:
    for w in weights:
        y = torch.nn.functional.conv2d(x, w, padding=1)
        x = torch.relu(y + x * 0.5)
    return x


def test_a_kernel_writes_over_what_dies_in_it() -> None:
    x, weights = torch.randn(1, 32, 128, 128), [torch.randn(32, 32, 3, 3) / 17 for _ in range(3)]
    plan = compile_graph(trace_aten(convolutions, x, *weights))
    assert x.nbytes >= LARGE_BYTES
    allocated = [s for s in plan.steps if isinstance(s, Allocate)]
    assert written_over(plan) == 3 and not allocated  # the last result leaves the call
    got = load(plan).run(x, *weights)[0]
    torch.testing.assert_close(got, convolutions(x, *weights), rtol=1e-4, atol=1e-4)


def mlp(x: Tensor, image: Tensor, kernel: Tensor, *weights: Tensor) -> Tensor:
    """Rows of a batch between products; the library makes the convolution's result itself."""
    x = x * torch.conv2d(image, kernel).sum()
    for up, down in zip(weights[::2], weights[1::2], strict=True):
        x = torch.nn.functional.gelu(x @ up) @ down
    return x


def mlp_inputs() -> tuple[Tensor, ...]:
    r = torch.randn
    weights = [r(64, 1024) / 8, r(1024, 64) / 32, r(64, 1024) / 8, r(1024, 64) / 32]
    return (r(4, 128, 64), r(1, 2, 8, 8), r(2, 2, 3, 3), *weights)


def test_on_a_gpu_a_kernel_writes_over_what_dies_in_it() -> None:
    """Also a tensor of another shape in the same memory."""
    memory = plan_memory(on_gpu(mlp, *mlp_inputs()))
    assert len(memory.written_over) == 2


def test_on_a_gpu_that_also_holds_in_the_slab() -> None:
    """Of a product and what follows it point by point, which are of one size, one is in memory."""
    r = torch.randn
    graph = on_gpu(
        lambda x, up, down: torch.nn.functional.gelu(x @ up) @ down,
        r(128, 768), r(768, 3072), r(3072, 768),
    )  # fmt: skip
    memory = plan_memory(graph)
    assert len(memory.written_over) == 1
    assert sum(slab.nbytes for slab in memory.slabs) == 128 * 3072 * 4


def test_triton_kernels_write_over_what_dies_in_them() -> None:
    x, weights = torch.randn(1, 32, 128, 128), [torch.randn(32, 32, 3, 3) / 17 for _ in range(3)]
    gm = trace_aten(convolutions, x, *weights)
    plan = compile_graph(gm, options=InductorOptions(triton=True))
    launches = [s for s in plan.steps if isinstance(s, LaunchTriton)]
    assert sum(len(set(s.args)) < len(s.args) for s in launches) == 3
    (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x, *weights)
    torch.testing.assert_close(got, convolutions(x, *weights), rtol=1e-4, atol=1e-4)


def slope(x: Tensor, sums: Tensor, w: Tensor) -> Tensor:
    """The gradient of products that a loss was computed from, times weights."""
    return ((x - sums[:, None]).exp() / x.shape[0]) @ w


def read_twice(x: Tensor, sums: Tensor, w: Tensor) -> Tensor:
    return slope(x, sums, w) + torch.roll(x, 1, 1) @ w


def normalised(x: Tensor, sums: Tensor, w: Tensor) -> Tensor:
    return (torch.softmax(x, -1) * sums[:, None]) @ w


def plan_of(fn: Callable[..., Tensor], owned: bool, triton: bool) -> tuple[Plan, list[Tensor]]:
    inputs = [torch.randn(512, 1024), torch.randn(512) + 3, torch.randn(1024, 8) / 32]
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    next(iter(gm.graph.nodes)).meta["owned"] = owned
    return compile_graph(gm, options=InductorOptions(triton=triton)), inputs


@pytest.mark.parametrize("triton", [False, True])
def test_an_input_that_the_call_frees_makes_room_for_a_result(triton: bool) -> None:
    plan, inputs = plan_of(slope, True, triton)
    (over,) = [s for s in plan.steps if isinstance(s, Allocate) and s.over]
    assert over.over == plan.inputs[0].name and over.slab_offset is None
    expected = slope(*inputs)
    if triton:
        (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    else:
        run: Any = load(plan).run
        got = run(*inputs)[0]
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        (got,) = run.run_consuming(inputs)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("fn", "owned"), [(slope, False), (read_twice, True), (normalised, True)])
def test_other_inputs_keep_their_memory(fn: Callable[..., Tensor], owned: bool) -> None:
    """Those of the caller, and what is read elsewhere or more than once."""
    plan, inputs = plan_of(fn, owned, False)
    assert not any(isinstance(s, Allocate) and s.over for s in plan.steps)
    expected, run = fn(*inputs), load(plan).run
    torch.testing.assert_close(run(*inputs)[0], expected, rtol=1e-4, atol=1e-4)


def shifted(x: Tensor) -> Tensor:
    """What a log-softmax leaves for its backward: internal values are computed in each pass."""
    scaled = x * 2 + 1
    return scaled - scaled.amax(-1, keepdim=True)


def log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x, -1)


def normed(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)


def early(x: Tensor) -> tuple[Tensor, Tensor]:
    """Its first result is written before the row is read for the last time."""
    y = x.sin()
    return y, x * (y - x).amax(-1, keepdim=True)


def rolled(x: Tensor) -> Tensor:
    return torch.roll(x, 1, 1) - x.amax(-1, keepdim=True)


@pytest.mark.parametrize(
    ("fn", "over"),
    [
        (shifted, [True]), (log_softmax, [True]), (normed, [True]), (early, [False, True]),
        (rolled, [False]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("width", [4096, 1 << 17])
def test_on_a_gpu_rows_are_written_over_where_they_are_read_last(
    fn: Callable[[Tensor], Any], over: list[bool], width: int
) -> None:
    """No line of the kernel reads what a line before it has written to."""
    x = torch.randn(64, width)
    graph = on_gpu(lambda x: fn(x @ x[:, : x.shape[1]].mT @ x), x)
    (kernel,) = [k for k in graph.steps if isinstance(k, FusedKernel) and k.columns]
    assert choose(kernel, graph.buffers).looped == (width > 4096)
    (source,) = kernel.reads() - set(graph.inputs)
    emitted = emit_kernel(kernel, graph.buffers)
    parameters = {name: f"p{n}" for n, name in enumerate(emitted.tensors)}
    lines = emitted.kernel.source.splitlines()

    def naming(text: str) -> list[int]:
        return [n for n, line in enumerate(lines) if text in line]

    found = []
    for nest in kernel.nests:
        if nest.buffer in parameters and kernel.is_full(nest):
            loads = naming(f"tl.load({parameters[source]} ")
            stores = naming(f"tl.store({parameters[nest.buffer]} ")
            found.append(reads_before_it_writes(kernel, nest, source))
            assert not found[-1] or max(loads) < min(stores)
    assert found == over


def test_on_a_gpu_a_softmax_writes_over_the_scores() -> None:
    inputs = torch.randn(512, 1024), torch.randn(1024, 1024)
    graph = on_gpu(lambda x, w: torch.softmax(x @ w, -1) @ w, *inputs)
    memory = plan_memory(graph)
    assert len(memory.written_over) == 1
    assert sum(slab.nbytes for slab in memory.slabs) == 512 * 1024 * 4


def test_on_a_gpu_a_result_that_leaves_the_call_is_written_over_what_dies() -> None:
    graph = on_gpu(
        lambda x, w: torch.softmax(x @ w, -1), torch.randn(512, 1024), torch.randn(1024, 1024)
    )
    memory = plan_memory(graph)
    ((result, scores),) = memory.written_over.items()
    assert not memory.slabs and memory.last[scores] == memory.last[result] == len(graph.steps)


def test_what_is_read_elsewhere_too_is_not_written_over() -> None:
    def shifted(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.nn.functional.conv2d(x, w, padding=1)
        z = torch.relu(y) + torch.roll(y, 1, 3)
        return torch.nn.functional.conv2d(z, w, padding=1), (y * 2 + z).sum()

    x, w = torch.randn(1, 32, 128, 128), torch.randn(32, 32, 3, 3) / 17
    plan = compile_graph(trace_aten(shifted, x, w))
    for got, expected in zip(load(plan).run(x, w), shifted(x, w), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-2)


def test_batch_norm_writes_over_its_convolution() -> None:
    def normed(x: Tensor, w: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        for _ in range(2):
            x = torch.nn.functional.conv2d(x, w, padding=1)
            x = torch.relu(torch.nn.functional.batch_norm(x, mean, var))
        return torch.nn.functional.conv2d(x, w, padding=1)

    x, w = torch.randn(2, 32, 96, 96), torch.randn(32, 32, 3, 3) / 17
    mean, var = torch.randn(32), torch.rand(32) + 0.5
    gm = trace_aten(normed, x, w, mean, var, decompositions=core_aten_table())
    plan = compile_graph(gm)
    assert written_over(plan) == 2
    got = load(plan).run(x, w, mean, var)[0]
    torch.testing.assert_close(got, normed(x, w, mean, var), rtol=1e-4, atol=1e-4)
