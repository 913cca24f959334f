"""`cudagraphs`: eager's kernels, recorded as CUDA graphs; no code is generated.

AOT autograd's graphs become plans that call one operator after the other, which are recorded as
those of our compiler are: inputs that stay where they are are read there, and what is handed out
while somebody may still hold it is a copy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from dovetail_autograd_aot import aot_compile
from dovetail_capture import BackendTraits
from dovetail_prims.sizes.at_sizes import is_symbolic
from dovetail_runtime import Plan, load
from dovetail_runtime.cuda_graphs import GraphedArtifact, GraphPool, RecordingPolicy
from dovetail_runtime.plan import CallAten, Free, PlanInput, Ref, Step, TensorSpec
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from dovetail.backends.eager_kernels import as_is
from dovetail.stages_shown import tell_of_cuda_graph


@dataclass
class CudaGraphs:
    """The backend, `(gm, example_inputs) -> callable`. Keeps what it recorded, and why not."""

    graphed: list[GraphedArtifact] = field(default_factory=list)
    unrecorded: list[str] = field(default_factory=list)
    backend_traits: ClassVar[BackendTraits] = BackendTraits(compiler=True)

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Record the graph's eager kernels on a GPU; what is on the CPU runs as `eager` does."""
        if is_symbolic(gm):
            raise ValueError("a graph for all sizes")  # it is captured for each
        tensors = [v for v in example_inputs if isinstance(v, Tensor)]
        if not any(v.device.type == "cuda" for v in tensors):
            self._note("a graph on the CPU")
            return aot_compile(gm, example_inputs, forward_compiler=as_is)
        static = (i for i, v in enumerate(example_inputs) if isinstance(v, torch.nn.Parameter))
        pool = GraphPool()
        return aot_compile(
            gm,
            example_inputs,
            forward_compiler=partial(self._record, pool, frozenset(static)),
            backward_compiler=partial(self._record, pool, frozenset()),
        )

    def skips(self) -> list[str]:
        """What is not recorded or replayed, and why."""
        return [*self.unrecorded, *(skip for graph in self.graphed for skip in graph.skips())]

    def _record(
        self, pool: GraphPool, static: frozenset[int], gm: GraphModule, inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        plan = operator_plan(gm, "cuda")
        if plan is None:
            self._note("a graph of more than operators on tensors of known sizes")
            return gm.forward
        told = partial(tell_of_cuda_graph, "")
        self.graphed.append(GraphedArtifact(load(plan), pool, RecordingPolicy(static), told))
        return self.graphed[-1]

    def _note(self, reason: str) -> None:
        self.unrecorded.append(reason)
        tell_of_cuda_graph("", f"not recorded: {reason}")


def cudagraphs() -> Callable[..., Any]:
    """The backend; it takes no options."""
    return CudaGraphs()


def operator_plan(gm: GraphModule, target: Literal["cpu", "cuda"]) -> Plan | None:
    """A functional graph of known sizes as calls of its operators; None if there is anything else
    in it (control flow, constants, numbers that are computed)."""
    nodes: list[Node] = list(gm.graph.nodes)
    if is_symbolic(gm) or not all(map(_is_known, nodes)):
        return None
    names = _names(nodes)
    last_read = {names[read]: i for i, node in enumerate(nodes) for read in node.all_input_nodes}
    kept = {names[node] for node in nodes if node.op == "placeholder"}
    steps: list[Step] = []
    for position, node in enumerate(nodes):
        if not isinstance(node.target, OpOverload):
            continue
        args, kwargs = _argument(node.args, names), _argument(tuple(node.kwargs.values()), names)
        outputs = _outputs(node, names)
        steps.append(
            CallAten(
                _operator(node.target), args, tuple(zip(node.kwargs, kwargs, strict=True)), outputs
            )
        )
        dead = {names[read] for read in node.all_input_nodes} - kept
        freed = tuple(sorted(name for name in dead if last_read[name] == position))
        if freed:
            steps.append(Free(freed))
    inputs = tuple(_input(node) for node in nodes if node.op == "placeholder")
    results = tuple(None if v is None else names[v] for v in _results(nodes[-1]))
    return Plan("operators", target, inputs, (), (), (), tuple(steps), (), results)


def _results(output: Node) -> Sequence[Any]:
    results: Any = output.args[0]
    return tuple(results)


def _is_known(node: Node) -> bool:
    if node.op == "output":
        return all(v is None or isinstance(v, Node) for v in _results(node))
    if node.op == "call_function" and isinstance(node.target, OpOverload):
        return all(isinstance(r.type, torch.TensorType | torch.ListType) for r in _returns(node))
    return node.op == "placeholder" or node.target is operator.getitem


def _returns(node: Node) -> Sequence[Any]:
    returned: Sequence[Any] = node.target._schema.returns  # type: ignore[union-attr]
    return returned


def _names(nodes: Sequence[Node]) -> dict[Node, str]:
    """The plan's names: the same parts of a result have one."""
    names: dict[Node, str] = {}
    parts: dict[tuple[Any, ...], str] = {}
    for node in nodes:
        part = node.target is operator.getitem
        names[node] = parts.setdefault(node.args, node.name) if part else node.name
    return names


def _outputs(node: Node, names: dict[Node, str]) -> tuple[str | None, ...]:
    if isinstance(node.meta["val"], Tensor):
        return (names[node],)
    parts = {user.args[1]: names[user] for user in node.users if user.target is operator.getitem}
    return tuple(parts.get(i) for i in range(len(node.meta["val"])))


def _operator(target: OpOverload) -> str:
    return target._schema.name + (
        f".{target._schema.overload_name}" if target._schema.overload_name else ""
    )


def _argument(value: Any, names: dict[Node, str]) -> Any:
    if isinstance(value, Node):
        return Ref(names[value])
    if isinstance(value, tuple | list):
        return tuple(_argument(v, names) for v in value)
    return value


def _input(node: Node) -> PlanInput:
    value = node.meta["val"]
    if not isinstance(value, Tensor):
        return PlanInput(node.name, None)
    shape, stride = tuple(value.shape), tuple(value.stride())
    return PlanInput(node.name, TensorSpec(shape, stride, value.dtype, value.device))
