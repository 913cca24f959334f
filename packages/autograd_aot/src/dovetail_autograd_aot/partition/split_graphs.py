"""The forward's and the backward's graph, of a joint graph's nodes and of what is saved."""

from __future__ import annotations

from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor, propagate
from dovetail_prims.node_facts import CHECKED, OVERWRITTEN, OWNED
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule

from dovetail_autograd_aot.boundary import JointGraph
from dovetail_autograd_aot.graph.fast_graph import FastGraph, copy_node, hold
from dovetail_autograd_aot.graph.op_info import draws_random_numbers
from dovetail_autograd_aot.outputs.output_aliasing import is_view_node
from dovetail_autograd_aot.partition.node_roles import Roles
from dovetail_autograd_aot.trace import node_values

aten = torch.ops.aten


def _copy_node(graph: Graph, node: Node, env: dict[Node, Node], kept: set[Node]) -> None:
    """Put a node of the joint graph into `graph`. A copy of an input that nobody keeps is read from
    the input, if it can."""
    if node not in kept and node_values.can_be_read_from_input(node):
        env[node] = env[node.args[0]]  # type: ignore[index]
    else:
        env[node] = copy_node(graph, node, env)


def forward_graph(joint: JointGraph, roles: Roles, saved: list[Node]) -> GraphModule:
    """Primals -> forward outputs, saved values."""
    outputs = [*roles.forward_outputs, *saved]
    needed: set[Node] = set()
    stack = [n for n in outputs if isinstance(n, Node)]
    stays = [n for n in roles.nodes if draws_random_numbers(n) or CHECKED.holds(n)]
    stack += [n for n in stays if not roles.tangent_bits[n]]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(node.all_input_nodes)
    graph = FastGraph()
    env: dict[Node, Node] = {}
    primals = set(roles.primals)
    kept = roles.returned.union(saved)
    for node in roles.nodes:
        if node in primals or node in needed:
            _copy_node(graph, node, env, kept)
    results = []
    for i, node in enumerate(outputs):
        result = env[node] if isinstance(node, Node) else node
        if i >= len(roles.forward_outputs) and node in roles.copied:
            # The input will be overwritten, or may be: the backward needs these contents.
            result = graph.call_function(aten.clone.default, (result,), _AS_IT_LIES)
            result.meta.update(_meta_of_copy(node))
        results.append(result)
    return _module(joint, graph, results, "Forward")


_AS_IT_LIES: dict[str, Any] = {"memory_format": torch.preserve_format}


def tell_what_is_overwritten(joint: JointGraph, forward: GraphModule) -> None:
    """Mark the inputs of a forward graph without a backward that are written to: with
    `OVERWRITTEN`, the position of the output that is about to be copied over each of them.

    Not those whose version counter is to stay, nor what stands for an attribute or for a storage
    that inputs share. Inputs of different storages do not overlap; those of one that were found
    apart are guarded to stay so.
    """
    signature = joint.signature
    added = joint.added
    given = signature.num_primals - len(added.constants) - len(added.storages)
    placeholders = [n for n in forward.graph.nodes if n.op == "placeholder"]
    for i, mutated in enumerate(signature.changes.mutated):
        if mutated.data_only and not mutated.silent and mutated.index < given:
            OVERWRITTEN.tell(placeholders[mutated.index], signature.num_fresh + i)


def _meta_of_copy(node: Node) -> dict[str, Any]:
    """What is known of a copy of an input: it has none of the input's gaps."""
    value = node.meta["val"]
    if not isinstance(value, FakeTensor):
        return dict(node.meta)
    return {**node.meta, "val": propagate(aten.clone.default, (value,), _AS_IT_LIES)}


def _lies_as(copy: Node, node: Node) -> bool:
    ours, theirs = copy.meta["val"], node.meta["val"]
    return not isinstance(ours, FakeTensor) or node_values.same_metadata(ours, theirs)


def backward_graph(
    joint: JointGraph, roles: Roles, saved_primals: list[Node], saved_values: list[Node]
) -> GraphModule:
    """Saved values, tangents -> gradients. A value that is computed again is placed just before
    its first use, so that it lives no longer than it must."""
    graph = FastGraph()
    env: dict[Node, Node] = {}
    own = {n for n in saved_values if n not in roles.forward_outputs}  # nobody else holds them
    laid_out_anew: set[Node] = set()
    for node in (*saved_primals, *saved_values, *roles.tangents):
        placeholder = graph.placeholder(node.name)
        copied = node in roles.copied
        placeholder.meta.update(_meta_of_copy(node) if copied else node.meta)
        if node in own:
            OWNED.tell(placeholder, True)
        if copied and not _lies_as(placeholder, node):
            laid_out_anew.add(placeholder)
        env[node] = placeholder

    def place(wanted: Node) -> None:
        stack = [wanted]
        while stack:
            node = stack[-1]
            if node in env:
                stack.pop()
                continue
            missing = [n for n in node.all_input_nodes if n not in env]
            if missing:
                stack.extend(missing)
            else:
                _copy_node(graph, node, env, set())
                made = env[node]
                if is_view_node(node) and not laid_out_anew.isdisjoint(made.all_input_nodes):
                    made.meta["val"] = propagate(
                        made.target,
                        node_values.values(made.args),
                        node_values.values_of(dict(made.kwargs)),
                    )
                    laid_out_anew.add(made)
                stack.pop()

    for node in roles.nodes:
        if node in roles.backward and node not in env:
            place(node)
    results: list[Any] = []
    for gradient in roles.gradients:
        if isinstance(gradient, Node):
            place(gradient)
            results.append(env[gradient])
        else:
            results.append(None)
    return _module(joint, graph, results, "Backward")


def _module(joint: JointGraph, graph: Graph, results: list[Any], name: str) -> GraphModule:
    output = graph.output(tuple(results))
    output.meta["val"] = tuple(r.meta["val"] if isinstance(r, Node) else r for r in results)
    attributes = {n.target for n in graph.nodes if n.op == "get_attr"}
    root = torch.nn.Module()
    for attribute in attributes:
        hold(root, attribute, getattr(joint.gm, attribute))
    return _LazyGraphModule(root, graph, name)
