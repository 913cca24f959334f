"""What passes over FX graphs ask of a node."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from torch.fx import Node

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


def line_of(node: Node) -> str:
    """The line of the program that a node stands for, as tracebacks write it: the innermost that is
    not PyTorch's own; "" if none is known."""
    trace = (line.strip() for line in (node.meta.get("stack_trace") or "").splitlines())
    places = [line for line in trace if line.startswith("File ")]
    own = [place for place in places if not place.startswith(_OF_TORCH)]
    return (own or places or [""])[-1]


__all__ = ["fake_of", "is_view", "line_of"]
