"""Where maxima were found is saved for the backward in as few bytes as the places there can be
numbered in: PyTorch's indices take eight each, four times what bfloat16 values take."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod
from operator import getitem
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor, make
from dovetail_prims.node_facts import CHECKPOINT, SAVED_BY_POLICY
from torch.fx import Graph, GraphModule, Node

from dovetail_autograd_aot.boundary import JointGraph

aten = torch.ops.aten

# Pooling operators, which give indices into an image or a volume beside the maxima, by rank.
_RANKS: dict[Any, int] = {
    aten.max_pool2d_with_indices.default: 2,
    aten.adaptive_max_pool2d.default: 2,
    aten.max_pool3d_with_indices.default: 3,
    aten.adaptive_max_pool3d.default: 3,
}
_NARROW = (torch.int8, torch.int16, torch.int32)


def narrow_saved_indices(joint: JointGraph, device_types: Collection[str]) -> JointGraph:
    """The joint graph in which a backward reads indices of pools on devices of these types from
    copies of a narrow type, which the cut will rather save; itself if it has none.

    For devices on which a kernel that reads or writes indices converts them as it does: elsewhere,
    where libraries pool, that takes passes over memory.
    """
    found = [n for n in joint.gm.graph.nodes if _narrow_type(n, device_types) is not None]
    if not found:
        return joint
    graph = Graph()
    copies: dict[Node, Node] = {}
    graph.output(graph.graph_copy(joint.gm.graph, copies))
    waits = _waits_for_gradients(list(graph.nodes), joint.signature.num_primals)
    for node in [copies[n] for n in found]:
        dtype = _narrow_type(node, device_types)
        if dtype is None:
            continue
        users = [user for user in node.users if user in waits]
        if not users:
            continue
        with graph.inserting_after(node):
            narrow = _converted(node, dtype)
        with graph.inserting_after(narrow):
            wide = _converted(narrow, torch.int64)
        for user in users:
            user.replace_input_with(node, wide)
    gm = GraphModule(joint.gm, graph)
    gm.meta = dict(joint.gm.meta)
    return replace(joint, gm=gm)


def _narrow_type(node: Node, device_types: Collection[str]) -> torch.dtype | None:
    """The type that the indices of a node can be told apart in; None for any other node, and where
    the user has a say in what is saved."""
    if node.target is not getitem or node.args[1] != 1 or not isinstance(node.args[0], Node):
        return None
    pool = node.args[0]
    rank = _RANKS.get(pool.target)
    if rank is None or CHECKPOINT.is_told(pool) or SAVED_BY_POLICY.is_told(node):
        return None
    image = pool.args[0]
    assert isinstance(image, Node)
    value: FakeTensor = image.meta["val"]
    places = prod(value._sizes[-rank:])
    if value._device.type not in device_types or not isinstance(places, int):
        return None
    return next((t for t in _NARROW if places - 1 <= torch.iinfo(t).max), None)


def _waits_for_gradients(nodes: Sequence[Node], primals: int) -> set[Node]:
    """The nodes of the backward: what is computed from a tangent."""
    placeholders = [n for n in nodes if n.op == "placeholder"]
    found = set(placeholders[primals:])
    for node in nodes:
        if any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found


def _converted(node: Node, dtype: torch.dtype) -> Node:
    """A node after this one that converts it."""
    value: FakeTensor = node.meta["val"]
    made = node.graph.call_function(aten._to_copy.default, (node,), {"dtype": dtype})
    made.meta["val"] = make(value._sizes, value._strides, dtype, value._device)
    if "stack_trace" in node.meta:
        made.meta["stack_trace"] = node.meta["stack_trace"]
    return made
