"""A backend that compiles graphs of CPU tensors as for a GPU and runs them in Triton's interpreter.

The passes are a GPU's: layouts, fusion, tiles, few-row products, shared launches. Library calls run
on the CPU. What the interpreter cannot see of a kernel: roundings (it rounds each operation by
IEEE's rules, where a GPU's division, exponential or sine is a few units off, and fuses products
with sums), types as the compiler promotes them, the order in which atomics add and threads reduce,
what a program does that was not stored yet, and what asynchronous copies and tensor cores do. It is
told to watch the addresses of accesses, so races and accesses out of bounds are seen. Kernels that
are compiled, too, assert the type of each value there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import torch
from dovetail_autograd_aot import (
    JointGraph,
    PartitionedGraph,
    aot_compile,
    min_cut_partition,
    narrow_saved_indices,
)
from dovetail_capture import BackendTraits
from dovetail_inductor import InductorOptions, compile_graph, prefer_channels_last
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.sizes.at_sizes import is_symbolic
from dovetail_runtime import LaunchCpp, Plan
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.plan import TritonKernel
from dovetail_runtime.triton_build import TritonBuilder
from torch.fx import GraphModule

from dovetail.per_size import PerSize

sys.path.append(str(Path(__file__).parents[1] / "packages" / "inductor" / "tests"))
sys.path.append(str(Path(__file__).parents[1] / "packages" / "runtime" / "tests"))
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from typed_kernels import typed_kernels

HOPPER = 90


@dataclass
class TritonBackend:
    """`(gm, example_inputs) -> callable`; keeps the plans. With a `builder`, every kernel must
    compile, too."""

    builder: TritonBuilder | None = None
    plans: list[Plan] = field(default_factory=list)
    per_size: list[str] = field(default_factory=list)  # reasons of graphs that were compiled so
    backend_traits: ClassVar[BackendTraits] = BackendTraits(symbolic=True)

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a captured graph, with its backward if its inputs require grad."""
        return aot_compile(
            gm,
            example_inputs,
            forward_compiler=self._compile,
            decompositions=core_aten_table(),
            partition=_cut,
        )

    def _compile(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        try:
            with typed_kernels() if self.builder is not None else nullcontext():
                plan = compile_graph(gm, example_inputs, options=InductorOptions(triton=True))
        except Exception as error:
            if not is_symbolic(gm):
                raise
            return PerSize(gm, str(error), self._compile, self.per_size.append)
        assert not any(isinstance(step, LaunchCpp) for step in plan.steps), "for a GPU"
        self.plans.append(plan)
        if self.builder is not None:
            self.builder.build([k for k in plan.kernels if isinstance(k, TritonKernel)])
        return ReferenceExecutor(plan, launch_triton=launch)


def builder_for_hopper() -> TritonBuilder:
    """What compiles kernels for an H100 ahead of time, into the cache."""
    return TritonBuilder(Knobs.from_environment(), HOPPER)


def _cut(joint: JointGraph) -> PartitionedGraph:
    laid_out = replace(joint, gm=prefer_channels_last(joint.gm, "cuda"))
    return min_cut_partition(narrow_saved_indices(laid_out, ("cpu",)))


def launch(
    kernel: TritonKernel, arguments: Sequence[torch.Tensor | int], grid: tuple[int, int, int]
) -> None:
    """Run one launch, whose arguments must not overlap but where they are of one memory."""
    storages = [a.untyped_storage() for a in arguments if isinstance(a, torch.Tensor)]
    ends = sorted({(storage.data_ptr(), storage.nbytes()) for storage in storages})
    for (start, size), (following, _) in pairwise(ends):
        assert start + size <= following, f"arguments of {kernel.symbol} overlap"
    run_in_interpreter(kernel, arguments, grid)


__all__ = ["TritonBackend", "builder_for_hopper", "launch"]
