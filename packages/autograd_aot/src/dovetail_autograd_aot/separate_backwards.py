"""Outputs of one graph that have nothing to do with one another but its inputs.

In eager, the backward of one output frees what the nodes on its way saved, and those of others
can run later: `actor, critic = model(x); actor_loss.backward(); critic_loss.backward()`. A compiled
graph is one node, which a backward frees. So what the other outputs' backwards need stays on its
context, until they have run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from dovetail_autograd_aot.graphs import GIVEN_WITH, SAVES_NOTHING, PartitionedGraph
from dovetail_autograd_aot.lazy_backward import LazyBackward

aten = torch.ops.aten

# A shared part of the forward whose backward is made of these, or of what autograd's nodes are told
# to do that save nothing, saved nothing: eager's nodes of it can run several times.
_WITHOUT_SAVED = frozenset(
    {aten.add, aten.neg, aten.sum, aten.view, aten.permute, aten.expand, aten.squeeze}
    | {aten.unsqueeze, aten.clone, aten._to_copy}
)


@dataclass(frozen=True)
class _Rest:
    """After a backward: the tangents whose own can still run, and the saved values for it."""

    left: int
    values: list[Any]
    versions: list[int]

    def checked(self) -> list[Any]:
        """The values. Raises an error if one was written to."""
        for value, version in zip(self.values, self.versions, strict=True):
            if _version(value) != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an "
                    f"inplace operation: a tensor of size {tuple(value.shape)} is at version "
                    f"{_version(value)}; expected version {version} instead."
                )
        return self.values


class SeparateBackwards:
    """Which backwards of one graph can run after one another, without `retain_graph`. Where it is
    not `additive`, what the user's own backwards make of tangents depends on all that come with
    them."""

    def __init__(self, parts: PartitionedGraph, lazy: LazyBackward, additive: bool) -> None:
        self.parts = parts
        self.lazy = lazy
        self.all = (1 << lazy.count) - 1
        self.additive = additive
        self.possible = lazy.count > 1
        self.groups: tuple[tuple[int, ...], int] | None = None
        self.needed: dict[int, frozenset[int]] = {}

    def keep(self, ctx: Any, values: Sequence[Any], present: int) -> bool:
        """A backward that frees the graph runs for the tangents `present`: put aside what others
        need. False if there are no others."""
        rest: _Rest | None = getattr(ctx, "rest", None)
        left = self.all if rest is None else rest.left
        if self.possible and present != left:
            groups, again = self._groups()
            again &= left
            for group in groups:
                left &= ~group if group & present else -1
            left |= again
        else:
            left = 0
        if not left:
            ctx.rest = None
            return False
        needed = self._needed(left)
        kept = [
            _without_memory(value) if isinstance(value, Tensor) and i not in needed else value
            for i, value in enumerate(values)
        ]
        ctx.rest = _Rest(left, kept, [_version(value) for value in kept])
        return True

    def load(self, ctx: Any, present: int) -> Sequence[Any] | None:
        """What an earlier backward put aside for the tangents `present`, if it did."""
        rest: _Rest | None = getattr(ctx, "rest", None)
        if rest is None or present & ~rest.left:
            return None
        return rest.checked()

    def rest(self, ctx: Any) -> tuple[Any, ...] | None:
        """What is left after earlier backwards, if there were some: which tangents, and values."""
        rest: _Rest | None = getattr(ctx, "rest", None)
        return None if rest is None else (f"left: {rest.left}", *rest.checked())

    def _groups(self) -> tuple[tuple[int, ...], int]:
        if self.groups is None:
            self.groups = _groups(self.parts, self.lazy.count, not self.additive)
        return self.groups

    def _needed(self, left: int) -> frozenset[int]:
        """The saved values that the backward for the tangents `left` reads."""
        found = self.needed.get(left)
        if found is None:
            graph, _ = self.lazy.graph(self.all & ~left)
            placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
            saved = placeholders[: len(self.parts.saved)]
            found = frozenset(i for i, node in enumerate(saved) if node.users)
            self.needed[left] = found
        return found


def _groups(
    parts: PartitionedGraph, count: int, meet_in_user_code: bool
) -> tuple[tuple[int, ...], int]:
    """The tangents as bit sets of those that meet on the way to the gradients, and those that come
    again and again, as nothing was saved on their way; all that a node of the user's is reached by
    may be said to meet there."""
    assert parts.backward is not None
    graph = parts.backward.graph
    tangents = [node for node in graph.nodes if node.op == "placeholder"][len(parts.saved) :]
    bits = {node: 1 << i for i, node in enumerate(tangents)}
    ends = _ends(graph)
    groups = [1 << i for i in range(count)]
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        bits[node] = mine = _union([bits.get(arg, 0) for arg in node.all_input_nodes])
        if meet_in_user_code and GIVEN_WITH in node.meta:
            mine |= node.meta[GIVEN_WITH]
        elif node in ends:
            mine = 0
        if mine:
            met = _union([group for group in groups if group & mine])
            groups = [group for group in groups if not group & mine] + ([met] if met else [])
    again = (all(u.op == "output" or u in ends for u in tangent.users) for tangent in tangents)
    return tuple(groups), sum(1 << i for i, may in enumerate(again) if may)


def _ends(graph: Graph) -> set[Node]:
    """Nodes after which only sums and layouts are left."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        plain = getattr(node.target, "overloadpacket", None) in _WITHOUT_SAVED
        if plain or node.meta.get(SAVES_NOTHING):
            if all(user.op == "output" or user in found for user in node.users):
                found.add(node)
    return found


def _union(sets: Sequence[int]) -> int:
    union = 0
    for each in sets:
        union |= each
    return union


def _without_memory(value: Tensor) -> Tensor:
    """A tensor of the same sizes, for where nothing reads it."""
    return value.new_empty(()).expand(value.shape)


def _version(value: Any) -> int:
    return value._version if isinstance(value, Tensor) else 0
