"""`load`: a plan made callable."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch

from dovetail_runtime.cpp_build import CppBuilder, CppFunction
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.lower import TritonBinary, lower
from dovetail_runtime.native import executor_module
from dovetail_runtime.plan import CppKernel, Kernel, Plan, TritonKernel
from dovetail_runtime.triton_build import TritonBuilder, current_arch


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


class KernelBuild:
    """Kernels on their way, of either kind, while a pipeline goes on. Keep it for `load`, or drop
    it: `load` finds what is compiled or under way in any case."""

    def __init__(self, kernels: Iterable[Kernel] = ()) -> None:
        self.process = os.getpid()  # no other one is told of their end
        self._begun: set[Kernel] = set()
        self._functions: dict[str, Future[CppFunction]] = {}
        self._binaries: dict[str, Future[TritonBinary]] = {}
        self.begin(kernels)

    def begin(self, kernels: Iterable[Kernel]) -> None:
        """Begin compiling kernels in the background, if that is not begun; returns at once."""
        new = [kernel for kernel in dict.fromkeys(kernels) if kernel not in self._begun]
        self._begun.update(new)
        if cpp := [k for k in new if isinstance(k, CppKernel)]:
            self._functions |= default_cpp_builder().start(cpp)
        if triton := [k for k in new if isinstance(k, TritonKernel)]:
            self._binaries |= default_triton_builder().start(triton)

    def written(self, kernel: Kernel) -> None:
        """Take note of a kernel of a plan that is not whole yet. It is begun at once where it is
        compiled by itself: those of C++ share translation units, a compiler each."""
        if isinstance(kernel, TritonKernel):
            self.begin([kernel])

    def is_underway(self) -> bool:
        """Whether `result` would wait."""
        coming: list[Future[Any]] = [*self._functions.values(), *self._binaries.values()]
        return not all(future.done() for future in coming)

    def result(self) -> tuple[dict[str, CppFunction], dict[str, TritonBinary]]:
        """(functions of C++ kernels, binaries of Triton kernels), by symbol; raises what kept one
        from being compiled."""
        functions = default_cpp_builder().results(self._functions)
        return functions, {symbol: future.result() for symbol, future in self._binaries.items()}


def load(
    plan: Plan, *, options: LoadOptions | None = None, build: KernelBuild | None = None
) -> CompiledArtifact:
    """Make `plan` callable. Kernels come from `build`, from the cache, or are compiled now."""
    chosen = options or LoadOptions()
    if plan.target == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError(f"plan {plan.name} runs on a GPU, and there is none that torch sees")
        torch.cuda.init()  # type: ignore[no-untyped-call]
    if build is None or build.process != os.getpid():
        build = KernelBuild()
    build.begin(plan.kernels)
    functions, binaries = build.result()
    tables = lower(plan, functions, binaries)
    raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    # The native program has bare addresses in it: it holds what keeps them valid.
    held = tuple(functions[k.symbol] for k in plan.kernels if k.symbol in functions)
    run = executor_module().load(tables, chosen.check_inputs, chosen.label, raw_stream, held)
    return CompiledArtifact(plan, run, chosen.label)
