"""What a backend knows of graphs: of those that it compiled, which `report` tells, and of those
that it has begun."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import getitem

from dovetail_autograd_aot import AotLog, JointGraph, PartitionedGraph
from dovetail_autograd_aot.boundary import ViewOf
from dovetail_capture.reporting.failures import Failure
from dovetail_runtime import KernelBuild
from dovetail_runtime.cuda_graphs import GraphedArtifact
from dovetail_runtime.plan import CallAten, LaunchCpp, LaunchTriton, Plan, Step, plans_within
from torch import Tensor
from torch.fx import GraphModule

from dovetail.weights import ConstantWeights

# Operators of backwards that are calls of libraries, as their forwards are; others' names tell.
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
# Elements that kernels of eager's go over no slower than it takes to call an autograd function.
_SMALL, _FEW = 1 << 14, 1 << 12  # those of libraries, and those that compute functions
# Calls of simple operators that cost as much as the calls of a compiled forward and backward.
_CHEAP = 4


@dataclass(frozen=True)
class CompiledGraph:
    """What became of one functional graph, and where its compile time went.

    kernels: launches of generated kernels in one call: of a conditional in both branches, of a loop
        in one turn.
    launches: (kernel, how often one call launches it), in order of first launch.
    extern_calls: the ATen operators that one call runs, in order.
    """

    kernels: int
    launches: tuple[tuple[str, int], ...]
    extern_calls: tuple[str, ...]
    codegen_s: float
    load_s: float

    @staticmethod
    def of(plan: Plan, codegen_s: float, load_s: float) -> CompiledGraph:
        """What is to be told of a plan."""
        steps = list(_steps(plan))
        symbols = [s.kernel for s in steps if isinstance(s, LaunchCpp | LaunchTriton)]
        calls = tuple(s.op for s in steps if isinstance(s, CallAten))
        launches = tuple(Counter(symbols).items())
        return CompiledGraph(len(symbols), launches, calls, codegen_s, load_s)


def _steps(plan: Plan) -> Iterator[Step]:
    """The steps of a plan, and of those within it."""
    for step in plan.steps:
        yield step
        for inner in plans_within(step):
            yield from _steps(inner)


@dataclass
class CompileRecords:
    """Of all graphs that one backend compiled. Keeps nothing compiled alive.

    `tracing_s` is joint tracing, decomposition and partitioning. `per_size` are the reasons why
    graphs of symbolic sizes had to be compiled for each size, `failures` the errors for which a
    graph runs uncompiled.
    """

    graphs: list[CompiledGraph] = field(default_factory=list)
    tracing_s: float = 0.0
    per_size: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    autograd: AotLog = field(default_factory=AotLog)
    _recorded: list[weakref.ref[GraphedArtifact]] = field(default_factory=list)
    _weights: list[weakref.ref[ConstantWeights]] = field(default_factory=list)

    @property
    def recorded(self) -> list[GraphedArtifact]:
        """What goes through CUDA graphs, of that which is in use."""
        return [alive for ref in self._recorded if (alive := ref()) is not None]

    @property
    def weights(self) -> list[ConstantWeights]:
        """What is computed of weights once, of that which is in use."""
        return [alive for ref in self._weights if (alive := ref()) is not None]

    def add_recorded(self, graphed: GraphedArtifact) -> None:
        """Tell of a graph that goes through CUDA graphs."""
        self._recorded.append(weakref.ref(graphed))

    def add_weights(self, weights: ConstantWeights) -> None:
        """Tell of what is computed of weights once."""
        self._weights.append(weakref.ref(weights))


@dataclass(frozen=True)
class RegionCount:
    """Of one graph that is run in parts by an engine which is not ours: in how many regions how
    many operators run there, and what runs as it is, with the reason and how often."""

    engine: str
    regions: int
    operators: int
    left: tuple[tuple[str, int], ...]

    def as_text(self) -> str:
        """One line of a report."""
        left = "; ".join(f"{what} x{count}" for what, count in self.left)
        return f"{self.engine}: {self.operators} operators in {self.regions} regions" + (
            f"; as they are: {left}" if left else ""
        )


class CountsRegions:
    """A backend that counts, of each graph that it compiled."""

    counts: list[RegionCount]


Begun = tuple[Plan, KernelBuild]  # a graph's plan, and its kernels on their way


class BegunAhead:
    """Graphs that are begun before they are asked for: `backwards` are those that most likely
    follow, by their forwards. A copy, which may be in another process, knows of none."""

    def __init__(self) -> None:
        self.backwards = weakref.WeakKeyDictionary[GraphModule, GraphModule]()
        self.begun = weakref.WeakKeyDictionary[GraphModule, Begun | None]()

    def __reduce__(self) -> tuple[type[BegunAhead], tuple[()]]:
        return BegunAhead, ()


def is_as_written(gm: GraphModule, parts: PartitionedGraph, made: list[CompiledGraph]) -> bool:
    """Whether a captured graph does by its own operators' calls what was `made` of it: it only
    takes views, or it is one call of a library's, in the forward and in the backward."""
    forward = _calls(parts.forward)
    if not forward:
        steps = [output.step for output in parts.signature.outputs]
        views = sum(len(step.view) for step in steps if isinstance(step, ViewOf))
        return len(_calls(gm)) <= views
    if len(_calls(gm)) != 1 or len(made) != 1 or made[0].kernels:
        return False
    ran = [name.partition(".")[0] for name in made[0].extern_calls]
    backward = [] if parts.backward is None else _calls(parts.backward)
    library = all(op in _PRODUCTS or op.endswith("_backward") for op in backward)
    return len(ran) == 1 and ran == forward and (library or _is_small(parts.backward, _SMALL))


def is_cheap(gm: GraphModule, parts: PartitionedGraph, joint: JointGraph) -> bool:
    """Whether a captured graph of one call, with its backward, takes eager less time on a CPU than
    an autograd function takes."""
    one_call = parts.backward is not None and len(_calls(gm)) == 1
    few = _is_small(parts.forward, _FEW) and _is_small(parts.backward, _FEW)
    return one_call and few and joint.eager_cost <= _CHEAP


def _is_small(gm: GraphModule | None, most: int) -> bool:
    """Whether calls, not elements, are what takes the time of a graph, on a CPU."""
    values = [] if gm is None else [node.meta.get("val") for node in gm.graph.nodes]
    known = [(v.numel(), v.device.type) for v in values if isinstance(v, Tensor)]
    return all(type(count) is int and count <= most and kind == "cpu" for count, kind in known)


def _calls(gm: GraphModule) -> list[str]:
    """The operators that a graph calls, but for permutations and what takes results apart."""
    found = []
    for node in gm.graph.nodes:
        whole = node.args[0].meta.get("val") if node.target is getitem else None
        if node.op.startswith("call_") and not isinstance(whole, tuple | list):
            found.append(getattr(getattr(node.target, "_schema", None), "name", ""))
    return [name for name in found if name != "aten::permute"]
