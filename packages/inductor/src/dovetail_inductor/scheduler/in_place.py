"""The pass `write_in_place`: new values of inputs are computed where the inputs lie.

A functional graph returns what its caller then copies over an input: a parameter after a step of an
optimizer, a cache of keys and values with another row. Where nobody needs the old value any more,
that copy is saved, and so is the one that a scatter into a few rows began with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from dovetail_inductor.scheduler.write_over import MAKES_NEW, is_read_only_where_written

# Integers divided by zero are an error.
DIVISIONS = ("truncdiv", "floordiv", "remainder", "fmod")


def write_in_place(
    graph: KernelGraph, overwritten: Mapping[str, int], options: InductorOptions
) -> tuple[KernelGraph, dict[str, str]]:
    """Inputs that an output (by position) is about to be copied over -> the graph without copies of
    an input onto itself, and the buffers that take an input's memory, with the input.

    Needs steps in the order in which they will run.
    """
    over, accesses = scatters(graph.steps), _Accesses(graph.steps)
    raising = any(not options.on_gpu(graph.buffers[n].device) for n in overwritten)
    raising = raising and _may_raise(graph)
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
        if raising and not options.on_gpu(graph.buffers[source].device):
            continue  # what a call that fails has begun would be seen
        if seen == 1 and free and _may_take(graph, accesses, chain[-1], source):
            places |= dict.fromkeys(chain, source)
    if not places:
        return graph, places
    # What leaves has to be written by a step, be it by a copy of the input onto itself.
    inner = {name: source for name, source in places.items() if name not in leaving}
    steps = [kept for step in graph.steps if (kept := _without_copies(step, inner)) is not None]
    return replace(graph, steps=tuple(steps)), places


class _Accesses:
    """By buffer: the positions of the steps that read it, and the one that computes it, with the
    kernel."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.readers: dict[str, list[int]] = {}
        self.writer: dict[str, tuple[int, FusedKernel]] = {}
        for position, step in enumerate(steps):
            for name in step.reads():
                self.readers.setdefault(name, []).append(position)
            for kernel in kernels_of([step]):
                for name in kernel.writes() - kernel.internal:
                    self.writer.setdefault(name, (position, kernel))


def _may_take(graph: KernelGraph, accesses: _Accesses, name: str, source: str) -> bool:
    """Whether the buffer `name` can be computed in the memory of the input `source`: the kernel
    that writes it is the last to look there, at each point before it writes there."""
    target, place = graph.buffers[name], graph.buffers[source]
    alike = (target.dtype, target.device, target.shape, target.stride, target.offset) == (
        place.dtype, place.device, place.shape, place.stride, place.offset
    )  # fmt: skip
    if not alike or target.is_symbolic or target.offset != 0:
        return False
    if name not in accesses.writer:
        return False
    written, writer = accesses.writer[name]
    for position in accesses.readers.get(source, ()):
        step = graph.steps[position]
        # (A library call's result may be a view of what it reads.)
        if position > written or (isinstance(step, ExternCall) and not _makes_new(step)):
            return False
    step = graph.steps[written]
    beside = (
        [k for k in step.kernels if k is not writer] if isinstance(step, CombinedKernel) else []
    )
    if not all(isinstance(k, FusedKernel) and source not in k.reads() for k in beside):
        return False
    nest = next(n for n in writer.nests if n.buffer == name)
    return source not in writer.reads() or is_read_only_where_written(writer, nest, source)


def _makes_new(call: ExternCall) -> bool:
    return call.out_variant or call.op.partition(".")[0] in MAKES_NEW


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
