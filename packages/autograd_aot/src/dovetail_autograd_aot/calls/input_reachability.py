"""Inputs that only some of a compiled graph's outputs lead to, and hooks that a backward from the
others does not reach.

A compiled graph is one node of autograd's graph: from any output the engine comes to all that its
inputs were computed from, also where it has no gradient to bring. There it would run, and free,
what eager does not come to. Which nodes the engine comes to is settled before any backward runs, so
that no other way to compute the gradients would help: inputs that have a history, and get a
gradient from some outputs only, are reached through nodes of their own, to which those outputs
lead. The compiled backward leaves these their gradients; one that comes without it (no other input
is asked for) runs one.

Inputs without a history have no such nodes, which cost each call something. To them the engine
comes with None, and would call the user's hooks, which expect a tensor. So in such a pass hooks
below the compiled graph are called only if a gradient comes (from elsewhere).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from dovetail_autograd_aot.boundary import JointGraph, PartitionedGraph
from dovetail_autograd_aot.calls.cross_output_gradients import OfPass
from dovetail_autograd_aot.calls.double_backward import Gradients, Replay
from dovetail_autograd_aot.native import nodes_module

Hook = Callable[..., Any]


@dataclass(eq=False)
class _Left:
    """The gradients that the compiled backward of a pass left to the nodes of inputs, by input."""

    gradients: dict[int, Tensor | None]


@dataclass(frozen=True)
class InputNodes:
    """The nodes that lead to inputs of a compiled graph: (inputs, forward outputs that lead there)
    of each. `same` are other inputs that are the very tensors, with the numbers of those. No output
    leads to those `apart`; derivatives of second order may. The history of those `overtaken` is
    about to go through this graph."""

    nodes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    same: dict[int, int]
    apart: tuple[int, ...] = ()
    overtaken: frozenset[int] = frozenset()
    left: OfPass[_Left] = field(default_factory=OfPass)

    def stand_ins(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The inputs for the compiled function: leaves in place of some."""
        given = list(inputs)
        for i in self.replaced():
            given[i] = inputs[i].detach().requires_grad_()
        for i, other in self.same.items():
            given[i] = given[other]
        return tuple(given)

    def with_history(self, replay: Replay, inputs: tuple[Any, ...]) -> Replay:
        """What a forward leaves for a differentiable backward, with the inputs as they were given
        and not what stood for them."""
        kept = list(replay.inputs)
        for i in (*self.replaced(), *self.same):
            if i not in self.overtaken:
                kept[i] = inputs[i]
        return replay._replace(inputs=tuple(kept))

    def replaced(self) -> list[int]:
        """The inputs for which others stand in the compiled function."""
        return [*(i for own, _ in self.nodes for i in own), *self.apart]

    def make(self, inputs: tuple[Any, ...], results: tuple[Any, ...]) -> tuple[Any, ...]:
        """The nodes of one call."""
        made: tuple[Any, ...] = nodes_module().make_input_nodes(self.nodes, inputs, results)
        return made

    def leave(self, ctx: Any, found: Gradients) -> Gradients:
        """Of the gradients of a pass, leave the nodes theirs; gives the others."""
        if not self.nodes:
            return found
        own = {i: found[i] for inputs, _ in self.nodes for i in inputs}
        self.left.keep(ctx, _Left(own))
        return tuple(None if i in own else gradient for i, gradient in enumerate(found))

    def taken(self, ctx: Any, number: int) -> list[Tensor | None] | None:
        """What was left for a node; None if no compiled backward ran."""
        left = self.left.get(ctx)
        return None if left is None else [left.gradients[i] for i in self.nodes[number][0]]


def _may_be_apart(
    joint: JointGraph, parts: PartitionedGraph, index: int, cut: Sequence[int]
) -> bool:
    """Whether only some outputs lead to an input, or none, and it is not `cut` off."""
    everything = (1 << len(parts.signature.differentiable)) - 1
    mask = parts.gradient_tangents[index]
    if 0 < mask < everything:
        return bool(joint.points)
    return not mask and not joint.backward.paths[index] and index not in cut


