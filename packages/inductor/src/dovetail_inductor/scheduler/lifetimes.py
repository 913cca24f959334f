"""When the buffers of a `KernelGraph` are in memory, and how many bytes there are at each step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from dovetail_inductor.loop_ir.loops import Buffer, ExternCall, Strided
from dovetail_inductor.scheduler.kernels import KernelGraph, Step, scatters
from dovetail_inductor.scheduler.slabs import Slab, Tenant, cut_slabs, pack
from dovetail_inductor.targets import target_of


def writes_of(step: Step) -> set[str]:
    """The buffers that a step writes to memory."""
    if isinstance(step, ExternCall):
        return {name for name in step.outputs if name is not None}
    return step.writes() - step.internal


def last_uses(steps: Sequence[Step], outputs: Sequence[Strided | object]) -> dict[str, int]:
    """For each buffer, the step that looks at it last; `len(steps)` for what leaves the call."""
    last: dict[str, int] = {}
    for position, step in enumerate(steps):
        last |= dict.fromkeys(step.reads() | writes_of(step), position)
    last |= {o.buffer: len(steps) for o in outputs if isinstance(o, Strided)}
    return last


@dataclass(frozen=True)
class LiveBytes:
    """`at[i]` are the bytes alive while step i runs; `peak` is where they are the most, `alive`
    the buffers there, largest first."""

    at: tuple[int, ...]
    peak: int
    alive: tuple[Buffer, ...]

    @property
    def bytes(self) -> int:
        """Bytes alive at the peak."""
        return self.at[self.peak] if self.at else 0

    def as_text(self, count: int = 20) -> str:
        """The peak and its largest buffers, readable."""
        lines = [f"peak {_mib(self.bytes)} at step {self.peak} of {len(self.at)}"]
        for buffer in self.alive[:count]:
            lines.append(f"  {buffer.name}: {_mib(buffer.nbytes)} {list(buffer.shape)}")
        rest = self.alive[count:]
        if rest:
            lines.append(f"  {len(rest)} more: {_mib(sum(b.nbytes for b in rest))}")
        return "\n".join(lines) + "\n"


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.2f} MiB"


def live_bytes(graph: KernelGraph, owned: frozenset[str] = frozenset()) -> LiveBytes:
    """Simulate a call in which every buffer has memory of its own from its first write to its last
    use. Of the inputs, those in `owned` count: the call frees them."""
    last = last_uses(graph.steps, graph.outputs)
    lives = lifetimes(graph, owned & last.keys(), ())
    # What a scatter writes over goes on in what it writes.
    over: dict[str, str] = {}
    for name, before in scatters(graph.steps).items():
        root = over.get(before, before)
        if root in lives.first:
            over[name] = root
            lives.last[root] = max(lives.last[root], lives.last[name])
            del lives.first[name]
    at = lives.bytes_at(lives.first)
    if not at:
        return LiveBytes((), 0, ())
    peak = max(range(len(at)), key=at.__getitem__)
    first = dict.fromkeys(lives.owned, 0) | lives.first
    there = [graph.buffers[n] for n in first if first[n] <= peak <= (last | lives.last)[n]]
    return LiveBytes(tuple(at), peak, tuple(sorted(there, key=lambda b: (-b.nbytes, b.name))))


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
        ends = dict.fromkeys(self.owned, 0) | last_uses(self.graph.steps, ()) | self.last
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
