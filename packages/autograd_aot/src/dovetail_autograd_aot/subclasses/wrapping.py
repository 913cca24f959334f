"""Tensor subclasses that wrap tensors, at the boundary of a compiled graph.

The graph is traced over the plain tensors inside: its inputs are taken apart, the subclasses'
`__torch_dispatch__` runs while tracing, with traced tensors inside, and its outputs are taken
apart. Autograd sees the wrapping tensors: the gradient of one may be of another make than the
tensor itself. So each piece of such a gradient is the gradient of a *carrier*, an input that
nothing reads, which stands between the plain graph and the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.node_facts import STATIC, blame
from dovetail_prims.wrappers import (
    WrapperLayout,
    is_wrapper,
    like_wrapper,
    put_together,
    take_apart,
)
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from dovetail_autograd_aot.subclasses import wrapped_calls as calls
from dovetail_autograd_aot.trace.input_storages import static_inputs, storage_key
from dovetail_autograd_aot.trace.node_values import SizeReader
from dovetail_autograd_aot.trace.storage import TraceError

# Graphs that are kept of one captured graph, each for other layouts or another sharing of memory.
MAX_KEPT = 8


@dataclass
class _Leaf:
    """What stands for one input while tracing: `tensor` in the graph, `leaf` below it."""

    tensor: Any
    leaf: Any
    grad_fn: Any
    version: int


class Wrapping:
    """The wrapping tensors at the boundary of one graph: `gm` is that graph over plain tensors,
    `plain` its example inputs. Each trace of it learns the rest anew."""

    def __init__(self, gm: GraphModule, examples: Sequence[Any]) -> None:
        self.examples = list(examples)
        self.output_names: list[str] = []
        self.layouts, self.plain = _all_apart(examples)
        self.gm = self._over_plain(gm)
        placeholders = [node for node in self.gm.graph.nodes if node.op == "placeholder"]
        self.sizes = SizeReader([node.meta.get("val") for node in placeholders])
        self.leaves: dict[int, _Leaf] = {}
        self.outputs: list[calls.Output] = []
        self.carried: dict[int, calls.Carried] = {}  # by leaf
        self.bumped: list[int] = []

    # --- the graph over plain tensors -------------------------------------------------------------

    def _over_plain(self, gm: GraphModule) -> GraphModule:
        graph = Graph()
        env: dict[Node, Node] = {}
        inputs = iter(enumerate(self.layouts))
        static = static_inputs(gm, self.examples)
        for node in gm.graph.nodes:
            if node.op == "get_attr" and is_wrapper(getattr(gm, str(node.target), None)):
                raise TraceError("a tensor subclass that the graph holds as an attribute")
            if node.op == "placeholder":
                index, layout = next(inputs)
                if layout is None:
                    env[node] = graph.node_copy(node)
                else:
                    parts = [
                        graph.placeholder(f"{node.name}_{i}") for i in range(layout.plain_count)
                    ]
                    env[node] = parts  # type: ignore[assignment]
                    for part in parts:
                        STATIC.tell(part, index in static)
        for index, node in enumerate(n for n in gm.graph.nodes if n.op == "placeholder"):
            if self.layouts[index] is not None:
                parts = env[node]  # type: ignore[assignment]
                env[node] = graph.call_function(self._input_maker(index), tuple(parts))
        for node in gm.graph.nodes:
            if node.op == "output":
                results = torch.fx.node.map_arg(node.args[0], env.__getitem__)
                outputs: Any = node.args[0]
                single = isinstance(outputs, Node)  # one node that gives a tuple
                self.output_names = [] if single else [getattr(o, "name", "") for o in outputs]
                graph.output(graph.call_function(self._take_outputs_apart, (results,)))
            elif node.op != "placeholder":
                env[node] = graph.node_copy(node, env.__getitem__)
        return GraphModule(gm, graph)

    def _input_maker(self, index: int) -> Callable[..., Any]:
        layout = self.layouts[index]
        assert layout is not None

        def make_input(*plain: Tensor) -> Any:
            tensor, leaf = like_wrapper(self.examples[index], layout, plain)
            with torch._C.DisableTorchFunctionSubclass():
                self.leaves[index] = _Leaf(tensor, leaf, tensor.grad_fn, tensor._version)
            return tensor

        return make_input

    def _take_outputs_apart(self, outputs: Sequence[Any]) -> list[Any]:
        """The plain outputs. Notes how the graph's own are made of them."""
        with torch._C.DisableTorchFunctionSubclass():
            return self._outputs_apart(outputs)

    def _outputs_apart(self, outputs: Sequence[Any]) -> list[Any]:
        self.outputs, self.carried = [], {}
        self.bumped = [i for i, k in self.leaves.items() if k.tensor._version != k.version]
        plain: list[Any] = []
        seen: dict[int, int] = {}
        for number, output in enumerate(outputs):
            if not is_wrapper(output):
                self.outputs.append(calls.PlainOutput(len(plain)))
                plain.append(output)
            elif id(output) in seen:
                self.outputs.append(calls.SameOutput(seen[id(output)]))
            else:
                seen[id(output)] = number
                try:
                    self.outputs.append(self._kind_of(output, plain))
                except TraceError as error:
                    if self.output_names:
                        blame(error, self.output_names[number])
                    raise
        return plain

    def look_at_inputs(self) -> None:
        """Refuse what the last operator did to an input that cannot be done around the graph."""
        with torch._C.DisableTorchFunctionSubclass():
            self._look_at_inputs()

    def _look_at_inputs(self) -> None:
        for index, known in self.leaves.items():
            tensor = known.tensor
            if tensor.grad_fn is not known.grad_fn or (
                tensor.requires_grad != self.examples[index].requires_grad
            ):
                raise TraceError(
                    f"input {index}, a {type(tensor).__name__}, is written to and needs gradients"
                )
            if tensor._version == known.version:
                continue
            now, _ = take_apart(tensor)
            if now != self.layouts[index]:
                raise TraceError(f"input {index}, a {type(tensor).__name__}, changes its layout")

    def _kind_of(self, output: Any, plain: list[Any]) -> calls.WrappingOutput | calls.InputOutput:
        for index, known in self.leaves.items():
            if output is known.tensor:
                return calls.InputOutput(index)
            if output._is_view() and output._base is known.tensor:
                if any(type(s) is not int for s in (*output.shape, *output.stride())):
                    raise TraceError(f"a view of a {type(output).__name__} of symbolic sizes")
                return calls.InputOutput(index, output)
        if output.requires_grad and (output._is_view() or output.is_leaf):
            raise TraceError(f"an output that is a view of a {type(output).__name__}, or a leaf")
        layout, inner = take_apart(output)
        if not self.sizes.tell(calls.symbolic_in(layout)):
            raise TraceError(f"a {type(output).__name__} of sizes that only data tells")
        if output.requires_grad:
            if not all(t.is_floating_point() or t.is_complex() for t in inner):
                raise TraceError(
                    f"a gradient of a {type(output).__name__} around tensors of integers"
                )
            inner = list(_TakeApart.apply(output))
        first = len(plain)
        plain += inner
        results = tuple(range(first, len(plain)))
        return calls.WrappingOutput(layout, results, output.requires_grad)

    # --- gradients --------------------------------------------------------------------------------

    def wanted(self) -> list[tuple[int, Any]]:
        """The wrapping inputs that gradients are asked for: their indices, and leaves."""
        with torch._C.DisableTorchFunctionSubclass():
            return [(i, known.leaf) for i, known in self.leaves.items() if known.leaf.requires_grad]

    def carry(self, position: int, gradient: Tensor, primals: int) -> list[Tensor]:
        """The plain pieces of the gradient of leaf number `position`: a primal's, or, from
        `primals` on, one of those that are `wanted`."""
        if position >= primals:
            index = self.wanted()[position - primals][0]
        else:
            index = self._original_index(position)
        layout, pieces = take_apart(gradient) if is_wrapper(gradient) else (None, [gradient])
        values = tuple(_carrier_of(piece) for piece in pieces)
        sizes = [size for value in values for size in value._sizes if type(size) is not int]
        if not self.sizes.tell((*sizes, *(() if layout is None else calls.symbolic_in(layout)))):
            raise TraceError("a gradient of sizes that only data tells, inside of a subclass")
        self.carried[position] = calls.Carried(index, layout, values)
        return pieces

    def _original_index(self, position: int) -> int:
        """Of a plain input: its index among the original graph's inputs."""
        for index, layout in enumerate(self.layouts):
            count = 1 if layout is None else layout.plain_count
            if position < count:
                return index
            position -= count
        raise TraceError("an attribute of the graph, whose gradient is a tensor subclass")

    # --- running ----------------------------------------------------------------------------------

    def around(self, run: calls.Run) -> Callable[..., tuple[Any, ...]]:
        """`run`, the compiled plain graph, made a function of the original inputs and their plain
        parts."""
        return calls.run_around(
            run, self.outputs, list(self.carried.values()), self.bumped, self.sizes
        )


