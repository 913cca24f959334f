"""How the weights of a product of few rows lie in the threads of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from dovetail_inductor.loop_ir.loops import Buffer, Strided
from dovetail_inductor.scheduler.kernels import ProductKernel
from dovetail_inductor.targets.cuda.axes import scaled
from dovetail_inductor.targets.cuda.right_tiles import TilePlace, column, in_one_of
from dovetail_inductor.targets.cuda.tiling import Axis

# What a thread reads of a matrix at once.
BYTES_AT_ONCE = 16


@dataclass(frozen=True)
class RowForm:
    """A tile of columns in five dimensions: `groups`, `columns`, `parts`, `turns`, `run`.

    Of a column a warp reads `groups` times `run` neighbours at once, and `turns` times. Each warp
    has one of the `parts` of a column, if there are so many, so that no two read the same of a row,
    and else one of `columns`; it has `each` columns, one after the other.
    If `grouped`, a run shares a scale. A thread reads `vector` neighbours at once. `in_one` is as
    of a `ComputedOperand`: lengths along a column count what so many numbers are made of.

    (Triton deals out the dimension of neighbours in memory first and then the others from the first
    one on: to the threads of a warp, to warps, to registers.)
    """

    groups: int
    columns: int
    parts: int
    turns: int
    run: int
    each: int
    vector: int
    in_one: int
    grouped: bool

    @staticmethod
    def of(product: ProductKernel, buffers: Mapping[str, Buffer]) -> RowForm:
        """The form of a product's tiles."""
        tiles, operand = product.tiles, next(iter(product.computed.values()), None)
        in_one = in_one_of(product)
        depth = tiles.k // in_one
        weights = (n for right, _ in product.rights for n in product.weights_of(right.buffer))
        size = min((buffers[name].dtype.itemsize for name in weights), default=4)
        vector = min(max(1, BYTES_AT_ONCE // size), depth)
        at_once = min(32 * vector, depth)
        group = operand.inner[-1].size if operand and len(operand.inner) > 1 else 1
        grouped = group > 1 and at_once % group == 0
        run = group if grouped else at_once
        parts = min(tiles.warps, depth // at_once)
        columns = min(tiles.n, tiles.warps // parts)
        turns, each = depth // (at_once * parts), tiles.n // columns
        vector = min(vector, run)
        return RowForm(at_once // run, columns, parts, turns, run, each, vector, in_one, grouped)

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """Of a block of all elements."""
        return self.groups, self.columns, self.parts, self.turns, self.run

    def _axis(self, *steps: int) -> tuple[tuple[int, int], ...]:
        """The form of an axis along which neighbours in each dimension are so far apart; 0: in
        which all are at the same place."""
        return tuple((n, s) if s else (1, 1) for n, s in zip(self.shape, steps, strict=True))

    @property
    def along(self) -> tuple[tuple[int, int], ...]:
        """That of an axis along a column, for all columns: each warp reads what it needs."""
        turn = self.groups * self.run
        first, _, *others = self._axis(self.run, 0, turn * self.turns, turn, 1)
        return first, (self.columns, 0), *others

    def columns_of(self, number: int, tile: int, size: int) -> str:
        """The places of the columns of this `number` that warps have, as text, all within the
        matrix's: what is beyond the last one is not stored."""
        places = f"{scaled('px', tile)} + {number}"
        if self.columns > 1:
            places += f" + {self.each} * tl.arange(0, {self.columns})[None, :, None, None, None]"
        return f"tl.minimum({places}, {size - 1})" if size % tile else f"({places})"

    def place(self, product: ProductKernel, right: Strided, number: int) -> TilePlace:
        """That of the columns of this `number` of a matrix which is computed."""
        operand, tile = product.computed[right.buffer], product.tiles.n
        columns = Axis("bn", operand.columns, tile, form=self._axis(0, self.each, 0, 0, 0))
        start = column(product, right, number)
        own = prod(self.shape) // self.columns
        if not self.grouped:
            axis = Axis("b0", operand.inner, own, form=self.along)
            return TilePlace((columns, axis), (start, "0"), self.shape, operand.inner)
        steps = 1, 0, self.groups * self.turns, self.groups, 0
        groups = Axis("b0", operand.inner[:-1], own // self.run, form=self._axis(*steps))
        run = Axis("b1", operand.inner[-1:], self.run, form=self._axis(0, 0, 0, 0, 1))
        return TilePlace((columns, groups, run), (start, "0", "0"), self.shape, operand.inner[-1:])
