"""How many bytes are alive at each step of a `KernelGraph`, and what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail_inductor.loop_ir.loops import Buffer, ExternCall, Strided
from dovetail_inductor.scheduler.kernels import KernelGraph, Step, scatters


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
    buffers: Mapping[str, Buffer] = graph.buffers
    last = last_uses(graph.steps, graph.outputs)
    # What a scatter writes over goes on in what it writes.
    over: dict[str, str] = {}
    for name, before in scatters(graph.steps).items():
        root = over[name] = over.get(before, before)
        last[root] = max(last[root], last.pop(name))
    alive = {name for name in owned if name in last}
    total = sum(buffers[name].nbytes for name in alive)
    at: list[int] = []
    for position, step in enumerate(graph.steps):
        written = {over.get(name, name) for name in writes_of(step)}
        for name in written - alive:
            alive.add(name)
            total += buffers[name].nbytes
        at.append(total)
        for name in written.union(over.get(name, name) for name in step.reads()):
            if name in alive and last[name] == position:
                alive.discard(name)
                total -= buffers[name].nbytes
    if not at:
        return LiveBytes((), 0, ())
    peak = max(range(len(at)), key=at.__getitem__)
    first = {n: i for i, step in reversed(list(enumerate(graph.steps))) for n in writes_of(step)}
    there = [
        buffers[name]
        for name, end in last.items()
        if end >= peak and (name in owned or first.get(name, len(at)) <= peak)
    ]
    return LiveBytes(tuple(at), peak, tuple(sorted(there, key=lambda b: (-b.nbytes, b.name))))


__all__ = ["LiveBytes", "last_uses", "live_bytes", "writes_of"]
