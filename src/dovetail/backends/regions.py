"""Graphs run in parts by an engine that takes ONNX models: what it can compute in its regions, the
rest operator by operator as it is. What runs where is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any, ClassVar, Protocol

import torch
from dovetail_autograd_aot import JointGraph, PartitionedGraph, aot_compile, min_cut_partition
from dovetail_capture import BackendTraits
from dovetail_capture.environment.callers import warn_caller
from dovetail_capture.reporting.failures import UncompiledWarning
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.sizes.at_sizes import is_symbolic
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from dovetail.backends.onnx_moving_rules import MOVING
from dovetail.backends.onnx_rules import WHOLE
from dovetail.backends.onnx_writer import DTYPES, ModelWriter, Rule, Unsupported
from dovetail.compile_records import CountsRegions, RegionCount
from dovetail.options import unknown_name
from dovetail.pipeline import never_written
from dovetail.weights import SeenWeights

Run = Callable[[Sequence[Tensor]], Sequence[Tensor]]


class Engine(Protocol):
    """What runs models. `name` is that of the backend, `rules` write the models; `lacks` has the
    operators that it computes otherwise than eager, each with the reason."""

    name: str
    rules: Mapping[str, Rule]
    lacks: Mapping[str, str]

    def load(self, model: bytes, inputs: Sequence[str], outputs: int) -> Run:
        """Make an ONNX model callable: with its inputs in the order of their names, dense in
        memory, to its outputs."""


@dataclass
class RegionBackend(CountsRegions):
    """A backend, `(gm, example_inputs) -> callable`, around an engine. `constant_weights`: the
    parameters and buffers of calls without gradients are part of the models, which are made again
    after a weight was written to (as far as its version counter tells)."""

    engine: Engine
    constant_weights: bool = False
    counts: list[RegionCount] = field(default_factory=list)
    backend_traits: ClassVar[BackendTraits] = BackendTraits(compiler=True)

    def __post_init__(self) -> None:
        self.__qualname__ = self.engine.name  # for messages

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a captured graph of known sizes, with its backward if its inputs need one."""
        if is_symbolic(gm):
            raise Unsupported("a graph for all sizes")  # it is captured for each
        training = torch.is_grad_enabled() and any(
            isinstance(v, Tensor) and v.requires_grad for v in example_inputs
        )
        table = core_aten_table()
        if not training:
            table = {op: rule for op, rule in table.items() if str(op) not in WHOLE}
        constant = frozenset[int]()

        def partition(joint: JointGraph) -> PartitionedGraph:
            nonlocal constant
            parts = min_cut_partition(joint)
            if self.constant_weights and not training and not joint.added.storages:
                constant = never_written(gm, parts.signature)
            return parts

        def compiler(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            return self.compile_functional(graph, constant)

        return aot_compile(
            gm, example_inputs, forward_compiler=compiler, decompositions=table, partition=partition
        )

    def compile_functional(
        self, graph: GraphModule, constant: frozenset[int] = frozenset()
    ) -> Callable[..., Any]:
        """Run a functional graph's regions by the engine. The inputs at the positions `constant`
        become part of the models."""
        regions, left = find_regions(graph, self.engine)
        inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
        weights = frozenset(inputs[i] for i in constant)
        for number, nodes in enumerate(regions):
            _replace(graph, nodes, f"region_{number}", self.engine, weights)
        graph.graph.lint()
        graph.recompile()
        operators = sum(node.target is not getitem for nodes in regions for node in nodes)
        count = RegionCount(self.engine.name, len(regions), operators, tuple(sorted(left.items())))
        self.counts.append(count)
        if left and not regions:
            warn_caller(
                f"{self.engine.name} computes nothing of a graph, which runs as it is: "
                f"{count.as_text()}",
                UncompiledWarning,
            )
        run: Callable[..., Any] = graph.forward
        return run


def known_options(
    backend: str, options: Mapping[str, Any] | None, known: Sequence[str]
) -> Mapping[str, Any]:
    """The options that a backend was given. Raises ValueError, naming the near ones, for another
    than it knows."""
    for name in options or {}:
        if name not in known:
            raise ValueError(unknown_name(f"option of backend {backend!r}", name, known))
    return options or {}


def find_regions(graph: GraphModule, engine: Engine) -> tuple[list[list[Node]], Counter[str]]:
    """The regions of a functional graph, whose nodes are brought into an order in which they can
    run one after the other, and what is in none.

    An operator that the engine takes is in the region of the operators before it, unless one that
    it does not take stands between: levels count these along each path, and a level is a region.
    What is in none stays in the program's order: it may draw numbers.
    """
    writer = ModelWriter(engine.rules)
    levels: dict[Node, int] = {}
    regions: dict[int, list[Node]] = {}
    left: Counter[str] = Counter()
    outside: set[Node] = set()
    last = 0
    for node in graph.graph.nodes:
        before = (levels[v] + (v in outside) for v in node.all_input_nodes)
        levels[node] = max(before, default=0)
        if node.op != "call_function":
            continue
        reason = _refusal(node, writer, engine.lacks, outside)
        if reason is None:
            regions.setdefault(levels[node], []).append(node)
            continue
        outside.add(node)
        last = levels[node] = max(levels[node], last)
        if reason:
            left[f"{node.target} ({reason})"] += 1
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    for node in sorted(calls, key=lambda n: (levels[n], n in outside)):
        output.prepend(node)
    computing = [nodes for _, nodes in sorted(regions.items()) if any(map(_computes, nodes))]
    return computing, left


def _computes(node: Node) -> bool:
    return node.target is not getitem and str(node.target) not in MOVING


def _refusal(
    node: Node, writer: ModelWriter, lacks: Mapping[str, str], outside: set[Node]
) -> str | None:
    """Why an operator cannot be in a region, empty for a part of a result that is in none."""
    if node.target is getitem and node.args[0] in outside:
        return ""
    if str(node.target) in lacks:
        return lacks[str(node.target)]
    try:
        writer.write(node)
    except Unsupported as refusal:
        return str(refusal)
    return None


def _replace(
    graph: GraphModule, nodes: list[Node], name: str, engine: Engine, weights: frozenset[Node]
) -> None:
    """Make one call of a module of the nodes of a region."""
    inside = set(nodes)
    inputs = list(dict.fromkeys(v for n in nodes for v in n.all_input_nodes if v not in inside))
    tensors = (n for n in nodes if isinstance(n.meta.get("val"), Tensor))
    outputs = [n for n in tensors if any(user not in inside for user in n.users)]

    constant = frozenset(
        i for i, v in enumerate(inputs) if v in weights and v.meta["val"].dtype in DTYPES
    )
    part = Part(inputs, nodes, outputs)
    graph.add_submodule(name, Region(part, engine, constant))
    with graph.graph.inserting_after(nodes[-1]):
        call = graph.graph.call_module(name, tuple(inputs))
    at = call
    for i, node in enumerate(outputs):
        with graph.graph.inserting_after(at):
            at = graph.graph.call_function(getitem, (call, i))
        at.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(at, delete_user_cb=lambda user: user not in inside)
    for node in reversed(nodes):
        graph.graph.erase_node(node)


class Part:
    """A copy of some nodes of a graph, which the graph then loses."""

    def __init__(
        self, inputs: Sequence[Node], nodes: Sequence[Node], outputs: Sequence[Node]
    ) -> None:
        graph, copies = Graph(), dict[Node, Node]()
        for node in inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta["val"] = node.meta["val"]
        for node in nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in outputs))
        self.graph = graph  # (nodes live as long as it)
        self.inputs = [copies[node] for node in inputs]
        self.nodes = [copies[node] for node in nodes]
        self.outputs = [copies[node] for node in outputs]

    def load(self, engine: Engine, constants: Mapping[int, Tensor]) -> Run:
        """What computes the outputs of the inputs that are not `constants`, by position."""
        writer = ModelWriter(engine.rules)
        for i, value in constants.items():
            array = value.detach().numpy()
            writer.values[self.inputs[i]] = writer.constant(array, array.dtype)
        for node in self.nodes:
            writer.write(node)
        given = [node for i, node in enumerate(self.inputs) if i not in constants]
        model = writer.model(given, self.outputs)
        return engine.load(model, [node.name for node in given], len(self.outputs))


