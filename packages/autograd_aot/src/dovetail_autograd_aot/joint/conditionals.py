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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from dovetail_guards.expr import symbol
from dovetail_guards.sym_node import expr_of, to_symint
from dovetail_prims.conditionals import COND, WHILE
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.node_facts import CHECKED
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from dovetail_autograd_aot.boundary import AddedInputs, JointGraph, OutputKind, PartitionedGraph
from dovetail_autograd_aot.graph.fast_graph import FastGraph, copy_node, hold
from dovetail_autograd_aot.partition.min_cut import min_cut_partition
from dovetail_autograd_aot.trace.input_storages import snapshot
from dovetail_autograd_aot.trace.node_values import attribute_of, same_metadata
from dovetail_autograd_aot.trace.storage import TraceError, fresh, read
from dovetail_autograd_aot.trace.tracer import Tracer

aten = torch.ops.aten

TraceBranch = Callable[[GraphModule, Sequence[Any]], JointGraph]
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class _Branch:
    """A branch on the operands, cut in two. Its backward takes the operands number
    `parts.saved_primals`, then saved values: tensors that the forward gives after its `results`,
    and numbers; then the gradients of the results number `graded`."""

    parts: PartitionedGraph
    results: tuple[Any, ...]
    saved: tuple[Any, ...]
    graded: tuple[int, ...]

    @property
    def tensors(self) -> list[FakeTensor]:
        """The tensors among the saved values."""
        return [value for value in self.saved if isinstance(value, FakeTensor)]

    @property
    def gradients(self) -> tuple[Any, ...]:
        """What the backward gives for each operand: a fake, or None."""
        return () if self.parts.backward is None else _values(self.parts.backward)


def _output(gm: GraphModule) -> Node:
    found: Node = next(node for node in reversed(gm.graph.nodes) if node.op == "output")
    return found


def _values(gm: GraphModule) -> tuple[Any, ...]:
    return tuple(_output(gm).meta["val"])


# --- a branch -------------------------------------------------------------------------------------


def _on(branch: GraphModule, operands: Sequence[Any]) -> tuple[GraphModule, list[Any]]:
    """The branch for these operands (its own, and then sizes), and examples of them."""
    graph = Graph()
    result = graph.graph_copy(branch.graph, {})
    graph.output(result if isinstance(result, (tuple, list)) else (result,))  # (a condition's)
    given = [node for node in graph.nodes if node.op == "placeholder"]
    body = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(body):
        given += [graph.placeholder(f"size{i}") for i in range(len(operands) - len(given))]
    examples: list[Any] = []
    for node, operand in zip(given, operands, strict=True):
        example: Any = operand
        if isinstance(operand, FakeTensor):
            example = snapshot(operand)
            if operand.requires_grad and torch.is_grad_enabled():
                example.requires_grad_()
        node.meta["val"] = example
        examples.append(example)
    return GraphModule(branch, graph), examples


def _cut(branch: GraphModule, operands: Sequence[Any], trace: TraceBranch) -> _Branch:
    gm, examples = _on(branch, operands)
    joint = trace(gm, examples)
    signature = joint.signature
    kinds = {info.kind for info in signature.outputs}
    if signature.changes.indices():
        raise TraceError("a graph of torch.cond or torch.while_loop that writes to its operands")
    if kinds - {OutputKind.FRESH} or joint.added != AddedInputs():
        raise TraceError(
            "a graph of torch.cond or torch.while_loop whose results are not all tensors of its own"
        )
    if signature.backward_error is not None:
        raise TraceError(signature.backward_error)
    if signature.lost:
        raise TraceError(signature.lost[0].error)
    parts = min_cut_partition(joint)
    count = signature.num_forward_outputs
    values = _values(parts.forward)
    saved = () if parts.backward is None else tuple(values[count:])
    return _Branch(parts, tuple(values[:count]), saved, signature.differentiable)


# --- graphs of one signature ----------------------------------------------------------------------