def maybe_apart(
    joint: JointGraph, parts: PartitionedGraph, examples: Sequence[Any], cut: Sequence[int]
) -> tuple[int, ...]:
    """The inputs that have nodes of their own if they have a history, and not if they are leaves.
    (Parameters are leaves.)"""
    return tuple(
        i
        for i, value in enumerate(examples)
        if isinstance(value, Tensor)
        and value.requires_grad
        and not isinstance(value, Parameter)
        and _may_be_apart(joint, parts, i, cut)
    )


def input_nodes(
    joint: JointGraph, parts: PartitionedGraph, examples: Sequence[Any], cut: Sequence[int]
) -> InputNodes | None:
    """The nodes of a graph with these inputs, of which some are `cut` off, if it has any."""
    signature = parts.signature
    overtaken = {m.index for m in signature.changes.mutated if not m.data_only}
    first: dict[int, int] = {}
    same: dict[int, int] = {}
    by_outputs: dict[int, list[int]] = {}
    apart: list[int] = []
    for i, value in enumerate(examples):
        if not isinstance(value, Tensor) or not value.requires_grad or value.is_leaf:
            continue
        if first.setdefault(id(value), i) != i:
            same[i] = first[id(value)]
            continue
        if _may_be_apart(joint, parts, i, cut):
            mask = parts.gradient_tangents[i]
            (by_outputs.setdefault(mask, []) if mask else apart).append(i)
    reached = {*(i for own in by_outputs.values() for i in own), *apart}
    same = {i: other for i, other in same.items() if other in reached}
    if not reached:
        return None
    nodes = []
    for mask, own in by_outputs.items():
        outputs = [o for t, o in enumerate(signature.differentiable) if mask >> t & 1]
        nodes.append((tuple(own), tuple(outputs)))
    return InputNodes(tuple(nodes), same, tuple(apart), frozenset(overtaken))


@dataclass
class _Waiting:
    """Hooks that were replaced; called by the engine at the end of the pass."""

    replaced: list[tuple[dict[Any, Hook], Any, Hook, Hook]] = field(default_factory=list)

    def replace(self, hooks: dict[Any, Hook], guarded: Callable[[Hook], Hook]) -> None:
        """Put guarded hooks in the places of those of a dictionary."""
        for key, hook in list(hooks.items()):
            made = guarded(hook)
            hooks[key] = made
            self.replaced.append((hooks, key, made, hook))

    def __call__(self) -> None:
        """Everything as it was, but what was removed since."""
        for hooks, key, made, hook in reversed(self.replaced):
            if hooks.get(key) is made:
                hooks[key] = hook


def call_only_with_gradients(nodes: Sequence[Any]) -> None:
    """In the pass of the engine that runs, call the hooks on these nodes, which get None, and on
    those below them only if there is a gradient."""
    waiting = _Waiting()
    native = nodes_module()
    for node in native.hooked_below(list(nodes)):
        for kind, _, hooks in native.hooks(node):
            if hooks is None:
                continue  # (a hook of C++, which knows of gradients that are not there)
            if kind == "accumulated":
                waiting.replace(hooks, _if_accumulated(node.variable))
            else:
                waiting.replace(hooks, _if_given)
    if waiting.replaced:
        torch.autograd.Variable._execution_engine.queue_callback(waiting)


def _if_given(hook: Hook) -> Hook:
    """Of a tensor's hook, or one of a node, which take a gradient or tuples of them."""

    def guarded(*given: Any) -> Any:
        incoming = given[-1]
        some = incoming if isinstance(incoming, tuple) else (incoming,)
        return None if all(gradient is None for gradient in some) else hook(*given)

    return guarded


def _if_accumulated(variable: Tensor) -> Callable[[Hook], Hook]:
    before = variable.grad
    version = None if before is None else before._version

    def guard(hook: Hook) -> Hook:
        def guarded(tensor: Tensor) -> Any:
            now = tensor.grad
            if now is before and (now is None or now._version == version):
                return None
            return hook(tensor)

        return guarded

    return guard
