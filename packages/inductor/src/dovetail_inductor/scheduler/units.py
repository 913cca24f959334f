"""What the pass `fuse` merges: groups of nests, and library calls."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from dovetail_inductor.loop_ir.index import Index
from dovetail_inductor.loop_ir.loops import ExternCall, LoopNest
from dovetail_inductor.scheduler.match import Group
from dovetail_inductor.scheduler.split_reductions import contiguous_in_rows


@dataclass(eq=False)
class Unit:
    """A group of nests, or one extern call, while fusing."""

    uid: int
    order: int  # position of its last node in the loop graph
    group: Group | None
    extern: ExternCall | None
    writes: set[str]
    reads: set[str]  # from outside
    # the loads of each outside buffer or own buffer, as (index, bytes)
    accesses: dict[str, list[Index]] = field(default_factory=lambda: defaultdict(list))
    across: bool = False  # holds a reduction whose neighbours in memory are other rows
    # What scatters of it write or write over: another kernel must be through with it, or begin
    # after it.
    whole: set[str] = field(default_factory=set)
    stores: dict[str, Index] = field(default_factory=dict)


def unit_of(position: int, nest: LoopNest) -> Unit:
    """A nest alone."""
    group = Group(nest.rows, nest.columns, (nest,))
    unit = Unit(position, position, group, None, {nest.buffer}, set(nest.reads()))
    unit.across = bool(nest.columns) and contiguous_in_rows(nest)
    fill_accesses(unit)
    return unit


def scans(unit: Unit) -> bool:
    """True if it goes along its columns in order."""
    return unit.group is not None and any(nest.scan is not None for nest in unit.group.nests)


def of_group(unit: Unit, group: Group) -> Unit:
    """The same nests with loops that run another way."""
    other = replace(unit, group=group, accesses=defaultdict(list), stores={})
    fill_accesses(other)
    return other


def fill_accesses(unit: Unit) -> None:
    """Note where its nests read and write."""
    assert unit.group is not None
    for nest in unit.group.nests:
        unit.stores[nest.buffer] = nest.index
        if nest.scatter is not None:
            unit.whole |= {nest.buffer, nest.scatter.over}
        for load in nest.loads:
            unit.accesses[load.buffer].append(load.index)
