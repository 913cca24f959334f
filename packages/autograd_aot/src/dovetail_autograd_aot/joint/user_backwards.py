"""Gradients that the user's own code computes: backwards of `autograd.Function`s, and hooks.

Autograd's own derivatives are linear: of a zero gradient they make zero, so that a gradient which
a call does not have can be taken for zeros. A user's backward may make anything of it, or ask for
none. But autograd calls it only if there is a gradient to give. So what it gives is marked, by a
node of its own, with the tangents that make autograd call it; in a call that has none of these
there is nothing (see `calls/undefined_tangents.py`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_prims.graphs.gradient_hooks import GradientHook
from dovetail_prims.wrappers import is_wrapper
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.fx import Node

from dovetail_autograd_aot.graph.fast_graph import GIVEN_WITH
from dovetail_autograd_aot.trace.autograd_queries import grad_fn_of, run_engine
from dovetail_autograd_aot.trace.storage import TracedStorage, read, wrap
from dovetail_autograd_aot.trace.tracer import Tracer

aten = torch.ops.aten

Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True, eq=False)
class _CallSite:
    """Where autograd calls the user's code: a node of its graph."""

    node: Any


class UserGradients:
    """What the users' code gave in the backward of one trace.

    `nodes` are the marked nodes, with the call site that each came from.
    """

    def __init__(self, tracer: Tracer, own: Iterable[type]) -> None:
        self.tracer = tracer
        self.own = tuple(own)  # functions of autograd that are not the user's
        self.nodes: dict[Node, _CallSite] = {}
        self.given: dict[_CallSite, list[Node]] = {}  # by call site: the gradients that went in
        self.calls: list[tuple[list[Node], list[Node]]] = []  # what went in, and what came out
        self.seen = False  # is there any code of the user's?
        self.marks = False  # is there more than one tangent?
        self._called: set[_CallSite] | None = None

    def begin_backward(self, num_tangents: int) -> None:
        """The engine is about to run. (What one tangent gives needs no marks.)"""
        self.marks = num_tangents > 1

    def forget(self) -> None:
        """Forget what was noted: it is no longer in the graph."""
        self.nodes.clear()
        self.given.clear()
        self.calls.clear()

    def watch(self, node: Any) -> None:
        """Mark what a node of autograd gives, if it is the user's."""
        if not isinstance(node, BackwardCFunction):
            return
        if issubclass(getattr(type(node), "_forward_cls", object), self.own):
            return

        self.seen = True
        site = _CallSite(node)

        def hook(gradients: Gradients, given: Gradients) -> Gradients:
            return self._note(site, gradients, given)

        node.register_hook(hook)

    def hooked(self, hook: GradientHook, tensor: Tensor, *taken: Any) -> Any:
        """Register a hook of the graph's."""
        self.seen = True
        site = _CallSite(grad_fn_of(tensor))

        def around(found: Tensor, given: Tensor) -> Tensor:
            (marked,) = self._note(site, (found,), (given,))
            assert marked is not None
            return marked

        return hook.register(tensor, taken, around)

    def _note(self, site: _CallSite, gradients: Gradients, given: Gradients) -> Gradients:
        """The gradients that the user's code gave for `given` ones at this call site, marked."""
        if self._called is not None:
            self._called.add(site)
        elif self.tracer.in_backward:
            nodes = self._nodes(given)
            self.given.setdefault(site, []).extend(nodes)
            self.calls.append((nodes, self._nodes(gradients)))
        if not self.marks or not self.tracer.in_backward:
            return gradients
        return tuple(g if g is None or is_wrapper(g) else self._marked(site, g) for g in gradients)

    def _nodes(self, gradients: Gradients) -> list[Node]:
        plain = [g for g in gradients if g is not None and not is_wrapper(g)]
        return [read(self.tracer, self.tracer.traced(g)) for g in plain]

    def _marked(self, site: _CallSite, gradient: Tensor) -> Tensor:
        """The gradient, with a node that nothing else shares."""
        (value,) = self._nodes((gradient,))
        node = self.tracer.call(aten.alias.default, (value,), value.meta["val"])
        self.nodes[node] = site
        return wrap(node, TracedStorage(node))

    def are_additive(self) -> bool:
        """Whether the users' code gives for a sum of gradients the sum of what it gives for each,
        for all that is known."""
        return all(_is_additive(given, found) for given, found in self.calls)

    @contextmanager
    def _asking(self) -> Iterator[set[_CallSite]]:
        """A block in which nothing is marked, but noted what is called."""
        self._called, self.marks = set(), False
        try:
            yield self._called
        finally:
            self._called, self.marks = None, True

    def settle(
        self,
        roots: Sequence[Tensor],
        tangents: Sequence[Tensor],
        wanted: Sequence[Tensor],
        bits: dict[Node, int],
        lost: Container[int],
    ) -> None:
        """Say of each marked node by which tangents its site is reached. `bits` are those of the
        tangents' nodes; they become those of every node. The backward from the roots `lost` raises
        errors: nothing is asked of them."""
        reaching = _reaching_roots(
            [root.grad_fn for root in roots], {site.node for site in self.given}
        )
        masks: dict[_CallSite, int] = {}
        asked: dict[int, set[_CallSite]] = {}

        def mask_of(site: _CallSite) -> int:
            found = 0
            for node in self.given[site]:
                found |= bits.get(node, 0)
            for number in range(len(roots)):
                if (reaching.get(site.node, found) & ~found) >> number & 1:
                    if number in lost:
                        found |= 1 << number
                        continue
                    if number not in asked:
                        with self._asking() as asked[number]:
                            run_engine([roots[number]], [tangents[number]], wanted)
                    found |= (site in asked[number]) << number
            return found

        for node in list(self.tracer.graph.nodes):
            found = bits.get(node, 0)
            for source in node.all_input_nodes:
                found |= bits.get(source, 0)
            site = self.nodes.get(node)
            if site is not None:
                if site not in masks:
                    masks[site] = mask_of(site)
                found |= masks[site]
                GIVEN_WITH.tell(node, masks[site])
            if found:
                bits[node] = found
        self.marks = False


