"""Values that a trace knows although no input was read: what is made of constants alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from dovetail_autograd_aot.graph.fast_graph import CONSTANT_KIND
from dovetail_autograd_aot.graph.op_info import draws_random_numbers

# Computing a larger constant while tracing would cost more than it is worth.
_LARGEST = 1 << 24


@contextmanager
def untraced() -> Iterator[None]:
    """Operators inside run on real tensors at once, whatever trace is under way."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield


def constant_value(tensor: Tensor) -> Tensor | None:
    """The value of a traced tensor, computed on the CPU, if it follows from no input.

    None if it depends on an input, an attribute or a random number, was written in place since it
    was made, or is large.
    """
    track = tensor.__dict__.get("_aot_track") if type(tensor) is FakeTensor else None
    if track is None or track.seen != track.storage.version or track.storage.version:
        return None
    order = _ancestors(track.node)
    if order is None:
        return None
    with untraced():
        values: dict[Node, Any] = {}
        for node in order:
            args = _with_values(node.args, values)
            kwargs = _with_values(node.kwargs, values)
            values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        result = values[track.node]
    return result if isinstance(result, Tensor) else None


def kind_of_constant(tensor: Tensor, kind_of: Callable[[Tensor], str]) -> str:
    """What `kind_of` says of a traced tensor's value, asked once for each value; "" if it is not
    known (as for `constant_value`)."""
    track = tensor.__dict__.get("_aot_track") if type(tensor) is FakeTensor else None
    if track is None or track.seen != track.storage.version or track.storage.version:
        return ""
    known = CONSTANT_KIND.of(track.node)
    if known is None:
        value = constant_value(tensor)
        with untraced():
            known = "" if value is None else kind_of(value)
        CONSTANT_KIND.tell(track.node, known)
    return str(known)


def _ancestors(root: Node) -> list[Node] | None:
    """`root` and everything it is computed from, operands first; None if not all is constant."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
            continue
        if node in seen:
            continue
        seen.add(node)
        val = node.meta.get("val")
        if (
            node.op != "call_function"
            or not isinstance(node.target, OpOverload)
            or draws_random_numbers(node)
            or not isinstance(val, FakeTensor)
            or not all(type(s) is int for s in val._sizes)
            or _stored(val) > _LARGEST
        ):
            return None
        stack.append((node, True))
        stack.extend((n, False) for n in node.all_input_nodes)
    return order


def _stored(fake: FakeTensor) -> int:
    """How many elements are in memory of a tensor that may be expanded."""
    pairs = zip(fake._sizes, fake._strides, strict=True)
    return math.prod(int(size) for size, stride in pairs if type(stride) is not int or stride != 0)


def _with_values(arg: Any, values: dict[Node, Any]) -> Any:
    """An argument with nodes replaced by their values, and devices by the CPU."""
    if isinstance(arg, Node):
        return values[arg]
    if isinstance(arg, torch.device):
        return torch.device("cpu")
    if isinstance(arg, dict):
        return {k: _with_values(v, values) for k, v in arg.items()}
    if isinstance(arg, list | tuple):
        return [_with_values(a, values) for a in arg]
    return arg