def _all_apart(values: Sequence[Any]) -> tuple[list[WrapperLayout | None], list[Any]]:
    """The layouts of the wrapping tensors among `values`, and all plain values in order. What is
    inside has no part in autograd."""
    layouts: list[WrapperLayout | None] = []
    plain: list[Any] = []
    for value in values:
        if is_wrapper(value):
            layout, inner = take_apart(value)
            layouts.append(layout)
            plain += [t.detach() if t.requires_grad else t for t in inner]
        else:
            layouts.append(None)
            plain.append(value)
    return layouts, plain


def _sharing(plain: Sequence[Any]) -> tuple[Any, ...]:
    """Which of the plain tensors are the same, or share memory."""
    order: dict[int, int] = {}
    found = []
    for value in plain:
        if isinstance(value, Tensor):
            storage = order.setdefault(storage_key(value), len(order))
            found.append((order.setdefault(id(value), len(order)), storage))
    return tuple(found)


def compile_around(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    compile_plain: Callable[[GraphModule, Sequence[Any], Wrapping], calls.Run],
) -> Callable[..., tuple[Any, ...]]:
    """A callable for `gm`, some inputs of which wrap tensors. `compile_plain` compiles the graph
    over plain tensors. Other layouts, and another sharing of memory, are compiled anew."""
    known: list[tuple[list[WrapperLayout | None], tuple[Any, ...], Callable[..., Any]]] = []

    def compiled_for(
        inputs: Sequence[Any], layouts: list[WrapperLayout | None], plain: list[Any]
    ) -> Callable[..., tuple[Any, ...]]:
        sharing = _sharing(plain)
        for entry in known:
            if entry[0] == layouts and entry[1] == sharing:
                return entry[2]
        wrapping = Wrapping(gm, inputs)
        made = wrapping.around(compile_plain(wrapping.gm, wrapping.plain, wrapping))
        if len(known) >= MAX_KEPT:
            known.pop(0)
        known.append((layouts, sharing, made))
        return made

    def run(*inputs: Any) -> tuple[Any, ...]:
        layouts, plain = _all_apart(inputs)
        return compiled_for(inputs, layouts, plain)(inputs, plain)

    compiled_for(example_inputs, *_all_apart(example_inputs))
    return run


def _carrier_of(piece: Tensor) -> FakeTensor:
    """The metadata of a tensor of this shape that takes no memory."""
    if type(piece) is not FakeTensor:
        raise TraceError("a gradient that is a constant inside of a tensor subclass")
    zeros = (0,) * len(piece._sizes)
    return FakeTensor.make(piece._sizes, zeros, piece._dtype, piece._device)


# --- between the wrapping tensors and the plain ones ----------------------------------------------


class _TakeApart(torch.autograd.Function):
    """While tracing: a wrapping output -> the tensors inside, with its gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> tuple[Tensor, ...]:
        ctx.layout, plain = take_apart(tensor)
        ctx.set_materialize_grads(False)
        ctx.kinds = [(t.shape, t.dtype, t.device) for t in plain]
        return tuple(t.detach() for t in plain)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        whole = [
            torch.zeros(sizes, dtype=dtype, device=device) if gradient is None else gradient
            for gradient, (sizes, dtype, device) in zip(gradients, ctx.kinds, strict=True)
        ]
        return put_together(ctx.layout, whole)


BOUNDARY_FUNCTIONS = (_TakeApart,)
"""The functions of autograd that a trace has because of wrapping tensors."""
