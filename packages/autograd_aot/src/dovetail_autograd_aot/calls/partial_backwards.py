"""Backwards of one graph that have nothing to do with one another.

In eager, a backward frees what the nodes on its way saved, and others can run later:
`actor, critic = model(x); actor_loss.backward(); critic_loss.backward()`, or
`torch.autograd.grad(loss, x)`, and then `torch.autograd.grad(loss, z)`. A compiled graph is one
node, which a backward frees. So what other ways from outputs to inputs need stays on its context,
until a backward closed them, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from dovetail_autograd_aot.boundary import JointGraph, PartitionedGraph
from dovetail_autograd_aot.calls.lazy_backward import LazyBackward
from dovetail_autograd_aot.calls.saved_tensors import check_version
from dovetail_autograd_aot.trace.node_values import example_values

# For each tangent, inputs that there is a way to, as a bit set.
Ways = tuple[int, ...]


@dataclass(frozen=True)
class Rest:
    """After a backward: the ways that are still open, and the saved values for these."""

    open: Ways
    values: list[Any]
    versions: list[int]

    def checked(self) -> list[Any]:
        """The values. Raises an error if one was written to."""
        for value, version in zip(self.values, self.versions, strict=True):
            if isinstance(value, Tensor):
                check_version(value, version, value.shape)
        return self.values


@dataclass(frozen=True, eq=False)
class Passage:
    """A backward from the tangents `present` to the inputs `asked` for, both bit sets. It `leads`
    to some of these, and to others that are `unasked`."""

    present: int
    asked: int
    leads: bool
    unasked: int
    leaves: dict[Ways, Ways] = field(default_factory=dict)  # ways open before: those open after it


class SeparateBackwards:
    """Which backwards of one graph can run after one another, without `retain_graph`."""

    def __init__(self, joint: JointGraph, parts: PartitionedGraph, lazy: LazyBackward) -> None:
        assert parts.backward is not None
        self.parts = parts
        self.lazy = lazy
        self.freed = joint.backward.freed
        self.all = (1 << lazy.count) - 1
        masks = [(1 << i, mask) for i, mask in enumerate(parts.gradient_tangents)]
        self.ways: Ways = tuple(
            _union([bit for bit, mask in masks if mask >> t & 1]) for t in range(lazy.count)
        )
        saved = example_values(parts.backward)[: len(parts.saved)]
        self.fixed = all(type(s) is int for v in saved for s in getattr(v, "_sizes", (v,)))
        self.passages: dict[tuple[int, int], Passage] = {}
        self.whole = Passage(self.all, -1, True, 0)
        self.needed: dict[Ways, frozenset[int]] = {}
        self.closed = Rest((0,) * lazy.count, [], [])
        self.without_values = {self.closed.open: self.closed}

    def passage(self, missing: int, asked: int) -> Passage:
        """The backward without the tangents `missing`, to the inputs `asked` for: -1 for all."""
        if asked == -1 and not missing:
            return self.whole
        found = self.passages.get((missing, asked))
        if found is None:
            present = self.all & ~missing
            reached = self._reached(present)
            leads = bool(present if asked == -1 else reached & asked)
            found = Passage(present, asked, leads, reached & ~asked)
            self.passages[missing, asked] = found
        return found

    def keep(self, ctx: Any, values: Sequence[Any], passage: Passage) -> bool:
        """A backward that frees the graph runs: put aside what others need. False if they need
        nothing."""
        ways = self._after(ctx, passage)
        blank = self.without_values.get(ways)
        if blank is not None:
            ctx.rest = blank
            return False
        needed = self._needed(ways)
        kept = [
            _without_memory(value) if isinstance(value, Tensor) and i not in needed else value
            for i, value in enumerate(values)
        ]
        ctx.rest = Rest(ways, kept, [_version(value) for value in kept])
        if not needed and self.fixed:
            self.without_values[ways] = ctx.rest
        return bool(needed)

    def left_by_all(self) -> Rest | None:
        """What is left, on the context, by a backward of everything that frees the graph, if one
        ran before; None if that has values in it."""
        return self.without_values.get(self._left(self.ways, self.whole))

    def leaves_some(self, ctx: Any, passage: Passage) -> bool:
        """Whether any way is open after a backward."""
        return any(self._after(ctx, passage))

    def load(self, ctx: Any, passage: Passage) -> Sequence[Any] | None:
        """What an earlier backward put aside for this one, if it did. Nothing reads the values that
        only closed ways need: they are not those."""
        rest: Rest | None = getattr(ctx, "rest", None)
        if rest is None:
            return None
        present, asked = passage.present, passage.asked
        ways = zip(self.ways, rest.open, strict=True)
        if any(present >> t & 1 and way & asked & ~left for t, (way, left) in enumerate(ways)):
            return None
        return rest.checked()

    def rest(self, ctx: Any) -> tuple[Any, ...] | None:
        """What is left after earlier backwards, if there were some and something is: which ways,
        and values."""
        rest: Rest | None = getattr(ctx, "rest", None)
        if rest is None or rest is self.closed:
            return None
        return (f"open: {rest.open}", *rest.checked())

    def began(self, ctx: Any) -> bool:
        """Whether some ways are closed."""
        return getattr(ctx, "rest", None) is not None

    def is_open(self, ctx: Any) -> bool:
        """Whether some ways are open."""
        return getattr(ctx, "rest", None) is not self.closed

    def _reached(self, present: int) -> int:
        """The inputs that backwards from these tangents lead to."""
        return _union([way for t, way in enumerate(self.ways) if present >> t & 1])

    def _after(self, ctx: Any, passage: Passage) -> Ways:
        """The ways that are open after a backward."""
        rest: Rest | None = getattr(ctx, "rest", None)
        before = self.ways if rest is None else rest.open
        ways = passage.leaves.get(before)
        if ways is None:
            ways = passage.leaves[before] = self._left(before, passage)
        return ways

    def _left(self, ways: Ways, passage: Passage) -> Ways:
        """Of open ways, those that a backward leaves open."""
        present, asked = passage.present, passage.asked
        freed = [(above, below) for above, below in self.freed if above & present and below & asked]
        return tuple(
            way & ~_union([below for above, below in freed if above >> t & 1])
            for t, way in enumerate(ways)
        )

    def _needed(self, ways: Ways) -> frozenset[int]:
        """The saved values that backwards on these ways read."""
        found = self.needed.get(ways)
        if found is None:
            tangents = _union([1 << t for t, inputs in enumerate(ways) if inputs])
            unasked = self._reached(tangents) & ~_union(ways)
            graph, _ = self.lazy.graph(self.all & ~tangents, unasked)
            placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
            saved = placeholders[: len(self.parts.saved)]
            found = frozenset(i for i, node in enumerate(saved) if node.users)
            self.needed[ways] = found
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
