"""Backwards that are compiled when they are first needed, for the tangents that a call has."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from dovetail_guards.shape_env import FrozenError
from dovetail_guards.sym_node import SymNode
from dovetail_prims.conditionals import run_plainly
from dovetail_prims.fake_tensor import FakeTensor, make
from torch.fx import GraphModule

from dovetail_autograd_aot.aot_log import AotLog
from dovetail_autograd_aot.boundary import PartitionedGraph
from dovetail_autograd_aot.calls.graph_calls import Compiled, Compiler, for_custom_operators
from dovetail_autograd_aot.calls.undefined_tangents import backward_without
from dovetail_autograd_aot.trace.node_values import example_values

# Backwards of one graph, each for another set of undefined tangents.
MAX_VARIANTS = 4
Laid = tuple[tuple[int, tuple[int, ...]], ...]  # tangents by number, with their strides


@dataclass(frozen=True)
class _Variant:
    """A compiled backward, which tangents it takes, and of which inputs it gives no gradients."""

    run: Compiled
    takes: tuple[bool, ...]
    without: int


class LazyBackward:
    """Compiles the backward when it is first needed; once for each set of tangents that a call
    lacks, and of inputs whose gradients nobody asks for, `limit` of either kind at most.

    Where a tangent is missing, others run operator by operator: with zeros for what it lacks, a
    call of another backward would give NaN where a derivative that it does not need is infinite,
    and run user's code that eager would not call. So do those of symbolic sizes that could not be
    compiled without assuming more of these than the guards say. Gradients that nobody asks for are
    computed there all the same, if they can be.
    """

    def __init__(
        self, parts: PartitionedGraph, compiler: Compiler, log: AotLog, limit: int, symbolic: bool
    ) -> None:
        self.parts = parts
        self.compiler = compiler
        self.log = log
        self.limit = limit
        self.symbolic = symbolic
        self.count = len(parts.signature.differentiable)
        self.variants: dict[tuple[int, int, tuple[int, ...]], _Variant] = {}

    def variant(
        self, missing: int, unasked: int = 0, ends: tuple[int, ...] = (), *, gone: bool = False
    ) -> _Variant:
        """The backward for calls that lack the tangents in the bit set `missing`, and need no
        gradients of the inputs in the bit set `unasked`; what those need may be `gone`. It ends at
        the outputs with the tangents `ends`, whose gradients are its first results; raises
        UncutError where it cannot."""
        key = missing, unasked, ends
        found = self.variants.get(key)
        if found is None or (gone and found.without != unasked):
            found = self.variants[key] = self._made(*key, gone)
        return found

    def with_strides(self, laid: Laid) -> LazyBackward:
        """The same, for tangents that lie in memory otherwise than their outputs do."""
        assert self.parts.backward is not None
        saved, none = len(self.parts.saved), frozenset[int]()
        gm, _ = backward_without(self.parts.backward, saved, none, none)
        tangents = gm.graph.find_nodes(op="placeholder")[saved:]
        for i, strides in laid:
            val = tangents[i].meta["val"]
            tangents[i].meta["val"] = make(val._sizes, strides, val._dtype, val._device)
        parts = replace(self.parts, backward=gm)
        return LazyBackward(parts, self.compiler, self.log, self.limit, self.symbolic)

    def _made(self, missing: int, unasked: int, ends: tuple[int, ...], gone: bool) -> _Variant:
        special = bool(missing or unasked)
        alike = sum([*map(bool, k[1:])] == [bool(unasked), bool(ends)] for k in self.variants)
        reason = ""
        if special and alike >= self.limit:
            if unasked and not gone:
                return self.variant(missing, 0, ends)
            reason = f"more than {self.limit} sets of outputs had gradients"
        gm, takes = self.graph(missing, unasked, ends)
        if not reason and special and self.symbolic and not _guards_are_made(gm):
            reason = "guards on symbolic sizes are still being made"
        if not reason:
            try:
                return _Variant(self._compiled(gm), takes, unasked)
            except FrozenError as error:
                if not special:
                    raise
                reason = f"outputs had no gradient, and {error}"
        if unasked and not gone:
            return self.variant(missing, 0, ends)
        self.log.note_plain_backward(reason)
        return _Variant(run_plainly(gm), takes, unasked)

    def _compiled(self, gm: GraphModule) -> Compiled:
        with torch.no_grad():
            return for_custom_operators(self.compiler(gm, example_values(gm)), gm)

    def graph(
        self, missing: int, unasked: int = 0, ends: tuple[int, ...] = ()
    ) -> tuple[GraphModule, tuple[bool, ...]]:
        """The backward's graph without what the tangents in the bit set `missing` are needed for,
        and which tangents it takes; without the gradients of the inputs `unasked`; to `ends`."""
        gm = self.parts.backward
        assert gm is not None
        if not missing and not unasked:
            return gm, (True,) * self.count
        saved = len(self.parts.saved)
        tangents = frozenset(saved + i for i in range(self.count) if missing >> i & 1)
        masks = self.parts.gradient_tangents
        unreached = frozenset(
            i for i, mask in enumerate(masks) if not mask & ~missing or unasked >> i & 1
        )
        graph, kept = backward_without(gm, saved, tangents, unreached, ~missing, ends)
        return graph, tuple(kept[saved:])


def _guards_are_made(gm: GraphModule) -> bool:
    """Whether what a compiler would now assume of sizes is refused, and not just unknown to who
    made the guards."""
    for value in example_values(gm):
        parts = (*value._sizes, *value._strides) if isinstance(value, FakeTensor) else (value,)
        for part in parts:
            if isinstance(part, (torch.SymInt, torch.SymFloat)):
                node = part.node
                if not (isinstance(node, SymNode) and node.env.frozen):
                    return False
    return True
