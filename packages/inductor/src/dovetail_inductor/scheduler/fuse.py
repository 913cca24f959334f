"""The pass `fuse`: `LoopGraph` -> `KernelGraph`.

Every nest begins as a kernel of its own. Pairs of kernels that share a buffer are merged, the pair
that saves the most bytes of memory traffic first, as long as the merge is legal: the loops match,
what one reads from the other it reads at the point where it was computed, and no third node lies on
a path between them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from dovetail_inductor.loop_ir.index import Index, Var
from dovetail_inductor.loop_ir.loops import ExternCall, LoopGraph, Strided
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.scheduler.kernels import FusedKernel, KernelGraph, Step
from dovetail_inductor.scheduler.loops import merge_vars, piece_index, replace_vars
from dovetail_inductor.scheduler.match import Group, Match, columns_in_order, match, turned
from dovetail_inductor.scheduler.order import draws
from dovetail_inductor.scheduler.profit import (
    Profit,
    Unit,
    fill_accesses,
    of_group,
    scans,
    step,
    unit_of,
)
from dovetail_inductor.scheduler.topological import TopologicalOrder


class _Fuser:
    def __init__(self, graph: LoopGraph, options: InductorOptions) -> None:
        self.graph = graph
        self.options = options
        self.builder = graph.builder
        self.profit = Profit(graph.buffers, options)
        self.units: dict[int, Unit] = {}
        self.writer: dict[str, int] = {}
        self.readers: dict[str, set[int]] = {}
        self.places = TopologicalOrder(
            lambda uid: self.successors(self.units[uid]),
            lambda uid: self.predecessors(self.units[uid]),
        )
        self.kept = {o.buffer for o in graph.outputs if isinstance(o, Strided)}
        self.begun_as = _begun_as(graph)
        drawn = ""  # what the last call that drew random numbers left: they keep their order
        for position, node in enumerate(graph.nodes):
            if isinstance(node, ExternCall):
                writes = {name for name in node.outputs if name is not None}
                unit = Unit(position, position, None, node, writes, set(node.reads()))
                if draws(node):
                    unit.reads |= {drawn} - {""}
                    drawn = f"generator after {position}"
                    unit.writes.add(drawn)
            else:
                unit = unit_of(position, node)
            self._add(unit)
            self.places.append(unit.uid)

    def _add(self, unit: Unit) -> None:
        self.units[unit.uid] = unit
        for name in unit.writes:
            self.writer[name] = unit.uid
        for name in unit.reads:
            self.readers.setdefault(name, set()).add(unit.uid)

    def _remove(self, unit: Unit) -> None:
        del self.units[unit.uid]
        for name in unit.reads:
            self.readers[name].discard(unit.uid)

    # --- legality ---------------------------------------------------------------------------------

    def successors(self, unit: Unit) -> set[int]:
        found: set[int] = set()
        for name in unit.writes:
            found |= self.readers.get(name, set())
        found.discard(unit.uid)
        return found

    def predecessors(self, unit: Unit) -> set[int]:
        return {self.writer[n] for n in unit.reads if n in self.writer} - {unit.uid}

    def saved_bytes(self, a: Unit, b: Unit) -> int:
        """Bytes that need not move when a and b are one kernel."""
        total = 0
        for name in b.reads & a.writes:
            nbytes = self.graph.buffers[name].nbytes
            total += nbytes
            if name not in self.kept and self.readers[name] == {b.uid}:
                total += nbytes
        for name in b.reads & a.reads:
            total += self.graph.buffers[name].nbytes
        return total

    def merge(self, a: Unit, b: Unit) -> Unit | None:
        """The unit of both, or None if they cannot be one kernel."""
        assert a.group is not None and b.group is not None
        if self.profit.device(a) != self.profit.device(b) or not self._may_scatter(a, b):
            return None
        for access_a, access_b in self._common_accesses(a, b):
            merged = self._merged_by(a, b, access_a, access_b)
            if merged is not None:
                return merged
        return self._merged_turned(a, b)

    def _merged_by(self, a: Unit, b: Unit, access_a: Index, access_b: Index) -> Unit | None:
        """The unit of both, whose loops are matched by a common access."""
        assert a.group is not None and b.group is not None
        found = match(a.group, b.group, access_a, access_b)
        if found is None or not self.profit.pays(found, a, b, self._for_it_alone(a, b)):
            return None
        indices_a = {v: piece_index(p) for v, p in found.pieces_a.items()}
        indices_b = {v: piece_index(p) for v, p in found.pieces_b.items()}
        if not self._same_points(a, b, indices_a, indices_b):
            return None
        return self._merged(a, b, found, indices_a, indices_b)

    def _merged_turned(self, a: Unit, b: Unit) -> Unit | None:
        """The unit of both where what one writes the other reads from the end, as the gradient of
        a running sum does: if one's loops can run the other way."""
        assert a.group is not None and b.group is not None
        if not a.writes & b.reads or not (
            self.profit.target(a).turns_loops or scans(a) or scans(b)
        ):
            return None
        for access_a, access_b in self._common_accesses(a, b):
            group_a = turned(self.builder, a.group, access_b, access_a)
            group_b = turned(self.builder, b.group, access_a, access_b)
            pairs = [(a, of_group(b, group_b))] if group_b is not None else []
            pairs += [(of_group(a, group_a), b)] if group_a is not None else []
            for first, second in pairs:
                for common in self._common_accesses(first, second):
                    merged = self._merged_by(first, second, *common)
                    if merged is not None:
                        return merged
        return None

    def _may_scatter(self, a: Unit, b: Unit) -> bool:
        """False if a scatter forbids one kernel for both. On a CPU, where a scatter goes through
        its points in order, nothing else should."""
        whole = a.whole | b.whole
        if whole & a.writes & b.reads:
            return False
        if any(self.begun_as.get(name) in a.reads for name in b.whole):
            return False  # (read before, the tensor can be written where it lies)
        return not whole or self.profit.target(a).joins_scatters

    def _for_it_alone(self, a: Unit, b: Unit) -> bool:
        """True if a unit's results are read by another alone."""
        return all(n not in self.kept and self.readers.get(n) == {b.uid} for n in a.writes)

    def _common_accesses(self, a: Unit, b: Unit) -> Iterable[tuple[Index, Index]]:
        produced = sorted(b.reads & a.writes, key=lambda n: (-self.graph.buffers[n].nbytes, n))
        for name in produced:
            for index in dict.fromkeys(b.accesses[name]):
                yield a.stores[name], index
        if produced:
            return
        shared = sorted(b.reads & a.reads, key=lambda n: (-self.graph.buffers[n].nbytes, n))
        for name in shared[:3]:
            for first in list(dict.fromkeys(a.accesses[name]))[:2]:
                for second in list(dict.fromkeys(b.accesses[name]))[:2]:
                    yield first, second

    def _same_points(
        self, a: Unit, b: Unit, indices_a: Mapping[Var, Index], indices_b: Mapping[Var, Index]
    ) -> bool:
        for name in b.reads & a.writes:
            stored = a.stores[name].substitute(lambda v: indices_a[v], lambda e: e)
            for index in b.accesses[name]:
                if index.indirects():
                    return False
                if index.substitute(lambda v: indices_b[v], lambda e: e) != stored:
                    return False
        return True

    def _merged(
        self,
        a: Unit,
        b: Unit,
        found: Match,
        indices_a: Mapping[Var, Index],
        indices_b: Mapping[Var, Index],
    ) -> Unit | None:
        assert a.group is not None and b.group is not None
        nests = [
            *(replace_vars(self.builder, n, found.pieces_a, indices_a) for n in a.group.nests),
            *(replace_vars(self.builder, n, found.pieces_b, indices_b) for n in b.group.nests),
        ]
        columns = columns_in_order(nests, found.columns)
        if columns is None:
            return None
        group = Group(found.rows, columns, tuple(nests))
        writes = a.writes | b.writes
        unit = Unit(
            min(a.uid, b.uid),
            max(a.order, b.order),
            group,
            None,
            writes,
            (a.reads | b.reads) - writes,
        )
        fill_accesses(unit)
        unit.across = a.across or b.across
        if self.profit.scratch_bytes(group) > self.options.fusion.max_scratch_bytes:
            return None
        return unit

    # --- the greedy loop --------------------------------------------------------------------------

    def run(self) -> None:
        """Merge until no pair is left.

        Reducing across rows walks memory in narrow stripes: anything else had better join a kernel
        that walks along the rows, so the former may join others only in a second round.
        """
        self._round(mixed=False)
        self._round(mixed=True)

    def _round(self, mixed: bool) -> None:
        heap: list[tuple[int, int, int]] = []
        for unit in list(self.units.values()):
            self._push_candidates(unit, heap, later_only=True)
        heapq.heapify(heap)
        while heap:
            negative, uid_a, uid_b = heapq.heappop(heap)
            a, b = self.units.get(uid_a), self.units.get(uid_b)
            if a is None or b is None or a is b or (a.across != b.across and not mixed):
                continue
            if not self._precedes(a, b):
                a, b = b, a
            if self.saved_bytes(a, b) != -negative:
                continue  # one of them was merged meanwhile; its new pairs are in the heap
            if self.places.connects(a.uid, b.uid) or self.places.connects(b.uid, a.uid):
                continue
            merged = self.merge(a, b)
            if merged is None:
                continue
            self.places.merge(a.uid, b.uid, merged.uid)
            self._remove(a)
            self._remove(b)
            self._add(merged)
            fresh: list[tuple[int, int, int]] = []
            self._push_candidates(merged, fresh, later_only=False)
            for entry in fresh:
                heapq.heappush(heap, entry)

    def _push_candidates(
        self, unit: Unit, heap: list[tuple[int, int, int]], later_only: bool
    ) -> None:
        if unit.group is None:
            return
        partners: set[int] = set(self.successors(unit))
        for name in unit.reads:
            # Sharing a read is worth looking at for buffers with few readers only: a mask or a
            # table read everywhere would pair everything with everything.
            readers = self.readers[name]
            if len(readers) <= self.options.fusion.max_shared_readers:
                partners |= readers
            if not later_only and name in self.writer:
                partners.add(self.writer[name])
        partners.discard(unit.uid)
        for uid in partners:
            other = self.units[uid]
            if other.group is None:
                continue
            a, b = (unit, other) if self._precedes(unit, other) else (other, unit)
            if later_only and a is not unit and not (b.reads & a.writes):
                continue
            saved = self.saved_bytes(a, b)
            if saved > 0:
                heap.append((-saved, a.uid, b.uid))

    def _precedes(self, a: Unit, b: Unit) -> bool:
        if a.writes & b.reads:
            return True
        if b.writes & a.reads:
            return False
        return a.order < b.order


