"""A product of matrices, and what follows it point by point, to Triton source text.

A program multiplies tiles of the operands in a loop, in tensor cores and float32, and then computes
the nests of the epilogue on the tile of sums as any kernel does its own. Programs that share rows
of one operand run at about the same time, so that these are read from the cache.

A persistent kernel does so in a loop over tiles. Triton makes one loop of it and of the one inside
(`flatten`), so that the loads of the next tile are on their way while one is ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import indent

import torch

from dovetail_inductor.kernel_names import operators_of
from dovetail_inductor.loop_ir.loops import Buffer, Strided
from dovetail_inductor.loop_ir.ops import EIGHT_BIT_FLOATS
from dovetail_inductor.scheduler.kernels import ProductKernel, ProductTiles
from dovetail_inductor.targets.cuda.assemble import (
    WAIT,
    EmittedKernel,
    KernelBody,
    assemble,
    parameter_types,
)
from dovetail_inductor.targets.cuda.axes import scaled
from dovetail_inductor.targets.cuda.body import Lines
from dovetail_inductor.targets.cuda.descriptors import Described, described
from dovetail_inductor.targets.cuda.kernel import Emission
from dovetail_inductor.targets.cuda.right_tiles import (
    MIDDLE_LINE,
    TilePlace,
    address,
    in_one_of,
    numbered,
    read_tiles,
)
from dovetail_inductor.targets.cuda.row_product import multiply_rows
from dovetail_inductor.targets.cuda.tiling import Axis, Tiling
from dovetail_inductor.targets.cuda.triton_ops import TRITON_TYPES

# So many tiles, one below the other, are computed before those to their right.
GROUP = 8
# So many rows at most are read again for each of several neighbours.
FEW_ROWS = 32
# The number of the tile that a persistent kernel ends.
ENDED = "ended"


@dataclass(frozen=True)
class ProductText:
    """The statements of a product: what is done once, then, for the tile numbered `pid`, those that
    make the tile of sums `acc` of the matrices at p0 and p1 (and `acc1`, if there is another right
    matrix), and those that use it. The first `operands` of its parameters are those by which it
    multiplies."""

    before: str
    multiply: str
    use: KernelBody
    operands: int


def emit_product(
    product: ProductKernel, buffers: Mapping[str, Buffer], dependent: bool = False
) -> EmittedKernel:
    """Triton source of a product. Needs known sizes below 2**31.

    Raises `UnsupportedOp` for a scalar op that has no Triton form.
    """
    text = product_text(product, buffers)
    body, programs = text.use, text.use.tiling.programs
    if product.tiles.programs:
        tiles, programs = programs, min(product.tiles.programs, programs)
        lines = _in_turns(text, tiles, programs)
    else:
        lines = f"    pid = tl.program_id(0)\n{text.before}{text.multiply}\n{body.text}"
    name = f"{body.kind}_{operators_of(product.epilogue.nests)}"
    return assemble(name, replace(body, text=lines), programs, buffers, dependent=dependent)


def _in_turns(text: ProductText, tiles: int, programs: int) -> str:
    """The statements of a program that computes every tile whose number is its own but for a
    multiple of `programs`.

    Loads run ahead of what ends a tile, which therefore counts tiles for itself: nothing of the
    next tile's place is kept while one is ended.
    """
    loop = f"tl.range(first, {tiles}, {programs}, flatten=True)"
    return (
        f"    first = tl.program_id(0)\n{text.before}    {ENDED} = first - {programs}\n"
        f"    for pid in {loop}:\n{indent(text.multiply, '    ')}\n"
        f"        {ENDED} += {programs}\n{indent(text.use.text, '    ')}"
    )


def emit_products(
    products: Sequence[ProductKernel], buffers: Mapping[str, Buffer], dependent: bool
) -> EmittedKernel:
    """Triton source of products side by side that share the left matrix. Those that are multiplied
    in the same loop are so once, with the right matrix chosen before."""
    unlike = any(p.tiles.programs or p.tiles.descriptors or p.others for p in products)
    assert not unlike, "not side by side"
    texts = [product_text(product, buffers) for product in products]
    if not all(WAIT in text.multiply for text in texts):  # then all of them wait first
        texts = [replace(t, multiply=t.multiply.replace(f"{WAIT}\n", "")) for t in texts]
    loops = {_loop_of(text, buffers): number for number, text in reversed([*enumerate(texts)])}
    functions, parameters = "", [*texts[0].use.parameters[:1]]
    choosing, using = ["    pid = tl.program_id(0)"], []
    if len(loops) == 1:
        rights = ", ".join(f"right{i}" for i in range(1, texts[0].operands))
        using = [f"    acc = sums0(own, p0, {rights})"]
    start = 0
    for number, text in enumerate(texts):
        body, last = text.use, number == len(texts) - 1
        names = [name for name, _ in body.parameters]
        loop = loops[_loop_of(text, buffers)]
        if loop == number:
            own = ", ".join(["pid", *names[: text.operands]])
            multiply = f"{text.multiply}\n    return acc"
            functions += f"@triton.jit\ndef sums{loop}({own}):\n{multiply}\n\n\n"
        formal = ", ".join(["pid", "acc", *names])
        functions += f"@triton.jit\ndef use{number}({formal}):\n{body.text}\n\n\n"
        mine = ["p0", *(f"p{len(parameters) + i}" for i in range(len(body.parameters) - 1))]
        parameters += zip(mine[1:], (b for _, b in body.parameters[1:]), strict=True)
        first, start = start, start + body.tiling.programs
        test = "else:" if last else f"{'elif' if number else 'if'} pid < {start}:"
        chosen = [f"right{i} = {mine[i]}" for i in range(1, text.operands)]
        if len(loops) > 1:
            chosen = [f"acc = sums{loop}({', '.join(['own', *mine[: text.operands]])})"]
        branch = [f"own = pid - {first}", *chosen]
        choosing += [f"    {test}", *(f"        {line}" for line in branch)]
        using += [f"    {test}", f"        use{number}({', '.join(['own', 'acc', *mine])})"]
    lines = "\n".join([*choosing, *using])
    whole = KernelBody(lines, tuple(parameters), texts[0].use.tiling, "products")
    name = f"products_{operators_of(products[0].epilogue.nests)}"
    return assemble(name, whole, start, buffers, functions, dependent=dependent)


def _loop_of(text: ProductText, buffers: Mapping[str, Buffer]) -> tuple[str, tuple[str, ...]]:
    """What products have in common that can be multiplied by one function."""
    return text.multiply, parameter_types(text.use.parameters[: text.operands], buffers)


def product_text(product: ProductKernel, buffers: Mapping[str, Buffer]) -> ProductText:
    """The statements of a product."""
    tiles = product.tiles
    outer, rows, columns = product.axes
    z = (Axis("z", outer, 1),) if outer else ()
    # Of a single row or column the others of a tile are zeros: it is their sum.
    y, x = Axis("y", rows, tiles.m if rows else 1), Axis("x", columns, tiles.n if columns else 1)
    tiling = Tiling((*z, y, x), False, False, tiles.warps, tiles.stages)
    emission = Emission(product.epilogue, buffers, tiling)
    # (The first parameter is one that products of the same left matrix have in common.)
    emission.parameter(product.left.buffer)
    pointers = [
        "" if right.buffer in product.computed else emission.parameter(right.buffer)
        for right, _ in product.rights
    ]
    before, multiply = Lines(), Lines()
    _place(multiply, tiling.axes, tiles.parts, "pid")
    weights = {name for right, _ in product.rights for name in product.weights_of(right.buffer)}
    if any(buffers[name].dtype is torch.uint8 for name in weights):
        multiply.add(MIDDLE_LINE)
    if tiles.descriptors:
        _multiply_described(before, multiply, product, buffers, pointers)
    elif tiles.by_threads:
        multiply_rows(multiply, product, pointers, emission)
    else:
        _multiply(multiply, product, pointers, emission)
    operands = len(emission.parameters)
    _place(emission.lines, tiling.axes, tiles.parts, ENDED if tiles.programs else "pid")
    starts = [*(["pz"] if outer else []), scaled("py", y.block), scaled("px", x.block)]
    given = {}
    for acc, (_, sums) in zip(numbered("acc", product), product.rights, strict=True):
        if not rows and tiles.m > 1:
            emission.lines.add(f"{acc} = tl.sum({acc}, 0)[None, :]")
        if not columns:
            emission.lines.add(f"{acc} = tl.sum({acc}, 1)[:, None]")
        given[sums] = emission.lines.define(f"{acc}[None, :, :]") if outer else acc
    use = emission.run_at(starts, given)
    once = "".join(f"{line}\n" for line in before.text)
    return ProductText(once, "\n".join(multiply.text), use, operands)


def _place(lines: Lines, axes: tuple[Axis, ...], parts: int, pid: str) -> None:
    """The numbers of the tile numbered `pid` along the axes: pz, py and px. Parts of one are
    neighbours."""
    down, right = axes[-2].blocks, axes[-1].blocks
    if parts > 1:
        lines.add(f"pz = {pid} % {parts}")
        lines.add(f"tile = {pid} // {parts}")
        pid = "tile"
    elif len(axes) == 3:
        lines.add(f"pz = {pid} // {down * right}")
        lines.add(f"tile = {pid} % {down * right}")
        pid = "tile"
    if down <= GROUP:
        lines.add(f"py = {pid} % {down}" if down > 1 else "py = 0")
        lines.add(f"px = {pid} // {down}" if down > 1 else f"px = {pid}")
        return
    height = f"{GROUP}"
    lines.add(f"top = {pid} // {GROUP * right} * {GROUP}")
    if down % GROUP:
        lines.add(f"height = tl.minimum({down} - top, {GROUP})")
        height = "height"
    lines.add(f"py = top + {pid} % {GROUP * right} % {height}")
    lines.add(f"px = {pid} % {GROUP * right} // {height}")


def _multiply(
    lines: Lines, product: ProductKernel, pointers: Sequence[str], emission: Emission
) -> None:
    """The sums of one tile, as `acc`; `pointers` are the right matrices' that are in memory, and
    `emission` is of the kernel that computes the others.

    Where several neighbours along the inner dimension are made of the same memory, so many products
    are added up in each turn: of the first of them, of the second. Of many rows, which are to be
    read in whole vectors, the neighbours are put side by side.
    """
    tiles, left, right = product.tiles, product.left, product.right
    m, k = left.shape[-2:]
    accs, names = numbered("acc", product), numbered("b", product)
    in_one = in_one_of(product)
    turns = 1 if tiles.m > FEW_ROWS and in_one in (2, 4, 8) else in_one
    kind = _zeros(lines, product, emission.buffers)
    lines.add(f"kk = {scaled(f'tl.arange(0, {tiles.k // turns})', turns)}")
    along_m = _along(lines, "am", "py", tiles.m, m, left.stride[-2], "[:, None]")
    if any(pointers):
        along_n = _along(lines, "bn", "px", tiles.n, right.shape[-1], right.stride[-1], "[None, :]")
    begin, end = _inner(lines, product)
    batched = _batched(product)
    at_left = address(left, ("am", f"({begin} + kk[None, :])"), left.stride[-2:], batched)
    lines.add(f"a = p0 + {at_left}")
    for name, pointer, (own, _) in zip(names, pointers, product.rights, strict=True):
        if pointer:
            at_right = address(own, (f"({begin} + kk[:, None])", "bn"), own.stride[-2:], batched)
            lines.add(f"{name} = {pointer} + {at_right}")
    lines.add(f"for k in range({begin}, {end}, {tiles.k}):")
    lines.indent += 1

    nothing = "0.0" if emission.buffers[left.buffer].dtype in EIGHT_BIT_FLOATS else "0"

    def load(text: str, edge: str | None, spread: str) -> str:
        conditions = [edge] if edge else []
        if k % tiles.k:
            conditions.append(f"(k + kk{spread} < {k})")
        masked = f", {' & '.join(conditions)}, other={nothing}" if conditions else ""
        return f"tl.load({text}{masked})"

    rights: list[list[str]] = []
    for name, pointer, (own, _) in zip(names, pointers, product.rights, strict=True):
        if pointer:
            lines.add(f"{name}_tile = {load(name, along_n, '[:, None]')}")
            rights.append([f"{name}_tile"])
        else:
            place = TilePlace.at(product, own)
            each = read_tiles(lines, product, own.buffer, place, emission)().tiles
            rights.append([*each] if turns == len(each) else [_side_by_side(tiles, each)])
    for turn in range(turns):
        further = f" + {turn * left.stride[-1]}" if turn else ""
        lines.add(f"a_tile = {load(f'a{further}', along_m, '[None, :]')}")
        for acc, made in zip(accs, rights, strict=True):
            lines.add(_added(tiles, acc, made[turn], kind))
    lines.add(f"a += {tiles.k * left.stride[-1]}")
    for name, pointer, (own, _) in zip(names, pointers, product.rights, strict=True):
        if pointer:
            lines.add(f"{name} += {tiles.k * own.stride[-2]}")
    lines.indent -= 1


def _multiply_described(
    before: Lines,
    lines: Lines,
    product: ProductKernel,
    buffers: Mapping[str, Buffer],
    pointers: Sequence[str],
) -> None:
    """The sums of one tile, as `acc`, of operands that are read by descriptors, made `before`;
    `pointers` are the right matrices'."""
    tiles = product.tiles
    batch = "pz" if _batched(product) else "0"
    accs, names = numbered("acc", product), numbered("right", product)
    left = _described(product.left, buffers)
    rights = [_described(right, buffers) for right, _ in product.rights]
    left.define(before, "left", "p0", (tiles.m, tiles.k))
    for name, pointer, right in zip(names, pointers, rights, strict=True):
        right.define(before, name, pointer, (tiles.k, tiles.n))
    kind = _zeros(lines, product, buffers)
    begin, end = _inner(lines, product)
    lines.add(f"for k in range({begin}, {end}, {tiles.k}):")
    lines.indent += 1
    at_left, at_right = (scaled("py", tiles.m), "k"), ("k", scaled("px", tiles.n))
    lines.add(f"a_tile = {left.load('left', at_left, (tiles.m, tiles.k), batch)}")
    tile_names = numbered("b", product)
    for tile, name, right in zip(tile_names, names, rights, strict=True):
        lines.add(f"{tile}_tile = {right.load(name, at_right, (tiles.k, tiles.n), batch)}")
    for acc, tile in zip(accs, tile_names, strict=True):
        lines.add(_added(tiles, acc, f"{tile}_tile", kind))
    lines.indent -= 1


