"""The pass `plan_memory`: where every buffer of a `KernelGraph` lies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from dovetail_inductor.loop_ir.loops import ExternCall, Strided
from dovetail_inductor.scheduler.kernels import KernelGraph

ALIGNMENT = 64

# Beside library calls that allocate their results, a large buffer on a GPU gets memory of its own:
# the caching allocator then hands the same memory to the one and the other, while a slab, held for
# the whole call, would add up with what the calls hold at their peak. Below this size a place in
# the slab costs less time than an allocation and next to no memory.
LARGE_BYTES = 1 << 20
# So do smaller ones where their slab would raise the call's peak by more than `SLAB_PEAK`.
SMALLER_BYTES = 1 << 18

# On a CPU a slab is kept between calls, which saves the page faults of fresh memory. Large buffers
# get memory of their own there only where the slab would raise the call's peak by more than this.
SLAB_PEAK = 1.05


@dataclass(frozen=True)
class MemoryPlan:
    """`offsets`: byte offsets into the slab of their device, of the buffers that live there.

    `first` and `last` are, for every buffer written, the steps that write it and read it last
    (`len(steps)` for what leaves the call).
    """

    offsets: Mapping[str, int]
    slab_bytes: Mapping[torch.device, int]
    first: Mapping[str, int]
    last: Mapping[str, int]


def _slab_raises_peak(
    graph: KernelGraph,
    first: Mapping[str, int],
    last: Mapping[str, int],
    own_memory: set[str],
    owned: frozenset[str],
) -> bool:
    """True if a slab of all that may lie in one adds up to more, with what lives beside it, than
    buffers that come and go."""
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
    return slab + outside_peak > SLAB_PEAK * live_peak


def _at_least(limit: int, device: str, names: Iterable[str], graph: KernelGraph) -> set[str]:
    """Those of `names` on `device` that have so many bytes."""
    found = {n: graph.buffers[n] for n in names}
    return {n for n, b in found.items() if b.device.type == device and b.nbytes >= limit}


def plan_memory(graph: KernelGraph, owned: frozenset[str] = frozenset()) -> MemoryPlan:
    """Pack the buffers that live and die within a call into one slab a device. `owned` are the
    inputs that the call frees.

    Results of ATen calls that make their own memory, and whatever leaves the call, stay outside.
    The largest buffer is placed first, each at the lowest offset where it meets no buffer that
    lives at the same time.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    own_memory: set[str] = set()
    for position, step in enumerate(graph.steps):
        if isinstance(step, ExternCall):
            writes = {n for n in step.outputs if n is not None}
            if not step.out_variant:
                own_memory |= writes
        else:
            writes = step.writes() - step.internal
        for name in writes:
            first[name] = position
            last[name] = position
        for name in step.reads():
            if name in first:
                last[name] = position
    for out in graph.outputs:
        if isinstance(out, Strided) and out.buffer in first:
            own_memory.add(out.buffer)
            last[out.buffer] = len(graph.steps)
    if any(isinstance(s, ExternCall) and not s.out_variant for s in graph.steps):
        own_memory |= _at_least(LARGE_BYTES, "cuda", first, graph)
    # Offsets in the slab are numbers.
    own_memory |= {name for name in first if graph.buffers[name].is_symbolic}
    for limit in (LARGE_BYTES, SMALLER_BYTES):
        more = _at_least(limit, "cuda", first, graph) - own_memory
        if more and _slab_raises_peak(graph, first, last, own_memory, owned):
            own_memory |= more
    large = _at_least(LARGE_BYTES, "cpu", first, graph)
    if large - own_memory and _slab_raises_peak(graph, first, last, own_memory, owned):
        own_memory |= large
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
    return MemoryPlan(offsets, slab_bytes, first, last)
