"""`torch.vmap` and torch.func's transforms: one node, whose function was captured as well.

The transformed function is interpreted on tensors as it sees them (for `vmap`: without the mapped
dimension) and recorded into a graph of its own. The node calls the real transform of that graph.
Tensors that the function takes from around it become further arguments of the node.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from dovetail_capture.interpreter.library.container_methods import PASS, Args, Handler, Kwargs
from dovetail_capture.interpreter.protocols import dicts
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.recorder import NotAGraphArgument, Recorder
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import DictValue, ListValue, TupleValue
from dovetail_capture.interpreter.values.functions import TransformValue
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

_TRANSFORMS: tuple[Any, ...] = (
    torch.vmap, torch.func.vmap, torch.func.grad, torch.func.grad_and_value, torch.func.jacrev,
    torch.func.jacfwd, torch.func.hessian,
)  # fmt: skip


@dataclass(frozen=True)
class _Slot:
    """The place of a tensor in the arguments of a transformed function."""

    index: int


class InnerRecorder(Recorder):
    """Records the graph of a transformed function inside of another graph."""

    def __init__(self, outer: Recorder) -> None:
        super().__init__(outer.stack_trace)
        self.outer = outer
        # Fakes and what they stand for are known throughout; inputs belong to the outermost graph.
        self.fake_mode = outer.fake_mode
        self.values = outer.values
        self.captured: list[TensorValue] = []
        self._inner: dict[Node, Node] = {}

    def placeholder(self, name: str, fake: Any) -> Node:
        return self.outer.placeholder(name, fake)

    def argument_placeholder(self, index: int, fake: Any) -> Node:
        """An argument of the transformed function."""
        return super().placeholder(f"arg{index}", fake)

    def argument(self, value: Any) -> tuple[Any, Any]:
        if value.__class__ is TensorValue and value.node.graph is not self.graph:
            if not self.outer.owns(value.node):
                raise NotAGraphArgument("a tensor of another transformed function")
            node = self._inner.get(value.node)
            if node is None:
                node = super().placeholder(f"captured{len(self.captured)}", value.fake)
                self._inner[value.node] = node
                self.captured.append(value)
            return node, value.fake
        return super().argument(value)

    def owns(self, node: Node) -> bool:
        return node.graph is self.graph or self.outer.owns(node)


def _options(vm: Interpreter, transform: Any, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    bound = inspect.signature(transform).bind(*args, **kwargs)
    options = {}
    for name, value in list(bound.arguments.items())[1:]:
        options[name] = vm.as_python(value)
        if options[name] is UNKNOWN:
            raise GraphBreakSignal(f"{transform.__name__} with {name}={value.describe()}")
    return options


def transform_of(transform: Any) -> Handler:
    """`transform(function, ...)`."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        if not args or (isinstance(args[0], Constant) and not callable(args[0].value)):
            return PASS  # type: ignore[no-any-return]
        return TransformValue(transform, args[0], _options(vm, transform, args, kwargs))

    return handler


def _template(vm: Interpreter, value: Value, tensors: list[TensorValue]) -> Any:
    """The Python structure of an argument, with slots for its tensors."""
    if isinstance(value, TensorValue):
        tensors.append(value)
        return _Slot(len(tensors) - 1)
    if isinstance(value, TupleValue) and value.cls is tuple:
        return tuple(_template(vm, item, tensors) for item in vm.iterate(value))
    if isinstance(value, ListValue) and value.cls is list:
        return [_template(vm, item, tensors) for item in vm.iterate(value)]
    if isinstance(value, DictValue):
        pairs = dicts.items(vm, value)
        return {vm.as_python(key): _template(vm, item, tensors) for key, item in pairs}
    real = vm.as_python(value)
    if real is UNKNOWN:
        raise GraphBreakSignal(f"a transformed function called with {value.describe()}")
    return real


