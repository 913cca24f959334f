"""The indices of a tile: of each axis the flat index, its mask and its loop variables."""

from __future__ import annotations

from math import prod

from dovetail_inductor.targets.cuda.body import Lines
from dovetail_inductor.targets.cuda.pairs import pair_mask
from dovetail_inductor.targets.cuda.tiling import Tiling


def define_grid(lines: Lines, tiling: Tiling, wide: bool, pairs: bool = False) -> None:
    """Define the axes that the grid goes through, from the number of the program; `wide`: in 64
    bits. With `pairs` the last axis also as one of twice as many points (see `pairs`)."""
    if wide:
        lines.add("pid = pid.to(tl.int64)")
    rest = "pid"
    for position, axis in reversed(list(enumerate(tiling.grid_axes))):
        number = f"({rest} % {axis.blocks})" if position else rest
        define_axis(lines, tiling, wide, position, scaled(number, axis.block))
        if pairs and axis is tiling.axes[-1]:
            _define_pairs(lines, tiling, wide, scaled(number, 2 * axis.block))
        if position:
            rest = f"{rest} // {axis.blocks}"


def define_axis(
    lines: Lines, tiling: Tiling, wide: bool, position: int, start: str, numbers: bool = False
) -> None:
    """Define an axis's flat index, which begins at `start`, a multiple of its block, its mask and
    its variables; with `numbers`, those that a block has one value of as numbers."""
    axis = tiling.axes[position]
    name = axis.name
    if axis.block == 1 and not axis.vars:
        return
    if axis.block == 1:  # a number and no block: what depends on it alone is computed once
        lines.add(f"{name} = {start}")
    elif axis.name == "r" and tiling.folds > 1:
        width = axis.block // tiling.folds
        lines.add(
            f"{name} = {start} + {width} * tl.arange(0, {tiling.folds})[:, None] "
            f"+ tl.arange(0, {width})[None, :]"
        )
        if wide:
            lines.add(f"{name} = {name}.to(tl.int64)")
    else:
        spread = "" if len(tiling.axes) == 1 else _shape_of(tiling, position)
        in_64_bits = ".to(tl.int64)" if wide else ""
        lines.add(f"{name} = {start} + tl.arange(0, {axis.block}){spread}{in_64_bits}")
    if axis.masked:
        lines.add(f"{axis.mask} = {name} < {axis.size}")
    first = sum(len(a.vars) for a in tiling.axes[:position])
    for offset, var in enumerate(axis.vars):
        below = prod(v.size for v in axis.vars[offset + 1 :])
        single = numbers and not axis.masked and below % axis.block == 0
        own = f"({start})" if single else name
        text = own if below == 1 else f"({own} // {below})"
        if offset:
            text = f"{text} % {var.size}"
        lines.add(f"v{first + offset} = {text}")


def _define_pairs(lines: Lines, tiling: Tiling, wide: bool, start: str) -> None:
    """Define the last axis's flat index, mask and variables for blocks of twice the length, in
    which the last variable counts the elements of pairs."""
    position, axis = len(tiling.axes) - 1, tiling.axes[-1]
    spread = "" if position == 0 else _shape_of(tiling, position)
    name, in_64_bits = f"{axis.name}2", ".to(tl.int64)" if wide else ""
    lines.add(f"{name} = {start} + tl.arange(0, {2 * axis.block}){spread}{in_64_bits}")
    if axis.masked:
        lines.add(f"{pair_mask(axis.mask)} = {name} < {2 * axis.size}")
    first = sum(len(a.vars) for a in tiling.axes[:-1])
    sizes = [*(v.size for v in axis.vars[:-1]), 2 * axis.vars[-1].size]
    for offset, size in enumerate(sizes):
        below = prod(sizes[offset + 1 :])
        text = name if below == 1 else f"({name} // {below})"
        lines.add(f"w{first + offset} = {text}{f' % {size}' if offset else ''}")


def _shape_of(tiling: Tiling, position: int) -> str:
    rank = len(tiling.axes)
    return "[" + ", ".join(":" if i == position else "None" for i in range(rank)) + "]"


def scaled(number: str, factor: int) -> str:
    """The text of a product."""
    return number if factor == 1 else f"({number}) * {factor}"
