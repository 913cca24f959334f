"""The pass `multiply_few_rows`: products of few rows, as in generating text, by kernels of ours.

Such a product takes as long as its weights take to be read. The library's kernels for it are made
for more rows, and leave a launch to each product and to what follows it. Which tiles read fastest
depends on the sizes alone; the rule here was made from measurements of all of them on an H100 (1 to
32 rows, 10 to 151,936 columns, weights in rows or in columns), where its choice takes between 0.45
and 1.05 of the library's time, in the mean 0.86 of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

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
)
from dovetail_inductor.scheduler.lifetimes import writes_of
from dovetail_inductor.scheduler.memory import MemoryPlan

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
# Of one row, by the bits of weights: how deep a tile is at most, how many columns a program has and
# how many numbers of the row a thread multiplies at least.
ROW_TILES = ((4, 8192, 8, 16), (64, 8192, 2, 32))
# Bytes of weights to be read before the row is there: as many as two of 8192 x 2048 in 4 bits have,
# with scales. Of more, what the kernel before reads would come later: all of it waits for a norm's
# row (an H100, decoding.py).
MOST_EARLY = 18 << 20


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

    products = find_products(graph, ours)
    forms: list[Form] = []
    taken: set[int] = set()
    for dual in find_duals(products):
        tiles = _tiles_of(dual, options)
        # Of each of two: a program reads as much as of one that is twice as wide.
        each = replace(tiles, n=max(min(16, tiles.m), tiles.n // 2))
        form = dual.in_one(each) if tiles.parts == 1 else None
        if form is not None:
            forms.append(form)
            taken |= dual.positions
    products = [p.without(taken) for p in products if p.position not in taken]
    for group in find_groups(products, computed):
        tiles = _tiles_of(group, options)
        if tiles.parts == 1:
            forms.append(group.form(tiles))
            taken |= {p.position for p in group.members}
    for product in products:
        if product.position not in taken:
            tiles = _tiles_of(product, options)
            form = product.in_one(tiles) if tiles.parts == 1 else product.in_parts(tiles)
            forms += [] if form is None else [form]
    return with_forms(graph, forms) if forms else graph


def read_early(graph: KernelGraph, memory: MemoryPlan) -> KernelGraph:
    """Let products behind kernels that are none, or that make the row themselves, read weights
    which no launch writes before those kernels have ended, which keep the memory less busy."""
    written = set(memory.written_over.values()).union(*map(writes_of, graph.steps))
    steps: list[Step] = []
    for step in graph.steps:
        if isinstance(step, ProductKernel) and (
            step.row is not None or not (steps and _multiplies(steps[-1]))
        ):
            weights = step.reads_right()
            size = sum(graph.buffers[name].nbytes for name in weights)
            early = size <= MOST_EARLY and weights.isdisjoint(written)
            step = replace(step, tiles=replace(step.tiles, early=early))
        steps.append(step)
    return replace(graph, steps=tuple(steps))


def _multiplies(step: Step) -> bool:
    own = step.kernels if isinstance(step, CombinedKernel) else (step,)
    return any(isinstance(kernel, ProductKernel) for kernel in own)


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


def _tiles_of(work: Product | ProductGroup | DualProduct, options: InductorOptions) -> ProductTiles:
    first = work if isinstance(work, Product) else work.members[0]
    _, m, n, k = work.sizes
    if first.call.op == OF_INTEGERS:
        return integer_tiles(work.sizes, options.gpu_of(first.out.device))
    if m == 1 and first.operands[1].stride[0] == 1:
        return one_row_tiles(n, k)
    return tiles_for(work.sizes, options.gpu_of(first.out.device))


def one_row_tiles(n: int, k: int, bits: float = 16) -> ProductTiles:
    """The tiles for one row, by columns each of which is dense in memory, of so many bits."""
    most, columns, numbers = next(rule for own, *rule in ROW_TILES if bits <= own)
    depth = min(covering(k), most)
    warps = max(1, min(8, depth // (32 * numbers)))
    return ProductTiles(1, min(covering(n), columns), depth, warps, 1)


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
