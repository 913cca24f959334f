"""The backward of a joint trace: the engine runs from the roots to the leaves, under the tracer.

Read off are the gradients' nodes, which roots reach which leaf, and what a backward would raise.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from dovetail_prims.fake_tensor import FakeTensor, UnsupportedTensorError, make
from dovetail_prims.wrappers import is_wrapper
from torch import Tensor
from torch.fx import Node

from dovetail_autograd_aot.boundary import LostGradients
from dovetail_autograd_aot.graph.node_facts import UNUSED
from dovetail_autograd_aot.outputs.output_aliasing import Classified, storage_order_strides
from dovetail_autograd_aot.trace.engine import ERRORS_OF_BACKWARDS, run_engine, ways_between
from dovetail_autograd_aot.trace.storage import TracedStorage, TraceError, read, wrap

if TYPE_CHECKING:
    from dovetail_autograd_aot.joint.joint_trace import JointTrace


_SPARSE = (
    "a sparse gradient: of an embedding with sparse=True, or of a gather with sparse_grad=True. "
    "Leave these out, or call it outside of the compiled function"
)


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
    ways = ways_between(result.roots, leaves)
    trace.reached, trace.freed = ways.reached, ways.freed
    trace.paths = tuple(map(bool, trace.reached))
    for root in result.roots:  # (an input that was written to may be nobody's result)
        trace.derivatives.visit(root.grad_fn)
    trace.tracer.in_backward = True
    trace.user_gradients.marks = len(tangents) > 1
    try:
        with trace.tracer, torch._C._DisableAutocast():
            gradients = _run_on_ways(trace, result.roots, tangents, leaves)
    except UnsupportedTensorError as error:
        if "torch.sparse" not in str(error):
            raise
        raise TraceError(_SPARSE) from error
    except RuntimeError as error:
        # Eager tells it in the backward, if there is one.
        if not any(text in str(error) for text in ERRORS_OF_BACKWARDS):
            raise
        _forget_backward(trace)
        if trace.wrapping is None and not trace.lost:
            trace.lost = _lost_gradients(trace, result.roots, leaves)
            lost = {(each.tangent, i) for each in trace.lost for i in _members(each.primals)}
            pairs = {(t, i) for i, mask in enumerate(trace.reached) for t in _members(mask)}
            if trace.lost and pairs != lost:
                return trace_backward(trace, result)
        trace.lost, trace.backward_error = (), str(error)
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


def _run_on_ways(
    trace: JointTrace,
    roots: Sequence[FakeTensor],
    tangents: Sequence[FakeTensor],
    leaves: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The gradients of the leaves that are wanted, each from the roots whose backward to it raises
    no error."""
    groups: dict[int, list[int]] = {}
    for i, leaf in enumerate(leaves):
        if leaf is not None:
            groups.setdefault(_lost_of(trace, i), []).append(i)
    found: dict[int, Tensor | None] = {}
    for lost, group in groups.items():
        kept = [number for number in range(len(roots)) if not lost >> number & 1]
        wanted = [leaf for leaf in (leaves[i] for i in group) if leaf is not None]
        gradients: Sequence[Tensor | None] = [None] * len(group)
        if kept:
            gradients = run_engine([roots[n] for n in kept], [tangents[n] for n in kept], wanted)
        found.update(zip(group, gradients, strict=True))
    return [found[i] for i in sorted(found)]


def _lost_of(trace: JointTrace, leaf: int) -> int:
    """The roots whose backward to leaf number `leaf` raises an error, as a bit set."""
    return sum(1 << each.tangent for each in trace.lost if each.primals >> leaf & 1)


def _lost_gradients(
    trace: JointTrace, roots: Sequence[FakeTensor], leaves: Sequence[Tensor | None]
) -> tuple[LostGradients, ...]:
    """The ways from roots to leaves on which the backward raises an error, by roots and errors."""
    found: dict[tuple[int, str], int] = {}
    for i, leaf in enumerate(leaves):
        for number in _members(trace.reached[i]):
            assert leaf is not None
            try:
                with trace.tracer, torch._C._DisableAutocast():
                    run_engine([roots[number]], [_tangent(trace, number, roots[number])], [leaf])
            except RuntimeError as error:
                key = (number, str(error))
                found[key] = found.get(key, 0) | 1 << i
            _forget_backward(trace)
    return tuple(LostGradients(number, mask, error) for (number, error), mask in found.items())


def _members(mask: int) -> list[int]:
    """The numbers in a bit set."""
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


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
    the engine is asked: zeros may come that way (of what was overwritten), or nothing. (An error
    comes from what is lost.)"""
    lost = [_lost_of(trace, i) for i in range(len(leaves))]
    bits: dict[Node, int] = {read(trace.tracer, t): 1 << i for i, t in enumerate(tangents)}
    last = next(iter(reversed(trace.graph.nodes)))
    with trace.tracer, torch._C._DisableAutocast():
        wanted = [leaf for leaf in leaves if leaf is not None]
        trace.user_gradients.settle(
            roots, tangents, wanted, bits, {each.tangent for each in trace.lost}
        )
    trace.user_gradients.marks = False
    depends = [functools.reduce(int.__or__, [bits.get(g, 0) for g in p], 0) for p in gradients]
    unclear = [
        mask & ~own & ~bad if p else 0
        for p, mask, own, bad in zip(gradients, trace.reached, depends, lost, strict=True)
    ]
    depends = [own | bad for own, bad in zip(depends, lost, strict=True)]
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
        UNUSED.tell(last, True)
