"""The pass `unroll_parts`: a loop along which a kernel's bodies change, as where tensors are
concatenated, becomes a shorter loop that computes all parts.

A rotation of pairs (rotary embeddings) computes `cat(-x[half:], x[:half])`: every element is read
and computed once for its own place and once, behind a mask, for its partner's. With both halves in
one turn of a loop half as long there are no masks, and what the parts share is computed once. So it
is with pairs side by side, as those of a complex number's parts: there is no loop over them then.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd, prod

from dovetail_inductor.loop_ir import expr
from dovetail_inductor.loop_ir.index import Index, Var, constant, variable
from dovetail_inductor.loop_ir.loops import Buffer, LoopNest
from dovetail_inductor.loop_ir.sizes import hint_of, is_symbolic
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.scheduler.kernels import FusedKernel, KernelGraph, Step

MOST_PARTS = 4
# A part is at least as wide as what a few threads read at once.
LEAST_WIDTH = 32
# Smaller kernels need all their points to keep a GPU busy.
LEAST_POINTS = 1 << 16
# First positions at which the other side of a comparison with a constant begins.
_BOUNDARY = {"lt": 0, "ge": 0, "le": 1, "gt": 1}


def unroll_parts(graph: KernelGraph, options: InductorOptions) -> KernelGraph:
    """Kernels for a GPU with each loop that falls into a few equal parts unrolled over these.

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
) -> FusedKernel:
    """The kernel itself where no loop is worth it; `buffers` gets the parts of internal ones."""
    points = prod(hint_of(v.size) for v in (*kernel.rows, *kernel.columns))
    if points < LEAST_POINTS:
        return kernel
    for var in kernel.columns or kernel.rows:
        width = _part_width(kernel, var)
        if width is not None and _can_be_cut(kernel, var):
            return _cut(builder, kernel, var, width, buffers)
    return kernel


def _part_width(kernel: FusedKernel, var: Var) -> int | None:
    """The length of the equal parts of a loop within which no comparison changes; None if there is
    no such comparison, or the parts are too many or too short."""
    if is_symbolic(var.size):
        return None
    found: set[int] = set()
    for node in expr.walk([nest.body for nest in kernel.nests]):
        if not (isinstance(node, expr.Apply) and node.op in _BOUNDARY):
            continue
        index, bound = node.args
        if not (isinstance(index, expr.IndexValue) and isinstance(bound, expr.Constant)):
            continue
        place = index.index
        if place.terms == ((var, 1),) and not is_symbolic(place.const):
            at = int(bound.value) - place.const + _BOUNDARY[node.op]
            if 0 < at < var.size:
                found.add(at)
    if not found:
        return None
    width = gcd(var.size, *found)
    if var.size == 2:
        return width
    return width if width >= LEAST_WIDTH and var.size // width <= MOST_PARTS else None


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
    part = Var(var.id, width)
    turns = () if width == 1 else (part,)
    begin = variable(part) if turns else constant(0)
    places = [begin + k * width for k in range(var.size // width)]
    # What is handed over in registers has a register for each part.
    names: list[dict[str, str]] = [{} for _ in places]
    for nest in kernel.nests:
        if var in nest.vars and nest.buffer in kernel.internal:
            for k, own in enumerate(names):
                own[nest.buffer] = f"{nest.buffer}_{k}"
                buffers[own[nest.buffer]] = replace(buffers[nest.buffer], name=own[nest.buffer])

    def placed(body: expr.Expr, k: int) -> expr.Expr:
        def element(load: expr.Load, index: Index, mask: expr.Expr | None) -> expr.Expr:
            name = names[k].get(load.buffer, load.buffer)
            return builder.load(name, index, load.dtype, mask)

        return expr.rename(builder, [body], lambda v: at(v, k), element)[0]

    def at(v: Var, k: int) -> Index:
        return places[k] if v == var else variable(v)

    def moved(index: Index, k: int) -> Index:
        return index.substitute(lambda v: at(v, k), lambda e: e)

    nests: list[LoopNest] = []
    for nest in kernel.nests:
        shorter = _with(nest.vars, var, turns)
        if nest.reduction is not None and var in nest.reduce_vars:
            body = placed(nest.body, 0)
            for k in range(1, len(places)):
                body = builder.apply(nest.reduction.combine, [body, placed(nest.body, k)])
            columns = _with(nest.reduce_vars, var, turns)
            nests.append(replace(nest, reduce_vars=columns, body=body))
        elif var in nest.vars:
            for k, own in enumerate(names):
                nests.append(
                    replace(
                        nest,
                        buffer=own.get(nest.buffer, nest.buffer),
                        vars=shorter,
                        body=placed(nest.body, k),
                        index=moved(nest.index, k),
                    )
                )
        else:
            nests.append(nest)
    replaced = {name for own in names for name in own}
    internal = (kernel.internal - replaced).union(*(own.values() for own in names))
    return FusedKernel(
        kernel.name,
        _with(kernel.rows, var, turns),
        _with(kernel.columns, var, turns),
        tuple(nests),
        internal,
    )


def _with(loops: tuple[Var, ...], var: Var, turns: tuple[Var, ...]) -> tuple[Var, ...]:
    """The loops with one replaced by what is left of it."""
    return tuple(v for loop in loops for v in (turns if loop == var else (loop,)))