class Region(torch.nn.Module):
    """What an engine computes in one call. The inputs at the positions `constant` are part of its
    model, which is made again when they have changed."""

    def __init__(self, part: Part, engine: Engine, constant: frozenset[int]) -> None:
        super().__init__()
        self._part = part
        self._engine = engine
        self._constant = tuple(sorted(constant))
        self._given = tuple(i for i in range(len(part.inputs)) if i not in constant)
        values = [node.meta["val"] for node in part.outputs]
        self._layouts = [(tuple(v.shape), tuple(v.stride())) for v in values]
        # What is known of the constant inputs, and the model that they are part of.
        self._seen = SeenWeights()
        self._run: Run | None = None if constant else part.load(engine, {})

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """One call of the model."""
        weights = [inputs[i] for i in self._constant]
        if self._run is None or not self._seen.are(weights):
            seen = SeenWeights.of(weights)
            dense = {i: inputs[i].detach().contiguous() for i in self._constant}
            self._run = self._part.load(self._engine, dense)
            self._seen = seen
        results = self._run([inputs[i].detach().contiguous() for i in self._given])
        return tuple(
            _laid_out(result, *layout)
            for result, layout in zip(results, self._layouts, strict=True)
        )


def _laid_out(result: Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """A result in the strides that the rest of the graph takes it for."""
    if not shape and result.numel() == 1:
        return result.reshape(())  # (OpenVINO gives a number as a vector)
    if result.shape != shape:
        raise RuntimeError(f"the engine gave a result of {tuple(result.shape)} for {shape}")
    if result.stride() == stride:
        return result
    for dim, (size, step) in enumerate(zip(shape, stride, strict=True)):
        if size > 1 and not step:  # what is expanded lies in memory once
            result = result.narrow(dim, 0, 1)
    made = torch.empty_strided(result.shape, stride, dtype=result.dtype)
    return made.copy_(result).expand(shape)
