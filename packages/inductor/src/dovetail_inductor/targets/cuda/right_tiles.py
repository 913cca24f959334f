"""The tiles of matrices that a product reads, or computes from what they are kept as."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import torch

from dovetail_inductor.loop_ir.expr import Apply, Constant, Expr, Load
from dovetail_inductor.loop_ir.index import constant
from dovetail_inductor.loop_ir.loops import LoopNest, Strided
from dovetail_inductor.scheduler.kernels import FusedKernel, ProductKernel
from dovetail_inductor.targets.cuda.axes import scaled
from dovetail_inductor.targets.cuda.body import BodyEmitter, Lines
from dovetail_inductor.targets.cuda.kernel import Emission
from dovetail_inductor.targets.cuda.tiling import Axis, Tiling
from dovetail_inductor.targets.cuda.triton_ops import TRITON_TYPES

# 1.5 * 2**23 as a number, and as the bits of a float32: what is added to these is added to that.
MIDDLE, BITS_OF_MIDDLE = 3 << 22, 0x4B400000
# The bits as a number that the assembler does not know: so `and` and `or` are one instruction. (No
# address has as many digits.)
MIDDLE_NAME = "middle"
MIDDLE_LINE = f"{MIDDLE_NAME} = {BITS_OF_MIDDLE} + (p0.to(tl.int64) >> 60).to(tl.int32)"


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


def numbered(name: str, product: ProductKernel) -> list[str]:
    """`name` for each right matrix: the plain one for the first."""
    return [f"{name}{number or ''}" for number in range(len(product.rights))]


def address(
    operand: Strided, positions: tuple[str, str], strides: tuple[int, ...], batched: bool
) -> str:
    """Offsets of a tile of an operand."""
    terms = [t if c == 1 else f"{t} * {c}" for t, c in zip(positions, strides, strict=True)]
    if batched:
        terms.append(f"pz * {operand.stride[0]}")
    if operand.offset:
        terms.append(str(operand.offset))
    return " + ".join(terms)


@dataclass(frozen=True)
class RightTiles:
    """The names of tiles that are multiplied in one turn, and by what their products are, too."""

    tiles: tuple[str, ...]
    factor: str = ""


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
) -> RightTiles:
    """Define, in `lines`, the tiles of the right matrix called `name` at `k` that are multiplied in
    one turn: of its dtype, or for one row unrounded in float32, and then but for a factor.
    `emission` is of the kernel; of tiles of one column each it is that of the number `column`."""
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
    )
    kind = torch.float32 if depth.one_row else emission.buffers[name].dtype
    bodies, factor = operand.bodies, None
    if depth.one_row:
        bodies, factor = operand.with_factor(inner[-1])
    values = own.values_at(starts, bodies if factor is None else (*bodies, factor))
    found = []
    for value in values[: len(bodies)]:
        tile = f"tl.broadcast_to({value}, {depth.shape(tiles.n)})"
        for axis in axes:
            if axis.masked and axis.name != "bn":  # what is no number must not reach the sums
                tile = f"tl.where({axis.mask}, {tile}, 0)"
        found.append(lines.define(f"{tile}.to({TRITON_TYPES[kind]})", "tile"))
    return RightTiles(tuple(found), values[-1] if factor is not None else "")


@dataclass(frozen=True)
class _Bits:
    """A number from 0 to 255 as bits of a word of 32 bits: `(word & mask) >> shift`."""

    word: str
    mask: int = 255
    shift: int = 0

    def combined(self, op: str, number: int) -> _Bits | None:
        """Of an operator with a constant; None if that is another word."""
        if op == "bitwise_and":
            return _Bits(self.word, self.mask & number << self.shift, self.shift)
        shift = self.shift + number
        return _Bits(self.word, self.mask >> shift << shift, shift) if op == "shift_right" else None


@dataclass
class _OperandEmitter(BodyEmitter):
    """Emits what weights are made of. A GPU converts a byte in the time in which it adds eight
    numbers: bytes are made 32 bits wide and put into the bits of a large number, where they are,
    which is then subtracted (and divided by a power of two in the same instruction).

    `bits`: what the texts of bytes stand for. `digits`: of a number made so the one before the
    subtraction, and the power of two.
    """

    bits: dict[str, _Bits] = field(default_factory=dict)
    digits: dict[str, tuple[str, int]] = field(default_factory=dict)

    def load(self, load: Load, mask: str | None, read: Callable[[Expr], str]) -> str:
        value = super().load(load, mask, read)
        if load.dtype is not torch.uint8:
            return value
        word = self.lines.define(f"{value}.to(tl.int32)")
        self.bits[word] = _Bits(word)
        return word

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
            if abs(int(number)) < 1 << 16:
                return self._without_middle(*self.digits[args[0]], int(number))
        if args[0] in self.bits and number is not None and 0 <= number < 256:
            bits, sign = self.bits[args[0]], {"bitwise_and": "&", "shift_right": ">>"}.get(op)
            combined = bits.combined(op, int(number)) if number < 8 or sign == "&" else None
            if combined is not None:
                text = f"({args[0]} {sign} {int(number)})"
                self.bits[text] = combined
                return text
        narrow = [f"{arg}.to(tl.uint8)" if arg in self.bits else arg for arg in args]
        return super().apply(op, narrow, expr)

    def _converted(self, value: str) -> str:
        bits = self.bits.get(value)
        if bits is None:
            number, shift = f"{value}.to(tl.int32) + {BITS_OF_MIDDLE}", 0
        else:
            masked = bits.word if bits.mask == 255 else f"({bits.word} & {bits.mask})"
            number, shift = f"{masked} | {MIDDLE_NAME}", bits.shift
        digits = self.lines.define(f"({number}).to(tl.float32, bitcast=True)")
        name = self._without_middle(digits, shift, 0)
        self.digits[name] = digits, shift
        return name

    def _without_middle(self, digits: str, shift: int, less: int) -> str:
        """The number whose digits these are, less another one."""
        if shift == 0:
            return self.lines.define(f"{digits} - {float(MIDDLE + less)}")
        return self.lines.define(
            f"tl.fma({digits}, {2.0**-shift}, {-(MIDDLE * 2.0**-shift + less)})"
        )


class _OperandEmission(Emission):
    emitter = _OperandEmitter
