"""A product of one row, multiplied by threads without tensor cores: it takes as long as its weights
take to be read, if few instructions are spent on each.

A thread has many neighbours of a column of weights and of the row, multiplies and adds them up in
its registers, and only then do threads exchange what they have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd, prod

from dovetail_inductor.loop_ir.loops import Buffer
from dovetail_inductor.scheduler.kernels import ProductKernel
from dovetail_inductor.targets.cuda.assemble import WAIT
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
    if once and product.early:
        lines.text.append(WAIT)
    row = [f"a{turn}" for turn in range(depth.in_one)]
    if depth.in_one == 2:  # both are read at once
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
