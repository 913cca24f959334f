"""The indices of a tile: of each axis the flat index, its mask and its loop variables; and those of
elements side by side in memory that a kernel reads, or writes, in the same turn: one access for
both.

A loop over two parts (of complex numbers, of a rotation of pairs) is unrolled: each part is then an
access to every other element, of which a GPU moves the others along. Read as one block of twice the
length, which is split, or joined before it is written, they are as fast as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import torch

from dovetail_inductor.loop_ir.expr import index_free
from dovetail_inductor.loop_ir.index import Index, Var
from dovetail_inductor.loop_ir.loops import Buffer
from dovetail_inductor.loop_ir.sizes import any_symbolic
from dovetail_inductor.scheduler.kernels import FusedKernel
from dovetail_inductor.targets.cuda.body import Lines
from dovetail_inductor.targets.cuda.tiling import Axis, Tiling

Place = tuple[str, Index]  # a buffer, and where in it


def define_grid(lines: Lines, tiling: Tiling, wide: bool, pairs: bool = False) -> None:
    """Define the axes that the grid goes through, from the number of the program; `wide`: in 64
    bits. With `pairs` the last axis also as one of twice as many points (see `pairs`)."""
    if wide:
        lines.add("pid = pid.to(tl.int64)")
    rest = "pid" if tiling.pieces == 1 else f"(pid // {tiling.pieces})"
    order = list(enumerate(tiling.grid_axes))[:: 1 if tiling.down else -1]
    for position, axis in order:
        outermost = axis is order[-1][1]
        number = rest if outermost else f"({rest} % {axis.blocks})"
        define_axis(lines, tiling, wide, position, scaled(number, axis.block))
        if pairs and axis is tiling.axes[-1]:
            twice = scaled(number, 2 * axis.block)
            define_axis(lines, doubled(tiling), wide, position, twice, prefix="w")
        if not outermost:
            rest = f"{rest} // {axis.blocks}"


def define_axis(
    lines: Lines,
    tiling: Tiling,
    wide: bool,
    position: int,
    start: str,
    numbers: bool = False,
    prefix: str = "v",
) -> None:
    """Define an axis's flat index, which begins at `start`, a multiple of its block, its mask and
    its variables; with `numbers`, those that a block has one value of as numbers."""
    axis = tiling.axes[position]
    name = axis.name
    if axis.block == 1 and not axis.vars:
        return
    if axis.block == 1:  # a number and no block: what depends on it alone is computed once
        lines.add(f"{name} = {start}")
    elif axis.form or (axis.name == "r" and tiling.folds > 1):
        width = axis.block // tiling.folds
        places = places_of(axis.form or ((tiling.folds, width), (width, 1)))
        lines.add(f"{name} = {start} + {places}")
        if wide:
            lines.add(f"{name} = {name}.to(tl.int64)")
    else:
        spread = "" if len(tiling.axes) == 1 else _spread(position, len(tiling.axes))
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
        lines.add(f"{prefix}{first + offset} = {text}")


def doubled(tiling: Tiling) -> Tiling:
    """The tiling with blocks of twice the length along the last axis, whose last variable counts
    the elements of pairs."""
    *axes, last = tiling.axes
    var = last.vars[-1]
    pairs = (*last.vars[:-1], Var(var.id, 2 * var.size))
    return replace(tiling, axes=(*axes, Axis(f"{last.name}2", pairs, 2 * last.block, last.whole)))


def _spread(position: int, rank: int) -> str:
    return "[" + ", ".join(":" if i == position else "None" for i in range(rank)) + "]"


def places_of(form: Sequence[tuple[int, int]]) -> str:
    """The text of a block's places along an axis that has such a `form`."""
    terms = [
        f"{'' if step == 1 else f'{step} * '}tl.arange(0, {length}){_spread(dimension, len(form))}"
        for dimension, (length, step) in enumerate(form)
        if length > 1
    ]
    return " + ".join(terms or ["0"])


def scaled(number: str, factor: int) -> str:
    """The text of a product."""
    return number if factor == 1 else f"({number}) * {factor}"