def _assembled(
    inputs: Sequence[Any],
    body: GraphModule,
    given: Sequence[int],
    outputs: Callable[[Tracer, list[Any]], list[Node]],
    decompositions: Any,
) -> GraphModule:
    """A graph of `inputs` that runs `body` on those at the places `given`, and gives `outputs` of
    what that gives."""
    graph = FastGraph()
    tracer = Tracer(graph, decompositions)
    nodes: list[Node] = []
    for place, value in enumerate(inputs):
        node = graph.placeholder(f"operand{place}")
        node.meta["val"] = snapshot(value) if isinstance(value, Tensor) else value
        nodes.append(node)
    for node in nodes:
        value = node.meta["val"]
        if isinstance(value, FakeTensor):
            tracer.sizes.bind_sizes(node, value)
        elif isinstance(value, _NUMBERS):
            tracer.sizes.bind(value, node)
    env: dict[Node, Node] = {}
    places = iter(given)
    results: list[Any] = []
    for node in body.graph.nodes:
        if node.op == "placeholder":
            env[node] = nodes[next(places)]
            pattern = node.meta["val"]
            if isinstance(pattern, FakeTensor):
                env[node] = tracer.like(env[node], pattern)
        elif node.op == "output":
            results = [env[r] if isinstance(r, Node) else r for r in node.args[0]]
        else:
            env[node] = copy_node(graph, node, env)
    found = tuple(outputs(tracer, results))
    graph.output(found).meta["val"] = tuple(node.meta["val"] for node in found)
    root = torch.nn.Module()
    for node in graph.nodes:
        if node.op == "get_attr":
            hold(root, node.target, attribute_of(body, node.target))
    return GraphModule(root, graph)


def _memory(tracer: Tracer, like: FakeTensor) -> Node:
    """Memory that nobody looks at."""
    sizes, strides = tracer.nodes(tuple(like._sizes)), tracer.nodes(tuple(like._strides))
    options = {"dtype": like._dtype, "device": like._device}
    found = tracer.emit(aten.empty_strided.default, (list(sizes), list(strides)), options)
    assert isinstance(found, Node)
    return found


def _zeros(tracer: Tracer, like: FakeTensor) -> Node:
    sizes = list(tracer.nodes(tuple(like._sizes)))
    options = {"dtype": like._dtype, "device": like._device}
    return tracer.like(tracer.node_op(aten.full.default, (sizes, 0), options), like)


# --- what both branches save ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Slots:
    """What the forward gives after the results, for the backward: for each place a fake. Saved
    tensor `i` of branch `b` is at `places[b][i]`. Branches share places of one kind."""

    values: tuple[FakeTensor, ...]
    places: tuple[tuple[int, ...], ...]


def _slots(branches: Sequence[_Branch]) -> _Slots:
    values: list[FakeTensor] = []
    places: list[tuple[int, ...]] = []
    for branch in branches:
        free = set(range(len(values)))
        own: list[int] = []
        for value in branch.tensors:
            place = next((p for p in sorted(free) if same_metadata(values[p], value)), None)
            if place is None:
                values.append(value)
                place = len(values) - 1
            free.discard(place)
            own.append(place)
        places.append(tuple(own))
    return _Slots(tuple(values), tuple(places))


class Conditional:
    """The nodes of one `torch.cond` of a captured graph."""

    def __init__(
        self, tracer: Tracer, predicate: Node, branches: Sequence[_Branch], operands: Sequence[Any]
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
        branch, places = self.branches[number], self.slots.places[number]
        like = self.branches[0].results
        count = len(like)

        def outputs(tracer: Tracer, results: list[Any]) -> list[Node]:
            saved = [node for node in results[count:] if isinstance(node.meta["val"], FakeTensor)]
            of_place = dict(zip(places, saved, strict=True))
            return [
                *(tracer.like(r, one) for r, one in zip(results[:count], like, strict=True)),
                *(of_place.get(i) or _memory(tracer, v) for i, v in enumerate(self.slots.values)),
            ]

        given = range(len(self.operands))
        body = branch.parts.forward
        return _assembled(self.operands, body, given, outputs, self.tracer.decompositions)

    def backward(self, tangents: Sequence[Tensor]) -> list[Tensor | None]:
        """Record the node of the backward, given the gradients of the results number `graded`;
        gives those of the operands."""
        numbers = [v for b in self.branches for v in b.saved if not isinstance(v, FakeTensor)]
        patterns = [self.branches[0].results[i] for i in self.graded]
        tracer = self.tracer
        given = [read(tracer, tracer.traced(tangent)) for tangent in tangents]
        nodes = [*self.nodes, *self.saved, *map(tracer.nodes, numbers)]
        nodes += [tracer.like(n, p) for n, p in zip(given, patterns, strict=True)]
        values = [*self.operands, *self.slots.values, *numbers, *patterns]
        like = [
            next((g for g in found if g is not None), None)
            for found in zip(*(b.gradients for b in self._with_backward()), strict=True)
        ]
        graphs = [self._backward_graph(i, values, numbers, like) for i in range(2)]
        parts = iter(self._emit(graphs, nodes))
        return [None if pattern is None else fresh(next(parts)) for pattern in like]

    def _with_backward(self) -> list[_Branch]:
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
                _zeros(tracer, pattern) if result is None else tracer.like(result, pattern)
                for result, pattern in zip(results, like, strict=True)
                if pattern is not None
            ]

        if body is None:
            empty = GraphModule(torch.nn.Module(), Graph())
            return _assembled(inputs, empty, (), outputs, self.tracer.decompositions)
        first = len(self.operands)
        places = iter(self.slots.places[number])
        where = {id(value): first + len(self.slots.values) + i for i, value in enumerate(numbers)}
        given = list(branch.parts.saved_primals)
        for value in branch.saved:
            tensor = isinstance(value, FakeTensor)
            given.append(first + next(places) if tensor else where[id(value)])
        first += len(self.slots.values) + len(numbers)
        given += [first + self.graded.index(i) for i in branch.graded]
        return _assembled(inputs, body, given, outputs, self.tracer.decompositions)

    def _emit(self, graphs: Sequence[GraphModule], nodes: Sequence[Any]) -> tuple[Node, ...]:
        used = _used(graphs)
        names = [self.tracer.subgraph(_without(graph, used)) for graph in graphs]
        operands = tuple(node for i, node in enumerate(nodes) if i in used)
        node = self.tracer.call(COND, (self.predicate, *names, operands), _values(graphs[0]))
        _note_checks(node, graphs)
        return self.tracer.parts(node)


