"""The pass `compute_rows`: a row that a reduction makes for products alone, as a norm does, is made
by each program of theirs.

One row takes a launch as long as reading several megabytes of weights, of which nothing is read
meanwhile. Programs of the product make it while their weights are on their way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dovetail_inductor.loop_ir.index import linear, variable
from dovetail_inductor.loop_ir.loops import Buffer, ExternCall, LoopNest, Strided
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.products.few_rows import has_few_rows
from dovetail_inductor.products.find_products import OPERATORS, readers_and_writers
from dovetail_inductor.scheduler.kernels import (
    CombinedKernel,
    FusedKernel,
    KernelGraph,
    ProductKernel,
    Step,
    scatters,
)
from dovetail_inductor.scheduler.lifetimes import writes_of

# Of fewer columns programs are so many that the row costs more than its launch, and wider ones read
# weights of 8 and 16 bits more slowly (the model of decoding.py on an H200: 0.66 -> 0.70 to 0.76 ms
# by int8, 0.89 -> 0.91 by bfloat16; by 4 bits, of such programs anyway, 0.78 -> 0.67).
LEAST_COLUMNS = 8
# Measured up to 2048 programs. Of many more, as a head's, a launch is little beside the product.
MOST_PROGRAMS = 4096
# So many numbers are made of one byte of weights at most: the row is split in so many.
MOST_IN_ONE = 2


def part_rows(graph: KernelGraph, options: InductorOptions) -> KernelGraph:
    """Give what a row's kernel stores besides, element by element, a launch of its own, where that
    can join the product of ours whose result it reads: a sum with a residual."""
    readers, writer = readers_and_writers(graph)
    calls = [(at, s) for at, s in enumerate(graph.steps) if isinstance(s, ExternCall)]
    ours = (at for at, s in calls if s.op in OPERATORS and has_few_rows(s, graph, options, 1))
    products = set(ours)
    steps: list[Step] = []
    for step in graph.steps:
        apart: set[str] = set()
        if isinstance(step, FusedKernel) and _is_row(step):
            stored = step.writes() - step.internal
            multiplied = {at for name in stored for at in readers.get(name, ())} & products
            for nest in step.nests if multiplied else ():
                sources = nest.reads()
                plain = step.is_full(nest) and nest.buffer in stored
                follows = any(writer.get(name) in products for name in sources)
                if plain and follows and sources.isdisjoint(step.writes()):
                    steps.append(FusedKernel(nest.buffer, nest.vars, (), (nest,)))
                    apart.add(nest.buffer)
            if apart:
                step = replace(step, nests=tuple(n for n in step.nests if n.buffer not in apart))
        steps.append(step)
    return replace(graph, steps=tuple(steps))


def compute_rows(graph: KernelGraph) -> KernelGraph:
    """Let products of one row make it themselves.

    Needs steps in an order of computation, and gives such an order.
    """
    readers, _ = readers_and_writers(graph)
    kept = {o.buffer for o in graph.outputs if isinstance(o, Strided)}
    steps: list[Step | None] = list(graph.steps)
    for position, step in enumerate(graph.steps):
        if not isinstance(step, FusedKernel) or not _is_row(step):
            continue
        for name in sorted(step.writes() - step.internal - kept):
            at = readers.get(name, [])
            if len(at) == 1 and not _between(graph.steps[position + 1 : at[0]], step):
                made = _with_row(steps[at[0]], step, name, graph.buffers)
                if made is not None:
                    steps[at[0]], steps[position] = made, None
                    break
    return replace(graph, steps=tuple(s for s in steps if s is not None))


def _is_row(kernel: FusedKernel) -> bool:
    """Whether a kernel reduces one row of known length, and nothing but that."""
    plain = all(n.scatter is None and n.scan is None and not n.with_index for n in kernel.nests)
    symbolic = any(nest.is_symbolic for nest in kernel.nests)
    return not kernel.rows and bool(kernel.columns) and plain and not symbolic


def _between(steps: Sequence[Step], kernel: FusedKernel) -> bool:
    """Whether one of the steps reads what a kernel writes, or writes over what it reads."""
    written = {name for step in steps for name in writes_of(step)} | {*scatters(steps).values()}
    read = {name for step in steps for name in step.reads()}
    return bool(read & kernel.writes() or written & (kernel.reads() | kernel.writes()))


def _with_row(
    step: Step | None, row: FusedKernel, name: str, buffers: Mapping[str, Buffer]
) -> Step | None:
    """A step that multiplies the row `name`, made by the kernel `row`, which it then computes
    itself; None if it does not, or for nothing."""
    products = step.kernels if isinstance(step, CombinedKernel) else (step,)
    found = [p for p in products if isinstance(p, ProductKernel)]
    if len(found) < len(products) or not all(_takes(p, row, name, buffers) for p in found):
        return None
    programs = sum(-(-p.right.shape[-1] // p.tiles.n) for p in found)
    wide = all(p.tiles.n * len(p.rights) >= LEAST_COLUMNS for p in found)
    if programs > MOST_PROGRAMS or not wide:
        return None
    own = replace(row, internal=row.internal | {name})
    made = [replace(p, row=own) for p in found]
    return replace(step, kernels=tuple(made)) if isinstance(step, CombinedKernel) else made[0]


def _takes(
    product: ProductKernel, row: FusedKernel, name: str, buffers: Mapping[str, Buffer]
) -> bool:
    """Whether programs of a product can make the row, each as a whole, which they read in order and
    but as the left matrix."""
    tiles, left, whole = product.tiles, product.left, buffers[name]
    nest = next(n for n in row.nests if n.buffer == name)
    in_order = linear(map(variable, row.columns), _dense(nest)) == nest.index
    others = product.reads_right() | product.epilogue.reads()
    return (
        tiles.m == 1
        and tiles.parts == 1
        and left.buffer == name
        and row.is_full(nest)
        and in_order
        and (left.offset, left.stride[-1]) == (0, 1)
        and left.shape[-1] == row.column_points == whole.extent <= tiles.k
        and all(operand.in_one <= MOST_IN_ONE for operand in product.computed.values())
        and others.isdisjoint(row.writes())
    )


def _dense(nest: LoopNest) -> Sequence[int]:
    strides = [1]
    for var in reversed(nest.vars[1:]):
        strides.insert(0, strides[0] * var.size)
    return strides


__all__ = ["compute_rows", "part_rows"]
