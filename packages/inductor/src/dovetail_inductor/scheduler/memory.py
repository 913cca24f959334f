"""The pass `plan_memory`: where every buffer of a `KernelGraph` lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from dovetail_inductor.loop_ir.loops import ExternCall
from dovetail_inductor.scheduler.kernels import KernelGraph
from dovetail_inductor.scheduler.lifetimes import LARGE_BYTES, Lifetimes, lifetimes
from dovetail_inductor.scheduler.slabs import WORTH_PART, Slab, peak_of
from dovetail_inductor.scheduler.write_over import (
    functional_forms_over,
    scattered_over,
    take_inputs,
    write_over,
)

# Beside library calls that allocate their results, a large buffer (`LARGE_BYTES`) on a GPU gets
# memory of its own: the caching allocator then hands the same memory to the one and the other,
# while a slab, held for the whole call, would add up with what the calls hold at their peak. Below
# that size a place in the slab costs less time than an allocation and next to no memory. So do
# smaller ones, and all large ones, where their slabs would raise the call's peak by more than this,
# and one slab by more than a few allocations are worth.
SMALLER_BYTES = 1 << 18
GPU_SLAB_PEAK = 1.002
WORTH_BYTES = 1 << 19
# A few smaller yet (converted weights of convolutions, say) leave slabs that raise the peak at all
# by more than what is rounded up anyway.
SMALL_BYTES, FEW_BUFFERS = 1 << 15, 16
# On a CPU a slab is kept between calls, which saves the page faults of fresh memory. Large buffers
# get memory of their own there only where the slab would raise the call's peak by more than this.
SLAB_PEAK = 1.005


@dataclass(frozen=True)
class MemoryPlan:
    """`slabs`: the memory that buffers share, and where they lie in it.

    `first` and `last` are, for every buffer written, the steps that write it and use its memory
    last (`len(steps)` for what leaves the call). `written_over`: a buffer that takes the memory of
    one that dies in the kernel that writes it -> that one, or the one whose memory that took; it
    may be an input's, which is then written to. `taken`: a buffer that may get the memory of an
    input that dies in the kernel that writes it, if the call owns that -> the input.
    """

    slabs: tuple[Slab, ...]
    first: Mapping[str, int]
    last: Mapping[str, int]
    written_over: Mapping[str, str] = field(default_factory=dict)
    taken: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def offsets(self) -> Mapping[str, int]:
        """Byte offsets into their slab, of the buffers that live in one."""
        return {name: offset for slab in self.slabs for name, offset in slab.offsets.items()}

    @property
    def places(self) -> list[tuple[str, int]]:
        """Of each slab, its device and its number there."""
        devices = [str(slab.device) for slab in self.slabs]
        return [(device, devices[:at].count(device)) for at, device in enumerate(devices)]

    @cached_property
    def place_of(self) -> Mapping[str, tuple[str, int]]:
        """The same of the slab that a buffer lives in."""
        slabs = zip(self.slabs, self.places, strict=True)
        return {name: place for slab, place in slabs for name in slab.offsets}


def plan_memory(
    graph: KernelGraph, owned: frozenset[str] = frozenset(), places: Mapping[str, str] | None = None
) -> MemoryPlan:
    """Pack the buffers that live and die within a call into slabs. `owned` are the inputs that the
    call frees, `places` the buffers that have the memory of an input.

    Results of ATen calls that make their own memory, and whatever leaves the call, stay outside.
    """
    given = places or {}
    lives = lifetimes(graph, owned, given.keys())
    written = dict(lives.first)
    scattered = scattered_over(lives)
    for name in scattered:
        del lives.first[name]
    take_inputs(lives)
    _keep_out_of_slabs(lives)
    written_over = write_over(lives)
    for name, root in scattered.items():
        written_over[name] = written_over.get(root, root)
    written_over |= given
    written_over |= functional_forms_over(lives, written_over)
    slabs = lives.slabs(allocated=lives.outside - written_over.keys())
    return MemoryPlan(slabs, written, lives.last, written_over, lives.taken)


def _keep_out_of_slabs(lives: Lifetimes) -> None:
    """Give memory of their own to the buffers that had better not lie in a slab."""
    graph = lives.graph
    if any(isinstance(s, ExternCall) and not s.out_variant for s in graph.steps):
        lives.outside |= lives.at_least(LARGE_BYTES, in_kept_slabs=False)
    # Offsets in the slab are numbers.
    lives.outside |= {name for name in lives.first if graph.buffers[name].is_symbolic}
    for limit in (LARGE_BYTES, SMALLER_BYTES):
        more = lives.at_least(limit, in_kept_slabs=False) - lives.outside
        if more and _slab_raises_peak(lives, GPU_SLAB_PEAK):
            if _raised_by_slabs(lives) > (GPU_SLAB_PEAK - 1) * _peak(lives):
                lives.outside |= more
    few = lives.at_least(SMALL_BYTES, in_kept_slabs=False) - lives.outside
    if few and len(few) <= FEW_BUFFERS:
        if _raised_by_slabs(lives) > max(SMALL_BYTES, WORTH_PART * _peak(lives)):
            lives.outside |= few
    large = lives.at_least(LARGE_BYTES, in_kept_slabs=True)
    if large - lives.outside and _slab_raises_peak(lives, SLAB_PEAK):
        lives.outside |= large


def _slab_raises_peak(lives: Lifetimes, much: float) -> bool:
    """True if a slab of all that may lie in one, with what lives beside it, adds up to more than
    `much` times what buffers that come and go take."""
    live = lives.bytes_at(lives.first.keys())
    outside = lives.bytes_at(lives.outside)
    slab = max((a - b for a, b in zip(live, outside, strict=True)), default=0)
    outside_peak, live_peak = max(outside, default=0), max(live, default=0)
    return slab + outside_peak > max(much * live_peak, live_peak + WORTH_BYTES)


def _raised_by_slabs(lives: Lifetimes) -> int:
    """How many bytes more slabs of all that may lie in some, each held for its own time, take at
    the peak than buffers that come and go."""
    slabs = lives.slabs(allocated=lives.outside)
    return peak_of(slabs, lives.bytes_at(lives.outside))[0] - _peak(lives)


def _peak(lives: Lifetimes) -> int:
    """The most bytes at any step if each buffer came and went by itself."""
    return max(lives.bytes_at(lives.first.keys()))
