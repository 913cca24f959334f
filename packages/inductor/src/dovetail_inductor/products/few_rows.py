"""The pass `multiply_few_rows`: products of few rows, as in generating text, by kernels of ours.

Such a product takes as long as its weights take to be read. The library's kernels for it are made
for more rows, and leave a launch to each product and to what follows it. Which tiles read fastest
depends on the sizes alone; the rule here was made from measurements of all of them on an H100 (1 to
32 rows, 10 to 151,936 columns, weights in rows or in columns), where its choice takes between 0.45
and 1.05 of the library's time, in the mean 0.86 of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TypeVar

from dovetail_inductor.loop_ir.loops import ExternCall, Strided
from dovetail_inductor.options import Gpu, InductorOptions
from dovetail_inductor.products.dual_products import DualProduct, find_duals
from dovetail_inductor.products.find_products import (
    ProductGroup,
    find_groups,
    find_products,
    is_ours_to_compute,
    with_forms,
)
from dovetail_inductor.products.products import (
    OF_INTEGERS,
    SCALED,
    Form,
    Multiplication,
    Product,
)
from dovetail_inductor.scheduler.kernels import (
    CombinedKernel,
    ComputedOperand,
    KernelGraph,
    ProductKernel,
    ProductTiles,
    Step,
    covering,
    power_of_two,
)
from dovetail_inductor.scheduler.lifetimes import writes_of
from dovetail_inductor.scheduler.memory import MemoryPlan

S = TypeVar("S", bound=Step)

MOST_ROWS = 32
# By weights that are kept in fewer bits, which for the library would be written and read again: on
# an H200 (1024 x 1024 to 4096 x 14336 of them) kernels of ours took 0.8 to 1.2 of the time of both
# of 256 rows, 0.6 to 0.93 of 128 and 0.4 to 0.8 of 48.
MOST_ROWS_BY_FEW_BITS = 128
# What a GPU reads at once.
VECTOR_BYTES = 16
# Columns and depth of a tile, warps and stages: narrow tiles make enough programs of few columns.
TILES = ((16, 256, 2, 6), (32, 128, 4, 6), (64, 128, 4, 5), (128, 128, 4, 4))
# Where no tile is wide enough for all programs to run at once, they come in several waves.
IN_WAVES = TILES[2]
# Where even the narrowest leave half of the multiprocessors idle, or each would sum for long, the
# inner dimension is cut in parts, if parts are worth the launch that adds them up.
WORTH_PARTS, LONG, LEAST_PART, MOST_PARTS = 1536, 8192, 256, 16
# So many of the multiprocessors are enough: twice as many parts, in as little time at best, are
# twice the sums that go through memory.
BUSY = 15 / 16
# Of more rows, by weights of few bits, an H200 took the first where their columns are enough for
# every multiprocessor.
WIDE_TILES, TILES_OF_64 = ProductTiles(128, 64, 64, 4, 3), ProductTiles(64, 64, 128, 4, 3)
# Of integers, of which the library leaves half of a Hopper's speed: on an H200, with what follows,
# 32 and 64 rows (in two parts at most) took 0.63 to 0.87 of its time, 512 and more 0.53 to 0.98.
FEW_INTEGERS, MANY_INTEGERS = ProductTiles(64, 64, 128, 4, 5), ProductTiles(128, 128, 128, 4, 3)
# Programs on each multiprocessor, below which the former are cut in parts.
EACH = 1.5
# Threads multiply one row, and up to so many by weights of few bits, for others tensor cores are
# faster (decoding.py with 8 rows on an H200: int4 8.3 -> 2.3 ms by threads, but int8 1.6 -> 1.9 and
# bfloat16 1.4 -> 2.0). A program multiplies whole columns, of so many numbers at most.
ROWS_BY_THREADS, FEW_BITS, MOST_DEPTH = 8, 4, 32768
# How many numbers of its columns a thread has, of one row by weights of 8 and more bits, and else.
NUMBERS, MORE_NUMBERS = 64, 128


def multiply_few_rows(
    graph: KernelGraph,
    options: InductorOptions,
    computed: Mapping[str, ComputedOperand] | None = None,
) -> KernelGraph:
    """Put kernels of ours in the place of library calls that multiply few rows, and of what can
    follow in the same kernel; where some are given, only by right matrices that can be `computed`.

    Needs steps in an order of computation, and gives such an order.
    """

    def ours(call: ExternCall) -> bool:
        right = call.args[-1]
        if computed is None:
            return has_few_rows(call, graph, options, MOST_ROWS)
        if not isinstance(right, Strided) or right.buffer not in computed:
            return False
        few_bits = computed[right.buffer].bits(graph.buffers) <= 8
        return has_few_rows(call, graph, options, MOST_ROWS_BY_FEW_BITS if few_bits else MOST_ROWS)

    def tiles_of(work: Product | ProductGroup | DualProduct) -> ProductTiles:
        first = work if isinstance(work, Product) else work.members[0]
        operand = (computed or {}).get(first.operands[1].buffer)
        return _tiles_of(work, options, 16 if operand is None else operand.bits(graph.buffers))

    products = find_products(graph, ours)
    forms: list[Form] = []
    taken: set[int] = set()
    for dual in find_duals(products):
        tiles = tiles_of(dual)
        # Of each of two: a program reads as much as of one that is twice as wide.
        each = tiles if tiles.by_threads else replace(tiles, n=max(16, tiles.n // 2))
        form = dual.in_one(each) if tiles.parts == 1 else None
        if form is not None:
            forms.append(form)
            taken |= dual.positions
    products = [p.without(taken) for p in products if p.position not in taken]
    for group in find_groups(products, computed):
        tiles = tiles_of(group)
        if tiles.parts == 1:
            forms.append(group.form(tiles))
            taken |= {p.position for p in group.members}
    for product in products:
        if product.position not in taken:
            tiles = tiles_of(product)
            form = product.in_one(tiles) if tiles.parts == 1 else product.in_parts(tiles)
            forms += [] if form is None else [form]
    return with_forms(graph, forms) if forms else graph


def read_early(graph: KernelGraph, memory: MemoryPlan) -> KernelGraph:
    """Let products by threads read weights which no launch writes before the launches before have
    ended."""
    written = set(memory.written_over.values()).union(*map(writes_of, graph.steps))
    steps: list[Step] = []
    for step in graph.steps:
        if isinstance(step, CombinedKernel):
            step = replace(step, kernels=tuple(_early(k, written) for k in step.kernels))
        steps.append(_early(step, written))
    return replace(graph, steps=tuple(steps))


def _early(step: S, written: AbstractSet[str]) -> S | ProductKernel:
    if isinstance(step, ProductKernel) and step.reads_right().isdisjoint(written):
        return replace(step, tiles=replace(step.tiles, early=True))
    return step


def has_few_rows(call: ExternCall, graph: KernelGraph, options: InductorOptions, most: int) -> bool:
    """Whether a library call is a product of few rows, `most` of them, or of integers, that a
    kernel of ours reads fast."""
    if call.op == SCALED or not is_ours_to_compute(call, graph, options.target_of):
        return False
    of, integers = Multiplication.of(call), call.op == OF_INTEGERS
    left, right = of.left, of.right
    if len(left.shape) != 2 or (left.shape[0] > most and not integers):
        return False
    gpu = options.gpu_of(graph.buffers[left.buffer].device)
    if integers:
        m, n = left.shape[0], right.shape[1]
        tiles = integer_tiles((1, m, n, left.shape[1]), gpu)
        busy = tiles.programs_for(m, n) * tiles.parts >= BUSY * gpu.multiprocessors
        if not busy or tiles.parts > (2 if m <= 64 else 1):
            return False
    in_rows = left.stride[1] == 1 and 1 in (right.stride[:1] if integers else right.stride)
    starts = [t.offset + graph.buffers[t.buffer].offset for t in (left, right)]
    vector = VECTOR_BYTES // graph.buffers[left.buffer].dtype.itemsize
    aligned = all(n % vector == 0 for n in (*starts, left.stride[0], max(right.stride)))
    # measured on GPUs with the shared memory of a Hopper
    return in_rows and aligned and gpu.descriptors


def _tiles_of(
    work: Product | ProductGroup | DualProduct, options: InductorOptions, bits: float
) -> ProductTiles:
    first = work if isinstance(work, Product) else work.members[0]
    _, m, n, k = work.sizes
    if first.call.op == OF_INTEGERS:
        return integer_tiles(work.sizes, options.gpu_of(first.out.device))
    most = ROWS_BY_THREADS if bits <= FEW_BITS else 1
    if m <= most and first.operands[1].stride[0] == 1 and k <= MOST_DEPTH:
        return tiles_by_threads((m, n, k), bits, 2 if isinstance(work, DualProduct) else 1)
    return tiles_for(work.sizes, options.gpu_of(first.out.device))


def tiles_by_threads(
    sizes: tuple[int, int, int], bits: float = 16, rights: int = 1
) -> ProductTiles:
    """The tiles for products of (m, n, k), with m of `ROWS_BY_THREADS` at most, by columns each of
    which is dense in memory, of so many bits, and of so many right matrices."""
    m, n, k = sizes
    depth = covering(k)
    warps = 4 if depth <= 4096 else 8
    numbers = NUMBERS if m == 1 and bits > FEW_BITS else MORE_NUMBERS
    columns = min(16, max(1, numbers * 32 * warps // (depth * rights)))
    return ProductTiles(power_of_two(m), min(covering(n), columns), depth, warps, 1)


def tiles_for(sizes: tuple[int, int, int, int], gpu: Gpu) -> ProductTiles:
    """The tiles for products of (1, m, n, k) that read one left matrix, with m of `MOST_ROWS` at
    most (of more where the right matrix is computed) and n columns in all."""
    _, m, n, k = sizes
    multiprocessors = gpu.multiprocessors
    if m > MOST_ROWS:
        wide = m > 64 and -(-n // 64) >= multiprocessors
        return _in_parts(WIDE_TILES if wide else TILES_OF_64, sizes, gpu)
    rows = 16 if m <= 16 else 32

    def of(tile: tuple[int, int, int, int], parts: int = 1) -> ProductTiles:
        columns, depth, warps, stages = tile
        columns, depth = min(columns, covering(n)), min(depth, covering(k))
        return ProductTiles(rows, columns, depth, warps, stages, parts)

    few_columns = 2 * -(-n // TILES[0][0]) < multiprocessors
    short_of_programs = -(-n // TILES[1][0]) <= multiprocessors
    if (few_columns and k >= WORTH_PARTS) or (short_of_programs and k >= LONG):
        programs, parts = -(-n // TILES[1][0]), 1
        while programs * parts <= BUSY * multiprocessors and k >= 2 * parts * LEAST_PART:
            parts *= 2
        return of(TILES[1], min(parts, MOST_PARTS))
    at_once = (tile for tile in TILES if -(-n // tile[0]) <= multiprocessors)
    return of(next(at_once, IN_WAVES))


def integer_tiles(sizes: tuple[int, int, int, int], gpu: Gpu) -> ProductTiles:
    """The tiles for products of (1, m, n, k) of integers."""
    return _in_parts(FEW_INTEGERS if sizes[1] <= 64 else MANY_INTEGERS, sizes, gpu, BUSY)


def _in_parts(
    tiles: ProductTiles, sizes: tuple[int, int, int, int], gpu: Gpu, each: float = EACH
) -> ProductTiles:
    """Tiles no larger than the matrices, with the inner dimension cut where programs are few."""
    _, m, n, k = sizes
    programs, parts = tiles.programs_for(m, n), 1
    while programs * parts < each * gpu.multiprocessors and k >= 2 * parts * LEAST_PART:
        parts *= 2
    columns, depth = min(tiles.n, covering(n)), min(tiles.k, max(32, covering(k)))
    return replace(tiles, n=columns, k=depth, parts=min(parts, MOST_PARTS))