def _begun_as(graph: LoopGraph) -> dict[str, str]:
    """The buffers that scatters write -> the input that they are a copy of before."""
    found: dict[str, str] = {}
    for nest in graph.nodes:
        if isinstance(nest, ExternCall):
            continue
        if nest.scatter is not None and nest.scatter.over in found:
            found[nest.buffer] = found[nest.scatter.over]
        elif nest.copied is not None and nest.copied in graph.inputs:
            found[nest.buffer] = nest.copied
    return found


def fuse(graph: LoopGraph, options: InductorOptions) -> KernelGraph:
    """Merge nests into kernels and order them.

    Needs nests in an order of computation, without dead ones. Gives steps in an order of
    computation; loops that all accesses step through as one are one.
    """
    fuser = _Fuser(graph, options)
    fuser.run()
    steps: list[Step] = []
    used_outside = {o.buffer for o in graph.outputs if isinstance(o, Strided)}
    for unit in fuser.units.values():
        used_outside |= unit.reads
    for unit in _in_order(fuser):
        if unit.extern is not None:
            steps.append(unit.extern)
            continue
        assert unit.group is not None
        nests, (rows, columns) = merge_vars(
            graph.builder, unit.group.nests, _merge_order(unit.group)
        )
        steps.append(
            FusedKernel(
                f"kernel{len(steps)}",
                rows,
                columns,
                tuple(nests),
                frozenset(unit.writes - used_outside),
            )
        )
    return KernelGraph(
        graph.inputs,
        graph.constants,
        graph.buffers,
        tuple(steps),
        graph.outputs,
        graph.builder,
        graph.size_inputs,
        graph.definitions,
        graph.checks,
        graph.facts,
    )


