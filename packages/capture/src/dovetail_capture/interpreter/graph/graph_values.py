"""From values to what a graph's nodes take, the arguments of a call; and values of what nodes give:
tensors, structures of them, and data."""

from __future__ import annotations

import collections
import enum
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from dovetail_guards.shape_env import ShapeEnv
from dovetail_prims.fake.fake_mode import FakeMode
from dovetail_prims.fake.from_real import StrideSymbol, from_real
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.sizes.size_nodes import SizeNodes
from dovetail_prims.wrappers import is_wrapper, overrides_functions, wrapper_of_fakes
from torch.fx import Graph, Node

from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Lazy, Value
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    ListValue,
    SliceValue,
    TupleValue,
    hash_key,
)
from dovetail_capture.interpreter.values.objects import ObjectValue, is_namedtuple, named_tuple
from dovetail_capture.interpreter.values.symbolic import SYMBOLIC_TYPES, SymbolicNumber
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


# What an operation on a tensor may tell that is the same of the stand-in that it was run on.
_DATA = (
    bool, int, float, complex, str, bytes, type(None), type, enum.Enum, types.FunctionType,
    types.BuiltinFunctionType, torch.dtype, torch.device, torch.layout, torch.memory_format,
    torch.qscheme,
)  # fmt: skip

# What is told of a tensor's sizes and type alone.
_OF_NO_LAYOUT = frozenset(
    {"dim", "ndimension", "size", "numel", "nelement", "is_floating_point", "is_complex",
     "is_signed", "element_size", "get_device"}
)  # fmt: skip


class RecordedValues(GraphArguments):
    """The values of a graph's nodes, by the fakes that stand for them. `stack_trace` is called for
    each node's `meta["stack_trace"]`."""

    def __init__(self, stack_trace: Callable[[], str]) -> None:
        graph = Graph()
        super().__init__(graph, SizeNodes(graph))
        self.stack_trace = stack_trace
        self.fake_mode = FakeMode()
        self.data_env: ShapeEnv | None = None  # for symbols of what depends on data, if allowed
        self.values: dict[int, TensorValue] = {}  # id(fake) -> value
        # Called where the program is told how a tensor lies in memory
        self.close_asked: Callable[[], None] = lambda: None
        self.inference = False  # is the program in a block of inference mode of its own?
        self.made_in_mode: dict[int, bool] = {}  # by the ids of fake storages: in such a block?
        self.inference_values: list[TensorValue] = []  # what was made in one
        self._inference_inputs: set[int] = set()  # ids of fake storages

    def output(self, node: Node, result: Any) -> Value:
        """The value of a node's result."""
        if isinstance(result, torch.Tensor):
            known = self.values.get(id(result))
            if known is not None:
                return known
            if self.data_env is not None and isinstance(result, FakeTensor):
                self.sizes.bind_sizes(node, result)
            cls = type(result) if is_wrapper(result) else torch.Tensor
            made = TensorValue(node, result, cls)
            made.overrides = cls is not torch.Tensor and overrides_functions(cls)
            return self.bind(made)
        if isinstance(result, (tuple, list)):
            items = [self._part(node, index, item) for index, item in enumerate(result)]
            if is_namedtuple(type(result)):
                return named_tuple(type(result), items)
            return ListValue(items) if isinstance(result, list) else TupleValue(items, type(result))
        if type(result) in (dict, collections.OrderedDict):
            value = DictValue(type(result))
            for key, item in result.items():
                kept = self.fold(key)
                value.entries[hash_key(kept)] = (kept, self._part(node, key, item))
            return value
        return self.fold(result)

    def _part(self, node: Node, key: Any, item: Any) -> Value:
        """The value of a part of a node's result."""
        if not holds_tensor(item):
            return self.fold(item)
        known = self.values.get(id(item))
        if known is not None:
            return known
        part = self.graph.create_node("call_function", operator.getitem, (node, key), {})
        part.meta["val"] = item
        part.meta["stack_trace"] = node.meta["stack_trace"]
        return self.output(part, item)

    def bind(self, value: TensorValue) -> TensorValue:
        """Remember which value a fake belongs to (the value keeps the fake alive)."""
        self.values[id(value.fake)] = value
        memory = id(storage(value.fake))
        if value.real is not None and value.real.is_inference():
            self._inference_inputs.add(memory)
        # (Views are inference tensors where their bases are, wherever they are made.)
        inside = self.inference and value.source is None
        value.inference = self.made_in_mode.setdefault(memory, inside)
        if value.inference:
            self.inference_values.append(value)
            if value.cls is not torch.Tensor:
                raise GraphBreakSignal(f"a {value.cls.__name__} that is made in inference mode")
        return value

    def value_of(self, fake: torch.Tensor) -> TensorValue | None:
        """The value that a fake belongs to."""
        return self.values.get(id(fake))

    def told(self, name: str, result: Any) -> Value:
        """A value for what a function of tensors, of this name, tells without a tensor."""
        if name not in _OF_NO_LAYOUT:
            self.close_asked()
        return self.fold(result)

    def fold(self, result: Any) -> Value:
        """A value for data that is no tensor."""
        if isinstance(result, tuple):
            return TupleValue([self.fold(item) for item in result], type(result))
        if isinstance(result, list):
            return ListValue([self.fold(item) for item in result])
        if isinstance(result, SYMBOLIC_TYPES):
            return SymbolicNumber(result)
        if holds_tensor(result):
            raise GraphBreakSignal(f"a {type(result).__name__} of tensors as an operation's result")
        if not isinstance(result, _DATA):  # it is of the stand-in: its memory, its capsule
            raise GraphBreakSignal(f"an object of type {type(result).__name__} made of a tensor")
        return Constant(result)

    def from_real(
        self, tensor: torch.Tensor, sizes: Any = None, stride_symbol: StrideSymbol | None = None
    ) -> Any:
        """A fake with the metadata of a user's tensor; `sizes` may be symbolic, and the strides
        that `stride_symbol` gives. One that wraps tensors is such a tensor around fakes."""
        if is_wrapper(tensor):
            with self.fake_mode:
                return wrapper_of_fakes(tensor, self.fake_mode.memo)
        memo = self.fake_mode.memo
        return from_real(tensor, sizes=sizes, stride_symbol=stride_symbol, memo=memo)

    def _is_inference(self, *fakes: Any) -> bool:
        """Was one of these made in a block of inference mode?"""
        known = (self.values.get(id(fake)) for fake in fakes)
        return any(value is not None and value.inference for value in known)


def storage(value: Any) -> Any:
    """The storage of a fake."""
    return getattr(value, "_storage", value)


def parts(result: Any) -> Sequence[Any]:
    """The results of an operation, as a sequence."""
    return result if type(result) in (tuple, list) else (result,)


def holds_tensor(result: Any) -> bool:
    """Is there a tensor in a result?"""
    if isinstance(result, torch.Tensor):
        return True
    if isinstance(result, (tuple, list)):
        return any(holds_tensor(item) for item in result)
    if isinstance(result, dict):
        return any(holds_tensor(item) for item in result.values())
    return False
