"""A product of one row, multiplied by threads without tensor cores: it takes as long as its weights
take to be read, if few instructions are spent on each.

A thread has many neighbours of a column of weights and of the row, multiplies and adds them up in
its registers, and only then do threads exchange what they have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd, prod

from dovetail_inductor.loop_ir.loops import Buffer, LoopNest
from dovetail_inductor.scheduler.kernels import FusedKernel, ProductKernel
from dovetail_inductor.targets.cuda.assemble import WAIT
from dovetail_inductor.targets.cuda.axes import define_axis
from dovetail_inductor.targets.cuda.body import Lines
from dovetail_inductor.targets.cuda.kernel import Emission
from dovetail_inductor.targets.cuda.right_tiles import (
    Depth,
    RightTiles,
    address,
    computed_tiles,
    depth_of,
    numbered,
)
from dovetail_inductor.targets.cuda.tiling import Axis, Tiling

# What a thread reads of a matrix at once.
BYTES_AT_ONCE = 16
_ADD = "dv_add_products"


def multiply_row(
    lines: Lines, product: ProductKernel, pointers: Sequence[str], emission: Emission
) -> None:
    """The sums of one row's tile, as `acc`: a tile is of one column after the other, all of which
    are on their way at once, before threads wait for one another. `pointers` are the right
    matrices' that are in memory, and `emission` is of the kernel that computes the others."""
    tiles, left = product.tiles, product.left
    k, accs, columns = left.shape[-1], numbered("acc", product), range(tiles.n)
    depth = depth_of(product)
    own = prod(depth.blocks)
    together = _together(product, depth, emission.buffers)
    count = own // together
    lines.add(f"kk = ({depth.positions})[None]")
    for acc in accs:
        for column in columns:
            lines.add(f"{acc}_{column} = tl.zeros([{count}], tl.float32)")
    once = k <= tiles.k
    lines.add("k = 0" if once else f"for k in range(0, {k}, {tiles.k}):")
    lines.indent += not once

    def load(text: str, place: str) -> str:
        masked = f", ({place} < {k}), other=0" if k % tiles.k else ""
        return f"tl.load({text}{masked}).to(tl.float32)"

    rights: list[tuple[str, RightTiles]] = []
    for column in columns:
        for acc, pointer, (right, _) in zip(accs, pointers, product.rights, strict=True):
            if pointer:
                place = ("(k + kk)", depth.first_column(product, column))
                at_right = address(right, place, right.stride[-2:], False)
                made = RightTiles((lines.define(load(f"{pointer} + {at_right}", "(k + kk)"), "b"),))
            else:
                made = computed_tiles(lines, product, right.buffer, depth, emission, column)
            rights.append((f"{acc}_{column}", made))
    if once and tiles.early:
        lines.text.append(WAIT)
    row = [f"a{turn}" for turn in range(depth.in_one)]
    if product.row is not None:
        whole = _made_row(lines, product, product.row, emission)
        shape = [*depth.shape(1), *([2] if depth.in_one == 2 else [])]
        text = f"tl.reshape({whole}, {shape})"
        lines.add(f"{', '.join(row)} = {f'tl.split({text})' if depth.in_one == 2 else text}")
    elif depth.in_one == 2:  # both are read at once
        at = f"((k + kk)[{':, ' * (len(depth.blocks) + 1)}None] + tl.arange(0, 2))"
        both = load(f"p0 + {address(left, ('0', at), left.stride[-2:], False)}", at)
        lines.add(f"{', '.join(row)} = tl.split({both})")
    else:
        for turn, name in enumerate(row):
            at = f"(k + kk + {turn})"
            text = load(f"p0 + {address(left, ('0', at), left.stride[-2:], False)}", at)
            lines.add(f"{name} = {text}")
    for acc, made in rights:
        sums = f"tl.zeros([{count}], tl.float32)" if made.factor else acc
        for name, tile in zip(row, made.tiles, strict=True):
            sums = f"{_ADD}({name}, {tile}, {sums}, {own}, {together})"
        if made.factor:
            shape = [*depth.shape(1)[:-1], depth.blocks[-1] // together]
            sums = f"{acc} + tl.reshape(tl.reshape({sums}, {shape}) * {made.factor}, [{count}])"
        lines.add(f"{acc} = {sums}")
    lines.indent -= not once
    for acc in accs:
        parts = _joined([f"{acc}_{column}" for column in columns], count)
        lines.add(f"{acc} = tl.sum({parts}, 0)[None, :]")


class _RowEmission(Emission):
    """Emits the loops that make a row, in one block; of what is stored, the first program's."""

    def made(self, name: str) -> str:
        """The row `name`, as a block with zeros beyond its end."""
        for position, start in enumerate(("0", "0")):
            define_axis(self.lines, self.tiling, self.wide, position, start)
        self.row_memo = self.now.memo
        for nest in self.kernel.nests:
            self._in_one_block(nest)
        axis, value = self.tiling.axes[-1], self.now.full[name]
        value = f"tl.broadcast_to({value}, {[1, axis.block]})"
        return f"tl.where({axis.mask}, {value}, 0)" if axis.masked else value

    def _store(self, nest: LoopNest, value: str) -> None:
        if nest.buffer not in self.kernel.internal:
            self.lines.add("if pid == 0:")
            self.lines.indent += 1
            super()._store(nest, value)
            self.lines.indent -= 1


def _made_row(lines: Lines, product: ProductKernel, row: FusedKernel, emission: Emission) -> str:
    """The left matrix of one row, of all of a tile's depth, that the loops of `row` make, as a
    block in float32. `emission` is of the product's kernel."""
    tiles = product.tiles
    axes = (Axis("ax", (), 1), Axis("ar", row.columns, tiles.k))
    tiling = Tiling(axes, True, False, tiles.warps)
    own = _RowEmission(row, emission.buffers, tiling, lines, emission.parameters)
    return f"{lines.define(own.made(product.left.buffer), 'row')}.to(tl.float32)"


def _joined(names: Sequence[str], count: int) -> str:
    """Blocks of `count` elements as columns of one; there are a power of two of them."""
    if len(names) == 1:
        return f"tl.reshape({names[0]}, [{count}, 1])"
    even, odd = (_joined(names[k::2], count) for k in (0, 1))
    return f"tl.reshape(tl.join({even}, {odd}), [{count}, {len(names)}])"


def _together(product: ProductKernel, depth: Depth, buffers: Mapping[str, Buffer]) -> int:
    """How many neighbours a thread adds up: what it reads at once of the narrowest that weights are
    made of, if a thread has so many."""
    sizes = [
        buffers[name].dtype.itemsize
        for right, _ in product.rights
        for name in product.weights_of(right.buffer)
    ]
    mine = max(1, prod(depth.blocks) // (32 * product.tiles.warps))
    return gcd(mine, depth.blocks[-1], BYTES_AT_ONCE // min(BYTES_AT_ONCE, *sizes, 4))
