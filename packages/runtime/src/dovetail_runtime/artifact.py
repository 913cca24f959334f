"""`load`: a plan made callable."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch

from dovetail_runtime.cpp_build import CppBuild, CppBuilder
from dovetail_runtime.cpp_library import CppFunction
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.lower import TritonBinary, lower
from dovetail_runtime.native import executor_module
from dovetail_runtime.plan import CppKernel, Kernel, Plan, TritonKernel
from dovetail_runtime.triton_build import TritonBuild, TritonBuilder, current_arch


class Run(Protocol):
    """The native program of a loaded plan."""

    def __call__(self, *inputs: torch.Tensor | int) -> tuple[Any, ...]:
        """One call."""

    def run_consuming(self, inputs: list[torch.Tensor | int], /) -> tuple[Any, ...]:
        """One call that empties `inputs`, and drops each tensor in it after its last use."""

    def run_watched(
        self,
        inputs: tuple[torch.Tensor | int, ...],
        positions: tuple[int, ...],
        tell: Callable[[bool], None],
        /,
    ) -> tuple[Any, ...]:
        """One call that tells True before each step that makes the memory of an output at one of
        `positions`, and False after it."""

    def aten_operators(self) -> set[str]:
        """The names of the operators that its steps call by ATen, or may: a product of halves
        counts until it was computed without."""


def default_cpp_builder() -> CppBuilder:
    """The process's builder, with the settings of its environment."""
    return _cpp_builder(os.getpid())


@lru_cache(maxsize=1)
def _cpp_builder(process: int) -> CppBuilder:
    # By process: the threads of a builder do not survive a fork.
    return CppBuilder(Knobs.from_environment())


@dataclass(frozen=True)
class LoadOptions:
    """How a plan is loaded. `check_inputs`: verify dtype, device, shape and strides of every
    input on every call (a mismatch is a RuntimeError that names the input). `label`: what profiles
    call a call of it; without one they see its steps alone."""

    check_inputs: bool = False
    label: str = ""


@dataclass(frozen=True)
class CompiledArtifact:
    """A loaded plan. Call `run` (native, no Python frame of ours) or the artifact itself."""

    plan: Plan
    run: Run
    label: str = ""  # of its calls, in profiles

    def __call__(self, *inputs: torch.Tensor | int) -> tuple[torch.Tensor | int | None, ...]:
        return self.run(*inputs)

    def run_consuming(
        self, inputs: list[torch.Tensor | int]
    ) -> tuple[torch.Tensor | int | None, ...]:
        """Run with the tensors in `inputs` given away: the list is emptied, and each tensor is
        freed after the last step that reads it, if nobody else holds it."""
        return self.run.run_consuming(inputs)


def default_triton_builder() -> TritonBuilder:
    """The process's builder for its current GPU."""
    return _triton_builder(os.getpid(), current_arch())


@lru_cache(maxsize=4)
def _triton_builder(process: int, arch: int) -> TritonBuilder:
    return TritonBuilder(Knobs.from_environment(), arch)


@dataclass(frozen=True)
class KernelBuild:
    """Kernels on their way, of either kind."""

    cpp: CppBuild | None
    triton: TritonBuild | None

    def result(self) -> tuple[dict[str, CppFunction], dict[str, TritonBinary]]:
        """(functions of C++ kernels, binaries of Triton kernels), by symbol."""
        functions = self.cpp.result() if self.cpp is not None else {}
        return functions, self.triton.result() if self.triton is not None else {}


def start_build(kernels: Iterable[Kernel]) -> KernelBuild:
    """Begin compiling kernels in the background while a pipeline goes on. Keep the result for
    `load`, or drop it: `load` finds what is compiled or under way in any case."""
    every = list(kernels)
    cpp = [k for k in every if isinstance(k, CppKernel)]
    triton = [k for k in every if isinstance(k, TritonKernel)]
    return KernelBuild(
        default_cpp_builder().start(cpp) if cpp else None,
        default_triton_builder().start(triton) if triton else None,
    )


def load(
    plan: Plan, *, options: LoadOptions | None = None, build: KernelBuild | None = None
) -> CompiledArtifact:
    """Make `plan` callable. Kernels come from `build`, from the cache, or are compiled now."""
    chosen = options or LoadOptions()
    if plan.target == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError(f"plan {plan.name} runs on a GPU, and there is none that torch sees")
        torch.cuda.init()  # type: ignore[no-untyped-call]
    functions, binaries = build.result() if build is not None else ({}, {})
    rest = [k for k in plan.kernels if k.symbol not in functions and k.symbol not in binaries]
    if rest:
        more_functions, more_binaries = start_build(rest).result()
        functions, binaries = functions | more_functions, binaries | more_binaries
    tables = lower(plan, functions, binaries)
    raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    # The native program has bare addresses in it: it holds what keeps them valid.
    held = tuple(functions[k.symbol] for k in plan.kernels if k.symbol in functions)
    run = executor_module().load(tables, chosen.check_inputs, chosen.label, raw_stream, held)
    return CompiledArtifact(plan, run, chosen.label)
