"""Gradients that the user's own code computes: backwards of `autograd.Function`s, and hooks.

Autograd's own derivatives are linear: of a zero gradient they make zero, so that a gradient which
a call does not have can be taken for zeros. A user's backward may make anything of it, or ask for
none. But autograd calls it only if there is a gradient to give. So what it gives is marked, by a
node of its own, with the tangents that make autograd call it; in a call that has none of these
there is nothing (see `undefined.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_prims.gradient_hooks import GradientHook
from dovetail_prims.wrappers import is_wrapper
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.fx import Node

from dovetail_autograd_aot.engine import run_engine
from dovetail_autograd_aot.graphs import GIVEN_WITH
from dovetail_autograd_aot.outputs import grad_fn_of
from dovetail_autograd_aot.storage import TracedStorage, read, wrap
from dovetail_autograd_aot.tracer import Tracer

aten = torch.ops.aten

Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True, eq=False)
class _Place:
    """Where autograd calls the user's code: a node of its graph."""

    node: Any


class UserGradients:
    """What the users' code gave in the backward of one trace.

    `nodes` are the marked nodes, with the place that each came from.
    """

    def __init__(self, tracer: Tracer, own: Iterable[type]) -> None:
        self.tracer = tracer
        self.own = tuple(own)  # functions of autograd that are not the user's
        self.nodes: dict[Node, _Place] = {}
        self.given: dict[_Place, list[Node]] = {}  # by place: the gradients that went in
        self.marks = False  # is there more than one tangent?
        self._called: set[_Place] | None = None

    def watch(self, node: Any) -> None:
        """Mark what a node of autograd gives, if it is the user's."""
        if not isinstance(node, BackwardCFunction):
            return
        if issubclass(getattr(type(node), "_forward_cls", object), self.own):
            return

        place = _Place(node)

        def hook(gradients: Gradients, given: Gradients) -> Gradients:
            return self._note(place, gradients, given)

        node.register_hook(hook)

    def hooked(self, hook: GradientHook, tensor: Tensor, *taken: Any) -> Any:
        """Register a hook of the graph's."""
        place = _Place(grad_fn_of(tensor))

        def around(found: Tensor, given: Tensor) -> Tensor:
            (marked,) = self._note(place, (found,), (given,))
            assert marked is not None
            return marked

        return hook.register(tensor, taken, around)

    def _note(self, place: _Place, gradients: Gradients, given: Gradients) -> Gradients:
        """The gradients that the user's code gave for `given` ones at this place, marked."""
        if self._called is not None:
            self._called.add(place)
        if not self.marks or not self.tracer.in_backward:
            return gradients
        plain = [g for g in given if g is not None and not is_wrapper(g)]
        nodes = [read(self.tracer, self.tracer.traced(g)) for g in plain]
        self.given.setdefault(place, []).extend(nodes)
        return tuple(
            g if g is None or is_wrapper(g) else self._marked(place, g) for g in gradients
        )

    def _marked(self, place: _Place, gradient: Tensor) -> Tensor:
        """The gradient, with a node that nothing else shares."""
        value = read(self.tracer, self.tracer.traced(gradient))
        node = self.tracer.call(aten.alias.default, (value,), value.meta["val"])
        self.nodes[node] = place
        return wrap(node, TracedStorage(node))

    @contextmanager
    def _asking(self) -> Iterator[set[_Place]]:
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
    ) -> None:
        """Say of each marked node by which tangents its place is reached. `bits` are those of the
        tangents' nodes; they become those of every node."""
        ways = _ways([root.grad_fn for root in roots], {place.node for place in self.given})
        masks: dict[_Place, int] = {}
        asked: dict[int, set[_Place]] = {}

        def mask_of(place: _Place) -> int:
            found = 0
            for node in self.given[place]:
                found |= bits.get(node, 0)
            for number in range(len(roots)):
                if (ways.get(place.node, found) & ~found) >> number & 1:
                    if number not in asked:
                        with self._asking() as asked[number]:
                            run_engine([roots[number]], [tangents[number]], wanted)
                    found |= (place in asked[number]) << number
            return found

        for node in list(self.tracer.graph.nodes):
            found = bits.get(node, 0)
            for source in node.all_input_nodes:
                found |= bits.get(source, 0)
            place = self.nodes.get(node)
            if place is not None:
                if place not in masks:
                    masks[place] = mask_of(place)
                found |= masks[place]
                node.meta[GIVEN_WITH] = masks[place]
            if found:
                bits[node] = found


def _ways(roots: Sequence[Any], places: set[Any]) -> dict[Any, int]:
    """The places that autograd has a way to from each root's node, as bit sets."""
    found: dict[Any, int] = {}
    for number, root in enumerate(roots):
        stack, seen = [root], set()
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if node in places:
                found[node] = found.get(node, 0) | 1 << number
            stack += [following for following, _ in node.next_functions]
    return found


__all__ = ["UserGradients"]
