"""The debugging backends that run AOT autograd's graphs as they are: everything but code
generation. All but the mode "lite" decompose to CORE_ATEN; they differ in the partitioner and in
what is around."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

from dovetail_autograd_aot import aot_compile, default_partition
from dovetail_capture import BackendTraits
from dovetail_prims.decompositions import core_aten_table
from torch.fx import GraphModule

B = TypeVar("B", bound=Callable[..., Any])


def _of_this_compiler(backend: B) -> B:
    backend.backend_traits = BackendTraits(symbolic=True, compiler=True)  # type: ignore[attr-defined]
    return backend


def _as_is(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    return graph.forward


def _within(
    mode: AbstractContextManager[Any], graph: GraphModule, inputs: Sequence[Any]
) -> Callable[..., Any]:
    def run(*given: Any) -> Any:
        with mode:
            return graph.forward(*given)

    return run


@_of_this_compiler
def aot_eager(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Forward and backward cut by the min-cut partitioner, run as they are."""
    return aot_compile(
        gm, example_inputs, forward_compiler=_as_is, decompositions=core_aten_table()
    )


@_of_this_compiler
def aot_eager_default_partitioner(
    gm: GraphModule, example_inputs: Sequence[Any]
) -> Callable[..., Any]:
    """As `aot_eager`, but what the backward reads is saved, and nothing computed again."""
    return aot_compile(
        gm,
        example_inputs,
        forward_compiler=_as_is,
        decompositions=core_aten_table(),
        partition=default_partition,
    )


@_of_this_compiler
def aot_eager_decomp_partition_with_mode(
    gm: GraphModule, example_inputs: Sequence[Any], *, mode: AbstractContextManager[Any]
) -> Callable[..., Any]:
    """As `aot_eager`, with `mode` (a TorchDispatchMode) around each run of a graph."""
    return aot_compile(
        gm,
        example_inputs,
        forward_compiler=partial(_within, mode),
        decompositions=core_aten_table(),
    )


@_of_this_compiler
def run_eagers_kernels(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """What the mode "lite" makes of a graph: forward and backward of the operators that the program
    calls, nothing decomposed, so that results and gradients are eager's very numbers."""
    return aot_compile(gm, example_inputs, forward_compiler=_as_is)
