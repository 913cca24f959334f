"""What passes over FX graphs ask of a node."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor, propagate
from dovetail_prims.node_facts import take_place
from torch.fx import Graph, Node

_OF_TORCH = f'File "{Path(torch.__file__).parent}'


def fake_of(node: Any) -> FakeTensor:
    """The fake of a node that is a tensor."""
    value = node.meta["val"]
    assert isinstance(value, FakeTensor)
    return value


def layout_of(node: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Sizes and strides of a node that is a tensor."""
    value = node.meta["val"]
    if isinstance(value, FakeTensor):
        return tuple(value._sizes), tuple(value._strides)
    return tuple(value.shape), tuple(value.stride())


def is_view(node: Node) -> bool:
    """Whether a node is a view of what it gets, or a part of several such."""
    if node.target is operator.getitem:
        return is_view(node.all_input_nodes[0])
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and any(
        r.alias_info is not None for r in target._schema.returns
    )


def is_given_out(node: Node) -> bool:
    """Whether the caller gets a node, or a view of it."""
    return any(u.op == "output" or (is_view(u) and is_given_out(u)) for u in node.users)


def line_of(node: Node) -> str:
    """The line of the program that a node stands for, as tracebacks write it: the innermost that is
    not PyTorch's own; "" if none is known."""
    trace = (line.strip() for line in (node.meta.get("stack_trace") or "").splitlines())
    places = [line for line in trace if line.startswith("File ")]
    own = [place for place in places if not place.startswith(_OF_TORCH)]
    return (own or places or [""])[-1]


def call_at(place: Node, graph: Graph, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A new call, where the graph inserts, of the user's line that `place` is of. Raises
    RuntimeError, and adds nothing, if what it gets does not fit."""
    given, named = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
    value = propagate(target, tuple(given), dict(named))
    node = graph.call_function(target, args, kwargs)
    take_place(node, place)
    node.meta["val"] = value
    return node
