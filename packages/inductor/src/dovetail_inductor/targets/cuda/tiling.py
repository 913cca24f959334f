"""How a fused kernel's domain is cut into tiles: which loops form an axis, and the block sizes.

The figures are for an H100 (132 multiprocessors, 16-byte loads, 255 registers a thread); they are a
cost model, not limits of correctness. Where sizes are symbolic they are chosen for the sizes of the
call that is compiled, and masked by the sizes of each call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from dovetail_inductor.loop_ir.handlers import count
from dovetail_inductor.loop_ir.index import Indirect, Var
from dovetail_inductor.loop_ir.loops import Buffer
from dovetail_inductor.loop_ir.sizes import hint_of, is_multiple, is_symbolic
from dovetail_inductor.scheduler.kernels import FusedKernel, power_of_two
from dovetail_inductor.targets.cuda.accesses import (
    SIDE,
    accesses,
    directions,
    in_memory_order,
    reads_are_narrow,
    run_along,
    scattered_reads,
    vector_length,
    weights,
)
from dovetail_inductor.targets.cuda.passes import online_softmax, read_again

MULTIPROCESSORS = 132
THREADS = 2048  # of a multiprocessor
CACHE_BYTES = 1 << 25  # of the level that all share: what surely stays in it for a while
PERSISTENT_LIMIT = 16384  # columns kept in registers by one program
HEAVY_PERSISTENT_LIMIT = 4096  # the same when many values are live
# What is accessed across its neighbours in memory is taken to cost so many times its bytes: 8 to 16
# would be moved for each (a sector of 32 bytes for 4 or 2), less what the cache finds again.
ACROSS = 12
# Turns of a loop with narrow loads that become one (H100: see `reads_are_narrow`).
UNROLL = 4
STRIPE = 256  # columns of a table that a cache is to hold


@dataclass(frozen=True)
class Axis:
    """One tile dimension: `vars` flattened, outermost first; `block` elements a program.

    `name` prefixes the names in the source: `x` for the row axis, `y` for a second one, `r` for
    columns. `whole`: the blocks that are spoken of do not hang over the end. `form`: the dimensions
    that a block is laid out in, the same for all axes of a tiling, if it has no dimension of its
    own: their lengths, and how far apart neighbours in each are along the axis (0: copies).
    """

    name: str
    vars: tuple[Var, ...]
    block: int
    whole: bool = False
    form: tuple[tuple[int, int], ...] = ()

    @property
    def size(self) -> int:
        """Points along the axis."""
        return prod(v.size for v in self.vars)

    @property
    def masked(self) -> bool:
        """True if the last block hangs over the end."""
        return not self.whole and not is_multiple(self.size, self.block)

    @property
    def mask(self) -> str:
        """Name of the axis's mask."""
        return f"{self.name}mask"

    @property
    def blocks(self) -> int:
        """Programs (or loop turns) along the axis."""
        return -(-self.size // self.block)


@dataclass(frozen=True)
class Tiling:
    """The axes of a kernel. With `looped` the last axis is walked by a loop, else in one block.

    `folds`: a block of columns (of one row) is so many rows of a matrix, which each thread reduces
    by itself in every turn of the loop. `unroll`: so many turns become one, whose loads are on
    their way at once. `pieces`: so many programs share the turns. `down`: programs that follow one
    another go along the first axis.
    """

    axes: tuple[Axis, ...]
    columns: bool  # the last axis is the columns
    looped: bool
    num_warps: int
    num_stages: int = 1
    folds: int = 1
    unroll: int = 1
    pieces: int = 1
    down: bool = False

    def shape(self, free: int) -> str:
        """The shape of a block that depends on the variables whose ids are in the bit set `free`,
        as text."""
        axes = [(axis, any(free >> v.id & 1 for v in axis.vars)) for axis in self.axes]
        sizes = [axis.block if has else 1 for axis, has in axes]
        if self.folds > 1 and sizes[-1] != 1:
            sizes[-2:] = [self.folds, sizes[-1] // self.folds]
        if self.rank > len(self.axes):
            forms = ([n if has or step == 0 else 1 for n, step in a.form] for a, has in axes)
            sizes = [max(lengths) for lengths in zip(*forms, strict=True)]
        return f"[{', '.join(map(str, sizes))}]"

    @property
    def rank(self) -> int:
        """Dimensions of a block."""
        return len(self.axes[-1].form) or len(self.axes) if self.axes else 0

    @property
    def accumulator_shape(self) -> str:
        """The shape of what a loop over the columns carries along, as text."""
        return self.shape(-1) if self.folds == 1 else f"[1, {self.axes[-1].block // self.folds}]"

    @property
    def grid_axes(self) -> tuple[Axis, ...]:
        """The axes spread over programs."""
        return self.axes[:-1] if self.columns else self.axes

    @property
    def programs(self) -> int:
        """Programs launched."""
        return self.pieces * prod(a.blocks for a in self.grid_axes)


def choose(kernel: FusedKernel, buffers: Mapping[str, Buffer], shared: bool = False) -> Tiling:
    """The tiling of a kernel, from its sizes and the strides of its accesses.

    With `shared` the kernel is one of several in a launch.
    """
    if kernel.columns:
        return _reduction(kernel, buffers)
    return _pointwise(kernel, buffers, shared)


def _pointwise(kernel: FusedKernel, buffers: Mapping[str, Buffer], shared: bool) -> Tiling:
    rows = kernel.rows
    points = hint_of(kernel.row_points)
    ranked = directions(kernel, buffers)
    if len(ranked) >= 2 and ACROSS * ranked[1][1] >= ranked[0][1]:
        first, second = ranked[0][0], ranked[1][0]
        long = min(hint_of(prod(v.size for v in run)) for run in (first, second)) >= SIDE
        if long and not set(first) & set(second):
            return _transposing(rows, first, second)
    if ranked:  # coalesce along the heaviest direction
        along = ranked[0][0]
        rows = (*(v for v in rows if v not in along), *along)
    if not shared:
        chosen = _repeating(kernel, rows) or _stripes(kernel, buffers, rows)
        if chosen is not None:
            return chosen
    # 8 elements a thread: 16 bytes at once of the narrow types, twice 16 of float32. Fewer where
    # there would be too few programs to hide latency behind one another.
    block, scattered = 1024, scattered_reads(kernel, buffers) > 2
    while not shared and block > 256 and (scattered or points < block * MULTIPROCESSORS * 4):
        block //= 2
    return Tiling((Axis("x", rows, block),), False, False, 4)


def _repeating(kernel: FusedKernel, rows: tuple[Var, ...]) -> Tiling | None:
    """Two axes where several loads are the same for every row (a normalisation's statistics and
    weights): a thread reads its columns' once for several rows."""
    if len(rows) < 2 or is_symbolic(rows[-1].size):
        return None
    last = rows[-1]
    places = set(accesses(kernel))
    same = {
        (name, index)
        for name, index in places
        if not index.indirects() and set(index.variables()) == {last}
    }
    width = next((w for w in (256, 128, 64) if last.size % w == 0), 0)
    others = prod(hint_of(v.size) for v in rows[:-1])
    if len(same) < 2 or not width or others * last.size < 4096 * MULTIPROCESSORS * 4:
        return None
    # Of many accesses of its own a point takes registers, of places found by number time.
    own = len(places - same) <= 4 and not any(index.indirects() for _, index in places)
    elements = 4096 if own else 1024
    axes = (Axis("y", rows[:-1], elements // width), Axis("x", (last,), width))
    return Tiling(axes, False, False, 4)


def _stripes(
    kernel: FusedKernel, buffers: Mapping[str, Buffer], rows: tuple[Var, ...]
) -> Tiling | None:
    """Where data tells for each element from which row of a large matrix it comes: a few columns
    for all rows, then the next, so that a cache holds what is read of them."""
    last = rows[-1] if len(rows) >= 2 else None
    if last is None or is_symbolic(last.size) or last.size < STRIPE:
        return None
    for name, index in accesses(kernel):
        for atom, apart in index.terms if index.coefficient(last) == 1 else ():
            if not isinstance(atom, Indirect) or not atom.value.free >> last.id & 1:
                continue
            if hint_of(atom.size * apart) * buffers[name].dtype.itemsize >= CACHE_BYTES:
                axes = (Axis("y", rows[:-1], 1024 // STRIPE), Axis("x", (last,), STRIPE))
                return Tiling(axes, False, False, 4, down=True)
    return None


def _transposing(rows: tuple[Var, ...], first: tuple[Var, ...], second: tuple[Var, ...]) -> Tiling:
    """Two axes, each contiguous for some accesses; the other loops join the outer axis."""
    others = tuple(v for v in rows if v not in (*first, *second))
    points = prod(hint_of(v.size) for v in rows)
    side = 64
    if points < side * side * MULTIPROCESSORS * 2:
        side = 32
    down, right = (hint_of(prod(v.size for v in run)) for run in (second, first))
    # Where rows begin within lines of memory, longer pieces of them share fewer.
    high = wide = side
    if points >= 2 * side * side * MULTIPROCESSORS * 2:
        if right % side:
            wide = 2 * side
        elif down % side:
            high = 2 * side
    y = Axis("y", (*others, *second), min(high, power_of_two(down)))
    x = Axis("x", first, min(wide, power_of_two(right)))
    return Tiling((y, x), False, False, max(1, min(8, y.block * x.block // 256)))


def _across(kernel: FusedKernel, along: tuple[Var, ...], narrow: bool) -> Tiling:
    """Neighbours in memory are other rows, `along` a run of loops: a program has a stripe of rows,
    64 bytes wide or so at least, and several loads on their way in every thread; where each is
    `narrow`, those of several turns, with few elements of each (registers hold what comes and what
    is kept). Of a position or in several passes more is kept: more threads share it."""
    rows = kernel.rows
    if hint_of(prod(v.size for v in along)) >= SIDE:
        rows = (*(v for v in rows if v not in along), *along)
    width = 64
    points, columns = hint_of(kernel.row_points), hint_of(kernel.column_points)
    while width > 16 and points < width * MULTIPROCESSORS:
        width //= 2
    x = Axis("x", rows, min(width, power_of_two(points)))
    elements = 4096 if columns * x.block >= 4096 else 2048
    scans = [n.scan for n in kernel.nests if n.scan is not None]
    few = narrow and not scans and not is_symbolic(kernel.column_points)
    few = few and columns * x.block >= 4096 * UNROLL
    if few:
        more = any(n.with_index for n in kernel.nests) or read_again(kernel)
        elements = 2048 if more else 1024
    r = Axis("r", kernel.columns, min(power_of_two(columns), max(16, elements // x.block)))
    looped = is_symbolic(r.size) or r.blocks > 1
    tile = r.block * x.block
    # Few warps for few elements: between warps sums go through shared memory. Not one: of 16 by 8
    # elements in a warp Triton stores each sum to its place there from several lanes at once. In a
    # loop they go there once in all, and values that live through it need registers.
    inside = {(name, i) for name, i in accesses(kernel) if i.variables() & set(kernel.columns)}
    many = looped or len(inside) > 4
    warps = 8 if tile >= 2048 and many else max(2, min(4, tile // 128))
    warps = tile // 128 if few else warps
    if any(scan.reduction.adds_logarithms for scan in scans):
        # Too dear to combine what other threads have: each goes through rows of its own.
        r = replace(r, block=min(r.block, 32))
        looped, warps = is_symbolic(r.size) or r.blocks > 1, max(1, x.block // 32)
        narrow = False
    turns = 0 if is_symbolic(r.size) else r.blocks
    return Tiling((x, r), True, looped, warps, unroll=UNROLL if narrow and turns >= UNROLL else 1)


def _scattered(kernel: FusedKernel, buffers: Mapping[str, Buffer]) -> Tiling | None:
    """Elements at any places, the same in all columns: column after column for many rows, each of
    which finds in a cache what others have brought there. A thread has one row, and what it takes
    to hide that a cache is slow on its way. Of few rows as many as a program can have share a
    cache, and several programs the columns."""
    loads, points = scattered_reads(kernel, buffers), hint_of(kernel.row_points)
    reduces = any(n.reduction is not None or n.scan is not None for n in kernel.nests)
    if not loads or reduces or points < 128 * MULTIPROCESSORS:
        return None
    few, columns, pieces = points < 512 * MULTIPROCESSORS, kernel.column_points, 4
    several = loads <= 4 and not is_symbolic(columns)
    kept = any(not kernel.is_full(n) and n.buffer not in kernel.internal for n in kernel.nests)
    if few and several and not kept and columns % (2 * pieces) == 0:
        while pieces * points < 1536 * MULTIPROCESSORS and columns % (4 * pieces) == 0:
            pieces *= 2
        axes = (Axis("x", kernel.rows, 1024), Axis("r", kernel.columns, 1))
        return Tiling(axes, True, True, 16, unroll=2, pieces=pieces)
    width = 128 if few else 256
    axes = (Axis("x", kernel.rows, width), Axis("r", kernel.columns, 1))
    return Tiling(axes, True, True, width // 32, unroll=UNROLL if several else 1)


def _reduction(kernel: FusedKernel, buffers: Mapping[str, Buffer]) -> Tiling:
    points, columns = hint_of(kernel.row_points), hint_of(kernel.column_points)
    if (scattered := _scattered(kernel, buffers)) is not None:
        return scattered
    weight = weights(kernel, buffers, (*kernel.rows, *kernel.columns))
    kernel = in_memory_order(kernel, weight)
    along_rows = sum(w for v, w in weight.items() if v in kernel.rows)
    along_columns = sum(w for v, w in weight.items() if v in kernel.columns)
    if kernel.rows and along_rows:
        heaviest = max(kernel.rows, key=lambda v: weight.get(v, 0))
        along = run_along([index for _, index in accesses(kernel)], kernel.rows, heaviest)
        least = 8 if along_rows > along_columns else SIDE
        # (A stripe of rows is read along its columns, too, wherever these are long.)
        long = hint_of(prod(v.size for v in along)) >= least
        if long and ACROSS * along_rows > along_columns:
            return _across(kernel, along, reads_are_narrow(kernel, buffers, heaviest))
    live = sum(count(nest.values).loads for nest in kernel.nests)
    limit = PERSISTENT_LIMIT if live <= 3 else HEAVY_PERSISTENT_LIMIT
    padded = power_of_two(columns)
    if padded <= limit:
        # What is the same for every row (weights) is read once for all rows of a program: then
        # they are more, and so are the elements of a thread.
        repeating = sum(
            not index.indirects() and not set(index.variables()) & set(kernel.rows)
            for _, index in set(accesses(kernel))
        )
        inside = {(n, i) for n, i in accesses(kernel) if i.variables() & set(kernel.columns)}
        elements, each = (512, 256) if repeating < 2 else (max(4096, 2 * padded), 512)
        short = repeating < 2 and padded <= 512 and len(inside) <= 3
        narrow = short and 16 < padded <= 128 and not is_symbolic(kernel.column_points)
        narrow = narrow and reads_are_narrow(kernel, buffers, kernel.columns[-1])
        if narrow and (unaligned := _unaligned(kernel, buffers)) is not None:
            return unaligned
        if narrow:  # of several warps each would have a part of every row
            each = 512
        elif short:  # more rows a thread: a program of few ends before memory is busy
            elements = 2048
        elif padded >= 2048 and points >= 4 * MULTIPROCESSORS:
            # To exchange positions between threads takes as long as to go through 16 elements.
            narrow = all(buffers[name].dtype.itemsize <= 2 for name, _ in inside)
            each = 512 if narrow or any(n.with_index for n in kernel.nests) else each
        x_block = 1
        while (
            x_block * padded < elements
            and x_block * 2 <= power_of_two(points)
            and points // (x_block * 2)
            >= MULTIPROCESSORS * (8 if short and x_block * padded >= 512 else 2)
        ):
            x_block *= 2
        looped = is_symbolic(kernel.column_points)  # another call's row may be longer
        if looped:
            padded = max(16, min(padded, 4096 // x_block))
        each = max(each, x_block * padded // 2) if short and not narrow else each
        warps = max(1, min(16, x_block * padded // each))
        axes = (Axis("x", kernel.rows, x_block), Axis("r", kernel.columns, padded))
        return Tiling(axes, True, looped, warps)
    scans = any(n.scan is not None for n in kernel.nests)
    if (
        online_softmax(kernel)
        and not scans
        and all(n.reduction is None or n.is_sum or n.is_maximum for n in kernel.nests)
    ):
        folding = _folding(kernel, weight, buffers)
        if folding is not None:
            return folding
    block = 4096 if live <= 3 else 2048
    warps = 8 if scans else block // 256
    rows_again = read_again(kernel)
    again = columns * sum(buffers[name].dtype.itemsize for name in rows_again)
    if again * min(points, MULTIPROCESSORS * THREADS // (32 * warps)) > CACHE_BYTES:
        # What a pass reads again is in the cache while few rows are on their way.
        block, warps = 8192 if len(rows_again) <= 2 else 4096, 32
    return Tiling((Axis("x", kernel.rows, 1), Axis("r", kernel.columns, block)), True, True, warps)


def _unaligned(kernel: FusedKernel, buffers: Mapping[str, Buffer]) -> Tiling | None:
    """Short rows that begin anywhere, of which only results are kept: a few threads go along each,
    as whole warps would have more to exchange than to read. The fewer bytes, the fewer threads: of
    narrow elements it is instructions that take the time."""
    kept = any(kernel.is_full(n) or n.with_index for n in kernel.nests) or read_again(kernel)
    if kept or hint_of(kernel.row_points) < 64 * MULTIPROCESSORS:
        return None
    wide = any(buffers[name].dtype.itemsize > 2 for name in kernel.reads() & buffers.keys())
    r = Axis("r", kernel.columns, 16 if wide else 8)
    return Tiling((Axis("x", kernel.rows, 64), r), True, True, 2, unroll=min(r.blocks, 2 * UNROLL))


def _folding(
    kernel: FusedKernel, weight: Mapping[Var, int], buffers: Mapping[str, Buffer]
) -> Tiling | None:
    """One row in a loop over blocks as wide as one load of every thread, some at a time: what a
    thread does once for a block (an online softmax's rescaling) is done for all of them.

    None where loads and stores differ in width: a thread would not hold whole columns of the block,
    and threads would have to exchange them in every turn.
    """
    warps = 8
    last = max(kernel.columns, key=lambda v: weight.get(v, 0))
    along = {
        (name, index)
        for name, index in accesses(kernel)
        if name in buffers and last in index.variables()
    }
    vectors = {vector_length(index, last, buffers[name]) for name, index in along}
    if len(vectors) != 1 or any(index.coefficient(last) != 1 for _, index in along):
        return None
    width = 32 * warps * vectors.pop()
    block = max(4096, 2 * width)
    axes = (Axis("x", kernel.rows, 1), Axis("r", kernel.columns, block))
    return Tiling(axes, True, True, warps, folds=block // width)
