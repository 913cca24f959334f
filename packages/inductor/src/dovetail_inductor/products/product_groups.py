"""Products of matrices with the same left operand: they share a launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail_inductor.loop_ir.loops import Buffer, Strided
from dovetail_inductor.products.find_products import readers_and_writers
from dovetail_inductor.products.products import Form, Product, kernel_at
from dovetail_inductor.scheduler.kernels import (
    CombinedKernel,
    FusedKernel,
    KernelGraph,
    ProductKernel,
    ProductTiles,
    Step,
)

# Products of other widths share a launch if so wide a tile divides them, in one column of tiles.
WIDEST, SHORT = 256, 128


@dataclass(frozen=True)
class ProductGroup:
    """Products with the same left operand, computed side by side in one launch."""

    members: tuple[Product, ...]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """As of one product with all right operands beside one another."""
        batch, m, _, k = self.members[0].sizes
        return batch, m, sum(p.sizes[2] for p in self.members), k

    @property
    def graph(self) -> KernelGraph:
        """The graph that they are of."""
        return self.members[0].graph

    @property
    def positions(self) -> frozenset[int]:
        """Where the steps stand that a form replaces."""
        return frozenset().union(*(p.positions for p in self.members))

    def library(self) -> Form:
        """The steps as they are."""
        return Form({at: (self.graph.steps[at],) for at in self.positions}, self.positions)

    def form(self, tiles: ProductTiles) -> Form:
        """One launch for the products, whole or in parts, and after it what reads them."""
        steps: dict[int, FusedKernel] = {
            p.consumer: kernel_at(self.graph, p.consumer)
            for p in self.members
            if p.consumer is not None
        }
        buffers: dict[str, Buffer] = {}
        kernels: list[ProductKernel] = []
        totals: list[Step] = []
        for product in self.members:
            if tiles.parts == 1:
                kernels.append(product.alone(tiles))
                continue
            kernel, whole = product.parts(tiles)
            kernels.append(kernel)
            buffers[whole.name] = whole
            at = product.adder
            if at is not None and at in steps:
                steps[at] = product.adding_up(steps[at], whole)
                continue
            total = product.total(None, whole)
            assert total is not None
            totals.append(total)
        launch = CombinedKernel(f"{kernels[0].name}_and_more", tuple(kernels))
        first = min(p.position for p in self.members)
        placed: dict[int, tuple[Step, ...]] = {at: (step,) for at, step in steps.items()}
        return Form({**placed, first: (launch, *totals)}, self.positions, buffers)


def find_groups(products: Sequence[Product]) -> list[ProductGroup]:
    """Products of the same left matrix, all operands of which are there when the first is due."""
    if not products:
        return []
    _, writer = readers_and_writers(products[0].graph)
    groups: dict[Strided, list[Product]] = {}
    for product in products:
        left, right = product.operands
        mine = groups.setdefault(left, [])
        first = mine[0].position if mine else product.position
        needed = [right, *product.call.args[:-2]]
        there = all(writer.get(o.buffer, -1) < first for o in needed if isinstance(o, Strided))
        if there and len(left.shape) == 2 and (not mine or _alike(mine[0], product)):
            mine.append(product)
    return [ProductGroup(tuple(found)) for found in groups.values() if len(found) > 1]


def _alike(a: Product, b: Product) -> bool:
    """Whether two products of the same left matrix are multiplied by the same loop: none has tiles
    that hang over, unless they are of one size."""
    left, right = a.operands
    other = b.operands[1]
    if left.buffer in (right.buffer, other.buffer) or right.offset != other.offset:
        return False
    _, m, n, _ = a.sizes
    same = n == b.sizes[2] or (m <= SHORT and n % WIDEST == 0 and b.sizes[2] % WIDEST == 0)
    return same and right.stride == other.stride


__all__ = ["ProductGroup", "find_groups"]
