"""Cutting a joint graph into forward and backward: what to save, what to compute again.

A minimum cut decides: an edge's capacity is the bytes of the value, so the saved set is the
smallest that the backward can be computed from, given which operators may run twice. Cheap
operators (pointwise, views, factories) may; matrix products, convolutions, attention, reductions
and random numbers may not.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import torch
from dovetail_guards.sym_node import expr_of
from dovetail_prims.fake_tensor import FakeTensor
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node

from dovetail_autograd_aot.boundary import JointGraph, PartitionedGraph, SavedAlias
from dovetail_autograd_aot.outputs.output_aliasing import is_view_node, view_root
from dovetail_autograd_aot.partition import split_graphs
from dovetail_autograd_aot.partition.node_roles import (
    Roles,
    is_free,
    may_run_twice,
    work_for_a_byte,
)
from dovetail_autograd_aot.trace.node_values import value_bytes

aten = torch.ops.aten

Partitioner = Callable[[JointGraph], PartitionedGraph]

# Of what the forward returns an eighth is left off among what may be saved; if eager keeps it, too,
# only an eighth counts.
DISCOUNT = 8
# An input is almost free.
INPUT_COST = 1


def default_partition(joint: JointGraph) -> PartitionedGraph:
    """Save exactly the values the backward uses; compute only views again."""
    return _cut(joint, _used_by_backward)


def min_cut_partition(
    joint: JointGraph, *, activation_memory_budget: float = 1.0
) -> PartitionedGraph:
    """Save the fewest bytes that the backward can be computed from cheaply.

    With an `activation_memory_budget` below one, only that part of the bytes between the least
    there can be (budget 0: all that may run twice does) and those is saved, and so more is
    computed again, from inputs, too, that eager would not hold on to. What the user tagged as
    checkpointed regions stays as it is.
    """
    if not 0 <= activation_memory_budget <= 1:
        raise ValueError(f"an activation_memory_budget of {activation_memory_budget}, not 0 to 1")
    holds = activation_memory_budget < 1
    return _cut(joint, lambda roles: _within(roles, activation_memory_budget), holds_inputs=holds)


def _within(roles: Roles, budget: float) -> set[Node]:
    """The minimum cut that keeps to the budget, with as little as possible computed again."""
    best = _min_cut(roles)
    if budget >= 1:
        return best
    costly = [
        n for n in roles.nodes
        if not roles.tangent_bits[n] and not roles.may_recompute(n) and may_run_twice(n)
        and n not in roles.regions
    ]  # fmt: skip
    costly.sort(key=work_for_a_byte)
    least = _min_cut(roles, frozenset(costly))
    allowed = _bytes(roles, least) + budget * (_bytes(roles, best) - _bytes(roles, least))
    # The more may run twice, the fewer bytes a cut has.
    low, high, found = 0, len(costly), least
    while low < high:
        middle = (low + high) // 2
        cut = _min_cut(roles, frozenset(costly[:middle]))
        if _bytes(roles, cut) <= allowed:
            high, found = middle, cut
        else:
            low = middle + 1
    return found


def _bytes(roles: Roles, saved: set[Node]) -> int:
    """The bytes kept beyond the primals."""
    own = (n for n in saved if n in roles.copied or n.op != "placeholder")
    return sum(value_bytes(n.meta["val"]) for n in own)


# --- what to save ---------------------------------------------------------------------------------


def _used_by_backward(roles: Roles) -> set[Node]:
    saved: set[Node] = set()
    stack = roles.used()
    while stack:
        node = stack.pop()
        if is_view_node(node):
            # A view's sizes may be inputs too.
            stack.extend(node.all_input_nodes)
        elif node.op == "get_attr" or is_free(node):
            stack.extend(node.all_input_nodes)
        else:
            saved.add(node)
    return saved


def _min_cut(roles: Roles, costly: frozenset[Node] = frozenset()) -> set[Node]:
    """The minimum cut between what may not be computed again (`costly` may) and what the backward
    uses. Only the neighbourhood of those uses matters: the search stops at what must not run
    twice."""
    network = FlowNetwork(2)
    source, sink = 0, 1
    entry: dict[Node, int] = {}

    def vertex(node: Node) -> int:
        """The vertex where `node` is not yet available; the next one is where it is."""
        if node not in entry:
            entry[node] = network.add_vertex()
            network.add_vertex()
            stack.append(node)
        return entry[node]

    stack: list[Node] = []
    for node in roles.used():
        network.add_edge(vertex(node) + 1, sink, INFINITE)
    while stack:
        node = stack.pop()
        at = entry[node]
        network.add_edge(at, at + 1, _save_cost(node, roles))
        if node.op == "get_attr":
            continue  # a constant: both graphs hold it
        if node.op == "placeholder" or not (roles.may_recompute(node) or node in costly):
            network.add_edge(source, at, INFINITE)
        else:
            for read in node.all_input_nodes:
                network.add_edge(vertex(read) + 1, at, INFINITE)
    network.max_flow(source, sink)
    reaches = network.reaches_sink(sink)
    return {node for node, at in entry.items() if reaches[at + 1] and not reaches[at]}


def _save_cost(node: Node, roles: Roles) -> int:
    value = node.meta.get("val")
    if node.op == "placeholder" and node not in roles.copied:
        # Almost free; but a size alone is better than the input it is read from.
        return INPUT_COST if isinstance(value, Tensor) else 0
    if isinstance(value, (torch.SymInt, torch.SymFloat, int, float)):
        # Arithmetic on sizes is done again from the sizes themselves.
        return 0 if isinstance(node.target, OpOverload) else INFINITE
    if is_view_node(node) or isinstance(value, (list, tuple)) or node.op == "get_attr":
        return INFINITE
    if node in roles.inside:
        return INFINITE
    size = value_bytes(value)
    if node.op == "placeholder":
        return size + 3  # a copy, which has to be written
    if node in roles.returned:
        # It leaves the call anyway, and most callers hold it until the backward is over. But if
        # eager keeps what is computed from it, they may write to it. (Not so cheaply replaced are
        # log-probabilities, which are no larger than logits and the statistics of their rows.)
        if node in roles.kept_by_eager:
            return size // DISCOUNT
        return size - size // DISCOUNT if _has_statistics(node, roles) else size + 4
    # Of equal cuts the one with fewer values is taken; then the one that saves what has to be in
    # memory anyway: the forward writes less, and half types are not rounded once more.
    return size + (2 if node in roles.in_memory else 3)


def _has_statistics(node: Node, roles: Roles) -> bool:
    """Whether a reduction, or the like, lies between a value and all that eager keeps of it."""
    stack, seen = [node], {node}
    while stack:
        for user in stack.pop().users:
            if user in seen or roles.tangent_bits[user] or user in roles.kept_by_eager:
                continue
            if user.op != "output" and not roles.may_recompute(user):
                return True
            seen.add(user)
            stack.append(user)
    return False


# --- cutting --------------------------------------------------------------------------------------


def _cut(
    joint: JointGraph, choose: Callable[[Roles], set[Node]], *, holds_inputs: bool = False
) -> PartitionedGraph:
    signature = joint.signature
    sizes = _size_nodes(joint) if signature.needs_backward else {}
    roles = Roles(joint, holds_inputs=holds_inputs)
    if not signature.needs_backward:
        forward = split_graphs.forward_graph(joint, roles, [])
        split_graphs.tell_what_is_overwritten(joint, forward)
        return PartitionedGraph(forward, None, (), signature)
    saved = choose(roles)
    saved |= _sizes_not_told(roles, saved, sizes)
    chosen = sorted(saved, key=roles.order.__getitem__)
    saved_primals = [n for n in chosen if n in roles.primals and n not in roles.copied]
    saved_values = [n for n in chosen if n not in saved_primals]
    forward = split_graphs.forward_graph(joint, roles, saved_values)
    backward = split_graphs.backward_graph(joint, roles, saved_primals, saved_values)
    index = {n: i for i, n in enumerate(roles.primals)}
    lost = functools.reduce(int.__or__, (1 << each.tangent for each in signature.lost), 0)
    return PartitionedGraph(
        forward=forward,
        backward=backward,
        saved=tuple(n.name for n in (*saved_primals, *saved_values)),
        signature=signature,
        saved_primals=tuple(index[n] for n in saved_primals),
        saved_aliases=_aliases(roles, saved_values),
        saved_bytes=sum(value_bytes(n.meta["val"]) for n in saved_values),
        gradient_tangents=tuple(
            (roles.tangent_bits[g] & ~(1 << len(roles.tangents)) | reached)
            if isinstance(g, Node)
            else reached & lost
            for g, reached in zip_longest(roles.gradients, joint.backward.reached, fillvalue=0)
        ),
    )


def _told(value: Any) -> set[str]:
    """The symbols that can be read off a value: it is that size, or has it."""
    sizes: tuple[Any, ...] = value._sizes if isinstance(value, FakeTensor) else (value,)
    names = {expr_of(s).symbol_name for s in sizes if isinstance(s, torch.SymInt)}
    return {name for name in names if name is not None}


def _size_nodes(joint: JointGraph) -> dict[str, Node]:
    """A node for each size symbol of the inputs, in the joint graph."""
    found: dict[str, Node] = {}
    graph = joint.gm.graph
    primals = list(graph.nodes)[: joint.signature.num_primals]
    first = next((n for n in graph.nodes if n.op != "placeholder"), None)
    for node in primals:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            for name in _told(value):
                found.setdefault(name, node)
        if not isinstance(value, FakeTensor) or first is None:
            continue
        for dim, size in enumerate(value._sizes):
            symbol = expr_of(size).symbol_name if isinstance(size, torch.SymInt) else None
            if symbol is not None and symbol not in found:
                with graph.inserting_before(first):
                    read = graph.call_function(aten.sym_size.int, (node, dim))
                read.meta["val"] = size
                found[symbol] = read
    return found


def _sizes_not_told(roles: Roles, saved: set[Node], sizes: dict[str, Node]) -> set[Node]:
    """Size nodes that the backward needs besides what is saved: its tensors' sizes are made of
    symbols, each of which it must be able to read off an input."""
    known: set[str] = set()
    for node in (*saved, *roles.tangents):
        known |= _told(node.meta.get("val"))
    return {node for name, node in sizes.items() if name not in known}


def _aliases(roles: Roles, saved: list[Node]) -> tuple[SavedAlias, ...]:
    """Forward outputs that are views of a saved value."""
    position = {n: i for i, n in enumerate(saved)}
    aliases = []
    for i, output in enumerate(roles.forward_outputs):
        if isinstance(output, Node) and is_view_node(output):
            root = view_root(output)
            if root in position and root.meta["val"]._dtype == output.meta["val"]._dtype:
                aliases.append(SavedAlias(i, position[root]))
    return tuple(aliases)


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
