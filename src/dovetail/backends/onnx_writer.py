"""Parts of functional graphs as ONNX models: float32 and bool tensors of known sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node

OPSET = 18
_IR_VERSION = 8
DTYPES: Mapping[torch.dtype, int] = {torch.float32: TensorProto.FLOAT, torch.bool: TensorProto.BOOL}


class Unsupported(Exception):
    """No ONNX operator means what this node does; says why."""


Rule = Callable[["ModelWriter", Node], "str | tuple[str | None, ...]"]


@dataclass
class ModelWriter:
    """A model under construction. Rules write nodes of a graph into it (`emit`, `constant`, `of`);
    `values` has the names of what was written, by the nodes of the graph."""

    rules: Mapping[str, Rule]
    values: dict[Node, str | tuple[str | None, ...]] = field(default_factory=dict)
    _nodes: list[Any] = field(default_factory=list)
    _constants: list[Any] = field(default_factory=list)

    # --- for rules ---

    def emit(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Write one operator; the name of its first output."""
        name = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """A tensor that is part of the model."""
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def of(self, value: Any, dtype: torch.dtype = torch.float32) -> str:
        """The name of an argument, a tensor or a number, as a tensor of this dtype."""
        if not isinstance(value, Node):
            return self.constant(value, np.float32 if dtype == torch.float32 else np.bool_)
        name = self.values.get(value, value.name)
        assert isinstance(name, str)
        if value.meta["val"].dtype == dtype:
            return name
        if dtype == torch.bool:  # (some engines' conversions make False of NaN)
            return self.emit("Not", self.emit("Equal", name, self.constant(0)))
        return self.emit("Cast", name, to=DTYPES[dtype])

    # --- for the partitioner ---

    def write(self, node: Node) -> None:
        """Write a node of a graph. Raises Unsupported."""
        if node.target is getitem:
            source, index = node.args
            assert isinstance(source, Node) and isinstance(index, int)
            parts = self.values[source]
            assert isinstance(parts, tuple)
            part = parts[index]
            assert part is not None
            self.values[node] = part
            return
        rule = self.rules.get(str(node.target)) if isinstance(node.target, OpOverload) else None
        if rule is None:
            raise Unsupported("no rule")
        for tensor in (*node.all_input_nodes, *_results(node)):
            _check(tensor.meta.get("val"))
        written = rule(self, node)
        if isinstance(written, tuple):
            for user in node.users:
                if user.target is not getitem or written[user.args[1]] is None:  # type: ignore[index]
                    raise Unsupported("a result that ONNX's operator lacks is wanted")
        self.values[node] = written

    def model(self, inputs: Sequence[Node], outputs: Sequence[Node]) -> bytes:
        """The model that computes these nodes of the graph from those."""
        for i, node in enumerate(outputs):
            name = self.values[node]
            self._nodes.append(helper.make_node("Identity", [name], [f"out{i}"]))
        results = [_declared(f"out{i}", node) for i, node in enumerate(outputs)]
        given = [_declared(node.name, node) for node in inputs]
        graph = helper.make_graph(self._nodes, "region", given, results, self._constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        made.ir_version = _IR_VERSION
        onnx.checker.check_model(made)
        return bytes(made.SerializeToString())


def _results(node: Node) -> Sequence[Node]:
    """The tensors that a node gives, as far as they are used."""
    if isinstance(node.meta.get("val"), Tensor):
        return (node,)
    return tuple(user for user in node.users if user.target is getitem)


def _check(value: Any) -> None:
    if not isinstance(value, Tensor):
        raise Unsupported("it takes or gives what is no tensor")
    if value.device.type != "cpu":
        raise Unsupported(f"a tensor on {value.device.type}")
    if value.dtype not in DTYPES:
        raise Unsupported(f"a tensor of {value.dtype}")
    if not all(isinstance(size, int) for size in value.shape) or not value.numel():
        raise Unsupported("a tensor without elements, or of a size that is not known")


def _declared(name: str, node: Node) -> Any:
    value = node.meta["val"]
    return helper.make_tensor_value_info(name, DTYPES[value.dtype], list(value.shape))