def _merge_order(group: Group) -> list[tuple[Var, ...]]:
    """Rows and columns, each ordered as the main access steps through memory, outermost first;
    the columns of a scan as they are."""

    def key(var: Var, columns: bool) -> int:
        best = 0
        for nest in group.nests:
            if not columns and nest.scatter is None:
                best = max(best, step(nest.index, var))
                if best:
                    break
            else:
                for load in nest.loads:
                    best = max(best, step(load.index, var))
                best = max(best, step(nest.index, var))
        return -best

    return [
        tuple(sorted(group.rows, key=lambda v: key(v, False))),
        group.columns
        if any(nest.scan is not None for nest in group.nests)
        else tuple(sorted(group.columns, key=lambda v: key(v, True))),
    ]


def _in_order(fuser: _Fuser) -> list[Unit]:
    """Units in an order of computation, as close to the graph's own as dependences allow."""
    waiting = {
        uid: len({fuser.writer[n] for n in unit.reads if n in fuser.writer} - {uid})
        for uid, unit in fuser.units.items()
    }
    ready = [(fuser.units[uid].order, uid) for uid, n in waiting.items() if n == 0]
    heapq.heapify(ready)
    result = []
    while ready:
        _, uid = heapq.heappop(ready)
        unit = fuser.units[uid]
        result.append(unit)
        for successor in fuser.successors(unit):
            waiting[successor] -= 1
            if waiting[successor] == 0:
                heapq.heappush(ready, (fuser.units[successor].order, successor))
    if len(result) != len(fuser.units):
        raise AssertionError("fusion made a cycle")
    return result
