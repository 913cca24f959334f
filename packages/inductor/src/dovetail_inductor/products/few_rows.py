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
    OPERATORS,
    ProductGroup,
    find_groups,
    find_products,
    is_ours_to_compute,
    with_forms,
)
from dovetail_inductor.products.products import Form, Product
from dovetail_inductor.scheduler.kernels import (
    CombinedKernel,
    ComputedOperand,
    KernelGraph,
    ProductKernel,
    ProductTiles,
    Step,
)
from dovetail_inductor.scheduler.lifetimes import writes_of
from dovetail_inductor.scheduler.memory import MemoryPlan

MOST_ROWS = 32
# By weights that are kept in fewer bits: computed and written for the library first, they would be
# written and read again.
MOST_ROWS_BY_FEW_BITS = 32
# So many numbers lie side by side in 16 bytes, which is what a GPU reads at once.
VECTOR = 8
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
# Of one row, by the bits of weights: how deep a tile is at most, how many columns a program has and
# how many numbers of the row a thread multiplies at least.
ROW_TILES = ((4, 8192, 8, 16), (64, 8192, 2, 32))
# Bytes of weights to be read before the row is there. Of more, what the kernel before reads would
# come later: all of it waits for a norm's row (an H100, decoding.py).
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
        own = computed.get(right.buffer) if computed and isinstance(right, Strided) else None
        few_bits = own is not None and own.bits(graph.buffers) <= 8
        most = MOST_ROWS_BY_FEW_BITS if few_bits else MOST_ROWS
        return (computed is None or own is not None) and _few_rows(call, graph, options, most)

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


def _few_rows(call: ExternCall, graph: KernelGraph, options: InductorOptions, most: int) -> bool:
    """Whether a library call is a product of few rows, `most` of them, that a kernel of ours reads
    fast."""
    if call.op not in OPERATORS or not is_ours_to_compute(call, graph, options.target_of):
        return False
    left, right = call.args[-2:]
    assert isinstance(left, Strided) and isinstance(right, Strided)
    if len(left.shape) != 2 or left.shape[0] > most:
        return False
    in_rows = left.stride[1] == 1 and 1 in right.stride
    starts = [t.offset + graph.buffers[t.buffer].offset for t in (left, right)]
    aligned = all(n % VECTOR == 0 for n in (*starts, left.stride[0], max(right.stride)))
    # measured on GPUs with the shared memory of a Hopper
    return in_rows and aligned and options.gpu_of(graph.buffers[left.buffer].device).descriptors


def _tiles_of(work: Product | ProductGroup | DualProduct, options: InductorOptions) -> ProductTiles:
    first = work if isinstance(work, Product) else work.members[0]
    _, m, n, k = work.sizes
    if m == 1 and first.operands[1].stride[0] == 1:
        return one_row_tiles(n, k)
    return tiles_for(work.sizes, options.gpu_of(first.out.device))


def one_row_tiles(n: int, k: int, bits: float = 16) -> ProductTiles:
    """The tiles for one row, by columns each of which is dense in memory, of so many bits."""
    most, columns, numbers = next(rule for own, *rule in ROW_TILES if bits <= own)
    depth = min(_covering(k), most)
    warps = max(1, min(8, depth // (32 * numbers)))
    return ProductTiles(1, min(_covering(n), columns), depth, warps, 1)


def tiles_for(sizes: tuple[int, int, int, int], gpu: Gpu) -> ProductTiles:
    """The tiles for products of (1, m, n, k) that read one left matrix, with m of `MOST_ROWS` at
    most (of more where the right matrix is computed) and n columns in all."""
    _, m, n, k = sizes
    multiprocessors = gpu.multiprocessors
    if m > MOST_ROWS:
        return ProductTiles(64 if m <= 64 else 128, 64, 64, 4, 3)
    rows = 16 if m <= 16 else 32

    def of(tile: tuple[int, int, int, int], parts: int = 1) -> ProductTiles:
        columns, depth, warps, stages = tile
        columns, depth = min(columns, _covering(n)), min(depth, _covering(k))
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


def _covering(size: int) -> int:
    """The shortest side of a tile that is worth using and covers `size`."""
    return max(16, 1 << (size - 1).bit_length())
