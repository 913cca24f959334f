"""The backward of a joint trace: the engine runs from the roots to the leaves, under the tracer.

Read off are the gradients' nodes, which roots reach which leaf, and what a backward would raise.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from dovetail_prims.fake_tensor import FakeTensor, make
from dovetail_prims.wrappers import is_wrapper
from torch import Tensor
from torch.fx import Node

from dovetail_autograd_aot.engine import ERRORS_OF_BACKWARDS, run_engine, ways_between
from dovetail_autograd_aot.outputs import Classified, storage_order_strides
from dovetail_autograd_aot.storage import TracedStorage, TraceError, read, wrap

if TYPE_CHECKING:
    from dovetail_autograd_aot.joint import JointTrace


def trace_backward(trace: JointTrace, result: Classified) -> list[Node | None]:
    """The nodes of the gradients of the primals; what else was learnt is written to `trace`."""
    # (One that came to require grad by a write gets no gradient.)
    leaves = [
        leaf if leaf is not None and example.requires_grad else None
        for leaf, example in zip(trace.leaves, trace.examples, strict=True)
    ]
    if trace.wrapping is not None:
        leaves += [leaf for _, leaf in trace.wrapping.wanted()]
    none: list[Node | None] = [None] * len(trace.primals)
    if not result.roots or not any(leaf is not None for leaf in leaves):
        return none
    tangents = [_tangent(trace, number, root) for number, root in enumerate(result.roots)]
    wanted = [leaf for leaf in leaves if leaf is not None]
    ways = ways_between(result.roots, leaves)
    trace.reached, trace.freed = ways.reached, ways.freed
    trace.paths = tuple(map(bool, trace.reached))
    for root in result.roots:  # (an input that was written to may be nobody's result)
        trace.derivatives.visit(root.grad_fn)
    trace.tracer.in_backward = True
    trace.user_gradients.marks = len(tangents) > 1
    try:
        with trace.tracer, torch._C._DisableAutocast():
            gradients = run_engine(result.roots, tangents, wanted)
    except RuntimeError as error:
        # Eager tells it in the backward, if there is one.
        if not any(text in str(error) for text in ERRORS_OF_BACKWARDS):
            raise
        _forget_backward(trace)
        if _without_lost_roots(trace, result, wanted):
            return trace_backward(trace, result)
        trace.backward_error = str(error)
        return none
    trace.additive = trace.user_gradients.are_additive()
    found = iter(gradients)
    with trace.tracer, torch.no_grad():
        pieces = [
            [] if leaf is None else _pieces(trace, position, next(found))
            for position, leaf in enumerate(leaves)
        ]
    if len(tangents) > 1:
        _ask_which_reach(trace, leaves, pieces, result.roots, tangents)
    return _gradient_nodes(trace, pieces)


def _tangent(trace: JointTrace, number: int, root: FakeTensor) -> FakeTensor:
    """What stands for the gradient of root number `number`."""
    node = trace.graph.placeholder(f"tangent_{number}")
    strides = storage_order_strides(root._sizes, root._strides)
    node.meta["val"] = make(root._sizes, strides, root._dtype, root._device)
    return wrap(node, TracedStorage(node))


def _forget_backward(trace: JointTrace) -> None:
    """Take out of the graph what was made of tangents."""
    for node in reversed(trace.graph.nodes):
        if node.op == "placeholder" and node not in trace.placeholders:
            trace.tracer.forget(node)
    trace.tracer.forget_known()
    trace.user_gradients.forget()


def _without_lost_roots(trace: JointTrace, result: Classified, wanted: Sequence[Tensor]) -> bool:
    """Take the outputs whose gradient cannot be computed from those that have one, if there are
    others."""
    errors: dict[int, str] = {}
    for number, root in enumerate(result.roots):
        try:
            with trace.tracer, torch._C._DisableAutocast():
                run_engine([root], [_tangent(trace, number, root)], wanted)
        except RuntimeError as error:
            errors[number] = str(error)
        _forget_backward(trace)
    if not 0 < len(errors) < len(result.roots):
        return False
    result.lose(errors)
    return True


def _pieces(trace: JointTrace, position: int, gradient: Tensor | None) -> list[Node]:
    """The nodes of the gradient of leaf number `position`; several for a tensor subclass."""
    if gradient is None:
        return []
    plain: list[Tensor] = [gradient]
    if position >= len(trace.primals) or is_wrapper(gradient):
        if trace.wrapping is None:
            raise TraceError(f"a gradient that is a {type(gradient).__name__}")
        plain = trace.wrapping.carry(position, gradient, len(trace.primals))
    return [read(trace.tracer, trace.tracer.traced(t)) for t in plain]


def _gradient_nodes(trace: JointTrace, pieces: Sequence[Sequence[Node]]) -> list[Node | None]:
    """A gradient for each primal. Those of tensor subclasses are gradients of carriers, which
    become the last primals."""
    carried = {} if trace.wrapping is None else trace.wrapping.carried
    count = len(trace.primals)
    nodes: list[Node | None] = [
        p[0] if p and i not in carried else None for i, p in enumerate(pieces[:count])
    ]
    reached = list(trace.reached[:count])
    for position, each in carried.items():
        for value, piece in zip(each.values, pieces[position], strict=True):
            node = trace.graph.placeholder(f"carrier_{trace.carriers}")
            node.meta["val"] = value
            trace.carriers += 1
            trace.placeholders.append(node)
            trace.primals.append(None)
            trace.leaves.append(None)
            nodes.append(piece)
            reached.append(trace.reached[position])
            own = 1 << len(nodes) - 1
            trace.freed = tuple(
                (above, below | own if below >> position & 1 else below)
                for above, below in trace.freed
            )
    trace.reached = tuple(reached)
    return nodes


def _ask_which_reach(
    trace: JointTrace,
    leaves: Sequence[Tensor | None],
    gradients: Sequence[Sequence[Node]],
    roots: Sequence[Tensor],
    tangents: Sequence[FakeTensor],
) -> None:
    """Where autograd has a way from a root, but the gradient does not depend on its tangent,
    the engine is asked: zeros may come that way (of what was overwritten), or nothing."""
    bits: dict[Node, int] = {read(trace.tracer, t): 1 << i for i, t in enumerate(tangents)}
    last = next(iter(reversed(trace.graph.nodes)))
    with trace.tracer, torch._C._DisableAutocast():
        wanted = [leaf for leaf in leaves if leaf is not None]
        trace.user_gradients.settle(roots, tangents, wanted, bits)
    trace.user_gradients.marks = False
    depends = [functools.reduce(int.__or__, [bits.get(g, 0) for g in p], 0) for p in gradients]
    unclear = [
        mask & ~own if p else 0
        for p, mask, own in zip(gradients, trace.reached, depends, strict=True)
    ]
    for number, (root, tangent) in enumerate(zip(roots, tangents, strict=True)):
        asked = [i for i, mask in enumerate(unclear) if mask >> number & 1]
        if asked:
            with trace.tracer, torch._C._DisableAutocast():
                wanted = [leaf for leaf in (leaves[i] for i in asked) if leaf is not None]
                given = run_engine([root], [tangent], wanted)
            for i, gradient in zip(asked, given, strict=True):
                depends[i] |= (gradient is not None) << number
    trace.reached = tuple(depends)
    while last.next.op != "root":  # what was recorded meanwhile is of no use
        last = last.next
        last.meta["unused"] = True
