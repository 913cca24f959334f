"""Recording of a function into a graph of its own, inside of what is recorded already."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from dovetail_capture.interpreter.graph.graph_arguments import NotAGraphArgument
from dovetail_capture.interpreter.graph.recorder import Recorder
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue


class InnerRecorder(Recorder):
    """Records the graph of a transformed function inside of another graph."""

    differentiates = False  # may it ask for derivatives?
    transforms = True  # does the function run inside of a transform?
    how: str = ""  # what the transform does: "vmap", or "reverse" or "forward" derivatives

    def __init__(self, outer: Recorder) -> None:
        super().__init__(outer.stack_trace)
        self.outer = outer
        self.checked = outer.checked
        # Fakes and what they stand for are known throughout; inputs belong to the outermost graph.
        self.fake_mode = outer.fake_mode
        self.values = outer.values
        self.inference, self.made_in_mode = outer.inference, outer.made_in_mode
        self.inference_values = outer.inference_values
        self.captured: list[Value] = []
        self.mapped: set[Node] = set()
        self._inner: dict[Node, Node] = {}

    def placeholder(self, name: str, fake: Any) -> Node:
        return self.outer.placeholder(name, fake)

    def argument_placeholder(self, index: int, fake: Any) -> Node:
        """An argument of the transformed function."""
        return super().placeholder(f"arg{index}", fake)

    def argument(self, value: Any) -> tuple[Any, Any]:
        if value.__class__ is TensorValue and value.data is not None:
            raise GraphBreakSignal("a tensor whose data was replaced, in a transformed function")
        if value.__class__ is TensorValue and value.node.graph is not self.graph:
            if not self.outer.owns(value.node):
                raise NotAGraphArgument("a tensor of another transformed function")
            node = self._inner.get(value.node)
            if node is None:
                node = super().placeholder(f"captured{len(self.captured)}", value.fake)
                self._inner[value.node] = node
                self.captured.append(value)
            return node, value.fake
        if isinstance(value, SymbolicNumber):
            return self._number(value)
        return super().argument(value)

    def capture_first(self, values: list[Value]) -> None:
        """Take these from around it, in their order, before it takes anything else."""
        for value in values:
            self.argument(value)
        if list(map(id, self.captured)) != list(map(id, values)):
            raise GraphBreakSignal("another order of sizes in the second graph of a backward")

    def _number(self, value: SymbolicNumber) -> tuple[Any, Any]:
        """A number that the sizes of the arguments tell, or that comes from around."""
        try:
            return super().argument(value)
        except (NotImplementedError, RuntimeError):
            self.outer.argument(value)  # may raise as well
        node = super().placeholder(f"captured{len(self.captured)}", value.value)
        self.captured.append(value)
        return node, value.value

    def owns(self, node: Node) -> bool:
        return node.graph is self.graph or self.outer.owns(node)

    def module(self) -> GraphModule:
        # A transform knows the method, not the operator: `vmap` has no rule for that.
        for node in self.graph.nodes:
            if self.transforms and node.target is torch.ops.aten.sym_size.int:
                node.op, node.target = "call_method", "size"
        return super().module()


def transforms_around(recorder: Recorder) -> set[str]:
    """What the transforms do (`InnerRecorder.how`) inside of whose functions it records."""
    found: set[str] = set()
    while isinstance(recorder, InnerRecorder):
        if recorder.transforms:
            found.add(recorder.how)
        recorder = recorder.outer
    return found
