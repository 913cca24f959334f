"""The tiles of matrices that a product reads, or computes from what they are kept as."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from dovetail_inductor.loop_ir.expr import Apply, Constant, Expr, Load, direct_loads
from dovetail_inductor.loop_ir.handlers import interpret
from dovetail_inductor.loop_ir.index import Var, constant
from dovetail_inductor.loop_ir.loops import LoopNest, Strided
from dovetail_inductor.scheduler.kernels import FusedKernel, ProductKernel
from dovetail_inductor.targets.cuda.axes import define_axis, scaled
from dovetail_inductor.targets.cuda.body import BodyEmitter, Lines
from dovetail_inductor.targets.cuda.kernel import Emission
from dovetail_inductor.targets.cuda.tiling import Axis, Tiling
from dovetail_inductor.targets.cuda.triton_ops import TRITON_TYPES

# How threads read weights that they multiply, each once: rows shall stay in the nearest cache.
ONCE = ', eviction_policy="evict_first"'
# 1.5 * 2**23 as a number, and as the bits of a float32: what is added to these is added to that.
MIDDLE, BITS_OF_MIDDLE = 3 << 22, 0x4B400000
# The bits as a number that the assembler does not know: so `and` and `or` are one instruction. (No
# address has as many digits.)
MIDDLE_NAME = "middle"
MIDDLE_LINE = f"{MIDDLE_NAME} = {BITS_OF_MIDDLE} + (p0.to(tl.int64) >> 60).to(tl.int32)"


@dataclass(frozen=True)
class TilePlace:
    """Where a tile of a right matrix lies: its axes and where they begin, and its shape. With
    `inner` threads multiply it: its numbers are not rounded, and a factor that these loops do not
    change is left out."""

    axes: tuple[Axis, ...]
    starts: tuple[str, ...]
    shape: Sequence[int]
    inner: tuple[Var, ...] = ()

    @staticmethod
    def at(product: ProductKernel, right: Strided) -> TilePlace:
        """The tile at `k` of a right matrix."""
        operand, tiles = product.computed[right.buffer], product.tiles
        own = tiles.k // operand.in_one
        axes = Axis("b0", operand.inner, own), Axis("bn", operand.columns, tiles.n)
        start = "k" if operand.in_one == 1 else f"k // {operand.in_one}"
        return TilePlace(axes, (start, column(product, right, 0)), (own, tiles.n))


def column(product: ProductKernel, right: Strided, number: int) -> str:
    """The place, as text, of the column of this number in a tile of a computed matrix, of which
    `right` may be the columns from a later one on."""
    after = right.offset - product.computed[right.buffer].offset
    first, start = number + after // right.stride[-1], scaled("px", product.tiles.n)
    return f"{start} + {first}" if first else start


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


def in_one_of(product: ProductKernel) -> int:
    """How many neighbours along the inner dimension right matrices have of the same memory."""
    operand = next(iter(product.computed.values()), None)
    return 1 if operand is None else operand.in_one


def read_tiles(
    lines: Lines, product: ProductKernel, name: str, place: TilePlace, emission: Emission
) -> Callable[[], RightTiles]:
    """Read, in `lines`, what the tiles of the right matrix called `name` are made of that are
    multiplied in one turn; what is given makes them of it: of its dtype, or for threads in float32.
    `emission` is of the kernel."""
    operand, tiles = product.computed[name], product.tiles
    loops = (*operand.inner, *operand.columns)
    # What it is over says which tensors it reads, and so in how many bits places are counted.
    nests = tuple(
        LoopNest(name, loops, (), None, body, constant(0), operand.origin)
        for body in operand.bodies
    )
    own = _OperandEmission(
        FusedKernel(name, loops, (), nests),
        emission.buffers,
        Tiling(place.axes, False, False, tiles.warps, tiles.stages),
        lines,
        emission.parameters,
    )
    own.values_at(place.starts, direct_loads(operand.bodies))

    def compute() -> RightTiles:
        kind = torch.float32 if place.inner else emission.buffers[name].dtype
        bodies, factor = operand.bodies, None
        if place.inner:
            bodies, factor = operand.with_factor(place.inner)
        values = own.values_at(place.starts, bodies if factor is None else (*bodies, factor))
        found = []
        for value in values[: len(bodies)]:
            tile = f"tl.broadcast_to({value}, {[*place.shape]})"
            for axis in place.axes:
                if axis.masked and axis.name != "bn":  # what is no number must not reach the sums
                    tile = f"tl.where({axis.mask}, {tile}, 0)"
            found.append(lines.define(f"{tile}.to({TRITON_TYPES[kind]})", "tile"))
        return RightTiles(tuple(found), values[-1] if factor is not None else "")

    return compute


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
        word = f"{value}.to(tl.int32)"
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

    @cached_property
    def _writer(self) -> BodyEmitter:
        return self._emitter()

    def values_at(self, starts: Sequence[str], values: Sequence[Expr]) -> list[str]:
        """Values at the tile that begins at `starts` along the axes, of which numbers that a tile
        has only one of are such, no blocks. What was read before is not read again."""
        for position, start in enumerate(starts):
            define_axis(self.lines, self.tiling, self.wide, position, start, numbers=True)
        return interpret(values, self._writer, self.now.memo)

    def _policy(self, load: Load) -> str | None:
        return "evict_first" if self.tiling.rank > len(self.tiling.axes) else None
