"""The pass `plan_memory`: where every buffer of a `KernelGraph` lies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from dovetail_inductor.loop_ir.loops import ExternCall, LoopNest, Strided
from dovetail_inductor.scheduler.kernels import FusedKernel, KernelGraph, Step, scatters

ALIGNMENT = 64

# Beside library calls that allocate their results, a large buffer on a GPU gets memory of its own:
# the caching allocator then hands the same memory to the one and the other, while a slab, held for
# the whole call, would add up with what the calls hold at their peak. Below this size a place in
# the slab costs less time than an allocation and next to no memory.
LARGE_BYTES = 1 << 20
# So do smaller ones, and all large ones, where their slab would raise the call's peak by more than
# this, and more than a few allocations are worth.
SMALLER_BYTES = 1 << 18
GPU_SLAB_PEAK = 1.002
WORTH_BYTES = 1 << 19
# From this size on a kernel on a GPU writes over what dies in it; less is no memory to speak of.
REUSED_BYTES = 1 << 16

# On a CPU a slab is kept between calls, which saves the page faults of fresh memory. Large buffers
# get memory of their own there only where the slab would raise the call's peak by more than this.
SLAB_PEAK = 1.05


@dataclass(frozen=True)
class MemoryPlan:
    """`offsets`: byte offsets into the slab of their device, of the buffers that live there.

    `first` and `last` are, for every buffer written, the steps that write it and use its memory
    last (`len(steps)` for what leaves the call). `written_over`: a buffer that takes the memory of
    one that dies in the kernel that writes it -> that one, or the one whose memory that took; it
    may be an input's, which is then written to.
    """

    offsets: Mapping[str, int]
    slab_bytes: Mapping[torch.device, int]
    first: Mapping[str, int]
    last: Mapping[str, int]
    written_over: Mapping[str, str] = field(default_factory=dict)


def _slab_raises_peak(
    graph: KernelGraph,
    first: Mapping[str, int],
    last: Mapping[str, int],
    own_memory: set[str],
    owned: frozenset[str],
    much: float = SLAB_PEAK,
) -> bool:
    """True if a slab of all that may lie in one, with what lives beside it, adds up to more than
    `much` times what buffers that come and go take."""
    births: dict[int, list[str]] = {0: sorted(owned)}
    deaths: dict[int, list[str]] = {}
    last_of_owned = {name: 0 for name in owned}
    for position, step in enumerate(graph.steps):
        last_of_owned |= dict.fromkeys(step.reads() & owned, position)
    for name, position in last_of_owned.items():
        deaths.setdefault(position, []).append(name)
    own_memory = own_memory | owned
    for name, position in first.items():
        births.setdefault(position, []).append(name)
        deaths.setdefault(last[name], []).append(name)
    live = outside = 0
    live_peak = slab = outside_peak = 0
    for position in range(len(graph.steps)):
        for name in births.get(position, []):
            nbytes = graph.buffers[name].nbytes
            live += nbytes
            outside += nbytes if name in own_memory else 0
        live_peak = max(live_peak, live)
        outside_peak = max(outside_peak, outside)
        slab = max(slab, live - outside)
        for name in deaths.get(position, []):
            nbytes = graph.buffers[name].nbytes
            live -= nbytes
            outside -= nbytes if name in own_memory else 0
    return slab + outside_peak > max(much * live_peak, live_peak + WORTH_BYTES)


def _at_least(limit: int, device: str, names: Iterable[str], graph: KernelGraph) -> set[str]:
    """Those of `names` on `device` that have so many bytes."""
    found = {n: graph.buffers[n] for n in names}
    return {n for n, b in found.items() if b.device.type == device and b.nbytes >= limit}


# Library calls whose result is a new tensor in any case, never an argument or a view of one.
MAKES_NEW = ("aten::convolution", "aten::mkldnn_convolution", "aten::_convolution")


def _dies_under(
    kernel: Step,
    position: int,
    graph: KernelGraph,
    usable: set[str],
    sources: set[str],
    last: Mapping[str, int],
) -> dict[str, str]:
    """Buffers that a kernel can write over others, of the `sources`, which it reads for the last
    time.

    """
    found: dict[str, str] = {}
    if not isinstance(kernel, FusedKernel) or any(n.reduction for n in kernel.nests):
        return found  # a reduction's row is walked more than once
    for nest in kernel.nests:
        if nest.buffer not in usable:
            continue
        target = graph.buffers[nest.buffer]
        used = _needed_by(nest, kernel)
        for name in sorted(set().union(*(n.reads() for n in used)) & usable & sources):
            source = graph.buffers[name]
            if last[name] != position or name in found.values() or name in kernel.writes():
                continue
            if (source.dtype, source.extent) != (target.dtype, target.extent):
                continue
            if is_read_only_where_written(kernel, nest, name):
                found[nest.buffer] = name
                break
    return found


def is_read_only_where_written(kernel: FusedKernel, nest: LoopNest, name: str) -> bool:
    """Whether a kernel reads the buffer `name` only at the points that `nest` writes, for the value
    that it writes there: then no compiler can put the write before the read."""
    if any(n.reduction for n in kernel.nests):
        return False
    used = _needed_by(nest, kernel)
    readers = [n for n in kernel.nests if name in n.reads()]
    reads = [load for n in readers for load in n.loads if load.buffer == name]
    return all(n in used for n in readers) and all(r.index == nest.index for r in reads)


def _needed_by(nest: LoopNest, kernel: FusedKernel) -> list[LoopNest]:
    """`nest`, and the loops of its kernel whose values it is computed from."""
    by_buffer = {n.buffer: n for n in kernel.nests}
    needed = [nest]
    for one in needed:
        for name in sorted(one.reads() & by_buffer.keys()):
            if by_buffer[name] not in needed:
                needed.append(by_buffer[name])
    return needed


def _write_over(
    graph: KernelGraph, own_memory: set[str], first: Mapping[str, int], last: dict[str, int]
) -> dict[str, str]:
    """The reuses of a graph; `last` is brought up to date, and what reuses leaves the slab.

    Otherwise both are in memory while such a kernel runs. On a CPU of large buffers only: there
    library calls take their results from another allocator than kernels do, so that memory which a
    kernel's input leaves is not there for its output.
    """
    leaving = len(graph.steps)
    on_gpu = _at_least(REUSED_BYTES, "cuda", first, graph)
    large = on_gpu | _at_least(LARGE_BYTES, "cpu", first, graph)
    usable = {n for n in large if last[n] < leaving and not graph.buffers[n].is_symbolic}
    for step in graph.steps:
        makes_new = isinstance(step, ExternCall) and step.op.partition(".")[0] in MAKES_NEW
        if isinstance(step, ExternCall) and not step.out_variant and not makes_new:
            usable -= set(step.outputs)
    roots: dict[str, str] = {}
    for position, step in enumerate(graph.steps):
        found = _dies_under(step, position, graph, usable, own_memory | on_gpu, last)
        for name, source in found.items():
            root = roots[name] = roots.get(source, source)
            last[root] = last[name]
            own_memory.add(name)
    return roots


def _scattered_over(
    graph: KernelGraph, first: Mapping[str, int], last: dict[str, int], own_memory: set[str]
) -> dict[str, str]:
    """The buffers that scatters write -> the ones whose memory they take, which live on as long;
    `last` and `own_memory` are brought up to date."""
    roots: dict[str, str] = {}
    for name, over in scatters(graph.steps).items():
        root = roots.get(over, over)
        if root in first:
            roots[name] = root
            last[root] = max(last[root], last[name])
            if name in own_memory:
                own_memory.add(root)
    return roots


def plan_memory(
    graph: KernelGraph,
    owned: frozenset[str] = frozenset(),
    places: Mapping[str, str] | None = None,
) -> MemoryPlan:
    """Pack the buffers that live and die within a call into one slab a device. `owned` are the
    inputs that the call frees, `places` the buffers that have the memory of an input.

    Results of ATen calls that make their own memory, and whatever leaves the call, stay outside.
    The largest buffer is placed first, each at the lowest offset where it meets no buffer that
    lives at the same time.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    own_memory: set[str] = set()
    given = places or {}
    for position, step in enumerate(graph.steps):
        if isinstance(step, ExternCall):
            writes = {n for n in step.outputs if n is not None}
            if not step.out_variant:
                own_memory |= writes
        else:
            writes = step.writes() - step.internal
        for name in writes - given.keys():
            first[name] = position
            last[name] = position
        for name in step.reads():
            if name in first:
                last[name] = position
    for out in graph.outputs:
        if isinstance(out, Strided) and out.buffer in first:
            own_memory.add(out.buffer)
            last[out.buffer] = len(graph.steps)
    written = first
    scattered = _scattered_over(graph, first, last, own_memory)
    first = {name: position for name, position in written.items() if name not in scattered}
    if any(isinstance(s, ExternCall) and not s.out_variant for s in graph.steps):
        own_memory |= _at_least(LARGE_BYTES, "cuda", first, graph)
    # Offsets in the slab are numbers.
    own_memory |= {name for name in first if graph.buffers[name].is_symbolic}
    for limit in (LARGE_BYTES, SMALLER_BYTES):
        more = _at_least(limit, "cuda", first, graph) - own_memory
        if more and _slab_raises_peak(graph, first, last, own_memory, owned, GPU_SLAB_PEAK):
            own_memory |= more
    large = _at_least(LARGE_BYTES, "cpu", first, graph)
    if large - own_memory and _slab_raises_peak(graph, first, last, own_memory, owned):
        own_memory |= large
    written_over = _write_over(graph, own_memory, first, last)
    for name, root in scattered.items():
        written_over[name] = written_over.get(root, root)
    written_over |= given
    slab = sorted(
        (name for name in first if name not in own_memory),
        key=lambda name: (-graph.buffers[name].nbytes, first[name], name),
    )
    offsets: dict[str, int] = {}
    slab_bytes: dict[torch.device, int] = {}
    placed: list[tuple[int, int, int, int, torch.device]] = []  # offset, end, first, last
    for name in slab:
        buffer = graph.buffers[name]
        size = max(1, -(-buffer.nbytes // ALIGNMENT)) * ALIGNMENT
        born, dies = first[name], last[name]
        offset = 0
        for low, high, b, d, device in placed:  # by offset
            if device != buffer.device or d < born or dies < b:
                continue
            if low - offset >= size:
                break
            offset = max(offset, high)
        offsets[name] = offset
        placed.append((offset, offset + size, born, dies, buffer.device))
        placed.sort(key=lambda p: p[0])
        slab_bytes[buffer.device] = max(slab_bytes.get(buffer.device, 0), offset + size)
    return MemoryPlan(offsets, slab_bytes, written, last, written_over)