def _side_by_side(tiles: ProductTiles, made: Sequence[str]) -> str:
    """Tiles as one, in which rows of each follow one another."""

    def joined(names: Sequence[str]) -> str:
        return (
            names[0] if len(names) == 1 else f"tl.join({joined(names[::2])}, {joined(names[1::2])})"
        )

    apart = f"tl.reshape({joined(made)}, [{tiles.k // len(made)}, {tiles.n}, {len(made)}])"
    return f"tl.reshape(tl.permute({apart}, (0, 2, 1)), [{tiles.k}, {tiles.n}])"


def _zeros(lines: Lines, product: ProductKernel, buffers: Mapping[str, Buffer]) -> str:
    """Define the sums of one tile before anything is added; their type."""
    tiles, of_integers = product.tiles, buffers[product.left.buffer].dtype is torch.int8
    kind = TRITON_TYPES[torch.int32 if of_integers else torch.float32]
    for acc in numbered("acc", product):
        lines.add(f"{acc} = tl.zeros([{tiles.m}, {tiles.n}], {kind})")
    return kind


def _added(tiles: ProductTiles, acc: str, right: str, kind: str) -> str:
    """The statement that adds a tile's products to sums of a type."""
    if tiles.apart:
        return f"{acc} += tl.dot(a_tile, {right})"
    return f"{acc} = tl.dot(a_tile, {right}, {acc}, out_dtype={kind})"


