"""The tiles of right matrices that a product reads, or computes from what they are kept as."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import torch

from dovetail_inductor.loop_ir.expr import Apply, Constant, Expr, Load
from dovetail_inductor.loop_ir.index import constant
from dovetail_inductor.loop_ir.loops import LoopNest
from dovetail_inductor.scheduler.kernels import FusedKernel, ProductKernel
from dovetail_inductor.targets.cuda.axes import scaled
from dovetail_inductor.targets.cuda.body import BodyEmitter, Lines
from dovetail_inductor.targets.cuda.kernel import Emission
from dovetail_inductor.targets.cuda.tiling import Axis, Tiling
from dovetail_inductor.targets.cuda.triton_ops import TRITON_TYPES

# 1.5 * 2**23 as a number, and as the bits of a float32: what is added to these is added to that.
MIDDLE, BITS_OF_MIDDLE = 3 << 22, 0x4B400000


@dataclass(frozen=True)
class Depth:
    """The inner dimension of a tile: `blocks` are the lengths of its axes, `in_one` as of a
    `ComputedOperand`. A tile for `one_row` has one column, before them, and two of them where
    scales are shared by groups along the dimension: groups, and what is in one."""

    blocks: tuple[int, ...]
    in_one: int
    one_row: bool

    @property
    def positions(self) -> str:
        """The places of what the axes count, from the first one on, as text."""
        text = f"tl.arange(0, {self.blocks[0]})"
        if len(self.blocks) > 1:
            own, inner = self.blocks[1], f"tl.arange(0, {self.blocks[1]})[None, :]"
            text = f"({text}[:, None] * {own} + {inner})"
        return scaled(text, self.in_one)

    @property
    def starts(self) -> list[str]:
        """Where the axes begin in the turn of the loop for `k`."""
        step = self.in_one * prod(self.blocks[1:])
        return ["k" if step == 1 else f"k // {step}", *("0" for _ in self.blocks[1:])]

    def shape(self, columns: int) -> list[int]:
        """The shape of a tile, of so many columns where it has more than one."""
        return [1, *self.blocks] if self.one_row else [*self.blocks, columns]

    def first_column(self, product: ProductKernel, number: int) -> str:
        """Where a tile begins along the columns: of tiles of one column that with this number."""
        tiles, n = product.tiles, product.right.shape[-1]
        start = scaled("px", tiles.n)
        if not self.one_row:
            return start
        # What is beyond the last column is not stored.
        place = f"{start} + {number}"
        return f"tl.minimum({place}, {n - 1})" if n % tiles.n else f"({place})"


def depth_of(product: ProductKernel) -> Depth:
    """The inner dimension of a product's tiles."""
    length, one_row = product.tiles.k, product.tiles.m == 1
    if not product.computed:
        return Depth((length,), 1, one_row)
    operand = next(iter(product.computed.values()))
    own = length // operand.in_one
    group = operand.inner[-1].size
    apart = one_row and len(operand.inner) > 1 and own % group == 0 and group & group - 1 == 0
    return Depth((own // group, group) if apart else (own,), operand.in_one, one_row)


def computed_tiles(
    lines: Lines,
    product: ProductKernel,
    name: str,
    depth: Depth,
    emission: Emission,
    column: int = 0,
) -> list[str]:
    """Define, in `lines`, the tiles of the right matrix called `name` at `k` that are multiplied in
    one turn: of its dtype, or for one row unrounded in float32. `emission` is of the kernel; of
    tiles of one column each it is that of the number `column`."""
    operand, tiles = product.computed[name], product.tiles
    inner = [operand.inner]
    if len(depth.blocks) > 1:
        inner = [operand.inner[:-1], operand.inner[-1:]]
    axes = [Axis(f"b{i}", inner[i], block) for i, block in enumerate(depth.blocks)]
    starts = depth.starts
    at = 0 if depth.one_row else len(axes)
    axes.insert(at, Axis("bn", operand.columns, 1 if depth.one_row else tiles.n))
    starts.insert(at, depth.first_column(product, column))
    loops = (*operand.inner, *operand.columns)
    # What it is over says which tensors it reads, and so in how many bits places are counted.
    nests = tuple(
        LoopNest(name, loops, (), None, body, constant(0), operand.origin)
        for body in operand.bodies
    )
    own = _OperandEmission(
        FusedKernel(name, loops, (), nests),
        emission.buffers,
        Tiling(tuple(axes), False, False, tiles.warps, tiles.stages),
        lines,
        emission.parameters,
        emission.helpers,
    )
    kind = torch.float32 if depth.one_row else emission.buffers[name].dtype
    found = []
    for value in own.values_at(starts, operand.bodies):
        tile = f"tl.broadcast_to({value}, {depth.shape(tiles.n)})"
        for axis in axes:
            if axis.masked and axis.name != "bn":  # what is no number must not reach the sums
                tile = f"tl.where({axis.mask}, {tile}, 0)"
        found.append(lines.define(f"{tile}.to({TRITON_TYPES[kind]})", "tile"))
    return found


@dataclass
class _OperandEmitter(BodyEmitter):
    """Emits what weights are made of. A GPU converts a byte in the time in which it adds eight
    numbers: bytes are made 32 bits wide and added to the bits of a large number, and that number is
    subtracted.

    `whole`: names of bytes that are 32 bits wide. `digits`: of a number made so the name before the
    subtraction.
    """

    whole: set[str] = field(default_factory=set)
    digits: dict[str, str] = field(default_factory=dict)

    def load(self, load: Load, mask: str | None, read: Callable[[Expr], str]) -> str:
        value = super().load(load, mask, read)
        if load.dtype is not torch.uint8:
            return value
        return self._whole(f"{value}.to(tl.int32)")

    def apply(self, op: str, args: Sequence[str], expr: Apply) -> str:
        first, *others = expr.args
        if (
            op == "cast"
            and expr.dtype is torch.float32
            and first.dtype in (torch.int8, torch.uint8)
        ):
            return self._converted(args[0])
        number = others[0].value if others and isinstance(others[0], Constant) else None
        if op == "sub" and args[0] in self.digits and number is not None and number == int(number):
            if abs(int(number)) < 1 << 21:
                less = float(MIDDLE + int(number))
                return self.lines.define(f"{self.digits[args[0]]} - {less}")
        if args[0] in self.whole and number is not None and number >= 0:
            sign = {"bitwise_and": "&", "bitwise_or": "|", "shift_right": ">>"}.get(op)
            if sign is not None and (op != "shift_right" or number < 8):
                return self._whole(f"{args[0]} {sign} {int(number)}")
        narrow = [f"{arg}.to(tl.uint8)" if arg in self.whole else arg for arg in args]
        return super().apply(op, narrow, expr)

    def _whole(self, text: str) -> str:
        name = self.lines.define(text)
        self.whole.add(name)
        return name

    def _converted(self, value: str) -> str:
        sign = "|" if value in self.whole else "+"
        bits = value if value in self.whole else f"{value}.to(tl.int32)"
        text = f"({bits} {sign} {BITS_OF_MIDDLE}).to(tl.float32, bitcast=True)"
        digits = self.lines.define(text)
        name = self.lines.define(f"{digits} - {float(MIDDLE)}")
        self.digits[name] = digits
        return name


class _OperandEmission(Emission):
    emitter = _OperandEmitter


__all__ = ["Depth", "computed_tiles", "depth_of"]
