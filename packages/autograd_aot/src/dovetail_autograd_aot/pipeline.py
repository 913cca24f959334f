"""The stages of this package, from a captured graph to a callable that behaves as eager.

    rewrite    captured graph -> captured graph          attention as one operator, and so on
    trace      captured graph -> `JointGraph`            forward and backward, functional; between
               the two the outputs are classified: fresh, an input, a view of one, ...
    partition  `JointGraph` -> `PartitionedGraph`        what is saved, what is recomputed
    compile    `PartitionedGraph` -> `CompiledParts`     by the caller's compilers
    assemble   all of these -> a callable                inputs written back, views made, autograd

`compile_once` is these in a row. `aot_compile` keeps one such compilation for each layout of
inputs that share memory, where a graph depends on that. What compiled code cannot do (writing
inputs back, views of inputs, autograd's bookkeeping) is done around it, by closures specialised
when compiling, so that a plain signature costs nothing per call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from dovetail_guards.shape_env import FrozenError
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.graphs.gradient_hooks import INPUTS, OUTPUTS, reads_of
from dovetail_prims.sizes.at_sizes import exactly
from dovetail_prims.wrappers import has_wrappers, is_wrapper
from torch import Tensor
from torch.fx import GraphModule

from dovetail_autograd_aot.aot_log import AotLog, saved_set
from dovetail_autograd_aot.boundary import JointGraph, PartitionedGraph
from dovetail_autograd_aot.calls.autograd_function import TrainingGraphs
from dovetail_autograd_aot.calls.double_backward import DoubleBackward
from dovetail_autograd_aot.calls.graph_calls import (
    Compiled,
    Compiler,
    InputVariants,
    Run,
    for_custom_operators,
    resolving,
    run_by_eager,
)
from dovetail_autograd_aot.calls.inference import compile_inference
from dovetail_autograd_aot.calls.lazy_backward import MAX_VARIANTS, LazyBackward
from dovetail_autograd_aot.calls.saved_tensors import UnsavedReads
from dovetail_autograd_aot.calls.training import compile_training, unreached_inputs
from dovetail_autograd_aot.joint.input_mutations import inputs_moved
from dovetail_autograd_aot.joint.joint_trace import Decompositions, trace_joint
from dovetail_autograd_aot.partition.min_cut import Partitioner, min_cut_partition
from dovetail_autograd_aot.subclasses.wrapping import Wrapping, compile_around
from dovetail_autograd_aot.trace.input_storages import layouts_in, of_sizes, overlapping
from dovetail_autograd_aot.trace.node_values import example_values
from dovetail_autograd_aot.trace.storage import TraceError

Rewrite = Callable[[GraphModule], GraphModule]
LateError = Callable[[Exception], None]


def _reraise(error: Exception) -> None:
    raise error


@dataclass(frozen=True)
class AotSettings:
    """What is asked of a compilation besides its compilers.

    What is traced is the graph that `rewrite` makes of the captured one, such as
    `recognise_attention`, but for the backward of a backward. The backward is compiled at the first
    backward, unless `backward_now`. Where compiling fails later, for inputs that lie otherwise in
    memory, `late_error` is called: it raises the error, or the captured operators run as they are.
    """

    rewrite: Rewrite | None = None
    backward_now: bool = False
    late_error: LateError = _reraise


@dataclass(frozen=True)
class CompileOptions:
    """How graphs are traced, partitioned and compiled (see `aot_compile`)."""

    forward_compiler: Compiler
    backward_compiler: Compiler
    partition: Partitioner
    decompositions: Decompositions | None
    settings: AotSettings


@dataclass(frozen=True)
class CompileRequest:
    """A captured graph, and how it is compiled. `unsaved` is what its backward reads that it does
    not save; `wrapping` takes its inputs apart, if they were tensor subclasses.

    It lives as long as what is compiled, so that example inputs are no part of it.
    """

    gm: GraphModule
    options: CompileOptions
    log: AotLog
    unsaved: UnsavedReads
    wrapping: Wrapping | None = None


@dataclass(frozen=True)
class CompiledParts:
    """A compiled forward; the backward, which is None in inference."""

    forward: Compiled
    backward: LazyBackward | None


def aot_compile(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    forward_compiler: Compiler,
    backward_compiler: Compiler | None = None,
    decompositions: Decompositions | None = None,
    partition: Partitioner = min_cut_partition,
    settings: AotSettings | None = None,
    log: AotLog | None = None,
) -> Run:
    """Compile `gm`, a graph over flat inputs that returns a tuple.

    A compiler takes a functional graph and its example inputs (fakes and numbers) and gives a
    callable that takes the same inputs positionally and returns the outputs, in a tuple if it has
    a method `run_consuming`, which takes the inputs out of a list and drops each after its last
    use: the backward is called so, and saved tensors are freed while it runs. Grad mode is that of
    this call. What happens later is counted in `log`.
    """
    options = CompileOptions(
        forward_compiler=forward_compiler,
        backward_compiler=backward_compiler or forward_compiler,
        partition=partition,
        decompositions=decompositions,
        settings=settings or AotSettings(),
    )
    return _compile_any(options, AotLog() if log is None else log, gm, example_inputs)


def _compile_any(
    options: CompileOptions, log: AotLog, gm: GraphModule, example_inputs: Sequence[Any]
) -> Run:
    """Compile a graph whose inputs may be tensor subclasses that wrap tensors."""
    unsaved = UnsavedReads(
        reads_of(gm), *(tuple(gm.meta.get(key, ())) for key in (INPUTS, OUTPUTS))
    )
    request = CompileRequest(gm, options, log, unsaved)
    if not any(map(is_wrapper, example_inputs)) and not has_wrappers(gm.graph):
        return _compile_as_placed(request, example_inputs)

    def compile_plain(plain: GraphModule, inputs: Sequence[Any], wrapping: Wrapping) -> Run:
        # (The plain graph inside has other inputs.)
        inside = replace(request, gm=plain, unsaved=UnsavedReads(unsaved.reads), wrapping=wrapping)
        return _compile_as_placed(inside, inputs)

    return compile_around(gm, example_inputs, compile_plain)


def _compile_as_placed(request: CompileRequest, example_inputs: Sequence[Any]) -> Run:
    """Compile a graph; again for inputs that lie otherwise in memory, if it depends on that."""
    joint, run = compile_once(request, example_inputs)
    own = len(example_inputs)
    apart = [pair for pair in joint.assumed.apart if max(pair) < own]
    moved = [m for m in joint.assumed.moved if m.index < own]
    if not joint.added.storages and not apart and not moved:
        return run
    # What the graph knows of how inputs lie in storages, and of which are views, is not guarded:
    # one graph for each layout.
    storages = joint.added.storages

    def placed(inputs: Sequence[Any]) -> tuple[Any, ...]:
        other = inputs_moved(moved, inputs) if moved else ()
        return layouts_in(storages, inputs) + overlapping(apart, inputs) + other

    variants = _variants_of(request, placed, {placed(example_inputs): run})
    if storages or apart:
        return variants

    def unless_moved(*inputs: Any) -> tuple[Any, ...]:
        return variants(*inputs) if inputs_moved(moved, inputs) else run(*inputs)

    return unless_moved


def _variants_of(
    request: CompileRequest,
    key_of: Callable[[Sequence[Any]], tuple[Any, ...]],
    known: dict[tuple[Any, ...], Run],
) -> InputVariants:
    """Compilations of a graph by `key_of` inputs; eager's operators where there can be none."""
    gm, log, wrapped = request.gm, request.log, request.wrapping is not None

    def of_any_size(inputs: Sequence[Any]) -> Run:
        try:
            _, made = compile_once(request, inputs)
        except FrozenError:
            # It would assume more of symbolic sizes than the guards, which are made, say.
            return InputVariants(_sizes_and_numbers, of_these_sizes, log, too_many)
        except Exception as error:
            return by_eager(error)
        log.placements += 1
        return made

    def of_these_sizes(inputs: Sequence[Any]) -> Run:
        try:
            # (What recognises attention asks for sizes that are not known here.)
            settings = replace(request.options.settings, rewrite=None)
            as_it_is = replace(request.options, settings=settings)
            sized = replace(request, gm=of_sizes(gm, inputs), options=as_it_is)
            _, made = compile_once(sized, inputs)
        except Exception as error:
            return by_eager(error)
        log.placements += 1
        return made

    def by_eager(error: Exception) -> Run:
        if wrapped:  # its graph notes of each trace how results are put together
            raise error
        if not isinstance(error, TraceError):
            request.options.settings.late_error(error)
        return run_by_eager(gm, log, str(error))

    def too_many() -> Run | None:
        return None if wrapped else run_by_eager(gm, log, "inputs lie in ever new layouts")

    return InputVariants(key_of, of_any_size, log, too_many, known)