# Pointwise operators that are additive in one operand, or in all of them together.
_LINEAR = frozenset(
    {
        aten.neg, aten.clone, aten._to_copy, aten.conj_physical, aten._conj_physical, aten.real,
        aten.imag, aten.alias,
    }
)  # fmt: skip
_SUMS = frozenset({aten.add, aten.sub})
# Reductions, and what else is not pointwise, that are not additive.
_BENT = frozenset(
    {
        aten.amax, aten.amin, aten.max, aten.min, aten.prod, aten.linalg_vector_norm, aten.norm,
        aten.var, aten.std, aten.var_mean, aten.argmax, aten.argmin, aten.sort, aten.topk,
        aten._softmax, aten._log_softmax, aten.logsumexp, aten.median, aten.mode, aten.any,
        aten.all, aten.cumprod,
    }
)  # fmt: skip


def _is_additive(given: list[Node], found: list[Node]) -> bool:
    """Whether `found`, gradients that were computed from the `given` ones, are additive in them."""
    order: list[Node] = []
    seen, stack = set(given), list(found)
    while stack:
        node = stack[-1]
        missing = [n for n in node.all_input_nodes if n not in seen]
        if node in seen or not missing:
            stack.pop()
            if node not in seen:
                order.append(node)
                seen.add(node)
        else:
            stack += missing
    follows = set(given)
    for node in order:
        if any(n in follows for n in node.all_input_nodes):
            if not _keeps_sums(node, follows):
                return False
            follows.add(node)
    return all(node in follows or _is_zero(node) for node in found)


def _keeps_sums(node: Node, follows: set[Node]) -> bool:
    packet = getattr(node.target, "overloadpacket", None)
    if packet is None or packet in _LINEAR:
        return True
    reads = [a in follows for a in node.args if isinstance(a, (Node, int, float))]
    if packet in _SUMS:  # (autograd gives zeros where a result has no gradient)
        numbers = [a for a in node.args if isinstance(a, (Node, int, float))]
        return all(read or _is_zero(a) for a, read in zip(numbers, reads, strict=True))
    if packet is aten.mul:
        return sum(reads) == 1
    if packet is aten.div:
        return reads == [True, False]
    if packet is aten.where:
        condition, *values = node.args
        bent = condition in follows or not all(v in follows or _is_zero(v) for v in values)
        return not bent
    return packet not in _BENT and torch.Tag.pointwise not in node.target.tags  # type: ignore[union-attr]


def _is_zero(value: Any) -> bool:
    if isinstance(value, Node):
        packet = getattr(value.target, "overloadpacket", None)
        if packet is aten.full:
            value = value.args[1]
        elif packet is aten.scalar_tensor:
            value = value.args[0]
        elif packet is aten.mul:
            return any(map(_is_zero, value.args))
        elif packet in _LINEAR:
            return _is_zero(value.args[0])
        else:
            return packet in (aten.zeros, aten.zeros_like)
    return type(value) in (int, float) and value == 0


def _reaching_roots(roots: Sequence[Any], wanted: set[Any]) -> dict[Any, int]:
    """For each node among `wanted` the roots that autograd has a path from to it, as bit sets."""
    found: dict[Any, int] = {}
    for number, root in enumerate(roots):
        stack, seen = [root], set()
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if node in wanted:
                found[node] = found.get(node, 0) | 1 << number
            stack += [following for following, _ in node.next_functions]
    return found
