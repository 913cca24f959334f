"""Maximum flow by Dinic's algorithm, and the minimum cut nearest the sink."""

from __future__ import annotations

from collections import deque

INFINITE = 1 << 62


class FlowNetwork:
    """A directed graph with integer capacities. Vertices are 0 .. n-1."""

    def __init__(self, vertices: int) -> None:
        self.edges_of: list[list[int]] = [[] for _ in range(vertices)]
        # Edge e and its reverse e ^ 1 stand side by side.
        self.head: list[int] = []
        self.capacity: list[int] = []

    def add_vertex(self) -> int:
        """A new vertex."""
        self.edges_of.append([])
        return len(self.edges_of) - 1

    def add_edge(self, tail: int, head: int, capacity: int) -> None:
        """An edge from `tail` to `head`."""
        self.edges_of[tail].append(len(self.head))
        self.head.append(head)
        self.capacity.append(capacity)
        self.edges_of[head].append(len(self.head))
        self.head.append(tail)
        self.capacity.append(0)

    def max_flow(self, source: int, sink: int) -> int:
        """Saturates the network; the residual capacities stay in it."""
        total = 0
        while (level := self._levels(source, sink)) is not None:
            # Where each vertex's search goes on: an edge found useless in this phase stays so.
            next_edge = [0] * len(self.edges_of)
            while pushed := self._augment(source, sink, level, next_edge):
                total += pushed
        return total

    def _levels(self, source: int, sink: int) -> list[int] | None:
        level = [-1] * len(self.edges_of)
        level[source] = 0
        queue = deque([source])
        while queue:
            vertex = queue.popleft()
            for edge in self.edges_of[vertex]:
                head = self.head[edge]
                if self.capacity[edge] > 0 and level[head] < 0:
                    level[head] = level[vertex] + 1
                    if head == sink:
                        return level
                    queue.append(head)
        return None

    def _augment(self, source: int, sink: int, level: list[int], next_edge: list[int]) -> int:
        """One augmenting path in the level graph; iterative, since paths can be long."""
        path: list[int] = []
        vertex = source
        while vertex != sink:
            edges = self.edges_of[vertex]
            advanced = False
            while next_edge[vertex] < len(edges):
                edge = edges[next_edge[vertex]]
                head = self.head[edge]
                if self.capacity[edge] > 0 and level[head] == level[vertex] + 1:
                    path.append(edge)
                    vertex = head
                    advanced = True
                    break
                next_edge[vertex] += 1
            if advanced:
                continue
            if vertex == source:
                return 0
            vertex = self.head[path.pop() ^ 1]
            next_edge[vertex] += 1
        pushed = min(self.capacity[edge] for edge in path)
        for edge in path:
            self.capacity[edge] -= pushed
            self.capacity[edge ^ 1] += pushed
        return pushed

    def reaches_sink(self, sink: int) -> list[bool]:
        """After `max_flow`: for each vertex, whether a residual path leads to the sink. The edges
        from False to True vertices are the minimum cut nearest the sink."""
        reaches = [False] * len(self.edges_of)
        reaches[sink] = True
        queue = deque([sink])
        while queue:
            vertex = queue.popleft()
            for edge in self.edges_of[vertex]:
                tail = self.head[edge]
                if self.capacity[edge ^ 1] > 0 and not reaches[tail]:
                    reaches[tail] = True
                    queue.append(tail)
        return reaches
