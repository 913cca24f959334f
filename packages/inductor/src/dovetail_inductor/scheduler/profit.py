"""What the pass `fuse` merges, groups of nests and library calls, and whether one kernel for two of
them is faster than theirs, beyond the bytes that need not move: what of the parallelism is left,
and whether memory is still walked through in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

import torch

from dovetail_inductor.loop_ir.index import Index, Indirect, Var
from dovetail_inductor.loop_ir.loops import Buffer, ExternCall, LoopNest
from dovetail_inductor.loop_ir.sizes import hint_of
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.scheduler.kernels import FusedKernel
from dovetail_inductor.scheduler.match import Group, Match
from dovetail_inductor.scheduler.split_reductions import contiguous_in_rows
from dovetail_inductor.targets.target import Scheduling


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


@dataclass(frozen=True)
class Profit:
    """What is gained or lost, for buffers of these sizes."""

    buffers: Mapping[str, Buffer]
    options: InductorOptions

    def device(self, unit: Unit) -> torch.device:
        """Where it runs."""
        return self.buffers[next(iter(unit.writes))].device

    def target(self, unit: Unit) -> Scheduling:
        """What is fast where it runs."""
        return self.options.target_of(self.device(unit)).scheduling

    def pays(self, found: Match, a: Unit, b: Unit, alone: bool) -> bool:
        """Whether the kernel of both is no slower than theirs; `alone`: b alone reads
        what a computes."""
        rows = prod(hint_of(v.size) for v in found.rows)
        columns = prod(hint_of(v.size) for v in found.columns)
        if found.columns and (a.whole or b.whole):
            return False  # a scatter does each point once, and a later pass may do it again
        few = rows < self.options.fusion.min_rows and columns > self.options.fusion.max_columns
        if found.columns and few and not (scans(a) or scans(b)):
            return False  # no parallelism would be left
        if found.columns and (self._serializes(found, a, b, alone) or self._strides(found, a, b)):
            return False
        assert a.group is not None and b.group is not None
        if len(a.group.nests) + len(b.group.nests) > self.options.fusion.max_nests:
            return False
        return len(a.reads | a.writes | b.reads | b.writes) <= self.options.fusion.max_buffers

    def _serializes(self, found: Match, a: Unit, b: Unit, alone: bool) -> bool:
        """True if a pointwise nest that a GPU could spread over all its points would be walked row
        by row, with few rows: where a reduction would be cut in two stages."""
        rule = self.target(a).split
        rows = prod(hint_of(v.size) for v in found.rows)
        columns = prod(hint_of(v.size) for v in found.columns)
        if not self.target(a).spreads_points or rows * columns < rule.elements:
            return False
        reduces = any(u.group is not None and u.group.columns for u in (a, b))
        for unit, pieces in ((a, found.pieces_a), (b, found.pieces_b)):
            group = unit.group
            assert group is not None
            if group.columns or prod(hint_of(v.size) for v in group.rows) < rows * columns:
                continue
            if unit is a and alone:
                enough = rule.enough_tasks  # it need not even be written
            else:
                # Of very long rows more are too few: what each of the others has left is longer;
                # and more yet where there is no reduction whose elements are at hand.
                enough = rule.aim if columns >= 2 * rule.along.result else rule.enough_tasks
                enough = enough if reduces else 2 * rule.aim
            mine = [v for v in group.rows if pieces[v][-1] in found.rows]
            across = any(n.index.coefficient(v) == 1 for v in mine for n in group.nests)
            tasks = -(-rows // rule.side_by_side) if across else rows
            if not across and any(_reads_along(nest, v) for v in mine for nest in group.nests):
                across, tasks = True, -(-rows // rule.read_side_by_side)
            least = rule.pieces(across).result
            if tasks < enough and columns >= least:
                return True
        return False

    def _strides(self, found: Match, a: Unit, b: Unit) -> bool:
        """True if, for the sake of a small pointwise nest, a CPU would walk through a large one
        with its neighbours in memory in the outer loop."""
        assert a.group is not None and b.group is not None
        if a.group.columns or b.group.columns:
            return False
        if not self.target(a).needs_near_inner_loops:
            return False
        for group, pieces in ((a.group, found.pieces_a), (b.group, found.pieces_b)):
            for nest in group.nests:
                steps = {v: step(nest.index, v) for v in nest.vars}
                columns = [s for v, s in steps.items() if pieces[v][-1] in found.columns]
                rows = [s for v, s in steps.items() if pieces[v][-1] in found.rows]
                if columns and rows and max(columns) > min(rows):
                    return True
        return False

    def scratch_bytes(self, group: Group) -> int:
        """Bytes a row needs for values that a later pass over the columns reads again."""
        if not group.columns:
            return 0
        kernel = FusedKernel("", group.rows, group.columns, group.nests)
        phases = kernel.phases()
        total = 0
        for nest in group.nests:
            if kernel.is_full(nest) and any(
                nest.buffer in reader.reads() and phases[reader.buffer] > phases[nest.buffer]
                for reader in group.nests
            ):
                total += hint_of(kernel.column_points) * self.buffers[nest.buffer].dtype.itemsize
        return total


def _reads_along(nest: LoopNest, var: Var) -> bool:
    """Whether a nest reads an element of its own at each point, neighbours of which in memory are
    neighbours along `var`."""
    return any(
        load.index.coefficient(var) == 1 and set(nest.vars) <= load.index.variables()
        for load in nest.loads
        if not load.index.indirects()
    )


def step(index: Index, var: Var) -> int:
    """How far an access moves with a variable, in the call that is compiled; at least so far where
    the variable says which number of a row is read, and that tells the place."""
    coefficient = index.coefficient(var)
    found = 0 if coefficient is None else abs(hint_of(coefficient))
    for atom, apart in index.terms:
        if isinstance(atom, Indirect) and atom.value.free >> var.id & 1:
            found = max(found, abs(hint_of(apart)))
    return found
