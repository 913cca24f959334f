"""The pass `unroll_parts`: a loop along which a kernel's bodies change, as where tensors are
concatenated, becomes a shorter loop that computes all parts, or a loop for each part.

A rotation of pairs (rotary embeddings) computes `cat(-x[half:], x[:half])`: every element is read
and computed once for its own place and once, behind a mask, for its partner's. With both halves in
one turn of a loop half as long there are no masks, and what the parts share is computed once. So it
is with pairs side by side, as those of a complex number's parts: there is no loop over them then.

Of many tensors put side by side every element would ask which one it is of, and none of the answers
is shared: programs of one launch copy each tensor (of an H200's time beside the library's, 32 of
unequal width take 0.95; all parts in every turn, 1.1; asking, 2 to 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from math import gcd, prod

from dovetail_inductor.loop_ir import expr
from dovetail_inductor.loop_ir.index import Index, Var, variable
from dovetail_inductor.loop_ir.loops import Buffer, LoopNest
from dovetail_inductor.loop_ir.sizes import hint_of, is_symbolic
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.scheduler.kernels import CombinedKernel, FusedKernel, KernelGraph, Step

# Parts that one thread computes, if there are as few or not; if they share nothing; and at most.
FEW, SEPARATE_PARTS, MOST_PARTS = 4, 8, 64
# Elements that a part has side by side in memory, at least, and those of a line.
LEAST_WIDTH, LINE = 4, 32
# Smaller kernels need all their points to keep a GPU busy.
LEAST_POINTS = 1 << 16
# First positions at which the other side of a comparison with a constant begins.
_BOUNDARY = {"lt": 0, "ge": 0, "le": 1, "gt": 1}


def unroll_parts(graph: KernelGraph, options: InductorOptions) -> KernelGraph:
    """Kernels for a GPU with each loop that falls into equal parts unrolled over these, or cut.

    Part k of a loop `v` of n = p * m turns is `v = k*m + j`: nests are computed for each part at
    `j`, sums over `v` add up the parts first. Needs kernels that share no launch yet.
    """
    buffers = dict(graph.buffers)
    steps: list[Step] = []
    for step in graph.steps:
        if isinstance(step, FusedKernel):
            device = buffers[step.nests[0].buffer].device
            if options.target_of(device).scheduling.unrolls_parts:
                step = _unrolled(graph.builder, step, buffers)
        steps.append(step)
    return replace(graph, steps=tuple(steps), buffers=buffers)


def _unrolled(
    builder: expr.Builder, kernel: FusedKernel, buffers: dict[str, Buffer]
) -> FusedKernel | CombinedKernel:
    """The kernel itself where no loop is worth it; `buffers` gets the parts of internal ones."""
    points = prod(hint_of(v.size) for v in (*kernel.rows, *kernel.columns))
    if points < LEAST_POINTS:
        return kernel
    loops = kernel.columns or kernel.rows
    # What is read where it is written, of a tensor as large, may be written over in its memory.
    over = any(
        load.index == nest.index and buffers[load.buffer].extent == buffers[nest.buffer].extent
        for nest in kernel.nests
        for load in nest.loads
    )
    for position, var in enumerate(loops):
        bounds = _bounds(kernel, var)
        if not bounds or not _can_be_cut(kernel, var):
            continue
        inside = hint_of(prod(v.size for v in loops[position + 1 :]))
        width, tensors, pieces = gcd(var.size, *bounds), len(kernel.reads()), len(bounds) + 1
        parts = var.size // width
        # What parts share is read once, and short pieces are of one line of memory; else a thread
        # that has many of them only waits longer.
        together = 2 * tensors <= pieces or width * inside < LINE
        most = min(pieces, MOST_PARTS if together else SEPARATE_PARTS)
        many = kernel.columns or points // parts < LEAST_POINTS or parts > most
        wide = width >= LINE if over else width * inside >= LEAST_WIDTH
        if var.size == 2 or (wide and (parts <= FEW or not many)):
            return _cut(builder, kernel, var, width, buffers)
        least = min(high - low for low, high in pairwise((0, *bounds, var.size))) * inside
        own = (FEW < pieces <= MOST_PARTS or tensors >= pieces) and least >= LEAST_WIDTH
        if own and not (over or kernel.columns or kernel.internal):
            return _parted(builder, kernel, var, bounds)
    return kernel


def _bounds(kernel: FusedKernel, var: Var) -> list[int]:
    """The places along a loop at which comparisons change."""
    if is_symbolic(var.size):
        return []
    found: set[int] = set()
    for node in expr.walk([nest.body for nest in kernel.nests]):
        match node:
            case expr.Apply(op=op, args=(expr.IndexValue(index=at), expr.Constant(value=bound))):
                known = op in _BOUNDARY and at.terms == ((var, 1),) and not is_symbolic(at.const)
                found |= {int(bound) - at.const + _BOUNDARY[op]} if known else set()
    return sorted(at for at in found if 0 < at < var.size)


def _can_be_cut(kernel: FusedKernel, var: Var) -> bool:
    """Whether every nest is either the same for all turns of the loop, or can be computed in parts:
    nobody in the kernel reads its result but from a register."""
    for nest in kernel.nests:
        if nest.scatter is not None:
            return False
        if var in nest.reduce_vars:
            if nest.reduction is None or nest.with_index or not nest.body.dtype.is_floating_point:
                return False
        elif var in nest.vars:
            read = any(nest.buffer in other.reads() for other in kernel.nests)
            if nest.reduction is not None or (read and nest.buffer not in kernel.internal):
                return False
        elif not kernel.columns:
            return False  # computed at every turn, though it is the same
    return True


def _cut(
    builder: expr.Builder, kernel: FusedKernel, var: Var, width: int, buffers: dict[str, Buffer]
) -> FusedKernel:
    """One kernel that computes all parts in every turn."""
    part = Var(var.id, width)
    places = [variable(part) + start for start in range(0, var.size, width)]
    # What is handed over in registers has a register for each part.
    names: list[dict[str, str]] = [{} for _ in places]
    for nest in kernel.nests:
        if var in nest.vars and nest.buffer in kernel.internal:
            for k, own in enumerate(names):
                own[nest.buffer] = f"{nest.buffer}_{k}"
                buffers[own[nest.buffer]] = replace(buffers[nest.buffer], name=own[nest.buffer])
    nests: list[LoopNest] = []
    for nest in kernel.nests:
        if var not in (*nest.vars, *nest.reduce_vars):
            nests.append(nest)
            continue
        parts = [
            _placed(builder, nest, var, part, place, own)
            for place, own in zip(places, names, strict=True)
        ]
        if nest.reduction is not None:
            combine = nest.reduction.combine
            body = reduce(lambda a, b: builder.apply(combine, [a, b]), [n.body for n in parts])
            parts = [replace(parts[0], body=body)]
        nests += parts
    replaced = {name for own in names for name in own}
    internal = (kernel.internal - replaced).union(*(own.values() for own in names))
    rows, columns = (_with(loops, var, part) for loops in (kernel.rows, kernel.columns))
    return FusedKernel(kernel.name, rows, columns, tuple(nests), internal)


def _parted(
    builder: expr.Builder, kernel: FusedKernel, var: Var, bounds: list[int]
) -> CombinedKernel:
    """A kernel for each part, all in one launch."""
    kernels: list[FusedKernel] = []
    for low, high in pairwise((0, *bounds, var.size)):
        part = Var(var.id, high - low)
        rows, place = _with(kernel.rows, var, part), variable(part) + low
        nests = tuple(_placed(builder, nest, var, part, place, {}) for nest in kernel.nests)
        kernels.append(FusedKernel(f"{kernel.name}_{low}", rows, (), nests))
    return CombinedKernel(kernel.name, tuple(kernels))


def _placed(
    builder: expr.Builder,
    nest: LoopNest,
    var: Var,
    part: Var,
    place: Index,
    names: Mapping[str, str],
) -> LoopNest:
    """A nest along a part of a loop, which is at `place` in it; `names` of buffers are others."""

    def at(v: Var) -> Index:
        return place if v == var else variable(v)

    def element(load: expr.Load, index: Index, mask: expr.Expr | None) -> expr.Expr:
        return builder.load(names.get(load.buffer, load.buffer), index, load.dtype, mask)

    return replace(
        nest,
        buffer=names.get(nest.buffer, nest.buffer),
        vars=_with(nest.vars, var, part),
        reduce_vars=_with(nest.reduce_vars, var, part),
        body=expr.rename(builder, [nest.body], at, element)[0],
        index=nest.index.substitute(at, lambda e: e),
    )


def _with(loops: tuple[Var, ...], var: Var, part: Var) -> tuple[Var, ...]:
    """The loops with one replaced by a part of it, if that has several turns."""
    turns = (part,) if part.size > 1 else ()
    return tuple(v for loop in loops for v in (turns if loop == var else (loop,)))