def _mapped_dimensions(transform: Any, options: dict[str, Any], template: Any) -> list[int | None]:
    """For each tensor of the arguments, the dimension that `vmap` takes away."""
    args, kwargs = template
    if transform not in (torch.vmap, torch.func.vmap):
        return [None] * _count(template)
    in_dims = options.get("in_dims", 0)
    if isinstance(in_dims, int):
        in_dims = (in_dims,) * len(args)
    if len(in_dims) != len(args) or not all(d is None or isinstance(d, int) for d in in_dims):
        raise GraphBreakSignal("vmap with nested in_dims")
    found: list[int | None] = []
    for dim, arg in zip(in_dims, args, strict=True):
        found += [dim] * _count(arg)
    return found + [0] * _count(kwargs)


def _count(template: Any) -> int:
    return sum(type(leaf) is _Slot for leaf in pytree.tree_leaves(template))


def _rebuilt(template: Any, tensors: Any) -> Any:
    return pytree.tree_map(
        lambda leaf: tensors[leaf.index] if type(leaf) is _Slot else leaf, template
    )


def _fill(vm: Interpreter, template: Any, tensors: list[Value]) -> Value:
    """The value of an argument inside: the template with values in its slots."""
    if type(template) is _Slot:
        return tensors[template.index]
    if isinstance(template, tuple):
        return TupleValue([_fill(vm, item, tensors) for item in template])
    if isinstance(template, list):
        return ListValue([_fill(vm, item, tensors) for item in template])
    if isinstance(template, dict):
        new = DictValue()
        for key, item in template.items():
            dicts.put(vm, new, Constant(key), _fill(vm, item, tensors))
        return new
    return vm.constant(template)


def _node_function(
    transform: Any, options: dict[str, Any], inner: GraphModule, template: Any, count: int
) -> Callable[..., Any]:
    """What the node calls: the real transform of the captured graph."""

    def transformed(*tensors: Any) -> Any:
        captured = tensors[count:]

        def function(*args: Any, **kwargs: Any) -> Any:
            leaves = pytree.tree_leaves((args, kwargs))
            given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            return inner(*given, *captured)

        args, kwargs = _rebuilt(template, tensors)
        return transform(function, **options)(*args, **kwargs)

    transformed.__name__ = f"{transform.__name__}_of_graph"
    return transformed


def call_transformed(vm: Interpreter, fn: TransformValue, args: Args, kwargs: Kwargs) -> Value:
    """Call the result of a transform."""
    session = vm.session
    outer = session.recorder
    tensors: list[TensorValue] = []
    template = (
        tuple(_template(vm, arg, tensors) for arg in args),
        {name: _template(vm, arg, tensors) for name, arg in kwargs.items()},
    )
    dimensions = _mapped_dimensions(fn.transform, fn.options, template)
    inner = InnerRecorder(outer)
    inside: list[Value] = []
    for index, (tensor, dim) in enumerate(zip(tensors, dimensions, strict=True)):
        with outer.fake_mode:
            fake = tensor.fake.detach() if dim is None else tensor.fake.select(dim, 0)
        node = inner.argument_placeholder(index, fake)
        inside.append(inner.bind(TensorValue(node, fake)))
    positional = [_fill(vm, part, inside) for part in template[0]]
    named = {name: _fill(vm, part, inside) for name, part in template[1].items()}
    session.recorder = inner
    try:
        result = vm.call(fn.function, positional, named)
        vm._look_into(result)
        inner.graph.output(inner.argument(result)[0])
    except NotAGraphArgument as error:
        raise GraphBreakSignal(f"a transformed function that gives {error}") from None
    finally:
        session.recorder = outer
    graph = GraphModule(torch.nn.Module(), inner.graph)
    target = _node_function(fn.transform, fn.options, graph, template, len(tensors))
    return outer.record("call_function", target, [*tensors, *inner.captured], {})


HANDLERS: dict[Any, Handler] = {transform: transform_of(transform) for transform in _TRANSFORMS}
