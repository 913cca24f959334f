"""The passes that tidy a `LoopGraph` before fusion: `remove_dead`, `split_divisions`,
`sort_reductions`."""

from __future__ import annotations

from dataclasses import replace

from dovetail_inductor.loop_ir.expr import Builder
from dovetail_inductor.loop_ir.loops import ExternCall, LoopGraph, LoopNest, Node, Strided
from dovetail_inductor.loop_ir.sizes import hint_of
from dovetail_inductor.scheduler import loops


def remove_dead(graph: LoopGraph) -> LoopGraph:
    """Drop nests whose result nobody reads, and nests that compute no element; what reduces no
    element is written at once, as a block of a kernel has one element at least.

    Extern calls stay: one that draws random numbers moves the generator.
    """
    live = {o.buffer for o in graph.outputs if isinstance(o, Strided)}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if isinstance(node, ExternCall):
            kept.append(node)
        elif node.buffer in live and all(v.size != 0 for v in node.vars):
            kept.append(_of_nothing(graph.builder, node))
        else:
            continue  # and what it alone reads is not needed either
        live |= kept[-1].reads()
    return replace(graph, nodes=tuple(reversed(kept)))


def _of_nothing(builder: Builder, nest: LoopNest) -> LoopNest:
    """The nest, or what it writes if it reduces no element."""
    if all(v.size != 0 for v in nest.reduce_vars) or nest.reduction is None:
        return nest
    if nest.with_index:
        raise ValueError(f"{nest.reduction} of no element")
    dtype = nest.body.dtype
    body = builder.constant(nest.reduction.identity(dtype), dtype)
    return replace(nest, reduce_vars=(), reduction=None, body=body)


def split_divisions(graph: LoopGraph) -> LoopGraph:
    """Split loops so that divisions and remainders of loop variables go away where they can."""
    nodes = tuple(
        loops.split_divisions(graph.builder, n) if isinstance(n, LoopNest) else n
        for n in graph.nodes
    )
    return replace(graph, nodes=nodes)


def sort_reductions(graph: LoopGraph) -> LoopGraph:
    """Put the loops that a reduction reduces in the order of memory, nearest neighbours innermost:
    those of a tensor in channels-last are given as channels, then pixels."""
    nodes = tuple(_sorted(n) if isinstance(n, LoopNest) else n for n in graph.nodes)
    return replace(graph, nodes=nodes)


def _sorted(nest: LoopNest) -> LoopNest:
    if nest.reduction is None or nest.reduction.in_order or len(nest.reduce_vars) < 2:
        return nest
    loads = list(nest.loads)
    apart = {
        v: sum(abs(hint_of(load.index.coefficient(v) or 0)) for load in loads)
        for v in nest.reduce_vars
    }
    order = tuple(sorted(nest.reduce_vars, key=lambda v: -apart[v]))
    return nest if order == nest.reduce_vars else replace(nest, reduce_vars=order)
