"""`load`: a plan made callable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from dovetail_runtime.cpp_build import CppBuild, CppBuilder
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.lower import TritonBinary, lower
from dovetail_runtime.native import executor_module
from dovetail_runtime.plan import CppKernel, Plan, TritonKernel

Run = Callable[..., tuple[Any, ...]]


@lru_cache(maxsize=1)
def default_cpp_builder() -> CppBuilder:
    """The process's builder, with the settings of its environment."""
    return CppBuilder(Knobs.from_environment())


@dataclass(frozen=True)
class LoadOptions:
    """How a plan is loaded. `check_inputs`: verify dtype, device, shape and strides of every
    input on every call (a mismatch is a RuntimeError that names the input)."""

    check_inputs: bool = False


@dataclass(frozen=True)
class CompiledArtifact:
    """A loaded plan. Call `run` (native, no Python frame of ours) or the artifact itself."""

    plan: Plan
    run: Run

    def __call__(self, *inputs: torch.Tensor | int) -> tuple[torch.Tensor | int | None, ...]:
        return self.run(*inputs)


def start_cpp(plan_kernels: Any) -> CppBuild:
    """Begin compiling the C++ kernels among `plan_kernels` while the pipeline goes on; hand the
    result to `load`, or drop it: what is compiled is found by `load` in any case."""
    return default_cpp_builder().start(k for k in plan_kernels if isinstance(k, CppKernel))


def load(
    plan: Plan,
    *,
    options: LoadOptions | None = None,
    build: CppBuild | None = None,
    binaries: Mapping[str, TritonBinary] | None = None,
) -> CompiledArtifact:
    """Compile the plan's kernels (or take them from the cache) and make it callable.

    `build` and `binaries` are kernels compiled already or on their way; what they lack is
    compiled here.
    """
    chosen = options or LoadOptions()
    addresses = build.result() if build is not None else {}
    rest = [k for k in plan.kernels if isinstance(k, CppKernel) and k.symbol not in addresses]
    if rest:
        addresses |= default_cpp_builder().build(rest)
    compiled = dict(binaries or {})
    for kernel in plan.kernels:
        if isinstance(kernel, TritonKernel) and kernel.symbol not in compiled:
            raise ValueError(f"no binary was given for the Triton kernel {kernel.symbol!r}")
    tables = lower(plan, addresses, compiled)
    raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    run = executor_module().load(tables, chosen.check_inputs, raw_stream)
    return CompiledArtifact(plan, run)
