"""From values to what a graph's nodes take: the arguments of a call."""

from __future__ import annotations

from typing import Any

import torch
from dovetail_prims.sizes.size_nodes import SizeNodes
from torch.fx import Graph

from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Lazy, Value
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    ListValue,
    SliceValue,
    TupleValue,
)
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue
from dovetail_capture.interpreter.values.texts import LateText

# Classes that torch takes for dtypes; a graph's text could not name them.
_DTYPES: dict[type, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}


class NotAGraphArgument(Exception):
    """A value that cannot be an argument of a graph node."""


class GraphArguments:
    """Arguments of the nodes of one graph, and the fakes that stand for them."""

    def __init__(self, graph: Graph, sizes: SizeNodes) -> None:
        self.graph = graph
        self.sizes = sizes

    def argument(self, value: Any) -> tuple[Any, Any]:
        """The graph argument and the fake argument that `value` stands for."""
        cls = value.__class__
        if cls is Constant or cls is LateText:
            symbolic = None if value.unread is None else value.symbolic()
            if symbolic is not None:
                return self.argument(symbolic)
            real = value.value
            if isinstance(real, torch.Generator):
                raise NotAGraphArgument("a torch.Generator")
            if type(real).__module__ == "numpy" and hasattr(real, "item") and not real.shape:
                real = real.item()  # torch takes numpy's scalars for Python numbers
            if isinstance(real, type):
                real = _DTYPES.get(real, real)
            return real, real
        if cls is TensorValue:
            if value.data is not None:
                value = _data_of(value)
            if value.node.graph is not self.graph:
                raise NotAGraphArgument("a tensor of the inside of a transformed function")
            return value.node, value.fake
        if isinstance(value, SymbolicNumber):
            if isinstance(value.value, torch.SymBool) and value.value.node.hint is not None:
                truth = value.concrete()  # torch's flags are no symbols: it is guarded
                return truth, truth
            return self.sizes.node(value.value), value.value
        if cls is TupleValue:
            pairs = [self.argument(looked_at(item)) for item in value.items]
            graph_items = tuple(pair[0] for pair in pairs)
            fake_items = tuple(pair[1] for pair in pairs)
            if value.cls is torch.Size and all(type(item) is int for item in fake_items):
                return torch.Size(graph_items), torch.Size(fake_items)
            return graph_items, fake_items
        if cls is ListValue and value.cls is list:
            pairs = [self.argument(looked_at(item)) for item in value.items]
            return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        if cls is SliceValue:
            parts = [self.argument(part) for part in (value.start, value.stop, value.step)]
            return slice(*(part[0] for part in parts)), slice(*(part[1] for part in parts))
        if cls is DictValue and value.origin is None:
            graph_dict, fake_dict = {}, {}
            for key, item in value.entries.values():
                if not isinstance(key, Constant):
                    raise NotAGraphArgument(value.describe())
                graph_dict[key.value], fake_dict[key.value] = self.argument(looked_at(item))
            return graph_dict, fake_dict
        if cls is ObjectValue and isinstance(value.native, (TupleValue, ListValue)):
            return self.argument(value.native)
        if cls is ObjectValue and value.cls is torch.Generator:
            raise NotAGraphArgument("a torch.Generator")
        raise NotAGraphArgument(value.describe())

    def fake_of(self, value: Any) -> Any:
        """The fake argument that `value` stands for, which may be no part of the graph yet."""
        if value.__class__ is TensorValue and not value.has_node:
            return value.fake
        if value.__class__ is TupleValue and value.cls is not torch.Size:
            return tuple(self.fake_of(looked_at(item)) for item in value.items)
        if value.__class__ is ListValue and value.cls is list:
            return [self.fake_of(looked_at(item)) for item in value.items]
        return self.argument(value)[1]


def looked_at(item: Any) -> Value:
    if isinstance(item, Lazy):
        raise NotAGraphArgument("a container that was not looked into")
    return item  # type: ignore[no-any-return]


def _data_of(value: TensorValue) -> TensorValue:
    """What stands for a tensor whose data was replaced: the graph's input is the old one, and so
    are what derivatives know of it."""
    assert value.data is not None
    if value.fake.requires_grad and torch.is_grad_enabled():
        raise GraphBreakSignal(
            "what may need a gradient of a tensor whose data was replaced", "write in place"
        )
    return value.data