def _sizes_and_numbers(inputs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple((v.shape, v.stride()) if isinstance(v, Tensor) else exactly(v) for v in inputs)


# --- the stages -----------------------------------------------------------------------------------


def compile_once(request: CompileRequest, inputs: Sequence[Any]) -> tuple[JointGraph, Run]:
    """All stages, for inputs that lie in memory as these do."""
    graph = rewrite(request)
    joint = trace(request, graph, inputs)
    parts = partition(request, joint)
    compiled = compile_parts(request, parts)
    return joint, assemble(request, joint, parts, compiled, inputs)


def rewrite(request: CompileRequest) -> GraphModule:
    """The captured graph as it is traced."""
    change = request.options.settings.rewrite
    return request.gm if change is None else change(request.gm)


def trace(request: CompileRequest, graph: GraphModule, inputs: Sequence[Any]) -> JointGraph:
    """Forward and backward as one functional graph, and what each output is made of."""
    return trace_joint(
        graph, inputs, decompositions=request.options.decompositions, wrapping=request.wrapping
    )


def partition(request: CompileRequest, joint: JointGraph) -> PartitionedGraph:
    """The joint graph in two, and what passes between them."""
    return request.options.partition(joint)


def compile_parts(request: CompileRequest, parts: PartitionedGraph) -> CompiledParts:
    """The forward, compiled; the backward, compiled now or at the first backward."""
    options = request.options
    forward = options.forward_compiler(parts.forward, example_values(parts.forward))
    forward = for_custom_operators(forward, parts.forward)
    if parts.backward is None:
        return CompiledParts(forward, None)
    request.log.saved.append(saved_set(parts))
    ends = (*_sizes_of(parts.forward), *_sizes_of(parts.backward))
    symbolic = any(isinstance(v, (torch.SymInt, torch.SymFloat)) for v in ends)
    backward = LazyBackward(parts, options.backward_compiler, request.log, MAX_VARIANTS, symbolic)
    if options.settings.backward_now or symbolic:
        # What the backward's compiler assumes of symbolic sizes must be known to the guards,
        # which are made when this function returns.
        backward.variant(0)
    return CompiledParts(forward, backward)


def assemble(
    request: CompileRequest,
    joint: JointGraph,
    parts: PartitionedGraph,
    compiled: CompiledParts,
    inputs: Sequence[Any],
) -> Run:
    """The callable around the compiled graphs."""
    given = (*inputs, *joint.added.constants)
    tensors = [(i, v) for i, v in enumerate(given) if isinstance(v, Tensor)]
    unresolved = [i for i, v in tensors if v.is_conj() or v.is_neg()]
    log = request.log
    settings = replace(request.options.settings, backward_now=False, rewrite=None)
    again = replace(request.options, settings=settings)

    def compile_second(second: GraphModule, examples: Sequence[Any]) -> Run:
        with torch.enable_grad():
            return _compile_any(again, log, second, examples)

    if compiled.backward is None:
        # The captured operators must not be recorded by autograd (a Plan would not be, but the
        # forward may be any callable).
        shield = torch.is_grad_enabled() and any(v.requires_grad for _, v in tensors)
        by_eager = None
        if joint.points:
            by_eager = DoubleBackward(request.gm, joint, compile_second, log, [])
        forward = resolving(compiled.forward, unresolved)
        return compile_inference(joint, parts, forward, shield, by_eager)
    cut = unreached_inputs(joint, parts, inputs)
    double = DoubleBackward(request.gm, joint, compile_second, log, cut)
    graphs = TrainingGraphs(
        joint, parts, compiled.forward, compiled.backward, double, request.unsaved
    )
    return compile_training(graphs, unresolved, inputs)


def _sizes_of(gm: GraphModule) -> list[Any]:
    """Every size of a graph's inputs."""
    found: list[Any] = []
    for value in example_values(gm):
        found += value._sizes if isinstance(value, FakeTensor) else [value]
    return found
