"""Two products of one left matrix that a kernel reads at the same place, as the gate and the value
of a gated layer: one kernel of ours can compute both and what it makes of them, so that neither
result goes through memory.

Where both are the halves of one product (of weights that lie in one matrix), they are taken apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from dovetail_inductor.loop_ir.expr import Expr, Load
from dovetail_inductor.loop_ir.index import Index
from dovetail_inductor.loop_ir.loops import Buffer, Strided
from dovetail_inductor.loop_ir.sizes import any_symbolic
from dovetail_inductor.products.find_products import OPERATORS, readers_and_writers
from dovetail_inductor.products.products import Form, Product, joined
from dovetail_inductor.scheduler import kernels

ANY_TILES = kernels.ProductTiles(16, 16, 16, 4, 1)
# The halves of a product begin where vectors of so many numbers do.
VECTOR = 8


@dataclass(frozen=True)
class DualProduct:
    """Products of one left matrix, of equal sizes, that the kernel at `reader` reads first, and at
    the same place.

    `positions` are where the steps stand that a form replaces, and `buffers` what the members need
    that the graph has not: halves of one product.
    """

    graph: kernels.KernelGraph
    members: tuple[Product, Product]
    kernel: kernels.FusedKernel
    reader: int
    positions: frozenset[int]
    buffers: tuple[Buffer, ...] = ()

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """As of one product with both right operands beside one another."""
        batch, m, n, k = self.members[0].sizes
        return batch, m, 2 * n, k

    def in_one(self, tiles: kernels.ProductTiles) -> Form | None:
        """One kernel of ours; None if its loops are other loops."""
        kernel = self._kernel(tiles)
        if kernel is None:
            return None
        own = {buffer.name: buffer for buffer in self.buffers}
        return Form({self.reader: (kernel,)}, self.positions, own)

    def _kernel(self, tiles: kernels.ProductTiles) -> kernels.ProductKernel | None:
        first, second = self.members
        builder, epilogue = self.graph.builder, self.kernel
        pieces = None
        for product in (second, first):
            alone = product.sole_reader == self.reader
            found = joined(builder, product.nest(), epilogue, alone)
            if found is None:
                return None
            epilogue, pieces = found
        assert pieces is not None
        places = {
            load.index
            for nest in epilogue.nests
            for load in nest.loads
            if load.buffer in (first.sums, second.sums)
        }
        if len(places) != 1:
            return None
        rows, columns = (pieces.get(v, ()) for v in first.vars)
        tiles = replace(tiles, apart=any(p.multiplication.apart for p in self.members))
        return kernels.ProductKernel(
            epilogue.name,
            *first.operands,
            ((), rows, columns),
            first.sums,
            epilogue,
            tiles,
            ((second.operands[1], second.sums),),
        )


def find_duals(products: Sequence[Product]) -> list[DualProduct]:
    """Pairs of products, no two of which share a product or a kernel."""
    if not products:
        return []
    found: list[DualProduct] = []
    taken: set[int] = set()
    for dual in (*_pairs(products), *_halves(products)):
        if not dual.positions & taken and dual.in_one(ANY_TILES) is not None:
            taken |= dual.positions
            found.append(dual)
    return found


def _pairs(products: Sequence[Product]) -> Iterator[DualProduct]:
    readers, _ = readers_and_writers(products[0].graph)
    by_left: dict[Strided, list[Product]] = {}
    for product in products:
        if len(product.out.shape) == 2:
            by_left.setdefault(product.operands[0], []).append(product)
    for same in by_left.values():
        for a, b in combinations(same, 2):
            firsts = {readers.get(p.out.name, [-1])[0] for p in (a, b)}
            kernel = _reading(a.graph, firsts)
            if kernel is not None and _alike(a, b):
                (reader,) = firsts
                positions = frozenset({a.position, b.position, reader})
                yield DualProduct(a.graph, (a, b), kernel, reader, positions)


def _reading(graph: kernels.KernelGraph, positions: set[int]) -> kernels.FusedKernel | None:
    """The kernel at the only position, if it reads point by point."""
    if len(positions) != 1 or -1 in positions:
        return None
    (position,) = positions
    kernel = graph.steps[position]
    if not isinstance(kernel, kernels.FusedKernel) or kernel.columns:
        return None
    return None if any(nest.scatter is not None for nest in kernel.nests) else kernel


def _alike(a: Product, b: Product) -> bool:
    right, other = a.operands[1], b.operands[1]
    same = (right.shape, right.stride) == (other.shape, other.stride)
    return same and a.out.stride == b.out.stride and a.out.dtype == b.out.dtype


def _halves(products: Sequence[Product]) -> Iterator[DualProduct]:
    for product in products:
        if product.sole_reader is None or len(product.out.shape) != 2:
            continue
        kernel = _reading(product.graph, {product.sole_reader})
        dual = None if kernel is None else _apart(product, kernel)
        if dual is not None:
            yield dual


def _apart(product: Product, kernel: kernels.FusedKernel) -> DualProduct | None:
    """A product whose halves its only reader reads at the same place, as two."""
    out, reader = product.out, product.sole_reader
    columns = out.shape[1]
    half = columns // 2
    loads = [d for nest in kernel.nests for d in nest.loads if d.buffer == out.name]
    starts = {load.index.const for load in loads}
    one_place = len({load.index - load.index.const for load in loads}) == 1
    in_rows = columns % (2 * VECTOR) == 0 and out.stride == (columns, 1) and product.narrow is None
    in_rows &= product.call.op in OPERATORS
    if reader is None or not in_rows or not one_place:
        return None
    if any_symbolic(starts) or starts != {0, half}:
        return None
    first, second = (_half(product, side, half) for side in (0, 1))
    own = (first.out, second.out)
    builder = product.graph.builder

    def element(load: Load, index: Index, mask: Expr | None) -> Expr:
        if load.buffer != out.name:
            return builder.load(load.buffer, index, load.dtype, mask)
        side = load.index.const // half
        return builder.load(own[side].name, index - side * half, load.dtype, mask)

    nests = tuple(nest.renamed(builder, element=element) for nest in kernel.nests)
    hidden = kernel.internal | {buffer.name for buffer in own}
    return DualProduct(
        product.graph,
        (first, second),
        replace(kernel, nests=nests, internal=hidden),
        reader,
        frozenset({product.position, reader}),
        own,
    )


def _half(product: Product, side: int, columns: int) -> Product:
    """One half of a product's columns, as a product of its own."""
    graph, out = product.graph, product.out
    own = replace(out, name=f"{out.name}_{'lr'[side]}", shape=(out.shape[0], columns))

    def of(operand: Strided) -> Strided:
        """An operand that has a column for each of the product's, or one for all."""
        if operand.shape[-1] == 1:
            return operand
        start = operand.offset + side * columns * operand.stride[-1]
        return replace(operand, shape=(*operand.shape[:-1], columns), offset=start)

    *added, left, right = product.call.args
    sliced = [of(operand) for operand in (*added, right) if isinstance(operand, Strided)]
    args = (*sliced[:-1], left, sliced[-1])
    steps = list(graph.steps)
    steps[product.position] = replace(product.call, args=args, outputs=(own.name,))
    buffers = {**graph.buffers, own.name: own}
    whole = replace(graph, steps=tuple(steps), buffers=buffers)
    return Product(whole, product.position, sole_reader=product.sole_reader)
