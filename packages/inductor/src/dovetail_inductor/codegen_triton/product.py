"""A product of matrices, and what follows it point by point, to Triton source text.

A program multiplies tiles of the operands in a loop, in tensor cores and float32, and then computes
the nests of the epilogue on the tile of sums as any kernel does its own. Programs that share rows
of one operand run at about the same time, so that these are read from the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from dovetail_inductor.codegen_triton.body import Lines
from dovetail_inductor.codegen_triton.kernel import Emission, EmittedKernel, assemble
from dovetail_inductor.codegen_triton.tiling import Axis, Tiling
from dovetail_inductor.loop_ir.loops import Buffer, Strided
from dovetail_inductor.scheduler.kernels import ProductKernel

# So many tiles, one below the other, are computed before those to their right.
GROUP = 8


def emit_product(product: ProductKernel, buffers: Mapping[str, Buffer]) -> EmittedKernel:
    """Triton source of a product. Needs known sizes below 2**31.

    Raises `UnsupportedOp` for a scalar op that has no Triton form.
    """
    tiles = product.tiles
    outer, rows, columns = product.axes
    z = (Axis("z", outer, 1),) if outer else ()
    axes = (*z, Axis("y", rows, tiles.m), Axis("x", columns, tiles.n))
    tiling = Tiling(axes, False, False, tiles.warps, tiles.stages)
    emission = Emission(product.epilogue, buffers, tiling)
    pointers = [emission.parameter(o.buffer) for o in (product.left, product.right)]
    _place(emission.lines, axes)
    _multiply(emission.lines, product, pointers)
    starts = [f"py * {tiles.m}", f"px * {tiles.n}"]
    sums = "acc"
    if outer:
        starts.insert(0, "pz")
        sums = emission.lines.define("acc[None, :, :]")
    body = emission.run_at(starts, {product.sums: sums}, "product")
    return assemble(
        body.kind, "", body.text, body.parameters, body.helpers, tiling, tiling.programs, buffers
    )


def _place(lines: Lines, axes: tuple[Axis, ...]) -> None:
    """The numbers of the tile that a program computes: pz, py and px."""
    down, right = axes[-2].blocks, axes[-1].blocks
    lines.add("pid = tl.program_id(0)")
    if len(axes) == 3:
        lines.add(f"pz = pid // {down * right}")
        lines.add(f"pid = pid % {down * right}")
    if down <= GROUP:
        lines.add(f"py = pid % {down}")
        lines.add(f"px = pid // {down}")
        return
    height = f"{GROUP}"
    lines.add(f"top = pid // {GROUP * right} * {GROUP}")
    if down % GROUP:
        lines.add(f"height = tl.minimum({down} - top, {GROUP})")
        height = "height"
    lines.add(f"py = top + pid % {GROUP * right} % {height}")
    lines.add(f"px = pid % {GROUP * right} // {height}")


def _multiply(lines: Lines, product: ProductKernel, pointers: list[str]) -> None:
    """The sums of one tile, as `acc`."""
    tiles, left, right = product.tiles, product.left, product.right
    m, k = left.shape[-2:]
    n = right.shape[-1]
    lines.add(f"acc = tl.zeros([{tiles.m}, {tiles.n}], tl.float32)")
    lines.add(f"kk = tl.arange(0, {tiles.k})")
    along_m = _along(lines, "am", "py", tiles.m, m, left.stride[-2], "[:, None]")
    along_n = _along(lines, "bn", "px", tiles.n, n, right.stride[-1], "[None, :]")
    begin, end = "0", str(k)
    if tiles.parts > 1:
        length = -(-k // (tiles.k * tiles.parts)) * tiles.k
        begin = lines.define(f"pz * {length}", "begin")
        end = f"{begin} + {length}"
        if length * tiles.parts > k:
            end = f"tl.minimum({end}, {k})"
    at_left = _address(left, ("am", f"({begin} + kk[None, :])"), left.stride[-2:])
    at_right = _address(right, (f"({begin} + kk[:, None])", "bn"), right.stride[-2:])
    lines.add(f"a = {pointers[0]} + {at_left}")
    lines.add(f"b = {pointers[1]} + {at_right}")
    lines.add(f"for k in range({begin}, {end}, {tiles.k}):")
    lines.indent += 1
    for name, edge, k_spread in (("a", along_m, "[None, :]"), ("b", along_n, "[:, None]")):
        conditions = [edge] if edge else []
        if k % tiles.k:
            conditions.append(f"(k + kk{k_spread} < {k})")
        masked = f", {' & '.join(conditions)}, other=0" if conditions else ""
        lines.add(f"{name}_tile = tl.load({name}{masked})")
    lines.add("acc = tl.dot(a_tile, b_tile, acc)")
    lines.add(f"a += {tiles.k * left.stride[-1]}")
    lines.add(f"b += {tiles.k * right.stride[-2]}")
    lines.indent -= 1


def _along(
    lines: Lines, name: str, number: str, block: int, size: int, stride: int, spread: str
) -> str | None:
    """Define the positions of tile `number` along the rows of the left or the columns of the right
    matrix; the condition that their loads need.

    Where the tile hangs over, positions begin again: what is computed there is not stored. Where
    they are neighbours in memory that would tear vectors apart, so loads are masked instead.
    """
    wrapped = size % block != 0 and stride != 1
    wrap = f" % {size}" if wrapped else ""
    positions = f"({number} * {block} + tl.arange(0, {block}))"
    lines.add(f"{name} = ({positions}{wrap}){spread}")
    return f"({name} < {size})" if size % block and not wrapped else None


def _address(operand: Strided, positions: tuple[str, str], strides: tuple[int, ...]) -> str:
    """Offsets of a tile of an operand."""
    terms = [t if c == 1 else f"{t} * {c}" for t, c in zip(positions, strides, strict=True)]
    if len(operand.shape) == 3:
        terms.append(f"pz * {operand.stride[0]}")
    if operand.offset:
        terms.append(str(operand.offset))
    return " + ".join(terms)


def shared_bytes(product: ProductKernel, itemsize: int) -> int:
    """Bytes of shared memory that the tiles of the operands on their way take."""
    tiles = product.tiles
    return prod((tiles.stages, tiles.k, tiles.m + tiles.n, itemsize))


__all__ = ["emit_product", "shared_bytes"]
