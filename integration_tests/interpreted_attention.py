"""A backend that recognises attention in 2-byte floats as on a GPU, for CPU tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from dovetail_autograd_aot import AotSettings, aot_compile, recognise_scored_attention
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime.plan import CallAten, TritonKernel
from torch.fx import GraphModule

sys.path.append(str(Path(__file__).parents[1] / "packages" / "runtime" / "tests"))
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor


class Kernels:
    """A backend whose kernels run in Triton's interpreter; the names of those that it made. There
    are no others, but for those of the `library` if it may."""

    def __init__(self, library: bool = False) -> None:
        self.names: list[str] = []
        self.library = library

    def __call__(self, gm: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        return aot_compile(
            gm,
            examples,
            forward_compiler=self.compile,
            decompositions=core_aten_table(),
            settings=AotSettings(
                lambda gm: recognise_scored_attention(gm, "cpu", (torch.float16,))
            ),
        )

    def compile(self, gm: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        plan = compile_graph(gm, options=InductorOptions(triton=True))
        assert self.library or not any(isinstance(step, CallAten) for step in plan.steps)
        self.names += [k.symbol.rpartition("_")[0] for k in plan.kernels if type(k) is TritonKernel]
        run = ReferenceExecutor(plan, launch_triton=run_in_interpreter)
        return lambda *inputs: run(*inputs)
