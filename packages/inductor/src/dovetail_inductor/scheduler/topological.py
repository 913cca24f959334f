"""An order of computation that stays one while nodes of the graph are merged.

The nodes between two places of the order are all that a path between those two can pass, so that a
search for one stays near them however large the graph is. Of a merge only the nodes that must be on
the other side of the merged one move. (D. J. Pearce and P. H. J. Kelly, "A dynamic topological sort
algorithm for directed acyclic graphs", 2006, with a contraction in place of a new edge.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

_Neighbours = Callable[[int], Iterable[int]]


@dataclass
class _Front:
    """A search along the edges of one direction."""

    neighbours: _Neighbours
    todo: list[int]  # whose neighbours have not been looked at
    found: set[int] = field(default_factory=set)


class TopologicalOrder:
    """Places of nodes, given by number; each node's place is after those of its predecessors.

    successors, predecessors: the neighbours of a node in the graph as it is now, itself excluded.
    """

    def __init__(self, successors: _Neighbours, predecessors: _Neighbours) -> None:
        self._successors = successors
        self._predecessors = predecessors
        self._place: dict[int, int] = {}

    def append(self, node: int) -> None:
        """A node that comes after all nodes so far. Nodes must be appended before any merge."""
        self._place[node] = len(self._place)

    def is_before(self, first: int, second: int) -> bool:
        """True if `first` has the earlier place."""
        return self._place[first] < self._place[second]

    def connects(self, first: int, second: int) -> bool:
        """True if some third node lies on a path from `first` to `second`.

        Goes from both ends in turns, and so for no longer than twice the shorter of the searches.
        """
        start, end = self._place[first], self._place[second]
        ahead = _Front(self._successors, [first])
        behind = _Front(self._predecessors, [second])
        while start < end and ahead.todo and behind.todo:
            # Both have seen their own neighbours before the first of them can be through: whatever
            # lies on a path, the one that is through has found it all, and the other one its end.
            for front, other in ((ahead, behind), (behind, ahead)):
                new = self._step(front, start, end) if front.todo else set()
                if new & other.found:
                    return True
        return False

    def merge(self, a: int, b: int, merged: int) -> None:
        """Put `merged` in place of a and b, while the neighbours still are those of a and b.

        Needs that neither `connects(a, b)` nor `connects(b, a)`.
        """
        place = self._place
        first, second = (a, b) if self.is_before(a, b) else (b, a)
        start, end = place[first], place[second]
        later = self._reached(first, self._successors, start, end)
        earlier = self._reached(second, self._predecessors, start, end)
        slots = sorted([start, end, *(place[n] for n in later), *(place[n] for n in earlier)])
        moved = [*sorted(earlier, key=place.__getitem__), merged]
        later_in_order = sorted(later, key=place.__getitem__)
        del place[first], place[second]
        place.update(zip(moved, slots, strict=False))
        # One slot stays empty: two nodes became one.
        place.update(zip(later_in_order, slots[len(moved) + 1 :], strict=True))

    def _reached(self, node: int, neighbours: _Neighbours, start: int, end: int) -> set[int]:
        """The nodes reached from a node by way of places between start and end alone."""
        front = _Front(neighbours, [node])
        while front.todo:
            self._step(front, start, end)
        return front.found

    def _step(self, front: _Front, start: int, end: int) -> set[int]:
        """What one more node has for new neighbours with places between start and end."""
        place = self._place
        near = front.neighbours(front.todo.pop())
        new = {n for n in near if start < place[n] < end and n not in front.found}
        front.found |= new
        front.todo.extend(new)
        return new
