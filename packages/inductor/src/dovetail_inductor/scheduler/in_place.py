"""The pass `write_in_place`: new values of inputs are computed where the inputs lie.

A functional graph returns what its caller then copies over an input: a parameter after a step of an
optimizer, a cache of keys and values with another row. Where nobody needs the old value any more,
that copy is saved, and so is the one that a scatter into a few rows began with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dovetail_inductor.loop_ir.expr import Apply, Load, walk
from dovetail_inductor.loop_ir.loops import ExternCall, LoopNest, Strided
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.scheduler.kernels import (
    CombinedKernel,
    FusedKernel,
    KernelGraph,
    Step,
    kernels_of,
    scatters,
)
from dovetail_inductor.scheduler.memory import MAKES_NEW, is_read_only_where_written

# Integers divided by zero are an error.
DIVISIONS = ("truncdiv", "floordiv", "remainder", "fmod")


def write_in_place(
    graph: KernelGraph, overwritten: Mapping[str, int], options: InductorOptions
) -> tuple[KernelGraph, dict[str, str]]:
    """Inputs that an output (by position) is about to be copied over -> the graph without copies of
    an input onto itself, and the buffers that take an input's memory, with the input.

    Needs steps in the order in which they will run.
    """
    over = scatters(graph.steps)
    leaving = [o.buffer for o in graph.outputs if isinstance(o, Strided)]
    places: dict[str, str] = {}
    for source, position in overwritten.items():
        output = graph.outputs[position]
        if not isinstance(output, Strided) or not output.covers(graph.buffers[output.buffer]):
            continue
        chain = [output.buffer]  # of scatters, each over the one before
        while chain[-1] in over:
            chain.append(over[chain[-1]])
        seen = sum(leaving.count(name) for name in chain)
        free = not places.keys() & set(chain) and source not in (*leaving, *places.values())
        if seen == 1 and free and _may_take(graph, chain[-1], source, options):
            places |= dict.fromkeys(chain, source)
    if not places:
        return graph, places
    steps = [kept for step in graph.steps if (kept := _without_copies(step, places)) is not None]
    return replace(graph, steps=tuple(steps)), places


def _may_take(graph: KernelGraph, name: str, source: str, options: InductorOptions) -> bool:
    """Whether the buffer `name` can be computed in the memory of the input `source`: the kernel
    that writes it is the last to look there, at each point before it writes there."""
    target, place = graph.buffers[name], graph.buffers[source]
    alike = (target.dtype, target.device, target.shape, target.stride, target.offset) == (
        place.dtype, place.device, place.shape, place.stride, place.offset
    )  # fmt: skip
    if not alike or target.is_symbolic or target.offset != 0:
        return False
    if not options.on_gpu(place.device) and _may_raise(graph):
        return False  # what a call that fails has begun would be seen
    written = False
    for step in graph.steps:
        members = kernels_of([step])
        writer = next((k for k in members if name in k.writes() - k.internal), None)
        if written and source in step.reads():
            return False
        if writer is None:
            if isinstance(step, ExternCall) and source in step.reads():
                # else its result may be a view of the input
                if not step.out_variant and step.op.partition(".")[0] not in MAKES_NEW:
                    return False
            continue
        written = True
        if any(source in k.reads() for k in members if k is not writer):
            return False
        if isinstance(step, CombinedKernel) and len(members) < len(step.kernels):
            return False  # a product among them
        nest = next(n for n in writer.nests if n.buffer == name)
        if source in writer.reads() and not is_read_only_where_written(writer, nest, source):
            return False
    return written


def _may_raise(graph: KernelGraph) -> bool:
    """Whether a step may find fault with what it is given."""

    if any(isinstance(step, ExternCall) for step in graph.steps):
        return True
    nests = [nest for kernel in graph.kernels for nest in kernel.nests]
    checked = (n for n in walk(v for nest in nests for v in nest.values) if isinstance(n, Apply))
    whole = any(n.op in DIVISIONS and not n.dtype.is_floating_point for n in checked)
    return whole or any(
        nest.scatter is not None or any(load.index.indirects() for load in nest.loads)
        for nest in nests
    )


def _without_copies(step: Step, places: Mapping[str, str]) -> Step | None:
    """A step without kernels that only copy inputs onto themselves."""
    if isinstance(step, CombinedKernel):
        kernels = tuple(
            k
            for k in step.kernels
            if not isinstance(k, FusedKernel) or _without_copies(k, places) is not None
        )
        if not kernels:
            return None
        return kernels[0] if len(kernels) == 1 else replace(step, kernels=kernels)
    if isinstance(step, FusedKernel) and all(_is_copy(n, places) for n in step.nests):
        return None
    return step


def _is_copy(nest: LoopNest, places: Mapping[str, str]) -> bool:
    source, body = places.get(nest.buffer), nest.body
    plain = nest.reduction is None and nest.scatter is None and nest.scan is None
    same = isinstance(body, Load) and body.buffer == source and body.index == nest.index
    return plain and same and isinstance(body, Load) and body.mask is None


__all__ = ["write_in_place"]