def _note_checks(node: Node, graphs: Sequence[GraphModule]) -> None:
    """A node whose graphs check something stays."""
    if any(CHECKED.holds(inner) for graph in graphs for inner in graph.graph.nodes):
        CHECKED.tell(node, True)


def _used(graphs: Sequence[GraphModule]) -> set[int]:
    """The places of the operands that one of the graphs reads; numbers tell sizes of others."""
    found: set[int] = set()
    for graph in graphs:
        given = [node for node in graph.graph.nodes if node.op == "placeholder"]
        found |= {
            place
            for place, node in enumerate(given)
            if node.users or not isinstance(node.meta["val"], Tensor)
        }
    return found


def _without(graph: GraphModule, used: set[int]) -> GraphModule:
    given = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for place, node in enumerate(given):
        if place not in used:
            graph.graph.erase_node(node)
    graph.recompile()
    return graph


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


def _sizes_not_told(operands: Sequence[Any]) -> list[torch.SymInt]:
    """The symbols in the operands' sizes that no size by itself, or number, tells."""
    parts = [
        part
        for value in operands
        for part in ((*value._sizes, *value._strides) if type(value) is FakeTensor else (value,))
        if isinstance(part, torch.SymInt)
    ]
    told = {expr_of(part).symbol_name for part in parts}
    found: dict[str, torch.SymInt] = {}
    for part in parts:
        node: Any = part.node
        for name in sorted(expr_of(part).free_symbols() - told):
            found.setdefault(name, to_symint(node.env, symbol(name)))
    return list(found.values())


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
    operands = [*operands, *_sizes_not_told(operands)]
    cut = [_cut(branch, operands, trace) for branch in branches]
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
    operands += _sizes_not_told(operands)
    like, count = [snapshot(value) for value in carried], len(carried)
    graphs: list[GraphModule] = []
    for gm, patterns in zip(given, (None, like), strict=True):
        cut = _cut(gm, operands, trace)
        if cut.parts.backward is not None:
            raise TraceError("a gradient through torch.while_loop")

        def outputs(tracer: Tracer, results: list[Any], patterns: Any = patterns) -> list[Node]:
            if patterns is None:
                return results[:1]
            return [tracer.like(r, one) for r, one in zip(results[:count], patterns, strict=True)]

        forward, places = cut.parts.forward, range(len(operands))
        graphs.append(_assembled(operands, forward, places, outputs, tracer.decompositions))
    told = _output(graphs[0])  # a condition gives its tensor alone
    told.args, told.meta["val"] = cast(Any, told.args[0]), told.meta["val"][0]
    used = _used(graphs) | set(range(count))
    names = [tracer.subgraph(_without(graph, used)) for graph in graphs]
    nodes = [tracer.nodes(operand) for operand in operands]
    rest = tuple(node for i, node in enumerate(nodes) if i in used and i >= count)
    node = tracer.call(WHILE, (*names, tuple(nodes[:count]), rest), _values(graphs[1]))
    _note_checks(node, graphs)
    return tuple(fresh(part) for part in tracer.parts(node))


__all__ = ["trace_conditional", "trace_loop"]
