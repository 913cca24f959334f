"""`aot_compile`: a captured graph -> a callable that behaves as eager, forward and backward.

The graph is traced ahead of time and cut in two; each half goes to a compiler. What compiled code
cannot do (writing inputs back, views of inputs, autograd's bookkeeping) is done here around it, by
closures specialised when compiling, so that a plain signature costs nothing per call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from dovetail_guards.shape_env import FrozenError
from dovetail_prims.at_sizes import exactly
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.late_reads import INPUTS, OUTPUTS, reads_of
from dovetail_prims.wrappers import has_wrappers, is_wrapper
from torch import Tensor
from torch.fx import GraphModule

from dovetail_autograd_aot.aot_log import AotLog, saved_set
from dovetail_autograd_aot.boundary import JointGraph
from dovetail_autograd_aot.calls.double_backward import DoubleBackward
from dovetail_autograd_aot.calls.graph_calls import Compiler, for_custom_operators, resolving
from dovetail_autograd_aot.calls.inference import compile_inference
from dovetail_autograd_aot.calls.lazy_backward import MAX_VARIANTS, LazyBackward
from dovetail_autograd_aot.calls.training import compile_training, unreached_inputs
from dovetail_autograd_aot.calls.unsaved_reads import LateNeeds
from dovetail_autograd_aot.joint.joint_trace import Decompositions, trace_joint
from dovetail_autograd_aot.joint.mutated_view_inputs import with_other_places
from dovetail_autograd_aot.outputs.copy_back import tell_what_is_overwritten
from dovetail_autograd_aot.partition.min_cut import Partitioner, min_cut_partition
from dovetail_autograd_aot.subclasses.wrapping import Wrapping, compile_around
from dovetail_autograd_aot.trace.input_storages import of_sizes, overlapping, places
from dovetail_autograd_aot.trace.node_values import example_values
from dovetail_autograd_aot.trace.storage import TraceError

# Graphs that are kept of one captured graph, each for another way in which inputs share memory.
MAX_PLACEMENTS = 8
MAX_DROPPED = 8  # compilations that gave way, after which nothing is compiled any more


def aot_compile(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    forward_compiler: Compiler,
    backward_compiler: Compiler | None = None,
    decompositions: Decompositions | None = None,
    partition: Partitioner = min_cut_partition,
    compile_backward_now: bool = False,
    function_mode: Callable[[], Any] | None = None,
    rewrite: Callable[[GraphModule], GraphModule] | None = None,
    log: AotLog | None = None,
    late_error: Callable[[Exception], None] | None = None,
) -> Callable[..., tuple[Any, ...]]:
    """Compile `gm`, a graph over flat inputs that returns a tuple.

    A compiler takes a functional graph and its example inputs (fakes and numbers) and gives a
    callable that takes the same inputs positionally and returns the outputs. If the callable has a
    method `run_consuming`, which takes them out of a list and drops each after its last use, the
    backward is called so, and saved tensors are freed while it runs. The backward is compiled at
    the first backward, unless `compile_backward_now`. Grad mode is that of this call.
    `function_mode` is as for `trace_joint`. What is traced is the graph that `rewrite` makes of
    `gm`, such as `recognise_attention`, but for the backward of a backward. What happens later is
    counted in `log`. Where compiling fails later, for inputs that lie otherwise in memory,
    `late_error` is called: it raises the error, or the captured operators run as they are.
    """
    settings = _Settings(
        forward_compiler=forward_compiler,
        backward_compiler=backward_compiler or forward_compiler,
        decompositions=decompositions,
        partition=partition,
        compile_backward_now=compile_backward_now,
        function_mode=function_mode,
        rewrite=rewrite,
        log=AotLog() if log is None else log,
        late_error=_reraise if late_error is None else late_error,
    )
    return _compile_with(settings, gm, example_inputs)


Run = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True)
class _Settings:
    """What `aot_compile` was called with."""

    forward_compiler: Compiler
    backward_compiler: Compiler
    decompositions: Decompositions | None
    partition: Partitioner
    compile_backward_now: bool
    function_mode: Callable[[], Any] | None
    rewrite: Callable[[GraphModule], GraphModule] | None
    log: AotLog
    late_error: Callable[[Exception], None]


def _reraise(error: Exception) -> None:
    raise error


def _compile_with(settings: _Settings, gm: GraphModule, example_inputs: Sequence[Any]) -> Run:
    late = LateNeeds(reads_of(gm), *(tuple(gm.meta.get(key, ())) for key in (INPUTS, OUTPUTS)))
    if any(map(is_wrapper, example_inputs)) or has_wrappers(gm.graph):
        plain = LateNeeds(late.reads)  # (the plain graph inside has other inputs)
        return compile_around(
            gm, example_inputs, functools.partial(_compile_as_placed, settings, plain)
        )
    return _compile_as_placed(settings, late, gm, example_inputs)


def _compile_as_placed(
    settings: _Settings,
    late: LateNeeds,
    gm: GraphModule,
    example_inputs: Sequence[Any],
    wrapping: Wrapping | None = None,
) -> Run:
    log = settings.log
    joint, run = _compile(settings, late, gm, example_inputs, wrapping)
    own = len(example_inputs)
    apart = [pair for pair in joint.apart if max(pair) < own]
    moved = [m for m in joint.moved if m.index < own]
    if not joint.storages and not apart and not moved:
        return run
    # What the graph knows of how inputs lie in storages, and of which are views, is not guarded:
    # one graph for each way.
    storages = joint.storages

    def placed(inputs: Sequence[Any]) -> tuple[Any, ...]:
        other = with_other_places(moved, inputs) if moved else ()
        return places(storages, inputs) + overlapping(apart, inputs) + other

    def of_any_size(inputs: Sequence[Any]) -> Run:
        try:
            _, made = _compile(settings, late, gm, inputs, wrapping)
        except FrozenError:
            # It would assume more of symbolic sizes than the guards, which are made, say.
            return _Variants(_sizes_and_numbers, of_these_sizes, log, too_many)
        except Exception as error:
            return by_eager(error)
        log.placements += 1
        return made

    def of_these_sizes(inputs: Sequence[Any]) -> Run:
        # (What recognises attention asks for sizes that are not known here.)
        as_it_is = replace(settings, rewrite=None)
        try:
            _, made = _compile(as_it_is, late, of_sizes(gm, inputs), inputs, wrapping)
        except Exception as error:
            return by_eager(error)
        log.placements += 1
        return made

    def by_eager(error: Exception) -> Run:
        if wrapping is not None:  # its graph notes of each trace how results are put together
            raise error
        if not isinstance(error, TraceError):
            settings.late_error(error)
        return _by_eager(gm, log, str(error))

    def too_many() -> Run | None:
        return None if wrapping is not None else _by_eager(gm, log, "inputs lie in ever new ways")

    variants = _Variants(placed, of_any_size, log, too_many, {placed(example_inputs): run})
    if storages or apart:
        return variants

    def unless_moved(*inputs: Any) -> tuple[Any, ...]:
        return variants(*inputs) if with_other_places(moved, inputs) else run(*inputs)

    return unless_moved


def _sizes_and_numbers(inputs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple((v.shape, v.stride()) if isinstance(v, Tensor) else exactly(v) for v in inputs)


@dataclass(eq=False)
class _Variants:
    """One compilation for each key of a call's inputs, the last used last; the oldest give way. If
    too many have, new ones are run by what `otherwise` gives, if it gives anything."""

    key_of: Callable[[Sequence[Any]], tuple[Any, ...]]
    compiled_for: Callable[[Sequence[Any]], Run]
    log: AotLog
    otherwise: Callable[[], Run | None]
    known: dict[tuple[Any, ...], Run] = field(default_factory=dict)
    dropped: int = 0

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        key = self.key_of(inputs)
        chosen = self.known.pop(key, None)
        if chosen is None:
            instead = self.otherwise() if self.dropped >= MAX_DROPPED else None
            if instead is not None:
                return instead(*inputs)
            chosen = self.compiled_for(inputs)
            if len(self.known) >= MAX_PLACEMENTS:
                del self.known[next(iter(self.known))]
                self.log.placements_dropped += 1
                self.dropped += 1
        self.known[key] = chosen
        return chosen(*inputs)


def _by_eager(gm: GraphModule, log: AotLog, reason: str) -> Run:
    """The captured operators as they are. (The graph cannot end before one of them any more: the
    program was captured when its inputs lay otherwise.)"""

    def run(*inputs: Any) -> tuple[Any, ...]:
        log.note_eager_call(reason)
        return tuple(gm(*inputs))

    return run


def _compile(
    settings: _Settings,
    late: LateNeeds,
    gm: GraphModule,
    example_inputs: Sequence[Any],
    wrapping: Wrapping | None,
) -> tuple[JointGraph, Run]:
    joint = trace_joint(
        gm if settings.rewrite is None else settings.rewrite(gm),
        example_inputs,
        decompositions=settings.decompositions,
        function_mode=settings.function_mode,
        wrapping=wrapping,
    )
    parts = settings.partition(joint)
    if parts.backward is None:
        tell_what_is_overwritten(parts, len(example_inputs))
    forward = for_custom_operators(
        settings.forward_compiler(parts.forward, example_values(parts.forward)), parts.forward
    )
    inputs = (*example_inputs, *joint.constants_lifted)
    tensors = [(i, v) for i, v in enumerate(inputs) if isinstance(v, Tensor)]
    unresolved = [i for i, v in tensors if v.is_conj() or v.is_neg()]

    def compile_second(second: GraphModule, examples: Sequence[Any]) -> Run:
        with torch.enable_grad():
            again = replace(settings, compile_backward_now=False, rewrite=None)
            return _compile_with(again, second, examples)

    if parts.backward is None:
        forward = resolving(forward, unresolved)
        # The captured operators must not be recorded by autograd (a Plan would not be, but the
        # forward may be any callable).
        shield = torch.is_grad_enabled() and any(v.requires_grad for _, v in tensors)
        by_eager = None
        if joint.points:
            by_eager = DoubleBackward(gm, joint, compile_second, settings.log, [])
        return joint, compile_inference(joint, parts, forward, shield, by_eager)
    settings.log.saved.append(saved_set(parts))
    ends = (*_sizes_of(parts.forward), *_sizes_of(parts.backward))
    symbolic = any(isinstance(v, (torch.SymInt, torch.SymFloat)) for v in ends)
    lazy = LazyBackward(parts, settings.backward_compiler, settings.log, MAX_VARIANTS, symbolic)
    if settings.compile_backward_now or symbolic:
        # What the backward's compiler assumes of symbolic sizes must be known to the guards,
        # which are made when this function returns.
        lazy.variant(0)

    cut = unreached_inputs(joint, parts, example_inputs)
    double = DoubleBackward(gm, joint, compile_second, settings.log, cut)
    run = compile_training(joint, parts, forward, lazy, double, late, unresolved, example_inputs)
    return joint, run


def _sizes_of(gm: GraphModule) -> list[Any]:
    """Every size of a graph's inputs."""
    found: list[Any] = []
    for value in example_values(gm):
        found += value._sizes if isinstance(value, FakeTensor) else [value]
    return found
