"""Functions captured into graphs of their own, inside of what is recorded already: the recorder of
such a graph, and the structures of what it takes and gives, with slots for the tensors."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from dovetail_capture.interpreter.graph.graph_values import NotAGraphArgument
from dovetail_capture.interpreter.graph.recorder import Recorder
from dovetail_capture.interpreter.machine.machine import Interpreter
from dovetail_capture.interpreter.protocols import dicts
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import DictValue, ListValue, TupleValue
from dovetail_capture.interpreter.values.objects import ObjectValue, is_namedtuple, named_tuple
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue


@dataclass(frozen=True)
class Slot:
    """The place of a tensor in a structure."""

    index: int


@dataclass(frozen=True)
class Parts:
    """What an object of a class that `torch.utils._pytree` knows is made of, in its place where
    torch's transforms take structures apart and put them together."""

    cls: type
    context: Any
    children: tuple[Any, ...]


pytree.register_pytree_node(
    Parts,
    lambda parts: (list(parts.children), (parts.cls, parts.context)),
    lambda children, of: Parts(of[0], of[1], tuple(children)),
)


def structure(vm: Interpreter, value: Value, leaf: Callable[[Value], Any]) -> Any:
    """The containers that a value is made of, as PyTorch's transforms know them, and what `leaf`
    gives for what else is in them."""
    if isinstance(value, TupleValue):
        if value.cls is tuple:
            return tuple(structure(vm, item, leaf) for item in vm.iterate(value))
        if value.cls.__module__ == "torch.return_types":
            return value.cls([structure(vm, item, leaf) for item in vm.iterate(value)])
    if isinstance(value, ListValue) and value.cls is list:
        return [structure(vm, item, leaf) for item in vm.iterate(value)]
    if isinstance(value, DictValue) and value.cls in (dict, collections.OrderedDict):
        pairs = dicts.items(vm, value)
        return value.cls([(vm.as_python(key), structure(vm, item, leaf)) for key, item in pairs])
    if isinstance(value, ObjectValue) and is_namedtuple(value.cls):
        assert isinstance(value.native, TupleValue)
        return value.cls._make(structure(vm, item, leaf) for item in vm.iterate(value.native))  # type: ignore[attr-defined]
    if isinstance(value, ObjectValue) and value.cls in pytree.SUPPORTED_NODES:
        flatten = pytree.SUPPORTED_NODES[value.cls].flatten_fn
        children, context = vm.iterate(vm.call(vm.held(flatten), [value], {}))
        known = vm.as_python(context)
        if known is UNKNOWN:
            raise GraphBreakSignal(f"{value.describe()}, whose structure is not a constant")
        items = tuple(structure(vm, item, leaf) for item in vm.iterate(children))
        return Parts(value.cls, known, items)
    return leaf(value)


def holds_objects(template: Any) -> bool:
    """Are there objects of classes of the program's in a structure?"""
    leaves = pytree.tree_leaves(template, is_leaf=lambda part: type(part) is Parts)
    return any(type(leaf) is Parts for leaf in leaves)


def made_of(vm: Interpreter, cls: type, context: Any, children: list[Value]) -> Value:
    """An object of a class that `torch.utils._pytree` knows, put together."""
    unflatten = vm.held(pytree.SUPPORTED_NODES[cls].unflatten_fn)
    return vm.call(unflatten, [ListValue(children), vm.constant(context)], {})


def template_of(vm: Interpreter, value: Value, tensors: list[TensorValue]) -> Any:
    """The Python structure of a value, with slots for its tensors, which `tensors` takes."""

    def leaf(part: Value) -> Any:
        if isinstance(part, TensorValue):
            tensors.append(part)
            return Slot(len(tensors) - 1)
        real = vm.as_python(part)
        if real is UNKNOWN or isinstance(part, DictValue):
            raise GraphBreakSignal(f"a function of tensors, with {part.describe()}")
        return real

    return structure(vm, value, leaf)


def count_slots(template: Any) -> int:
    """How many tensors there are in a structure."""
    return sum(type(leaf) is Slot for leaf in pytree.tree_leaves(template))


def rebuilt(template: Any, tensors: Any) -> Any:
    """The structure with tensors in its slots."""
    return pytree.tree_map(
        lambda leaf: tensors[leaf.index] if type(leaf) is Slot else leaf, template
    )


def filled(vm: Interpreter, template: Any, tensors: list[Value]) -> Value:
    """The value of a structure, with values in its slots."""
    if type(template) is Slot:
        return tensors[template.index]
    if isinstance(template, tuple):
        items = [filled(vm, item, tensors) for item in template]
        if is_namedtuple(type(template)):
            return named_tuple(type(template), items)
        return TupleValue(items, type(template))
    if isinstance(template, list):
        return ListValue([filled(vm, item, tensors) for item in template])
    if isinstance(template, dict):
        new = DictValue(type(template))
        for key, item in template.items():
            dicts.put(vm, new, Constant(key), filled(vm, item, tensors))
        return new
    if isinstance(template, Parts):
        children = [filled(vm, item, tensors) for item in template.children]
        return made_of(vm, template.cls, template.context, children)
    return vm.constant(template)


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
