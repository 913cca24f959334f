"""The table of contents of the compiler: from a captured FX graph to something that runs.

    capture           bytecode -> TORCH-dialect graph            dovetail_capture (calls us)
    autograd_aot      -> functional forward and backward graphs  aot_compile
      prims           ... decomposed to CORE_ATEN while tracing  core_aten_table
    inductor          -> loops -> fused kernels -> Plan          compile_graph
    runtime           -> kernels built, plan loaded natively     load

Each stage can be run alone from the boundary value before it; nothing else joins them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail_autograd_aot import aot_compile
from dovetail_inductor import compile_graph
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import load
from dovetail_runtime.plan import CallAten, LaunchCpp, LaunchTriton, Plan
from torch.fx import GraphModule

from dovetail.options import Options


@dataclass(frozen=True)
class CompiledGraph:
    """What became of one functional graph: its plan, and where its compile time went."""

    plan: Plan
    codegen_s: float
    load_s: float

    @property
    def kernels(self) -> int:
        """Launches of generated kernels in one call."""
        return sum(isinstance(s, LaunchCpp | LaunchTriton) for s in self.plan.steps)

    @property
    def extern_calls(self) -> tuple[str, ...]:
        """The ATen operators that one call runs, in order."""
        return tuple(s.op for s in self.plan.steps if isinstance(s, CallAten))


@dataclass
class CompilerBackend:
    """Our compiler as a backend: `(gm, example_inputs) -> callable`. Keeps what it compiled."""

    options: Options
    compiled: list[CompiledGraph] = field(default_factory=list)

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a captured graph, with its backward if its inputs require grad."""
        return aot_compile(
            gm,
            example_inputs,
            forward_compiler=self.compile_functional,
            decompositions=core_aten_table(),
        )

    def compile_functional(
        self, gm: GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """Compile a functional ATen graph: loops, kernels, plan, native program."""
        start = time.perf_counter()
        plan = compile_graph(gm, example_inputs)
        planned = time.perf_counter()
        artifact = load(plan)
        self.compiled.append(CompiledGraph(plan, planned - start, time.perf_counter() - planned))
        return artifact


def aot_eager(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Capture and AOT autograd with the graphs run as they are: everything but code generation."""

    def run_as_is(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return graph.forward

    return aot_compile(
        gm, example_inputs, forward_compiler=run_as_is, decompositions=core_aten_table()
    )
