"""Records a backward pass while autograd's engine runs it.

The engine does everything as ever, on real tensors: what it computes is the result of the pass.
A `TorchDispatchMode` writes down the operators, and stand-ins for the Python functions that the
engine calls write down the calls. If something cannot be written down, only the record is lost.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from dovetail_guards.process_lock import ProcessLock
from dovetail_prims.fake.fake_mode import DispatchMode
from dovetail_prims.fake.from_real import from_real
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, Node
from torch.utils._python_dispatch import _disable_current_modes, _pop_mode_temporarily
from torch.utils.weak import WeakIdKeyDictionary

from dovetail_autograd_aot.compiled_backward import program
from dovetail_autograd_aot.compiled_backward.description import (
    Description,
    EngineCall,
    NotCapturable,
    Replaced,
    Slot,
)
from dovetail_autograd_aot.compiled_backward.node_state import alias_key
from dovetail_autograd_aot.graph.op_info import OpKind, draws_random_numbers, op_info
from dovetail_autograd_aot.native import nodes_module

aten = torch.ops.aten

_READS_DATA = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
# Hooks are replaced in dictionaries that other threads may see.
_one_recording = ProcessLock()


def record(call: EngineCall, described: Description, engine: Callable[..., Any]) -> Any:
    """Run the call on the engine; gives its result, and the program or why there is none."""
    recorder = _Recorder(described)
    with (
        _one_recording,
        replaced(described, recorder.stand_in),
        torch.autograd.set_multithreading_enabled(False),
        recorder,
    ):
        result = call.run(engine)
    if recorder.failed is None:
        try:
            return result, recorder.finish(result)
        except NotCapturable as error:
            recorder.failed = str(error)
    return result, recorder.failed


@contextmanager
def replaced(
    described: Description, stand_in: Callable[[int, Slot, Callable[..., Any]], Any]
) -> Iterator[None]:
    """While in here, the engine calls `stand_in(slot, ...)` for each Python function."""
    functions = list(enumerate(zip(described.slots, described.calls, strict=True)))
    inlined = described.inlined
    try:
        for number, (slot, function) in functions:
            made = Replaced(function, stand_in(number, slot, function), threading.get_ident())
            if slot.kind == "function":
                slot.owner.apply = made
            else:
                slot.owner[slot.key] = made
        for place, node in enumerate(inlined):
            node.apply = _inlining(described, place, node)
        yield
    finally:
        for _, (slot, function) in functions:
            if slot.kind == "function":
                del slot.owner.apply
            elif slot.key in slot.owner:
                slot.owner[slot.key] = function
        for node in inlined:
            del node.apply


def _inlining(described: Description, place: int, node: Any) -> Callable[..., Any]:
    """A compiled function's backward by its graph's operators, instead of its compiled code."""

    def run(*gradients: Any) -> Any:
        function = node._forward_cls
        result = function.inlined_backward(node, *gradients)
        passed = described.passed[place] = (function.lacks(gradients), function.asked(node))
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            with _disable_current_modes():
                function.put_aside(node, *passed)
        return function.leave_to_nodes(node, result)

    return run


class _Recorder(DispatchMode):
    """Writes down what is dispatched, until something cannot be."""

    def __init__(self, described: Description) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.described = described
        self.graph = Graph()
        self.failed: str | None = None
        self.native = nodes_module()
        self.known: Any = WeakIdKeyDictionary()
        self.inputs: dict[Any, Node] = {}  # by alias key
        self.storages: set[int] = set()
        self.opaque: dict[int, program.OpaqueCall] = {}
        self.leaf_calls: dict[int, list[int]] = {}  # slots called with a leaf
        self.leaf_given: dict[int, Node] = {}
        self.moved: set[Node] = set()  # additions to gradients that are made after the graph
        self.leaf_values: dict[int, Tensor | None] = {}  # `.grad` before the leaf's hooks ran
        for number, t in enumerate(described.tensors):
            node = self.graph.placeholder(f"input_{number}")
            node.meta["val"] = from_real(t.detach())
            self.inputs[alias_key(t)] = node
            self.storages.add(t.untyped_storage()._cdata)
        self.grads = {
            list(self.inputs.values())[leaf.number]
            for leaf in described.leaves
            if leaf.grad is not None
        }

    # --- operators --------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        nodes: Any = None
        if self.failed is None:
            try:
                self._check(func, args, kwargs)
                nodes = self._nodes(args), self._nodes(kwargs)
            except NotCapturable as error:
                self.failed = str(error)
        result = func(*args, **kwargs)
        if self.failed is None:
            try:
                self._note(func, nodes, result)
            except NotCapturable as error:
                self.failed = str(error)
        return result

    def _check(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if any(tag in func.tags for tag in _READS_DATA):
            raise NotCapturable(f"{func} depends on data")
        if kwargs.get("generator") is not None:
            raise NotCapturable(f"{func} with an explicit generator")
        if func is aten.as_strided.default and args[0].untyped_storage()._cdata in self.storages:
            raise NotCapturable("as_strided of a saved tensor")  # (offsets are not described)
        for position in op_info(func).written:
            target = args[position] if position < len(args) else None
            for t in target if isinstance(target, (list, tuple)) else (target,):
                if isinstance(t, Tensor) and t.untyped_storage()._cdata in self.storages:
                    if self._lookup(t) not in self.grads:
                        raise NotCapturable(f"{func} writes to a saved tensor")

    def _note(self, func: OpOverload, nodes: Any, result: Any) -> None:
        if op_info(func).kind is OpKind.QUERY:
            return
        if func in (aten.detach.default, aten.alias.default):
            self.known[result] = nodes[0][0]
            return
        node = self.graph.create_node("call_function", func, *nodes)
        self._bind(node, result, func)

    def _bind(self, node: Node, result: Any, func: Any) -> None:
        """Remember which tensors a node gives."""
        parts = program.as_tuple(result)
        if any(isinstance(t, Tensor) and t.layout is not torch.strided for t in parts):
            raise NotCapturable(f"{func} gives a tensor that is not strided")
        if isinstance(result, Tensor):
            self.known[result] = node
        elif isinstance(result, (tuple, list)):
            for i, part in enumerate(result):
                if isinstance(part, Tensor):
                    self.known[part] = self.graph.call_function(operator.getitem, (node, i))
                elif part is not None and type(part) is not int:
                    raise NotCapturable(f"{func} gives a {type(part).__name__}")
        elif result is not None:
            raise NotCapturable(f"{func} reads a number from a tensor")

    def _nodes(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._lookup(value)
        if isinstance(value, (list, tuple)):
            return type(value)([self._nodes(v) for v in value])
        if isinstance(value, dict):
            return {k: self._nodes(v) for k, v in value.items()}
        return value

    def _lookup(self, t: Tensor) -> Any:
        """The node that gave a tensor, a number that it stands for, or the input that it is."""
        node = self.known.get(t)
        if node is not None:
            return node
        if t.layout is not torch.strided:
            raise NotCapturable(f"a tensor of layout {t.layout}")
        if self.native.is_wrapped_number(t):
            return t.item()
        node = self.inputs.get(alias_key(t))
        if node is None:
            raise NotCapturable("a tensor is used that autograd does not tell of")
        return node

    # --- Python functions -------------------------------------------------------------------------

    def stand_in(self, number: int, slot: Slot, function: Callable[..., Any]) -> Callable[..., Any]:
        """What the engine calls while recording."""
        if slot.in_epilogue:
            return lambda *args: self._leaf_call(number, slot, function, args)
        return lambda *args: self._call(number, slot, function, args)

    def _leaf_call(self, number: int, slot: Slot, function: Any, args: tuple[Any, ...]) -> Any:
        variable = self.described.leaves[slot.leaf].variable
        self.leaf_calls.setdefault(slot.leaf, []).append(number)
        if slot.leaf not in self.leaf_values:
            self.leaf_values[slot.leaf] = variable.grad
            try:
                if slot.kind == "leaf post" and args[1][0] is not None:
                    self.leaf_given[slot.leaf] = self._lookup(args[1][0])
            except NotCapturable as error:
                self.failed = str(error)
        with _pop_mode_temporarily():
            return function(*args)

    def _call(self, number: int, slot: Slot, function: Any, args: tuple[Any, ...]) -> Any:
        given: list[Tensor] = []
        structure = _flattened(args, given)
        nodes: list[Any] = []
        try:
            nodes = [self._lookup(t) for t in given]
        except NotCapturable as error:
            self.failed = str(error)
        versions = [t._version for t in given]
        with _pop_mode_temporarily():
            result = function(*args)
        if self.failed is not None:
            return result
        written = tuple(i for i, t in enumerate(given) if t._version != versions[i])
        # Results are objects of their own, also where a function gives its argument: another time
        # it may give something else, and what else the engine does with the argument stays.
        with _pop_mode_temporarily():
            result = _copied(result)
        found = [t for t in program.as_tuple(result) if isinstance(t, Tensor)] + [
            given[i] for i in written
        ]
        if any(t.layout is not torch.strided for t in found):
            self.failed = f"the {slot.kind} hook or function gives a tensor that is not strided"
            return result
        layout, outputs = program.describe_results(found)
        node = self.graph.call_function(program.opaque_operator(), (nodes, layout, outputs, number))
        for i, t in enumerate(found):
            self.known[t] = self.graph.call_function(operator.getitem, (node, i))
        self.opaque[number] = program.OpaqueCall(
            structure, program.results_of(result), type(result) not in (tuple, list), written
        )
        return result

    # --- the program ------------------------------------------------------------------------------

    def finish(self, result: Any) -> program.Program:
        """What was written down."""
        outputs: list[Node] = []
        returned = None
        if isinstance(result, tuple):
            returned = tuple(
                None if t is None else program.output_of(self._lookup(t), outputs) for t in result
            )
        values = [self._leaf(i, outputs) for i in range(len(self.described.leaves))]
        order = {node: i for i, node in enumerate(self.graph.nodes)}
        values.sort(key=lambda pair: order[pair[1]] if pair[1] is not None else -1)
        kept = [n for n in self.graph.nodes if _has_effect(n) and n not in self.moved]
        program.drop_unused(self.graph, [*kept, *outputs])
        self.graph.output(tuple(outputs))
        steps = tuple(step for step, _ in values)
        passed = tuple(self.described.passed)
        return program.Program(self.graph, returned, steps, self.opaque, passed)

    def _leaf(self, number: int, outputs: list[Node]) -> tuple[program.LeafStep, Node | None]:
        """How a leaf's gradient comes about, and the node that says when."""
        leaf = self.described.leaves[number]
        value = self.leaf_values.get(number, leaf.variable.grad)
        slots = tuple(self.leaf_calls.get(number, ()))
        given = -1
        if number in self.leaf_given:
            given = program.output_of(self.leaf_given[number], outputs)
        node: Node | None = None
        action, output = program.LeafAction.NONE, -1
        if value is None and leaf.grad is not None:
            raise NotCapturable("a gradient went away during the backward")
        if value is not None and value is not leaf.grad:
            node = self._lookup(value)
            action, output = program.LeafAction.SET, program.output_of(node, outputs)
            if leaf.grad is not None:
                raise NotCapturable("a gradient was replaced, not added to")
        elif value is not None:
            node = self.known.get(value)
            if node is not None and node.op != "placeholder":
                action = program.LeafAction.IN_GRAPH
                if self.opaque:
                    action, output = program.LeafAction.ADD, self._taken_out(node, value, outputs)
        return program.LeafStep(number, action, output, slots, given), node

    def _taken_out(self, node: Node, grad: Tensor, outputs: list[Node]) -> int:
        """The functions that are called may look at, or change, gradients: they are added to
        afterwards. Gives the output that is to be added."""
        if node.target is not aten.add_.Tensor or node.args[0] is not self.inputs[alias_key(grad)]:
            raise NotCapturable("a gradient is added to twice, beside hooks or functions")
        addend = node.args[1]
        assert isinstance(addend, Node)
        self.moved.add(node)
        return program.output_of(addend, outputs)


def _has_effect(node: Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    info = op_info(target)
    return bool(info.written) or info.kind is OpKind.CHECK or draws_random_numbers(node)


def _copied(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.clone()
    if isinstance(result, (tuple, list)):
        return type(result)([_copied(r) for r in result])
    return result


def _flattened(value: Any, found: list[Tensor]) -> Any:
    """Positions for tensors, nested as they are; the tensors go to `found`."""
    if isinstance(value, (tuple, list)):
        return tuple(_flattened(v, found) for v in value)
    if value is None:
        return None
    found.append(value)
    return len(found) - 1
