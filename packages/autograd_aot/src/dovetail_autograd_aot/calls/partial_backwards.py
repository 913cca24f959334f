"""Backwards of one graph that have nothing to do with one another.

In eager, a backward frees what the nodes on its way saved, and others can run later:
`actor, critic = model(x); actor_loss.backward(); critic_loss.backward()`, or
`torch.autograd.grad(loss, x)`, and then `torch.autograd.grad(loss, z)`. A compiled graph is one
node, which a backward frees. So what other paths from outputs to inputs need stays on its context,
until a backward closed them, too. To run the captured graph again for the second backward would
cost a forward in memory and time, in loops that train models with frozen parts or several losses.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from dovetail_autograd_aot.boundary import JointGraph, PartitionedGraph
from dovetail_autograd_aot.calls.lazy_backward import LazyBackward
from dovetail_autograd_aot.calls.saved_tensors import check_version
from dovetail_autograd_aot.trace.node_values import example_values

# For each tangent, inputs that there is a path to, as a bit set.
Paths = tuple[int, ...]


@dataclass(frozen=True)
class Remaining:
    """After a backward: the paths that are still open, and the saved values for these."""

    open: Paths
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
    # Paths open before: those open after it.
    leaves: dict[Paths, Paths] = field(default_factory=dict)


class SeparateBackwards:
    """Which backwards of one graph can run after one another, without `retain_graph`."""

    def __init__(self, joint: JointGraph, parts: PartitionedGraph, lazy: LazyBackward) -> None:
        assert parts.backward is not None
        self.parts = parts
        self.lazy = lazy
        self.freed = joint.backward.freed
        self.all = (1 << lazy.count) - 1
        masks = [(1 << i, mask) for i, mask in enumerate(parts.gradient_tangents)]
        self.paths: Paths = tuple(
            _union([bit for bit, mask in masks if mask >> t & 1]) for t in range(lazy.count)
        )
        saved = example_values(parts.backward)[: len(parts.saved)]
        self.fixed = all(type(s) is int for v in saved for s in getattr(v, "_sizes", (v,)))
        self.passages: dict[tuple[int, int], Passage] = {}
        self.whole = Passage(self.all, -1, True, 0)
        self.needed: dict[Paths, frozenset[int]] = {}
        self.closed = Remaining((0,) * lazy.count, [], [])
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
        paths = self._after(ctx, passage)
        blank = self.without_values.get(paths)
        if blank is not None:
            ctx.remaining = blank
            return False
        needed = self._needed(paths)
        kept = [
            _without_memory(value) if isinstance(value, Tensor) and i not in needed else value
            for i, value in enumerate(values)
        ]
        ctx.remaining = Remaining(paths, kept, [getattr(value, "_version", 0) for value in kept])
        if not needed and self.fixed:
            self.without_values[paths] = ctx.remaining
        return bool(needed)

    def left_by_all(self) -> Remaining | None:
        """What is left, on the context, by a backward of everything that frees the graph, if one
        ran before; None if that has values in it."""
        return self.without_values.get(self._left(self.paths, self.whole))

    def leaves_some(self, ctx: Any, passage: Passage) -> bool:
        """Whether any path is open after a backward."""
        return any(self._after(ctx, passage))

    def load(self, ctx: Any, passage: Passage) -> Sequence[Any] | None:
        """What an earlier backward put aside for this one, if it did. Nothing reads the values that
        only closed paths need: they are not those."""
        remaining: Remaining | None = getattr(ctx, "remaining", None)
        if remaining is None:
            return None
        present, asked = passage.present, passage.asked
        paths = zip(self.paths, remaining.open, strict=True)
        if any(present >> t & 1 and path & asked & ~left for t, (path, left) in enumerate(paths)):
            return None
        return remaining.checked()

    def remaining(self, ctx: Any) -> tuple[Any, ...] | None:
        """What is left after earlier backwards, if there were some and something is: which paths,
        and values."""
        remaining: Remaining | None = getattr(ctx, "remaining", None)
        if remaining is None or remaining is self.closed:
            return None
        return (f"open: {remaining.open}", *remaining.checked())

    def began(self, ctx: Any) -> bool:
        """Whether some paths are closed."""
        return getattr(ctx, "remaining", None) is not None

    def is_open(self, ctx: Any) -> bool:
        """Whether some paths are open."""
        return getattr(ctx, "remaining", None) is not self.closed

    def _reached(self, present: int) -> int:
        """The inputs that backwards from these tangents lead to."""
        return _union([path for t, path in enumerate(self.paths) if present >> t & 1])

    def _after(self, ctx: Any, passage: Passage) -> Paths:
        """The paths that are open after a backward."""
        remaining: Remaining | None = getattr(ctx, "remaining", None)
        before = self.paths if remaining is None else remaining.open
        paths = passage.leaves.get(before)
        if paths is None:
            paths = passage.leaves[before] = self._left(before, passage)
        return paths

    def _left(self, paths: Paths, passage: Passage) -> Paths:
        """Of open paths, those that a backward leaves open."""
        present, asked = passage.present, passage.asked
        freed = [(above, below) for above, below in self.freed if above & present and below & asked]
        return tuple(
            path & ~_union([below for above, below in freed if above >> t & 1])
            for t, path in enumerate(paths)
        )

    def _needed(self, paths: Paths) -> frozenset[int]:
        """The saved values that backwards on these paths read."""
        found = self.needed.get(paths)
        if found is None:
            tangents = _union([1 << t for t, inputs in enumerate(paths) if inputs])
            unasked = self._reached(tangents) & ~_union(paths)
            graph, _ = self.lazy.graph(self.all & ~tangents, unasked)
            placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
            saved = placeholders[: len(self.parts.saved)]
            found = frozenset(i for i, node in enumerate(saved) if node.users)
            self.needed[paths] = found
        return found


def _union(sets: Iterable[int]) -> int:
    return functools.reduce(int.__or__, sets, 0)


def _without_memory(value: Tensor) -> Tensor:
    """A tensor of the same sizes, for where nothing reads it."""
    return value.new_empty(()).expand(value.shape)
