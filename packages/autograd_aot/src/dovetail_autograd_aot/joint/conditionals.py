"""`torch.cond` in a joint trace: a node of the forward, and one of the backward; and
`torch.while_loop`, of which no gradients are asked for.

Each branch is traced on the operands, and cut in forward and backward, like a graph by itself. The
node's graphs are the branches' forwards, which also give what their backwards want; the node of the
backward chooses by the same predicate between the branches' backwards. So both nodes give the same
tensors whichever branch runs: what only the other branch saves is memory that nobody writes to or
reads, and a gradient that a branch does not have is zeros. (The derivative of a function given in
pieces is that of the piece; https://arxiv.org/abs/1711.01348, section 3.3, does it alike.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from dovetail_prims.conditionals import COND, WHILE
from dovetail_prims.fake_tensor import FakeTensor
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from dovetail_autograd_aot.joint.branches import (
    Branch,
    TraceBranch,
    assembled,
    cut_branch,
    note_checks,
    result_values,
    sizes_not_told,
    unread_memory,
    used_operands,
    without_unused,
    zeros_as,
)
from dovetail_autograd_aot.trace.input_storages import snapshot
from dovetail_autograd_aot.trace.node_values import same_metadata
from dovetail_autograd_aot.trace.storage import TraceError, fresh, read
from dovetail_autograd_aot.trace.storage_writes import shaped_like
from dovetail_autograd_aot.trace.tracer import Tracer

aten = torch.ops.aten


# --- what both branches save ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Slots:
    """What the forward gives after the results, for the backward: for each slot a fake. Saved
    tensor `i` of branch `b` is at `slots_of[b][i]`. Branches share slots of one kind."""

    values: tuple[FakeTensor, ...]
    slots_of: tuple[tuple[int, ...], ...]


def _slots(branches: Sequence[Branch]) -> _Slots:
    values: list[FakeTensor] = []
    slots_of: list[tuple[int, ...]] = []
    for branch in branches:
        free = set(range(len(values)))
        own: list[int] = []
        for value in branch.tensors:
            slot = next((p for p in sorted(free) if same_metadata(values[p], value)), None)
            if slot is None:
                values.append(value)
                slot = len(values) - 1
            free.discard(slot)
            own.append(slot)
        slots_of.append(tuple(own))
    return _Slots(tuple(values), tuple(slots_of))


class Conditional:
    """The nodes of one `torch.cond` of a captured graph."""

    def __init__(
        self, tracer: Tracer, predicate: Node, branches: Sequence[Branch], operands: Sequence[Any]
    ) -> None:
        self.tracer = tracer
        self.predicate = predicate
        self.branches = branches
        self.operands = list(operands)
        self.nodes = [tracer.nodes(operand) for operand in operands]
        self.slots = _slots(branches)
        self.graded = tuple(sorted({i for branch in branches for i in branch.graded}))
        self.saved: list[Any] = []

    def forward(self) -> list[FakeTensor]:
        """Record the node of the forward; gives the results."""
        count = len(self.branches[0].results)
        graphs = [self._forward_graph(i) for i in range(len(self.branches))]
        parts = self._emit(graphs, self.nodes)
        self.saved = list(parts[count:])
        return [fresh(part) for part in parts[:count]]

    def _forward_graph(self, number: int) -> GraphModule:
        branch, slots_of = self.branches[number], self.slots.slots_of[number]
        like = self.branches[0].results
        count = len(like)

        def outputs(tracer: Tracer, results: list[Any]) -> list[Node]:
            saved = [node for node in results[count:] if isinstance(node.meta["val"], FakeTensor)]
            of_slot = dict(zip(slots_of, saved, strict=True))
            pairs = zip(results[:count], like, strict=True)
            slots = enumerate(self.slots.values)
            return [
                *(shaped_like(tracer, r, one) for r, one in pairs),
                *(of_slot.get(i) or unread_memory(tracer, v) for i, v in slots),
            ]

        given = range(len(self.operands))
        body = branch.parts.forward
        return assembled(self.operands, body, given, outputs, self.tracer.decompositions)

    def backward(self, tangents: Sequence[Tensor]) -> list[Tensor | None]:
        """Record the node of the backward, given the gradients of the results number `graded`;
        gives those of the operands."""
        numbers = [v for b in self.branches for v in b.saved if not isinstance(v, FakeTensor)]
        patterns = [self.branches[0].results[i] for i in self.graded]
        tracer = self.tracer
        given = [read(tracer, tracer.traced(tangent)) for tangent in tangents]
        nodes = [*self.nodes, *self.saved, *map(tracer.nodes, numbers)]
        nodes += [shaped_like(tracer, n, p) for n, p in zip(given, patterns, strict=True)]
        values = [*self.operands, *self.slots.values, *numbers, *patterns]
        like = [
            next((g for g in found if g is not None), None)
            for found in zip(*(b.gradients for b in self._with_backward()), strict=True)
        ]
        graphs = [self._backward_graph(i, values, numbers, like) for i in range(2)]
        parts = iter(self._emit(graphs, nodes))
        return [None if pattern is None else fresh(next(parts)) for pattern in like]

    def _with_backward(self) -> list[Branch]:
        return [branch for branch in self.branches if branch.parts.backward is not None]

    def _backward_graph(
        self, number: int, inputs: Sequence[Any], numbers: Sequence[Any], like: Sequence[Any]
    ) -> GraphModule:
        branch = self.branches[number]
        body = branch.parts.backward

        def outputs(tracer: Tracer, results: list[Any]) -> list[Node]:
            if body is None:
                results = [None] * len(like)
            return [
                zeros_as(tracer, pattern)
                if result is None
                else shaped_like(tracer, result, pattern)
                for result, pattern in zip(results, like, strict=True)
                if pattern is not None
            ]

        if body is None:
            empty = GraphModule(torch.nn.Module(), Graph())
            return assembled(inputs, empty, (), outputs, self.tracer.decompositions)
        first = len(self.operands)
        slots_of = iter(self.slots.slots_of[number])
        where = {id(value): first + len(self.slots.values) + i for i, value in enumerate(numbers)}
        given = list(branch.parts.saved_primals)
        for value in branch.saved:
            tensor = isinstance(value, FakeTensor)
            given.append(first + next(slots_of) if tensor else where[id(value)])
        first += len(self.slots.values) + len(numbers)
        given += [first + self.graded.index(i) for i in branch.graded]
        return assembled(inputs, body, given, outputs, self.tracer.decompositions)

    def _emit(self, graphs: Sequence[GraphModule], nodes: Sequence[Any]) -> tuple[Node, ...]:
        used = used_operands(graphs)
        names = [self.tracer.subgraph(without_unused(graph, used)) for graph in graphs]
        operands = tuple(node for i, node in enumerate(nodes) if i in used)
        node = self.tracer.call(COND, (self.predicate, *names, operands), result_values(graphs[0]))
        note_checks(node, graphs)
        return self.tracer.parts(node)


class _Differentiated(torch.autograd.Function):
    """A conditional as autograd sees it."""

    @staticmethod
    def forward(ctx: Any, call: Conditional, *operands: Any) -> Any:
        results = call.forward()
        plain = [r for i, r in enumerate(results) if i not in call.graded]
        ctx.mark_non_differentiable(*plain)
        ctx.call = call
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            # It would not be told what the saved values depend on.
            raise TraceError("a second derivative through torch.cond")
        call: Conditional = ctx.call
        return (None, *call.backward([gradients[i] for i in call.graded]))


def trace_conditional(
    tracer: Tracer,
    predicate: Tensor,
    branches: Sequence[GraphModule],
    operands: Sequence[Any],
    trace: TraceBranch,
) -> tuple[Tensor, ...]:
    """The results of `torch.cond`, recorded in a joint graph. `trace` traces a branch.

    Raises `TraceError` if a branch writes to an operand, or gives what is no tensor of its own.
    """
    operands = [*operands, *sizes_not_told(operands)]
    cut = [cut_branch(branch, operands, trace) for branch in branches]
    call = Conditional(tracer, read(tracer, tracer.traced(predicate)), cut, operands)
    if not any(branch.parts.backward is not None for branch in cut):
        return tuple(call.forward())
    found: tuple[Tensor, ...] = _Differentiated.apply(call, *operands)
    return found


def trace_loop(
    tracer: Tracer,
    given: Sequence[GraphModule],
    carried: Sequence[Tensor],
    additional: Sequence[Any],
    trace: TraceBranch,
) -> tuple[Tensor, ...]:
    """The results of `torch.while_loop`, recorded in a joint graph. `given` are the graphs of the
    condition and of the body; `trace` traces a graph.

    Raises `TraceError` as `trace_conditional` does, and if a gradient would go through the loop.
    """
    operands = [*carried, *additional]
    operands += sizes_not_told(operands)
    like, count = [snapshot(value) for value in carried], len(carried)
    graphs: list[GraphModule] = []
    for gm, patterns in zip(given, (None, like), strict=True):
        cut = cut_branch(gm, operands, trace)
        if cut.parts.backward is not None:
            raise TraceError("a gradient through torch.while_loop")

        def outputs(tracer: Tracer, results: list[Any], patterns: Any = patterns) -> list[Node]:
            if patterns is None:
                return results[:1]
            return [
                shaped_like(tracer, r, one)
                for r, one in zip(results[:count], patterns, strict=True)
            ]

        forward, slots_of = cut.parts.forward, range(len(operands))
        graphs.append(assembled(operands, forward, slots_of, outputs, tracer.decompositions))
    told = graphs[0].graph.output_node()  # a condition gives its tensor alone
    told.args, told.meta["val"] = cast(Any, told.args[0]), told.meta["val"][0]
    used = used_operands(graphs) | set(range(count))
    names = [tracer.subgraph(without_unused(graph, used)) for graph in graphs]
    nodes = [tracer.nodes(operand) for operand in operands]
    rest = tuple(node for i, node in enumerate(nodes) if i in used and i >= count)
    node = tracer.call(WHILE, (*names, tuple(nodes[:count]), rest), result_values(graphs[1]))
    note_checks(node, graphs)
    return tuple(fresh(part) for part in tracer.parts(node))
