"""Compiled training: a graph's autograd function, and what is done around each call of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail_autograd_aot.boundary import JointGraph, PartitionedGraph
from dovetail_autograd_aot.calls import graph_calls
from dovetail_autograd_aot.calls.autograd_function import TrainingFunction, TrainingGraphs
from dovetail_autograd_aot.calls.double_backward import DoubleBackward
from dovetail_autograd_aot.calls.input_reachability import InputNodes, input_nodes, maybe_apart
from dovetail_autograd_aot.outputs.epilogue import make_epilogue


def compile_training(
    graphs: TrainingGraphs, unresolved: list[int], examples: Sequence[Any]
) -> Callable[..., tuple[Any, ...]]:
    """The compiled forward as an autograd function, and what has to be done after it; `unresolved`
    are the inputs that are lazy conjugates or negatives, `examples` inputs such as it is called
    with."""
    given = (graphs.joint, graphs.parts, examples, graphs.replay.cut)
    maybe = maybe_apart(*given)
    run = _make_run(graphs, unresolved, examples, input_nodes(*given))
    if not maybe:
        return run
    # Which inputs are leaves is not guarded.
    known = {tuple(examples[i].is_leaf for i in maybe): run}

    def by_leaves(*inputs: Any) -> tuple[Any, ...]:
        leaves = tuple([inputs[i].is_leaf for i in maybe])
        chosen = known.get(leaves)
        if chosen is None:
            nodes = input_nodes(graphs.joint, graphs.parts, inputs, graphs.replay.cut)
            chosen = known[leaves] = _make_run(graphs, unresolved, examples, nodes)
        return chosen(*inputs)

    return by_leaves


def _make_run(
    graphs: TrainingGraphs, unresolved: list[int], examples: Sequence[Any], nodes: InputNodes | None
) -> Callable[..., tuple[Any, ...]]:
    """As `compile_training`, with these nodes of inputs."""
    joint, double, unsaved = graphs.joint, graphs.replay, graphs.unsaved
    extend = graph_calls.extension(joint)
    signature = graphs.parts.signature
    epilogue = make_epilogue(signature, joint.points, nodes.nodes if nodes is not None else ())
    function = TrainingFunction(graphs, nodes, _sources(joint, graphs.parts, double, examples))
    watch = function.saved.watch if joint.counters.watched else None
    apply = graph_calls.resolving(
        graph_calls.cutting(graph_calls.apply_of(function.autograd_function()), double.cut),
        unresolved,
    )
    if not torch.is_grad_enabled():
        # Called under no_grad, with a region inside that switches gradients on.
        apply = torch.enable_grad()(apply)

    counted = joint.signature.changes.counted
    if not (extend or nodes or epilogue or unsaved.outputs or counted):
        return apply

    def run(*inputs: Any) -> tuple[Any, ...]:
        if extend is not None:
            inputs = extend(inputs)
        results = apply(*(inputs if nodes is None else nodes.stand_ins(inputs)))
        context = None
        if unsaved.outputs or counted or nodes is not None or watch is not None:
            context = graph_calls.context_of(results)
        if nodes is not None and context is not None:
            context.replay = nodes.with_history(context.replay, double.in_shape(inputs))
            made = nodes.make(inputs, results)
            outputs = results if epilogue is None else epilogue(inputs, results, made)
        else:
            outputs = results if epilogue is None else epilogue(inputs, results)
        if context is not None:
            unsaved.remember_outputs(context, outputs)
            if watch is not None:
                watch(context, outputs)
            if counted:
                context.replay = double.counted_again(context.replay)
        return outputs

    return run


def unreached_inputs(
    joint: JointGraph, parts: PartitionedGraph, examples: Sequence[Any]
) -> list[int]:
    """Of the inputs that require a gradient, those that get none from any output; if others do, so
    that the outputs require gradients all the same. (The user's own backward code may use such an
    input, and so give it a gradient of second order. What comes a second time got its gradient the
    first time.)"""
    masks = parts.gradient_tangents
    if joint.backward.user_code or not any(masks):
        return []
    first: dict[int, int] = {}
    found: list[int] = []
    for i, value in enumerate(examples):
        if getattr(value, "requires_grad", False):
            known = first.setdefault(id(value), i)
            if (known in found) if known != i else not masks[i]:
                found.append(i)
    return found


def _sources(
    joint: JointGraph, parts: PartitionedGraph, double: DoubleBackward, examples: Sequence[Any]
) -> set[int]:
    """For the inputs that autograd comes to from the compiled function, which tangents give one a
    gradient, as bit sets: the different ones."""
    masks = parts.gradient_tangents
    known = (*examples, *joint.added.constants)
    found = {
        masks[i]
        for i, value in enumerate(known)
        if i not in double.cut and isinstance(value, Tensor) and value.requires_grad
    }
    return found | set(masks[len(known) :])
