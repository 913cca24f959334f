"""Products of one row or a few, multiplied by threads without tensor cores: they take as long as
their weights take to be read, if few instructions are spent on each.

A warp has columns of weights of its own, or parts of them, and the rows. All weights of a program
are on their way at once. A thread multiplies and adds up neighbours in its registers, and only then
exchanges sums with others of its warp: no warp waits for another, but for parts of a column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product as pairs
from math import prod

from dovetail_inductor.loop_ir.loops import Buffer
from dovetail_inductor.scheduler.kernels import ProductKernel
from dovetail_inductor.targets.cuda.assemble import WAIT
from dovetail_inductor.targets.cuda.axes import places_of, scaled
from dovetail_inductor.targets.cuda.body import Lines
from dovetail_inductor.targets.cuda.kernel import Emission
from dovetail_inductor.targets.cuda.right_tiles import (
    ONCE,
    RightTiles,
    address,
    numbered,
    read_tiles,
)
from dovetail_inductor.targets.cuda.row_form import RowForm
from dovetail_inductor.targets.cuda.triton_ops import TRITON_TYPES

_ADD = "dv_add_products"


def multiply_rows(
    lines: Lines, product: ProductKernel, pointers: Sequence[str], emission: Emission
) -> None:
    """The sums of a tile, as `acc`. `pointers` are the right matrices' that are in memory, and
    `emission` is of the kernel that computes the others."""
    tiles, left, form = product.tiles, product.left, RowForm.of(product, emission.buffers)
    rows, k = left.shape[-2:]
    lines.add(f"kk = {places_of(form.along)}")
    mask = f", (kk < {k // form.in_one}), other=0" if k % tiles.k else ""
    rights = _read_rights(lines, product, pointers, emission, form, mask)
    if tiles.early:
        lines.text.append(WAIT)

    def read(row: int) -> list[str]:
        first = row * left.stride[-2] + left.offset
        return _row(lines, emission.buffers[left.buffer], first, form.in_one, mask)

    read_now = read(0)  # before anything waits for weights
    computed = [(acc, column, compute()) for acc, column, compute in rights]
    for row in range(rows):
        read_now = read_now if row == 0 else read(row)
        for acc, column, right in computed:
            lines.add(f"{acc}_{column}_{row} = {_added(form, read_now, right)}")
    for acc in numbered("acc", product):
        # Of rows beyond the last one nothing is stored.
        places = pairs(range(form.each), range(tiles.m))
        names = [f"{acc}_{column}_{min(row, rows - 1)}" for column, row in places]
        shape = [*form.shape[:3], form.run // form.vector, len(names)]
        total = f"tl.reshape({_joined(names, prod(shape[:-1]))}, {shape})"
        for dimension in (3, 2, 0):  # first of threads of a warp
            total = f"tl.sum({total}, {dimension})"
        lines.add(f"{acc} = tl.trans(tl.reshape({total}, [{tiles.n}, {tiles.m}]))")


def _read_rights(
    lines: Lines,
    product: ProductKernel,
    pointers: Sequence[str],
    emission: Emission,
    form: RowForm,
    mask: str,
) -> list[tuple[str, int, Callable[[], RightTiles]]]:
    """Read what all tiles of right matrices are made of; what makes them, by the name of the sums
    and the number of the columns."""
    found: list[tuple[str, int, Callable[[], RightTiles]]] = []
    accs, tile = numbered("acc", product), product.tiles.n
    for number in range(form.each):
        for acc, pointer, (right, _) in zip(accs, pointers, product.rights, strict=True):
            if pointer:
                column = form.columns_of(number, tile, right.shape[-1])
                at = address(right, ("kk", column), right.stride[-2:], False)
                name = lines.define(f"tl.load({pointer} + {at}{mask}{ONCE})", "b")
                found.append((acc, number, partial(RightTiles, (f"{name}.to(tl.float32)",))))
            else:
                place = form.place(product, right, number)
                compute = read_tiles(lines, product, right.buffer, place, emission)
                found.append((acc, number, compute))
    return found


def _added(form: RowForm, row: Sequence[str], right: RightTiles) -> str:
    """The products of a row and a tile, added up by each thread but for what it reads at once."""
    sums = f"tl.zeros([{prod(form.shape) // form.vector}], tl.float32)"
    for name, tile in zip(row, right.tiles, strict=True):
        whole = f"tl.broadcast_to({name}.to(tl.float32), {[*form.shape]})"
        sums = f"{_ADD}({whole}, {tile}, {sums}, {prod(form.shape)}, {form.vector})"
    sums = f"tl.reshape({sums}, {[*form.shape[:-1], form.run // form.vector]})"
    return f"tl.sum({sums} * {right.factor}, 3)" if right.factor else f"tl.sum({sums}, 3)"


def _row(lines: Lines, buffer: Buffer, first: int, count: int, mask: str) -> list[str]:
    """`count` neighbours of the row that begins at `first`, from `count` times each place on: read
    as one word, so that threads read words side by side, or where it is none one by one."""
    bits, kind = 8 * buffer.dtype.itemsize, TRITON_TYPES[buffer.dtype]
    is_word = bits * count <= 64 and first % count == buffer.offset % count == 0
    if count == 1 or not is_word:
        places = [f"{scaled('kk', count)} + {first + i}" for i in range(count)]
        return [lines.define(f"tl.load(p0 + ({place}){mask})") for place in places]
    words = f"p0.to(tl.pointer_type(tl.int{bits * count}), bitcast=True)"
    word = lines.define(f"tl.load({words} + (kk + {first // count}){mask})")
    return [
        lines.define(f"({word} >> {bits * i}).to(tl.int{bits}).to({kind}, bitcast=True)")
        for i in range(count)
    ]


def _joined(names: Sequence[str], count: int) -> str:
    """Blocks of `count` elements as columns of one; there are a power of two of them."""
    if len(names) == 1:
        return f"tl.reshape({names[0]}, [{count}, 1])"
    even, odd = (_joined(names[k::2], count) for k in (0, 1))
    return f"tl.reshape(tl.join({even}, {odd}), [{count}, {len(names)}])"
