"""When the buffers of a `KernelGraph` are in memory, and what they take there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from dovetail_inductor.loop_ir.loops import ExternCall, Strided
from dovetail_inductor.scheduler.kernels import KernelGraph
from dovetail_inductor.scheduler.live_bytes import writes_of
from dovetail_inductor.scheduler.slabs import Slab, Tenant, cut_slabs, pack
from dovetail_inductor.targets import target_of

# From this size on a buffer is a large one (`memory` says what follows from that).
LARGE_BYTES = 1 << 20


@dataclass
class Lifetimes:
    """When each buffer that a graph writes is there, and which of them lie outside of slabs.

    `first` and `last` are the steps that write a buffer and use its memory last (`len(steps)` for
    what leaves the call). `owned` are the inputs that the call frees, `taken` those whose memory a
    buffer gets, by that buffer.
    """

    graph: KernelGraph
    first: dict[str, int]
    last: dict[str, int]
    outside: set[str]
    owned: frozenset[str]
    taken: dict[str, str] = field(default_factory=dict)

    def at_least(self, limit: int, in_kept_slabs: bool | None = None) -> set[str]:
        """The buffers that have so many bytes; of devices whose slabs are kept, or are not."""
        large = {n: b for n in self.first if (b := self.graph.buffers[n]).nbytes >= limit}
        kept = {n: target_of(b.device).memory.keeps_slabs for n, b in large.items()}
        return {n for n in large if in_kept_slabs in (None, kept[n])}

    def bytes_at(self, names: Collection[str], device: torch.device | None = None) -> list[int]:
        """The bytes of some buffers, and of the inputs that the call frees, that are there at each
        step; those on one device, if it is given."""
        due = {n: self.first[n] for n in names if n in self.first} | dict.fromkeys(self.owned, 0)
        ends = {n: self.last[n] for n in due if n not in self.owned} | dict.fromkeys(self.owned, 0)
        for position, step in enumerate(self.graph.steps):
            ends |= dict.fromkeys(step.reads() & self.owned, position)
        for name, given in self.taken.items():  # from then on it is that buffer
            ends[given] = self.first[name] - 1
        changes = [0] * (len(self.graph.steps) + 2)
        for name, position in due.items():
            buffer = self.graph.buffers[name]
            if device in (None, buffer.device):
                changes[position] += buffer.nbytes
                changes[ends[name] + 1] -= buffer.nbytes
        return list(accumulate(changes[: len(self.graph.steps)]))

    def slabs(self, allocated: Collection[str]) -> tuple[Slab, ...]:
        """Slabs for all buffers that are not outside of them: one a device, on a GPU several where
        one would raise the peak. `allocated` get memory of their own."""
        tenants: dict[torch.device, list[Tenant]] = {}
        for name in self.first.keys() - self.outside:
            buffer = self.graph.buffers[name]
            tenant = Tenant(name, buffer.nbytes, self.first[name], self.last[name])
            tenants.setdefault(buffer.device, []).append(tenant)
        found: list[Slab] = []
        for device in sorted(tenants, key=str):
            slab = pack(tenants[device], device)
            if not target_of(device).memory.keeps_slabs:
                found += cut_slabs(slab, tenants[device], self.bytes_at(allocated, device))
            else:
                found.append(slab)
        return tuple(found)


def lifetimes(graph: KernelGraph, owned: frozenset[str], places: Collection[str]) -> Lifetimes:
    """The lifetimes of what a graph writes but for `places`, which have memory already. Outside of
    slabs are results of ATen calls that make their own memory, and what leaves the call."""
    lives = Lifetimes(graph, {}, {}, set(), owned)
    for position, step in enumerate(graph.steps):
        writes = writes_of(step)
        if isinstance(step, ExternCall) and not step.out_variant:
            lives.outside |= writes
        for name in writes - set(places):
            lives.first[name] = lives.last[name] = position
        for name in step.reads() & lives.first.keys():
            lives.last[name] = position
    for out in graph.outputs:
        if isinstance(out, Strided) and out.buffer in lives.first:
            lives.outside.add(out.buffer)
            lives.last[out.buffer] = len(graph.steps)
    return lives
