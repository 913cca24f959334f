"""Backwards that are compiled when they are first needed, for the tangents that a call has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from dovetail_prims.conditionals import run_plainly
from torch.fx import GraphModule

from dovetail_autograd_aot.graph_calls import Compiled, Compiler, for_custom_operators
from dovetail_autograd_aot.graphs import GIVEN_WITH, PartitionedGraph
from dovetail_autograd_aot.undefined import backward_without
from dovetail_autograd_aot.values import example_values

# Backwards of one graph, each for another set of undefined tangents.
MAX_VARIANTS = 4


@dataclass(frozen=True)
class _Variant:
    """A compiled backward, and which tangents it takes."""

    run: Compiled
    takes: tuple[bool, ...]


class LazyBackward:
    """Compiles the backward when it is first needed; once for each set of tangents that a call
    lacks, `limit` at most: the others get zeros for what they lack. But of a zero the user's own
    code may make something else, where it would not be called: such backwards run operator by
    operator."""

    def __init__(self, parts: PartitionedGraph, compiler: Compiler, limit: int) -> None:
        self.parts = parts
        self.compiler = compiler
        self.limit = limit
        self.count = len(parts.signature.differentiable)
        self.variants: dict[int, _Variant] = {}
        assert parts.backward is not None
        masks = {n.meta[GIVEN_WITH] for n in parts.backward.graph.nodes if GIVEN_WITH in n.meta}
        self.user_masks = tuple(masks)  # the tangents that the user's own gradients come with

    def variant(self, missing: int) -> _Variant:
        """The backward for calls that lack the tangents in the bit set `missing`."""
        found = self.variants.get(missing)
        if found is not None:
            return found
        if missing and len(self.variants) >= self.limit:
            if not self._lacks_users(missing):
                return self.variant(0)
            gm, takes = self.graph(missing)
            made = _Variant(run_plainly(gm), takes)
            self.variants[missing] = made
            return made
        gm, takes = self.graph(missing)
        with torch.no_grad():
            run = for_custom_operators(self.compiler(gm, example_values(gm)), gm)
            made = _Variant(run, takes)
        self.variants[missing] = made
        return made

    def _lacks_users(self, missing: int) -> bool:
        """Whether there is a gradient of the user's own that such a call has not."""
        return any(not mask & ~missing for mask in self.user_masks)

    def graph(self, missing: int) -> tuple[GraphModule, tuple[bool, ...]]:
        """The backward's graph without what the tangents in the bit set `missing` are needed for,
        and which tangents it takes."""
        gm = self.parts.backward
        assert gm is not None
        if not missing or not (self.limit or self._lacks_users(missing)):
            return gm, (True,) * self.count
        saved = len(self.parts.saved)
        tangents = frozenset(saved + i for i in range(self.count) if missing >> i & 1)
        masks = self.parts.gradient_tangents
        unreached = frozenset(i for i, mask in enumerate(masks) if not mask & ~missing)
        graph, kept = backward_without(gm, tangents, unreached, ~missing)
        return graph, tuple(kept[saved:])
