"""The pass `round_at_peak`: what loops keep in float32 is rounded where it makes the peak."""

from __future__ import annotations

from dataclasses import replace

from dovetail_inductor.loop_ir.loops import ExternCall, Strided
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.scheduler.kernels import KernelGraph
from dovetail_inductor.scheduler.lifetimes import live_bytes

# Such a buffer is rounded if it has at least this part of the bytes at the peak, and if that falls
# below this part of what it was for it. (Smaller ones cost little, and errors are small by them.)
LARGE_PART, GAIN = 0.5, 0.97


def round_at_peak(
    graph: KernelGraph, owned: frozenset[str], options: InductorOptions
) -> KernelGraph:
    """Give half types that were to stay unrounded between two kernels their own type where, in
    float32, one is most of what is in memory at the peak: eager has them so. Needs steps in the
    order in which they will run, and `owned`, the inputs that the call frees."""
    wide = {
        name
        for name, buffer in graph.buffers.items()
        if buffer.eager_dtype is not None
        and options.target_of(buffer.device).costs.unrounded_halves
    }
    wide -= {o.buffer for o in graph.outputs if isinstance(o, Strided)}
    for step in graph.steps:
        if isinstance(step, ExternCall):
            wide -= step.reads()
    if not wide:
        return graph
    live = live_bytes(graph, owned)
    before, changed = live.bytes, graph
    while found := {
        b.name: replace(b, dtype=b.eager_dtype, eager_dtype=None)
        for b in live.alive
        if b.name in wide and b.eager_dtype is not None and b.nbytes >= LARGE_PART * before
    }:
        changed = replace(changed, buffers={**changed.buffers, **found})
        live = live_bytes(changed, owned)
    return changed if live.bytes < GAIN * before else graph
