"""The graphs of `torch.cond` and of `torch.while_loop`: each traced on the operands and cut in
forward and backward, then brought to the inputs and outputs of the node that holds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_guards.expr import symbol
from dovetail_guards.sym_node import expr_of, to_symint
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.node_facts import CHECKED
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from dovetail_autograd_aot.boundary import AddedInputs, JointGraph, OutputKind, PartitionedGraph
from dovetail_autograd_aot.graph.fast_graph import FastGraph, copy_node, hold
from dovetail_autograd_aot.partition.min_cut import min_cut_partition
from dovetail_autograd_aot.trace.input_storages import snapshot
from dovetail_autograd_aot.trace.node_values import attribute_of
from dovetail_autograd_aot.trace.storage import TraceError
from dovetail_autograd_aot.trace.storage_writes import shaped_like
from dovetail_autograd_aot.trace.tracer import Tracer

aten = torch.ops.aten

TraceBranch = Callable[[GraphModule, Sequence[Any]], JointGraph]
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class Branch:
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
        return () if self.parts.backward is None else result_values(self.parts.backward)


def result_values(gm: GraphModule) -> tuple[Any, ...]:
    return tuple(gm.graph.output_node().meta["val"])


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


def cut_branch(branch: GraphModule, operands: Sequence[Any], trace: TraceBranch) -> Branch:
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
    values = result_values(parts.forward)
    saved = () if parts.backward is None else tuple(values[count:])
    return Branch(parts, tuple(values[:count]), saved, signature.differentiable)


# --- graphs of one signature ----------------------------------------------------------------------


def assembled(
    inputs: Sequence[Any],
    body: GraphModule,
    given: Sequence[int],
    outputs: Callable[[Tracer, list[Any]], list[Node]],
    decompositions: Any,
) -> GraphModule:
    """A graph of `inputs` that runs `body` on those number `given`, and gives `outputs` of
    what that gives."""
    graph = FastGraph()
    tracer = Tracer(graph, decompositions)
    nodes: list[Node] = []
    for position, value in enumerate(inputs):
        node = graph.placeholder(f"operand{position}")
        node.meta["val"] = snapshot(value) if isinstance(value, Tensor) else value
        nodes.append(node)
    for node in nodes:
        value = node.meta["val"]
        if isinstance(value, FakeTensor):
            tracer.sizes.bind_sizes(node, value)
        elif isinstance(value, _NUMBERS):
            tracer.sizes.bind(value, node)
    env: dict[Node, Node] = {}
    positions = iter(given)
    results: list[Any] = []
    for node in body.graph.nodes:
        if node.op == "placeholder":
            env[node] = nodes[next(positions)]
            pattern = node.meta["val"]
            if isinstance(pattern, FakeTensor):
                env[node] = shaped_like(tracer, env[node], pattern)
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


def unread_memory(tracer: Tracer, like: FakeTensor) -> Node:
    """Memory that nobody looks at."""
    sizes, strides = tracer.nodes(tuple(like._sizes)), tracer.nodes(tuple(like._strides))
    options = {"dtype": like._dtype, "device": like._device}
    found = tracer.emit(aten.empty_strided.default, (list(sizes), list(strides)), options)
    assert isinstance(found, Node)
    return found


def zeros_as(tracer: Tracer, like: FakeTensor) -> Node:
    sizes = list(tracer.nodes(tuple(like._sizes)))
    options = {"dtype": like._dtype, "device": like._device}
    return shaped_like(tracer, tracer.node_op(aten.full.default, (sizes, 0), options), like)


def note_checks(node: Node, graphs: Sequence[GraphModule]) -> None:
    """A node whose graphs check something stays."""
    if any(CHECKED.holds(inner) for graph in graphs for inner in graph.graph.nodes):
        CHECKED.tell(node, True)


def used_operands(graphs: Sequence[GraphModule]) -> set[int]:
    """The positions of the operands that one of the graphs reads; numbers tell sizes of others."""
    found: set[int] = set()
    for graph in graphs:
        given = [node for node in graph.graph.nodes if node.op == "placeholder"]
        found |= {
            position
            for position, node in enumerate(given)
            if node.users or not isinstance(node.meta["val"], Tensor)
        }
    return found


def without_unused(graph: GraphModule, used: set[int]) -> GraphModule:
    given = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for position, node in enumerate(given):
        if position not in used:
            graph.graph.erase_node(node)
    graph.recompile()
    return graph


def sizes_not_told(operands: Sequence[Any]) -> list[torch.SymInt]:
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
