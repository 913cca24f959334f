"""The pass `compute_operands`: right matrices that loops make of other tensors, for products of few
rows alone, are computed where they are multiplied, tile by tile.

So weights are read as they are kept (in 8 or 4 bits, with scales of rows or of groups), and what
they stand for is never in memory. Each element is computed once, as there is one row of tiles.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from dovetail_inductor.loop_ir.expr import Builder, Expr, Load, index_free, loads, rename
from dovetail_inductor.loop_ir.index import Index, Var, constant, linear, variable
from dovetail_inductor.loop_ir.loops import Buffer, ExternCall, LoopNest, Strided
from dovetail_inductor.loop_ir.sizes import any_symbolic
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.products.few_rows import multiply_few_rows, tiles_by_threads
from dovetail_inductor.products.find_products import OPERATORS, readers_and_writers
from dovetail_inductor.scheduler.kernels import (
    CombinedKernel,
    ComputedOperand,
    FusedKernel,
    KernelGraph,
    ProductKernel,
    ProductTiles,
    Step,
    scatters,
)
from dovetail_inductor.scheduler.loops import split_divisions

# The inner dimension of one `tl.dot` is at least so long.
LEAST_DEPTH = 16
# So many neighbours that are made of one number, as two of 4 bits of a byte, are told apart by
# constants and not by their place.
MOST_IN_ONE = 8


def compute_operands(graph: KernelGraph, options: InductorOptions) -> KernelGraph:
    """Multiply few rows by kernels that compute the right matrices themselves, where loops make
    these and nobody else reads them.

    Needs steps in an order of computation, and gives such an order.
    """
    computed = dict(_computable(graph))
    if not computed:
        return graph
    multiplied = multiply_few_rows(graph, options, computed)
    rights = {r.buffer for product in _products(multiplied.steps) for r, _ in product.rights}
    own = _by_all(multiplied.steps, {name: computed[name] for name in rights & set(computed)})
    steps = (_with_operands(step, own, multiplied.buffers) for step in multiplied.steps)
    return replace(multiplied, steps=tuple(step for step in steps if step is not None))


def _by_all(
    steps: Sequence[Step], own: Mapping[str, ComputedOperand]
) -> Mapping[str, ComputedOperand]:
    """The operands that all their readers can compute: no library call, and of one product either
    all right matrices, in equal steps, or none."""
    refused = {name for step in steps if isinstance(step, ExternCall) for name in step.reads()}
    for product in _products(steps):
        names = [right.buffer for right, _ in product.rights]
        if len({_steps(own[n]) if n in own else () for n in names}) > 1:
            refused |= set(names)
    kept = {name: operand for name, operand in own.items() if name not in refused}
    return kept if len(kept) == len(own) else _by_all(steps, kept)


def _steps(operand: ComputedOperand) -> tuple[int, ...]:
    return (operand.in_one, *(v.size for v in operand.inner))


def _products(steps: Sequence[Step]) -> Iterator[ProductKernel]:
    for step in steps:
        kernels = step.kernels if isinstance(step, CombinedKernel) else (step,)
        yield from (kernel for kernel in kernels if isinstance(kernel, ProductKernel))


def _with_operands(
    step: Step, own: Mapping[str, ComputedOperand], buffers: Mapping[str, Buffer]
) -> Step | None:
    """A step with what it computes itself, or without what others now compute; None if nothing is
    left of it."""
    if isinstance(step, ProductKernel):
        mine = {r.buffer: own[r.buffer] for r, _ in step.rights if r.buffer in own}
        return replace(step, computed=mine, tiles=_tiles(step, mine, buffers)) if mine else step
    if isinstance(step, CombinedKernel):
        kernels = (_with_operands(kernel, own, buffers) for kernel in step.kernels)
        kept = (k for k in kernels if isinstance(k, FusedKernel | ProductKernel))
        return replace(step, kernels=tuple(kept))
    if isinstance(step, FusedKernel):
        return _without(step, own)
    return step


def _without(kernel: FusedKernel, gone: Container[str]) -> FusedKernel | None:
    """A kernel that does not write some buffers, nor what is needed for them alone; None if nothing
    is left of it."""
    nests = tuple(nest for nest in kernel.nests if nest.buffer not in gone)
    if len(nests) == len(kernel.nests):
        return kernel
    read = {name for nest in nests for name in nest.reads()}
    unread = kernel.internal - read
    return _without(replace(kernel, nests=nests), unread) if nests else None


def _tiles(
    product: ProductKernel, computed: Mapping[str, ComputedOperand], buffers: Mapping[str, Buffer]
) -> ProductTiles:
    """The tiles: as deep as what is read makes sense of, and of groups (of one scale, say) of the
    inner dimension no more than one at a time where that is read once for all of a tile's."""
    tiles, (k, n) = product.tiles, product.right.shape
    operand = next(iter(computed.values()))
    if tiles.by_threads:
        return tiles_by_threads((tiles.m, n, k), operand.bits(buffers), len(product.rights))
    depth = max(tiles.k, LEAST_DEPTH * operand.in_one)
    group = operand.inner[-1].size
    if len(operand.inner) > 1 and group % LEAST_DEPTH == 0:
        while group % (depth // operand.in_one):
            depth //= 2
    return replace(tiles, k=depth)


# --- what can be computed where it is multiplied --------------------------------------------------


def _computable(graph: KernelGraph) -> Iterator[tuple[str, ComputedOperand]]:
    """The right matrices that loops make, each element by itself, for products alone."""
    readers, writer = readers_and_writers(graph)
    kept = {o.buffer for o in graph.outputs if isinstance(o, Strided)}
    overwritten = set(scatters(graph.steps).values())
    for step in graph.steps:
        if not isinstance(step, ExternCall) or step.op not in OPERATORS:
            continue
        right = step.args[-1]
        if not isinstance(right, Strided) or len(right.shape) != 2 or right.buffer in kept:
            continue
        if right.buffer not in writer or any_symbolic((*right.shape, *right.stride, right.offset)):
            continue
        if not all(_is_right(graph.steps[at], right) for at in readers[right.buffer]):
            continue
        nest = _alone(graph.builder, graph.steps[writer[right.buffer]], right.buffer)
        if nest is None or nest.reads() & overwritten:
            continue
        operand = _at_rows_and_columns(graph.builder, nest, right)
        if operand is not None:
            yield right.buffer, operand


def _is_right(step: Step, right: Strided) -> bool:
    """Whether a step is a product that reads this matrix as its right one, and nothing else of its
    buffer."""
    if not isinstance(step, ExternCall) or step.op not in OPERATORS:
        return False
    reads = [tensor.buffer for tensor in step.tensors()].count(right.buffer)
    return reads == 1 and step.args[-1] == right


def _alone(builder: Builder, step: Step, buffer: str) -> LoopNest | None:
    """The pointwise nest of a kernel that writes a buffer, with what it takes from the kernel's
    other nests computed in it; None if they have more to do with it."""
    if not isinstance(step, FusedKernel) or step.columns:
        return None
    made: dict[str, LoopNest] = {}

    def element(load: Load, index: Index, mask: Expr | None) -> Expr:
        own = made.get(load.buffer)
        if own is None or mask is not None or own.index != index:
            return builder.load(load.buffer, index, load.dtype, mask)
        return own.body

    for nest in step.nests:
        if buffer in nest.reads() or nest.scatter or nest.scan or nest.is_symbolic:
            return None
        made[nest.buffer] = nest.renamed(builder, element=element)
    found = made[buffer]
    return None if found.reads() & step.writes() else found


def _at_rows_and_columns(
    builder: Builder, nest: LoopNest, right: Strided
) -> ComputedOperand | None:
    """The body of a nest at the elements of a matrix in what it writes; None if it does not write
    dense memory."""
    depth, width = right.shape
    columns, inner = Var(0, width), Var(1, depth)
    place = linear([variable(inner), variable(columns)], right.stride, right.offset)
    steps = {atom: c for atom, c in nest.index.terms if isinstance(atom, Var)}
    if nest.index.const or len(steps) != len(nest.index.terms) or set(steps) != set(nest.vars):
        return None
    values: dict[Var, Index] = {}
    dense = 1
    for var in sorted(steps, key=lambda v: steps[v]):
        if steps[var] != dense:
            return None
        values[var] = place.floordiv(dense).mod(var.size)
        dense *= var.size
    moved = nest.renamed(builder, lambda v: values.get(v, constant(0)))
    split = split_divisions(builder, replace(moved, vars=(columns, inner), index=place))
    sizes = [var.size for var in split.vars]
    wide = next(n for n in range(len(sizes) + 1) if prod(sizes[:n]) == width)
    found = split.vars[:wide], split.vars[wide:]
    return _unrolled(builder, split.body, *found, right.offset, nest)


def _unrolled(
    builder: Builder,
    body: Expr,
    columns: tuple[Var, ...],
    inner: tuple[Var, ...],
    offset: int,
    nest: LoopNest,
) -> ComputedOperand | None:
    """The operand, of neighbours along the inner dimension that are made of the same memory each by
    itself."""
    last = inner[-1] if inner else None
    bodies = [body]
    shared = last is not None and not any(
        index_free(load.index) >> last.id & 1 for load in loads([body])
    )
    if last is not None and len(inner) > 1 and shared and last.size <= MOST_IN_ONE:
        inner = inner[:-1]
        bodies = [_at(builder, body, last, number) for number in range(last.size)]
    if not inner or prod(v.size for v in inner) < LEAST_DEPTH:
        return None
    return ComputedOperand(tuple(bodies), inner, columns, offset, nest.after, nest.origin)


def _at(builder: Builder, body: Expr, var: Var, number: int) -> Expr:
    """A body at one value of a variable."""
    values = {var: constant(number)}
    return rename(builder, [body], lambda v: values.get(v, variable(v)))[0]
