"""A captured graph and its differentiation as one graph, to be traced and compiled like any other.

The engine is called by a node of that graph. When it is traced, what the engine does is recorded
like what the other nodes do, and can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.fx import Graph, GraphModule, Node

from dovetail_autograd_aot.boundary import JointGraph, OutputKind
from dovetail_autograd_aot.trace.node_values import attribute_of

Autocast = tuple[str, torch.dtype]  # device type, dtype


class NotOneGraph(Exception):
    """Why the gradients cannot be made part of a graph."""


def run_engine(
    roots: Sequence[Tensor | GradientEdge],
    tangents: Sequence[Tensor | None],
    inputs: Sequence[Tensor | GradientEdge],
    keep_graph: bool,
    create_graph: bool,
) -> tuple[Tensor | None, ...]:
    """The gradients of `inputs` (None for one that is not reached), given those of `roots`."""
    found: tuple[Tensor | None, ...] = torch.autograd.graph._engine_run_backward(
        tuple(roots),
        tuple(tangents),
        keep_graph,
        create_graph,
        tuple(inputs),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    return found


def gradient_graph(
    gm: GraphModule, joint: JointGraph, given: Sequence[int], autocast: Sequence[Autocast]
) -> GraphModule:
    """The graph (inputs of `gm`, gradients of the differentiable outputs number `given`) ->
    gradients of all primals of `joint` (None where there is none).

    `autocast` is what `gm` was captured under. Raises `NotOneGraph`.
    """
    if joint.storages:
        raise NotOneGraph("inputs share memory")
    graph = Graph()
    env: dict[Node, Node] = {}
    primals = [_copied(graph, n, env) for n in gm.graph.nodes if n.op == "placeholder"]
    # (Numbered by their places: primals may be gradients of another order.)
    tangents = [graph.placeholder(f"gradient_{len(primals) + n}") for n in range(len(given))]
    modes = torch.amp.autocast_mode
    # (What is written to was overwritten by the forward; its old contents do not matter.)
    signature = joint.signature
    changed = {m.index for m in signature.mutated} | {r.index for r in signature.reshaped}
    changed.update((*signature.bumped, *signature.set_inputs))
    if any(i >= len(primals) for i in changed):
        raise NotOneGraph("an attribute of the graph is written to")
    written = {i: graph.call_method("clone", (primals[i],)) for i in sorted(changed)}
    for position, node in enumerate(n for n in gm.graph.nodes if n.op == "placeholder"):
        env[node] = written.get(position, env[node])
    entered = [
        graph.call_function(modes._enter_autocast, (kind, dtype, True, True))
        for kind, dtype in autocast
    ]
    output: Any = None
    for node in gm.graph.nodes:
        if node.op == "output":
            output = node
        elif node.op != "placeholder":
            env[node] = _copied(graph, node, env)
    for mode in reversed(entered):
        graph.call_function(modes._exit_autocast, (mode,))
    lifted = _lifted(gm, joint, env)
    everything = [*primals, *lifted]
    results: Any = torch.fx.node.map_arg(output.args[0], env.__getitem__)
    if isinstance(results, Node):  # one node that gives them all
        count = len(joint.signature.user_outputs)
        results = [graph.call_function(_item, (results, i)) for i in range(count)]
    roots = [
        _root(graph, joint.signature.differentiable[i], list(results), joint, written)
        for i in given
    ]
    wanted = [i for i, needed in enumerate(joint.signature.primals_require_grad) if needed]
    found = graph.call_function(
        run_engine, (roots, tangents, [everything[i] for i in wanted], True, True)
    )
    gradients: list[Node | None] = [None] * len(everything)
    for position, index in enumerate(wanted):
        gradients[index] = graph.call_function(_item, (found, position))
    graph.output(tuple(gradients))
    return GraphModule(gm, graph, "Gradients")


def _item(values: Sequence[Any], index: int) -> Any:
    return values[index]


def _whole(view: Tensor) -> Tensor:
    """The tensor that an output is a view of."""
    if view._base is None:
        raise RuntimeError("an output's base was not found in the differentiable run")
    return view._base


def _copied(graph: Graph, node: Node, env: dict[Node, Node]) -> Node:
    """`node` in `graph`; of its metadata what does not speak of sizes."""
    env[node] = graph.node_copy(node, env.__getitem__)
    for name in ("val", "example_value"):
        env[node].meta.pop(name, None)
    return env[node]


def _lifted(gm: GraphModule, joint: JointGraph, env: dict[Node, Node]) -> list[Node]:
    """The attributes that are inputs of the joint graph."""
    found: list[Node] = []
    for tensor in joint.constants_lifted:
        for node in gm.graph.nodes:
            if node.op == "get_attr" and attribute_of(gm, node.target) is tensor:
                found.append(env[node])
                break
        else:
            raise NotOneGraph("an attribute of the graph is not found")
    return found


def _root(
    graph: Graph, index: int, results: list[Any], joint: JointGraph, written: dict[int, Node]
) -> Node:
    """The node for forward output `index`."""
    signature = joint.signature
    mutation = index - signature.num_fresh
    if 0 <= mutation < len(signature.mutated):
        return written[signature.mutated[mutation].index]
    for info, value in zip(signature.user_outputs, results, strict=True):
        if info.base == index and info.kind is OutputKind.FRESH:
            return value  # type: ignore[no-any-return]
    for info, value in zip(signature.user_outputs, results, strict=True):
        if info.lies_in(index):
            return graph.call_function(_whole, (value,))
    raise NotOneGraph("an output's base is not found")
