"""How a kernel's loops become C++ loops: which variable is vectorised, what one work item is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path

import torch

from dovetail_inductor.loop_ir.expr import Apply, Expr, Load, walk
from dovetail_inductor.loop_ir.handlers import count
from dovetail_inductor.loop_ir.index import Index, Var
from dovetail_inductor.loop_ir.loops import LoopNest
from dovetail_inductor.loop_ir.ops import SCALAR_OPS
from dovetail_inductor.loop_ir.sizes import hint_of, is_multiple, is_symbolic
from dovetail_inductor.scheduler.kernels import FusedKernel
from dovetail_inductor.scheduler.loops import distinct_variables
from dovetail_inductor.targets.cpu.narrow import is_deinterleaved, is_near, is_transposed, widest
from dovetail_inductor.targets.cpu.syntax import SCALAR_ONLY_ON_INTEGERS

# Vectors have no fewer lanes for being along a short variable.
LEAST_LANES = 4
# Elements of a vectorised dimension that one work item of a pointwise kernel covers.
BLOCK = 4096
# A scan along fewer elements than this takes one after the other.
SHORT_ROW = 8
# Elements a work item should have at least; dimensions are taken into it until it does.
ITEM_ELEMENTS = 1024
# A variable along which most lanes of a vector would be empty (of a loop that only reduces, where
# what lies across is read in whole vectors), and one that has enough of them.
SHORT_VECTOR = 2
SHORT_REDUCTION = 4
LONG_VECTOR = 64
# So many operations in vectors make up for what an element more costs that is gathered.
OPERATIONS_OF_GATHER = 2
# Vectors side by side in a stripe down the rows of a matrix: a page of memory at AVX-512.
WIDEST_STRIPE = 64
# How much longer a transposing tile is along the contiguous dimension than a vector.
TILE_RATIO = 4
# Tiles side by side, as many as the first cache holds: rows are gone along, as those that are a
# power of two apart share few places in caches.
TILE_BYTES = 1 << 15
# Work (in additions) worth a task of its own, as in ATen's parallel loops.
GRAIN_COST = 1 << 17


@dataclass(frozen=True)
class KernelShape:
    """The loops of the generated function.

    items: variables decoded from the work item's number, outermost first: `tile` by its height.
    The last of them, if `block` is set, counts blocks of `block` elements of `vector`.
    loops: variables of the loops of a pass over the columns, the vectorised one last.
    vector: the vectorised variable (None: scalar code), `lanes` at a time.
    by_row: the vectorised variable is a row variable of a kernel with columns, so that values of
    one row are vectors.
    """

    items: tuple[Var, ...]
    loops: tuple[Var, ...]
    vector: Var | None
    lanes: int
    block: int | None
    by_row: bool
    grain: int
    unroll: int = 1  # vectors at a time in a reducing loop, each with an accumulator of its own
    tile: Var | None = None  # see `_choose_tile`
    # Where loops over columns end before their length: a C++ value of each item.
    ends: frozenset[int] = frozenset()

    @property
    def work(self) -> int:
        """How many work items there are."""
        work = prod(
            -(-v.size // self.tile_height) if v is self.tile else v.size for v in self.items
        )
        if self.block is not None:
            assert self.vector is not None
            work *= -(-self.vector.size // self.block)
        return work

    @property
    def column_loops(self) -> tuple[Var, ...]:
        """The loops around that over the vectorised variable."""
        return tuple(v for v in self.loops if v is not self.vector)

    def end(self, v: Var) -> int | str:
        """Where the loop over a variable ends, as the generated text has it."""
        return f"end{v.id}" if v.id in self.ends else v.size

    @property
    def tile_height(self) -> int:
        """Rows of a tile: longer than its width, to read more of every memory page at a time."""
        return self.lanes * TILE_RATIO


@lru_cache(maxsize=1)
def host_simd_bytes() -> int:
    """Width of the host's vector registers: 64 with AVX-512, else 32 with AVX2, else 16."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = set(next((line.split() for line in lines if line.startswith("flags")), ()))
    if {"avx512f", "avx512dq", "avx512bw", "avx512vl"} <= flags:
        return 64
    return 32 if {"avx2", "fma", "f16c"} <= flags else 16


