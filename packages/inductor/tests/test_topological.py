"""The order that fusion keeps: against brute force, and how much of a graph it looks at."""

from __future__ import annotations

import random

import pytest
from dovetail_inductor.scheduler.topological import TopologicalOrder


class _Graph:
    """Edges by node, that nodes can be merged in."""

    def __init__(self, edges: list[tuple[int, int]], count: int) -> None:
        self.after: dict[int, set[int]] = {n: set() for n in range(count)}
        self.before: dict[int, set[int]] = {n: set() for n in range(count)}
        for a, b in edges:
            self.after[a].add(b)
            self.before[b].add(a)
        self.looked_at = 0
        self.order = TopologicalOrder(self.successors, self.predecessors)
        for node in range(count):
            self.order.append(node)

    def successors(self, node: int) -> set[int]:
        self.looked_at += 1
        return self.after[node]

    def predecessors(self, node: int) -> set[int]:
        self.looked_at += 1
        return self.before[node]

    def connects(self, first: int, second: int) -> bool:
        """What `TopologicalOrder.connects` says, by looking at all paths."""
        todo = list(self.after[first] - {second})
        seen = set()
        while todo:
            node = todo.pop()
            if node == second:
                return True
            if node not in seen:
                seen.add(node)
                todo.extend(self.after[node])
        return False

    def merge(self, a: int, b: int) -> int:
        kept, gone = min(a, b), max(a, b)
        self.order.merge(a, b, kept)
        for mine, others in ((self.after, self.before), (self.before, self.after)):
            both = (mine[a] | mine[b]) - {a, b}
            for node in both:
                others[node] -= {a, b}
                others[node].add(kept)
            mine[kept] = both
        del self.after[gone], self.before[gone]
        return kept


@pytest.mark.parametrize("seed", range(30))
def test_order_under_merges(seed: int) -> None:
    pick = random.Random(seed)
    count = pick.randint(3, 25)
    edges = [
        (a, b)
        for b in range(count)
        for a in range(b)
        if pick.random() < pick.choice((0.05, 0.15, 0.4))
    ]
    graph = _Graph(edges, count)
    for _ in range(4 * count):
        if len(graph.after) < 2:
            break
        a, b = pick.sample(sorted(graph.after), 2)
        found = graph.order.connects(a, b), graph.order.connects(b, a)
        assert found == (graph.connects(a, b), graph.connects(b, a))
        if not any(found):
            graph.merge(a, b)
        for node, after in graph.after.items():
            assert all(graph.order.is_before(node, other) for other in after)


def test_merges_look_at_their_own_surroundings() -> None:
    """A recurrence: each step has nodes of its own, merged by step; beside them, a first node that
    all steps read and a last one that reads them all. The cost grows with the steps alone."""

    def cost(steps: int) -> int:
        edges = []
        last = 3 * steps + 1
        for step in range(steps):
            state, gate, out = 3 * step + 1, 3 * step + 2, 3 * step + 3
            edges += [(0, state), (state, gate), (gate, out), (out, last)]
            edges += [(out, state + 3)] if step + 1 < steps else []
        graph = _Graph(edges, last + 1)
        for step in range(steps):
            merged = 3 * step + 1
            for other in (merged + 1, merged + 2):
                assert not graph.order.connects(merged, other)
                merged = graph.merge(merged, other)
        for step in range(steps - 1):  # neither may skip a step
            assert not graph.order.connects(3 * step + 1, 3 * step + 4)
            if step + 2 < steps:
                assert graph.order.connects(3 * step + 1, 3 * step + 7)
        return graph.looked_at

    assert cost(400) <= 4.2 * cost(100)
