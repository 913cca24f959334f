"""The pass `plan_memory`: where every buffer of a `KernelGraph` lies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import torch

from dovetail_inductor.loop_ir.loops import ExternCall, LoopNest, Strided
from dovetail_inductor.scheduler.kernels import FusedKernel, KernelGraph, Step, scatters
from dovetail_inductor.scheduler.slabs import Slab, Tenant, cut_slabs, pack

# Beside library calls that allocate their results, a large buffer on a GPU gets memory of its own:
# the caching allocator then hands the same memory to the one and the other, while a slab, held for
# the whole call, would add up with what the calls hold at their peak. Below this size a place in
# the slab costs less time than an allocation and next to no memory.
LARGE_BYTES = 1 << 20
# So do smaller ones, and all large ones, where their slabs would raise the call's peak by more than
# this, and one slab by more than a few allocations are worth.
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
    """`slabs`: the memory that buffers share, and where they lie in it.

    `first` and `last` are, for every buffer written, the steps that write it and use its memory
    last (`len(steps)` for what leaves the call). `written_over`: a buffer that takes the memory of
    one that dies in the kernel that writes it -> that one, or the one whose memory that took; it
    may be an input's, which is then written to.
    """

    slabs: tuple[Slab, ...]
    first: Mapping[str, int]
    last: Mapping[str, int]
    written_over: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def offsets(self) -> Mapping[str, int]:
        """Byte offsets into their slab, of the buffers that live in one."""
        return {name: offset for slab in self.slabs for name, offset in slab.offsets.items()}

    @property
    def slab_bytes(self) -> Mapping[torch.device, int]:
        """The bytes of each device's slabs."""
        found: dict[torch.device, int] = {}
        for slab in self.slabs:
            found[slab.device] = found.get(slab.device, 0) + slab.nbytes
        return found


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
    live = _bytes_at(graph, first, last, first.keys(), owned)
    outside = _bytes_at(graph, first, last, own_memory, owned)
    slab = max((a - b for a, b in zip(live, outside, strict=True)), default=0)
    outside_peak, live_peak = max(outside, default=0), max(live, default=0)
    return slab + outside_peak > max(much * live_peak, live_peak + WORTH_BYTES)


def _fits_in_slabs(
    graph: KernelGraph,
    first: Mapping[str, int],
    last: Mapping[str, int],
    own_memory: set[str],
    owned: frozenset[str],
) -> bool:
    """Whether slabs of all that may lie in some, each held for its own time, take no more at the
    peak than buffers that come and go."""
    there = _bytes_at(graph, first, last, own_memory, owned)
    live = _bytes_at(graph, first, last, first.keys(), owned)
    for slab in _slabs(graph, first, last, own_memory, own_memory, owned):
        for position in range(slab.first, slab.last + 1):
            there[position] += slab.nbytes
    return max(there) <= GPU_SLAB_PEAK * max(live)


def _bytes_at(
    graph: KernelGraph,
    first: Mapping[str, int],
    last: Mapping[str, int],
    names: Collection[str],
    owned: frozenset[str],
    device: torch.device | None = None,
) -> list[int]:
    """The bytes of some buffers, and of the inputs that the call frees, that are there at each
    step; those on one device, if it is given."""
    due = {name: first[name] for name in names if name in first} | dict.fromkeys(owned, 0)
    ends = {name: last[name] for name in due if name not in owned} | dict.fromkeys(owned, 0)
    for position, step in enumerate(graph.steps):
        ends |= dict.fromkeys(step.reads() & owned, position)
    changes = [0] * (len(graph.steps) + 2)
    for name, position in due.items():
        buffer = graph.buffers[name]
        if device in (None, buffer.device):
            changes[position] += buffer.nbytes
            changes[ends[name] + 1] -= buffer.nbytes
    return list(accumulate(changes[: len(graph.steps)]))


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
    """Pack the buffers that live and die within a call into slabs. `owned` are the inputs that the
    call frees, `places` the buffers that have the memory of an input.

    Results of ATen calls that make their own memory, and whatever leaves the call, stay outside.
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
        so_far = (graph, first, last, own_memory, owned)
        if more and _slab_raises_peak(*so_far, GPU_SLAB_PEAK) and not _fits_in_slabs(*so_far):
            own_memory |= more
    large = _at_least(LARGE_BYTES, "cpu", first, graph)
    if large - own_memory and _slab_raises_peak(graph, first, last, own_memory, owned):
        own_memory |= large
    written_over = _write_over(graph, own_memory, first, last)
    for name, root in scattered.items():
        written_over[name] = written_over.get(root, root)
    written_over |= given
    slabs = _slabs(graph, first, last, own_memory, own_memory - written_over.keys(), owned)
    return MemoryPlan(slabs, written, last, written_over)


def _slabs(
    graph: KernelGraph,
    first: Mapping[str, int],
    last: Mapping[str, int],
    placed: set[str],
    allocated: set[str],
    owned: frozenset[str],
) -> tuple[Slab, ...]:
    """Slabs for all buffers but those `placed`: one a device, on a GPU several where one would
    raise the peak. `allocated` get memory of their own."""
    tenants: dict[torch.device, list[Tenant]] = {}
    for name in first.keys() - placed:
        buffer = graph.buffers[name]
        tenant = Tenant(name, buffer.nbytes, first[name], last[name])
        tenants.setdefault(buffer.device, []).append(tenant)
    found: list[Slab] = []
    for device in sorted(tenants, key=str):
        slab = pack(tenants[device], device)
        if device.type != "cuda":
            found.append(slab)
            continue
        outside = _bytes_at(graph, first, last, allocated, owned, device)
        found += cut_slabs(slab, tenants[device], outside)
    return tuple(found)