def lanes_of(nests: Sequence[LoopNest], vector: Var, length: int, simd_bytes: int) -> int:
    """How many lanes the vectors of a kernel with these nests have, along a loop of this length."""
    lanes = simd_bytes // widest(nests, vector)
    while lanes > LEAST_LANES and not is_symbolic(length) and 2 * length <= lanes:
        lanes //= 2
    return lanes


def choose_shape(kernel: FusedKernel, simd_bytes: int) -> KernelShape:
    """Decide the loops of a kernel, for as many threads as torch uses now."""
    vector = _choose_vector(kernel, simd_bytes)
    lanes = 1 if vector is None else lanes_of(kernel.nests, vector, vector.size, simd_bytes)
    by_row = vector is not None and bool(kernel.columns) and vector in kernel.rows
    cost = sum(count(n.values).cost + 1 for n in kernel.nests)
    block: int | None = None
    if kernel.columns:
        items = tuple(v for v in kernel.rows if v is not vector)
        loops = tuple(v for v in kernel.columns if v is not vector)
        per_item = hint_of(kernel.column_points)
        if by_row:
            assert vector is not None
            others = hint_of(prod(v.size for v in items))
            wanted = -(-2 * torch.get_num_threads() // max(1, others))
            block = lanes * _blocks_per_item(vector.size, lanes, kernel, wanted)
            per_item *= min(block, hint_of(vector.size))
        if vector is not None:
            loops = (*loops, vector)
    elif any(nest.scatter is not None for nest in kernel.nests):
        items, loops, block = _scatter_loops(kernel, vector, lanes)
        own = (v for v in kernel.rows if v not in items)
        per_item = min(hint_of(prod(v.size for v in own)), block or 2**62)
    else:
        items, loops, block, per_item = _pointwise_loops(kernel, vector, lanes)
    unroll = 4 if not by_row and vector is not None and _reduces_cheaply(kernel, vector) else 1
    tile = _choose_tile(kernel, vector, lanes, block is not None) if vector is not None else None
    if vector is not None and tile is not None:
        items = tuple(v for v in kernel.rows if v is not vector)
        loops, block = (vector,), None
        per_item = lanes * TILE_RATIO * hint_of(vector.size)
    grain = max(1, GRAIN_COST // max(1, per_item * cost))
    return KernelShape(items, loops, vector, lanes, block, by_row, grain, unroll, tile)


def _pointwise_loops(
    kernel: FusedKernel, vector: Var | None, lanes: int
) -> tuple[tuple[Var, ...], tuple[Var, ...], int | None, int]:
    """The items, the loops, the block and how many elements an item has, of a kernel without
    columns: as many inner variables as give an item enough to do."""
    rest = [v for v in kernel.rows if v is not vector]
    inner: list[Var] = []
    block: int | None = None
    per_item = 1 if vector is None else hint_of(vector.size)
    if vector is not None and hint_of(vector.size) > BLOCK + lanes:
        block, per_item = BLOCK, BLOCK
    while rest and per_item < ITEM_ELEMENTS and hint_of(prod(v.size for v in rest)) > 2:
        if per_item * hint_of(rest[-1].size) > 64 * ITEM_ELEMENTS and per_item > 64:
            break
        inner.insert(0, rest.pop())
        per_item *= hint_of(inner[0].size)
    loops = (*inner, vector) if vector is not None else tuple(inner)
    return tuple(rest), loops, block, per_item


def _scatter_loops(
    kernel: FusedKernel, vector: Var | None, lanes: int
) -> tuple[tuple[Var, ...], tuple[Var, ...], int | None]:
    """The items, the loops and the block of a kernel with a scatter: what several points write to
    one place is combined in order, within one item."""
    apart = set(kernel.rows)
    for nest in kernel.nests:
        if nest.scatter is not None:
            apart &= distinct_variables(nest.index)
    threads = torch.get_num_threads()
    items = tuple(v for v in kernel.rows if v in apart and v is not vector) if threads > 1 else ()
    loops = tuple(v for v in kernel.rows if v not in items and v is not vector)
    if vector is None:
        return items, loops, None
    block = None
    if vector in apart and threads > 1 and hint_of(prod(v.size for v in items)) < 2 * threads:
        block = lanes * max(1, -(-hint_of(vector.size) // (lanes * threads)))
    return items, (*loops, vector), block


def _reduces_cheaply(kernel: FusedKernel, vector: Var) -> bool:
    """True if a pass reduces so simple a body that its accumulator would be the bottleneck."""
    reductions = [n for n in kernel.nests if n.reduction is not None]
    return (
        bool(reductions)
        and hint_of(vector.size) >= 64
        and all(not n.with_index for n in reductions)
        and min(_cost_along(n, vector) for n in reductions) <= 6
    )


def _cost_along(nest: LoopNest, vector: Var) -> int:
    """What a nest's body costs, in additions, at each element along a vectorised variable: without
    what is the same at all of them (a mean, say, which is divided by before the loop)."""
    cost = 0
    for node in walk([nest.body]):
        if not node.free >> vector.id & 1:
            continue
        if isinstance(node, Apply):
            cost += SCALAR_OPS[node.op].cost
        elif isinstance(node, Load):
            cost += 1 + 4 * len(node.index.indirects())
        else:
            cost += 1
    return cost


def _choose_tile(kernel: FusedKernel, vector: Var, lanes: int, blocks: bool) -> Var | None:
    """The variable of the tiles that some loads of a kernel go through. They are read along all of
    the vectorised variable: one that is long enough for `blocks` needs tiles for all threads."""
    rows = (v for v in kernel.rows if v is not vector)
    tiles = -(-hint_of(prod(v.size for v in rows)) // (lanes * TILE_RATIO))
    few = blocks and tiles < torch.get_num_threads()
    if few or any(nest.scatter is not None for nest in kernel.nests):
        return None
    inside = kernel.writes()
    loads = (load for nest in kernel.nests for load in nest.loads if load.buffer not in inside)
    return next((v for load in loads for v in _tiles_of(kernel, load, vector, lanes)), None)


def _tiles_of(kernel: FusedKernel, load: Load, vector: Var, lanes: int) -> list[Var]:
    """The variables along which a load of a pointwise kernel is contiguous that strides along the
    vectorised one: a transposition. Such a load goes through square tiles, read along one of these
    variables and used along the other."""
    if kernel.columns or hint_of(vector.size) < lanes or not is_transposed(load, vector):
        return []
    across = (v for v in kernel.rows if v is not vector and hint_of(v.size) >= lanes)
    return [v for v in across if load.index.coefficient(v) == 1]


def is_plain_along(nest: LoopNest, v: Var) -> bool:
    """True if all that a nest reads along a variable is one element, or lies side by side, and all
    that it computes has a vector form."""
    return not _without_vectors([nest]) >> v.id & 1 and all(
        load.index.coefficient(v) in (0, 1, -1)
        and not any(a.value.free >> v.id & 1 for a in load.index.indirects())
        for load in nest.loads
    )


def _blocks_per_item(size: int, lanes: int, kernel: FusedKernel, wanted: int) -> int:
    """Vectors side by side in one work item.

    Where each row is gone through once: a stripe as wide as leaves `wanted` of them, up to
    `WIDEST_STRIPE`, as every row of a stripe is another page of memory. Where there are several
    passes: what the innermost cache keeps from pass to pass.
    """
    vectors = -(-hint_of(size) // lanes)
    most = 8 if len(kernel.nests) <= 4 else 2
    if _single_pass(kernel):
        most = max(most, min(WIDEST_STRIPE, vectors // max(1, wanted)))
    for n in range(most, most // 2 if most > 8 else 0, -1):
        if is_multiple(size, n * lanes):
            return n
    return most if hint_of(size) > lanes else 1


def _single_pass(kernel: FusedKernel) -> bool:
    """True if all that goes over the columns can be done in one pass."""
    phases = kernel.phases()
    passing = {
        phases[n.buffer] for n in kernel.nests if n.reduction is not None or kernel.is_full(n)
    }
    return len(passing) <= 1


def _accesses(kernel: FusedKernel) -> list[tuple[Index, Expr | None, float]]:
    """(address, load or None for a store, weight) of everything that touches memory. In a kernel
    without columns a load counts by the part of the points at which it reads something new."""
    inside = kernel.writes()
    columns = max(1, hint_of(kernel.column_points))
    column_bits = sum(1 << v.id for v in kernel.columns)
    found: list[tuple[Index, Expr | None, float]] = []
    for nest in kernel.nests:
        full = kernel.is_full(nest) or not kernel.columns
        if nest.buffer not in kernel.internal:
            found.append((nest.index, None, columns if full else 1))
        for node in walk(nest.values):
            if isinstance(node, Load) and node.buffer not in inside:
                weight: float = columns if node.free & column_bits else 1
                if not kernel.columns:
                    same = (hint_of(v.size) for v in kernel.rows if not node.free >> v.id & 1)
                    weight = 1 / max(1, prod(same))
                found.append((node.index, node, weight))
    return found


def _without_vectors(nests: Sequence[LoopNest]) -> int:
    """The variables, by their bits, that a value without a vector form depends on."""
    found = 0
    for node in walk(value for nest in nests for value in nest.values):
        if isinstance(node, Apply) and node.op in SCALAR_ONLY_ON_INTEGERS:
            if not node.dtype.is_floating_point:
                found |= node.free
    return found


def _choose_vector(kernel: FusedKernel, simd_bytes: int) -> Var | None:
    """The variable along which most accesses are contiguous; None if vectors cannot help."""
    scalar_only = _without_vectors(kernel.nests)
    for nest in kernel.nests:
        if nest.scatter is not None:  # what it finds its places by, as it writes lane after lane
            for place in nest.values[1:]:
                scalar_only |= place.free
    accesses = _accesses(kernel)
    best: tuple[float, Var] | None = None
    # Along a scan only neighbours in its order can be the lanes of a vector.
    scanned = any(nest.scan is not None for nest in kernel.nests)
    for var in (*kernel.rows, *(kernel.columns[-1:] if scanned else kernel.columns)):
        if scalar_only >> var.id & 1:
            continue
        score = apart = 0.0
        for index, load, weight in accesses:
            stride = index.coefficient(var)
            hidden = any(a.value.free >> var.id & 1 for a in index.indirects())
            if hidden or stride is None:
                near = isinstance(load, Load) and is_near(load, var, simd_bytes)
                apart += 0 if near else 1.5 * weight
            elif stride in (1, -1):
                score += weight
            elif isinstance(load, Load) and _tiles_of(
                kernel, load, var, lanes_of(kernel.nests, var, var.size, simd_bytes)
            ):
                score += weight / 4
            elif not stride or (
                isinstance(load, Load) and is_deinterleaved(load, stride, simd_bytes)
            ):
                continue
            else:
                apart += weight * (1.0 if load is not None else 1.5)
        score -= max(0.0, apart - _operations_along(kernel, var) / OPERATIONS_OF_GATHER)
        size = max(hint_of(var.size), 1)
        fill = size / (16 * -(-size // 16))  # how full the vectors would be
        score = score * fill if score > 0 else score
        if best is None or score >= best[0]:
            best = (score, var)
    if best is None or best[0] <= 0:
        if scanned or not any(nest.reduction is not None for nest in kernel.nests):
            return None
        # One element after the other, a reduction would wait for itself.
        return _longest_at_strides(kernel, [index for index, _, _ in accesses], scalar_only)
    only_reduces = all(nest.reduction is not None for nest in kernel.nests)
    short_size = SHORT_REDUCTION if only_reduces else SHORT_VECTOR
    if kernel.columns and not scanned and hint_of(best[1].size) <= short_size:
        long = _longest_at_strides(kernel, [index for index, _, _ in accesses], scalar_only)
        return best[1] if long is None else long
    short = scanned and best[1] in kernel.columns and hint_of(best[1].size) < SHORT_ROW
    return None if short else best[1]


def _operations_along(kernel: FusedKernel, var: Var) -> int:
    """What is done with numbers that differ from lane to lane, in additions: not with places."""
    places = (torch.bool, torch.int32, torch.int64)
    nodes = (node for nest in kernel.nests for node in walk(nest.values) if node.free >> var.id & 1)
    applied = (n for n in nodes if isinstance(n, Apply) and n.dtype not in places)
    return sum(SCALAR_OPS[n.op].cost for n in applied) if hint_of(var.size) > SHORT_ROW else 0


def _longest_at_strides(
    kernel: FusedKernel, accesses: Sequence[Index], scalar_only: int
) -> Var | None:
    """The longest variable along which every access goes at a stride, if it is long: of vectors
    that are gathered from there all lanes are used, of such along a short variable few."""
    inside = [v for v in (*kernel.rows, *kernel.columns) if not scalar_only >> v.id & 1]
    long = max(inside, key=lambda v: hint_of(v.size), default=None)
    if long is None or hint_of(long.size) < LONG_VECTOR:
        return None
    hidden = any(a.value.free >> long.id & 1 for index in accesses for a in index.indirects())
    return None if hidden or any(index.coefficient(long) is None for index in accesses) else long
