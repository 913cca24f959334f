"""Where buffers lie in slabs: allocations that buffers of one call share.

One slab costs one allocation a call, but is held while there is anything in it. Where most of it is
empty when other memory is at its peak, it is cut in two, each of which is held for its own time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

ALIGNMENT = 64
# A cut is worth an allocation if the call's peak falls by so many bytes and by this part of it.
WORTH_BYTES, WORTH_PART = 1 << 15, 1e-4
MOST_SLABS = 4


@dataclass(frozen=True)
class Tenant:
    """A buffer in a slab: its size, and the first and last step that use its memory."""

    name: str
    nbytes: int
    first: int
    last: int

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return max(1, -(-self.nbytes // ALIGNMENT)) * ALIGNMENT


@dataclass(frozen=True)
class Slab:
    """Memory that buffers share, at these byte offsets, from the first to the last step in which
    there is anything in it."""

    device: torch.device
    nbytes: int
    offsets: Mapping[str, int]
    first: int
    last: int


def pack(tenants: Iterable[Tenant], device: torch.device) -> Slab:
    """One slab of all: the largest is placed first, each at the lowest offset where it meets none
    that is there at the same time."""
    return _packed(tenants, device, 0)[0]


def cut_slabs(slab: Slab, tenants: Iterable[Tenant], outside: Sequence[int]) -> list[Slab]:
    """The slab, or several in its place; `outside` is how many bytes lie outside of slabs at each
    step."""
    by_name = {tenant.name: tenant for tenant in tenants}
    slabs = [slab]
    least = _least(by_name.values(), outside)
    while len(slabs) < MOST_SLABS:
        peak, *ends = peak_of(slabs, outside)
        if peak - least < max(WORTH_BYTES, WORTH_PART * peak):
            break
        cuts = (cut for at in dict.fromkeys(ends) for cut in _cuts(slabs, by_name, at))
        found = [(peak_of(cut, outside)[0], cut) for cut in cuts]
        best, cut = min(found, key=lambda f: f[0], default=(peak, slabs))
        if peak - best < max(WORTH_BYTES, WORTH_PART * peak):
            break
        slabs = cut
    return sorted(slabs, key=lambda s: (s.first, s.last))


def _cuts(slabs: list[Slab], by_name: Mapping[str, Tenant], at: int) -> Iterable[list[Slab]]:
    """The slabs with one of those that are held at a step cut in two."""
    for slab in slabs:
        if not slab.first <= at <= slab.last:
            continue
        others = [s for s in slabs if s is not slab]
        tenants = [by_name[name] for name in slab.offsets]
        gone = [t for t in tenants if t.last < at]
        to_come = [t for t in tenants if t.first > at]
        for part in (gone, to_come):
            rest = [t for t in tenants if t not in part]
            if part and rest:
                yield [*others, pack(part, slab.device), pack(rest, slab.device)]
        if gone and len(gone) < len(tenants):
            # What is there at that step, in a slab that is large enough for others before: what
            # lies in it then need not lie in the slab that is given back.
            room = max(t.size for t in gone)
            held, given_back = _packed(tenants, slab.device, room, {t.name for t in gone})
            if given_back.offsets and held.nbytes < slab.nbytes:
                yield [*others, held, given_back]


def peak_of(slabs: Sequence[Slab], outside: Sequence[int]) -> tuple[int, int, int]:
    """The most bytes at any step, and the first and the last such step. (The blocks of a network
    have one each.)"""
    there = list(outside)
    for slab in slabs:
        for step in range(slab.first, min(slab.last, len(there) - 1) + 1):
            there[step] += slab.nbytes
    most = max(there)
    return most, there.index(most), len(there) - 1 - there[::-1].index(most)


def _least(tenants: Iterable[Tenant], outside: Sequence[int]) -> int:
    """The most bytes at any step if each buffer came and went by itself."""
    changes = [0] * (len(outside) + 1)
    for tenant in tenants:
        changes[tenant.first] += tenant.size
        changes[min(tenant.last + 1, len(outside))] -= tenant.size
    return max(map(sum, zip(accumulate(changes), outside, strict=False)))


def _packed(
    tenants: Iterable[Tenant], device: torch.device, room: int, movable: Iterable[str] = ()
) -> tuple[Slab, Slab]:
    """Two slabs: one of those that are not `movable`, and of what else fits among them in a slab of
    `room` bytes, or what it takes; and one of the others."""
    free = frozenset(movable)
    held: list[tuple[int, int, Tenant]] = []  # by offset: offset, end, who
    given_back: list[tuple[int, int, Tenant]] = []
    for tenant in sorted(tenants, key=lambda t: (t.name in free, -t.nbytes, t.first, t.name)):
        offset = _lowest(held, tenant)
        if tenant.name in free and offset + tenant.size > room:
            _place(given_back, _lowest(given_back, tenant), tenant)
        else:
            _place(held, offset, tenant)
            room = max(room, offset + tenant.size)
    return _slab(held, device), _slab(given_back, device)


def _lowest(placed: list[tuple[int, int, Tenant]], tenant: Tenant) -> int:
    """The lowest offset where a buffer meets none that is there at the same time."""
    offset = 0
    for low, high, other in placed:
        if other.last < tenant.first or tenant.last < other.first:
            continue
        if low - offset >= tenant.size:
            break
        offset = max(offset, high)
    return offset


def _place(placed: list[tuple[int, int, Tenant]], offset: int, tenant: Tenant) -> None:
    insort(placed, (offset, offset + tenant.size, tenant), key=lambda p: p[:2])


def _slab(placed: list[tuple[int, int, Tenant]], device: torch.device) -> Slab:
    return Slab(
        device,
        max((end for _, end, _ in placed), default=0),
        {tenant.name: offset for offset, _, tenant in placed},
        min((tenant.first for _, _, tenant in placed), default=0),
        max((tenant.last for _, _, tenant in placed), default=0),
    )