@dataclass
class Pairs:
    """The pairs of a kernel's accesses, by the place of the first element. Where the last axis of
    the tiling has a loop variable `v0`, `w0` is that of blocks of twice the length."""

    tiling: Tiling
    firsts: frozenset[Place]
    loaded: dict[Place, str] = field(default_factory=dict)  # a name for each element
    waiting: dict[Place, str] = field(default_factory=dict)  # what is written with another

    def first(self, buffer: str, index: Index) -> Index | None:
        """Where the pair begins that an access is part of; None if it is part of none."""
        return next((i for i in (index, index + -1) if (buffer, i) in self.firsts), None)

    def load(self, lines: Lines, parameter: str, buffer: str, index: Index) -> str | None:
        """The name of an element as it is in memory; None if it is no part of a pair."""
        first = self.first(buffer, index)
        if first is None:
            return None
        if (buffer, index) not in self.loaded:
            free = index_free(first)
            address = f"{parameter} + ({self._address(first)})"
            both = lines.define(f"tl.load({address}{self._mask(free)})")
            parts = tuple(lines.fresh() for _ in range(2))
            shape = f"{self.tiling.shape(free)[:-1]}, 2]"
            lines.add(f"{', '.join(parts)} = tl.split(tl.reshape({both}, {shape}))")
            self.loaded |= zip(((buffer, first), (buffer, first + 1)), parts, strict=True)
        return self.loaded[buffer, index]

    def store(self, lines: Lines, parameter: str, place: Place, value: str, free: int) -> bool:
        """Write a block of all points of the loops `free`, once the other of its pair is there;
        False if there is no other."""
        buffer, index = place
        first = self.first(buffer, index)
        if first is None:
            return False
        self.waiting[place] = value
        names = [self.waiting.get((buffer, i)) for i in (first, first + 1)]
        if None not in names:
            shape = doubled(self.tiling).shape(free)
            lines.add(
                f"tl.store({parameter} + tl.broadcast_to({self._address(first)}, {shape}), "
                f"tl.interleave({names[0]}, {names[1]}){self._mask(free, False)})"
            )
        return True

    def _address(self, first: Index) -> str:
        axis, position, parts = self.tiling.axes[-1], 0, []
        names: dict[Var, str] = {}
        for own in self.tiling.axes:
            for var in own.vars:
                names[var] = f"{'w' if own is axis else 'v'}{position}"
                position += 1
        for atom, coefficient in first.terms:
            assert isinstance(atom, Var)
            factor = coefficient // 2 if atom == axis.vars[-1] else coefficient
            parts.append(names[atom] if factor == 1 else f"{factor} * {names[atom]}")
        return " + ".join([*parts, *([str(first.const)] if first.const else [])])

    def _mask(self, free: int, loads: bool = True) -> str:
        axes = doubled(self.tiling).axes
        masks = [a.mask for a in axes if a.masked and any(free >> v.id & 1 for v in a.vars)]
        return f", {' & '.join(masks)}{', other=0' if loads else ''}" if masks else ""


def pairs_of(
    kernel: FusedKernel,
    tiling: Tiling,
    buffers: Mapping[str, Buffer],
    by_value: Callable[[str], bool],
) -> Pairs | None:
    """The pairs of a pointwise kernel; None if it has none."""
    axis = tiling.axes[-1] if tiling.axes else None
    if kernel.columns or tiling.looped or axis is None or axis.block == 1 or not axis.vars:
        return None
    if any_symbolic(tuple(v.size for a in tiling.axes for v in a.vars)):
        return None
    stored: dict[Place, tuple[Var, ...]] = {}
    read: dict[Place, bool] = {}
    for nest in kernel.nests:
        if nest.buffer not in kernel.internal and nest.scatter is None:
            stored[nest.buffer, nest.index] = nest.vars
        for load in nest.loads:
            if load.mask is None and load.buffer not in kernel.writes():
                read[load.buffer, load.index] = by_value(load.buffer)
    firsts = {
        (name, index)
        for name, index in (*stored, *read)
        if _begins_pair(index, axis.vars[-1], tiling)
        and buffers[name].dtype is not torch.bool
        and (
            stored.get((name, index), ()) == stored.get((name, index + 1))
            or (read.get((name, index)) is False and (name, index + 1) in read)
        )
    }
    return Pairs(tiling, frozenset(firsts)) if firsts else None


def _begins_pair(index: Index, var: Var, tiling: Tiling) -> bool:
    """Whether an address is an even one, two after that of the turn before."""
    known = {v for axis in tiling.axes for v in axis.vars}
    if any_symbolic((index.const, *(c for _, c in index.terms))):
        return False
    even = index.const % 2 == 0 and all(
        atom in known and coefficient % 2 == 0 for atom, coefficient in index.terms
    )
    return even and index.coefficient(var) == 2
