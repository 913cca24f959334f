"""Where buffers lie: in the slab, or, where the slab would raise the peak, by themselves."""

from dataclasses import replace

import torch
from dovetail_inductor.lowering.lower import lower
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.scheduler.fuse import fuse
from dovetail_inductor.scheduler.memory import LARGE_BYTES, SMALLER_BYTES, plan_memory
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import Allocate


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


def on_gpu(fn, *inputs):
    """The kernels of `fn`, as if its tensors were on a GPU."""
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    graph = fuse(lower(gm), InductorOptions())
    gpu = torch.device("cuda", 0)
    return replace(graph, buffers={n: replace(b, device=gpu) for n, b in graph.buffers.items()})


def narrow(x, w):
    for _ in range(3):
        x = torch.relu(x @ w)
    return x


def test_on_a_gpu_smaller_buffers_leave_a_slab_that_would_raise_the_peak():
    def fn(x, w, image, kernel):  # the library makes the convolutions' results itself
        once = torch.conv2d(image * narrow(x, w).sum(), kernel, padding=1)
        return torch.conv2d(once, kernel, padding=1).sum()

    image, kernel = torch.randn(1, 8, 256, 512), torch.randn(8, 8, 3, 3)
    graph = on_gpu(fn, torch.randn(192, 1024), torch.randn(1024, 1024), image, kernel)
    memory = plan_memory(graph)
    sizes = {n: graph.buffers[n].nbytes for n in memory.first}
    assert any(SMALLER_BYTES <= size < LARGE_BYTES for size in sizes.values())
    assert all(sizes[n] < SMALLER_BYTES for n in memory.offsets)


def test_on_a_gpu_buffers_live_in_the_slab_otherwise():
    graph = on_gpu(lambda x, w: narrow(x, w).sum(), torch.randn(192, 1024), torch.randn(1024, 1024))
    memory = plan_memory(graph)
    assert max(graph.buffers[n].nbytes for n in memory.offsets) == 192 * 1024 * 4
