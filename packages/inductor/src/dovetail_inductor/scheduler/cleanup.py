"""The passes `remove_dead` and `split_divisions`, which tidy a `LoopGraph` before fusion."""

from __future__ import annotations

from dataclasses import replace

from dovetail_inductor.loop_ir.loops import ExternCall, LoopGraph, LoopNest, Node, Strided
from dovetail_inductor.scheduler import loops


def remove_dead(graph: LoopGraph) -> LoopGraph:
    """Drop nests whose result nobody reads, and nests that compute no element.

    Extern calls stay: one that draws random numbers moves the generator.
    """
    live = {o.buffer for o in graph.outputs if isinstance(o, Strided)}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if isinstance(node, LoopNest) and node.buffer not in live:
            continue
        live |= node.reads()
        if isinstance(node, ExternCall) or all(v.size != 0 for v in node.vars):
            kept.append(node)
    return replace(graph, nodes=tuple(reversed(kept)))


def split_divisions(graph: LoopGraph) -> LoopGraph:
    """Split loops so that divisions and remainders of loop variables go away where they can."""
    nodes = tuple(
        loops.split_divisions(graph.builder, n) if isinstance(n, LoopNest) else n
        for n in graph.nodes
    )
    return replace(graph, nodes=nodes)