def _described(operand: Strided, buffers: Mapping[str, Buffer]) -> Described:
    found = described(operand, buffers)
    assert found is not None, "no descriptor describes this operand"
    return found


def _batched(product: ProductKernel) -> bool:
    return bool(product.axes[0]) and product.tiles.parts == 1


def _inner(lines: Lines, product: ProductKernel) -> tuple[str, str]:
    """Where the loop over the inner dimension begins and ends."""
    k, tiles = product.left.shape[-1], product.tiles
    if tiles.parts == 1:
        return "0", str(k)
    length = -(-k // (tiles.k * tiles.parts)) * tiles.k
    begin = lines.define(f"pz * {length}", "begin")
    end = f"{begin} + {length}"
    return begin, f"tl.minimum({end}, {k})" if length * tiles.parts > k else end


def _along(
    lines: Lines, name: str, number: str, block: int, size: int, stride: int, spread: str
) -> str | None:
    """Define the positions of tile `number` along the rows of the left or the columns of the right
    matrix; the condition that their loads need.

    Where the tile hangs over, positions begin again: what is computed there is not stored. Where
    they are neighbours in memory that would tear vectors apart, so loads are masked instead; so are
    those of a single row or column.
    """
    wrapped = size % block != 0 and stride != 1 and size != 1
    wrap = f" % {size}" if wrapped else ""
    positions = f"({number} * {block} + tl.arange(0, {block}))"
    lines.add(f"{name} = ({positions}{wrap}){spread}")
    return f"({name} < {size})" if size % block and not wrapped else None
