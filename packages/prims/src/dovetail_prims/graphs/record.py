"""`trace_aten`: the ATen ops that a function of tensors calls, as an FX graph.

A small recorder for tests and tools: no autograd, no functionalisation. (The AOT stage has its own
tracer.) Ops run on fakes, so nothing is computed and no memory is used.
"""

from __future__ import annotations

import operator
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from dovetail_prims.fake.fake_mode import DispatchMode
from dovetail_prims.fake.from_real import FakeMemo, from_real
from dovetail_prims.fake_tensor import FakeTensor, propagate


class _Recorder(DispatchMode):  # type: ignore[no-untyped-call]
    """Appends a node for each op; a value's node is found by the identity of the fake."""

    def __init__(
        self, graph: Graph, decompositions: Mapping[Any, Callable[..., Any]], with_stack_trace: bool
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = graph
        self.decompositions = decompositions
        self.with_stack_trace = with_stack_trace
        self.memo = FakeMemo()
        self.nodes: dict[int, tuple[Any, Node]] = {}  # id -> (the value, kept alive; its node)
        self.constants: dict[str, Tensor] = {}

    def bind(self, value: Any, node: Node) -> None:
        self.nodes[id(value)] = (value, node)

    def fake(self, value: Any) -> Any:
        """The fake of a tensor; a real one that is no input becomes a constant of the graph."""
        if isinstance(value, Tensor) and type(value) is not FakeTensor:
            fake = from_real(value, memo=self.memo)
            if id(fake) not in self.nodes:
                name = f"_constant{len(self.constants)}"
                self.constants[name] = value
                node = self.graph.get_attr(name)
                node.meta["val"] = fake
                self.bind(fake, node)
            return fake
        return value

    def argument(self, value: Any) -> Any:
        entry = self.nodes.get(id(value))
        if entry is not None:
            return entry[1]
        if isinstance(value, Tensor):
            raise RuntimeError("trace_aten met a fake tensor that this trace did not make")
        return value

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = pytree.tree_map(self.fake, (args, kwargs or {}))
        decomposition = self.decompositions.get(func)
        if decomposition is not None:
            with self:
                result = decomposition(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = propagate(func, args, kwargs)
        node_args, node_kwargs = pytree.tree_map(self.argument, (args, kwargs))
        node = self.graph.call_function(func, node_args, node_kwargs)
        node.meta["val"] = result
        if self.with_stack_trace:
            node.meta["stack_trace"] = "".join(traceback.format_stack()[:-1])
        self._bind_results(result, node)
        return result

    def _bind_results(self, result: Any, node: Node) -> None:
        if isinstance(result, (list, tuple)):
            for i, item in enumerate(result):
                if isinstance(item, Tensor):
                    get = self.graph.call_function(operator.getitem, (node, i))
                    get.meta["val"] = item
                    self.bind(item, get)
        elif isinstance(result, (Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
            self.bind(result, node)


def _has_effect(node: Node) -> bool:
    """Whether an unused node must stay: it writes to an argument, draws random
    numbers, or is there for what it checks (it gives nothing)."""
    if node.op in ("placeholder", "output"):
        return True
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return False
    if schema.is_mutable or not schema.returns:
        return True
    return torch.Tag.nondeterministic_seeded in node.target.tags  # type: ignore[union-attr]


def trace_aten(
    fn: Callable[..., Any],
    *example_tensors: Any,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    with_stack_trace: bool = False,
) -> GraphModule:
    """The ATen graph of `fn(*example_tensors)`.

    Each tensor (also inside lists, tuples, dicts) becomes a placeholder, in pytree order. Every
    node carries the fake it stands for as `meta["val"]`. `decompositions` are applied while
    recording, their own ops too; one that returns `NotImplemented` leaves the op whole. Real
    tensors that `fn` closes over become attributes of the module.
    """
    graph = Graph()
    recorder = _Recorder(graph, decompositions or {}, with_stack_trace)
    flat, spec = pytree.tree_flatten(example_tensors)
    fakes: list[Any] = []
    for i, value in enumerate(flat):
        if isinstance(value, Tensor):
            fake = from_real(value, memo=recorder.memo)
            node = graph.placeholder(f"arg{i}")
            node.meta["val"] = fake
            recorder.bind(fake, node)
            value = fake
        fakes.append(value)
    with torch.no_grad(), recorder:
        result = fn(*pytree.tree_unflatten(fakes, spec))
    result = pytree.tree_map(recorder.fake, result)
    flat_out, out_spec = pytree.tree_flatten(result)
    out_nodes = pytree.tree_unflatten([recorder.argument(v) for v in flat_out], out_spec)
    output = graph.output(out_nodes)
    output.meta["val"] = result
    graph.eliminate_dead_code(_has_effect)
    module = GraphModule(recorder.constants, graph)
    graph.lint()
    return module
