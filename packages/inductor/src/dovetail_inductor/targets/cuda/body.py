"""The Triton emitter of loop bodies: a handler whose meanings are names of block values.

Every value is a block that broadcasts against the kernel's tile (one dimension an axis; an axis on
which a value does not depend has extent 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dovetail_inductor.loop_ir.expr import (
    Apply,
    Constant,
    Expr,
    IndexValue,
    Load,
    Scalar,
    index_free,
)
from dovetail_inductor.loop_ir.index import FloorDiv, Index, Indirect, Mod, Var
from dovetail_inductor.loop_ir.loops import Buffer, LoopNest, Scatter
from dovetail_inductor.loop_ir.ops import EIGHT_BIT_FLOATS
from dovetail_inductor.loop_ir.sizes import any_symbolic, is_symbolic
from dovetail_inductor.targets.cuda.tiling import Axis, Tiling
from dovetail_inductor.targets.cuda.triton_ops import NARROWED, TRITON_TYPES, emit_op


@dataclass
class Lines:
    """Statements of a kernel body, with their indentation, and fresh names."""

    text: list[str] = field(default_factory=list)
    indent: int = 1
    counter: int = 0

    def add(self, line: str) -> None:
        """One statement."""
        self.text.append("    " * self.indent + line)

    def define(self, expression: str, prefix: str = "t") -> str:
        """A new name for the value of an expression."""
        name = self.fresh(prefix)
        self.add(f"{name} = {expression}")
        return name

    def fresh(self, prefix: str = "t") -> str:
        """A new name."""
        self.counter += 1
        return f"{prefix}{self.counter - 1}"


def literal(value: Scalar, dtype: torch.dtype, rank: int) -> str:
    """A constant block of one element, of exactly this dtype, in which integers wrap around."""
    if isinstance(value, float) and not math.isfinite(value):
        text = f"float('{value}')"
    elif isinstance(value, int) and not dtype.is_floating_point:
        info = torch.iinfo(torch.uint8 if dtype is torch.bool else dtype)
        text = repr((int(value) - info.min) % 2**info.bits + info.min)
    else:
        text = repr(value)
    return f"tl.full([{', '.join('1' * rank)}], {text}, {TRITON_TYPES[dtype]})"


# Stores with a neighbour: of lines, a pointer, a place, a value and the loops' variables as bits.
PairedStore = Callable[[Lines, str, tuple[str, Index], str, int], bool]


@dataclass(frozen=True)
class Reads:
    """Where a kernel finds what its loops read.

    `forward` gives the value of a buffer written in this very kernel, or None for one to be read
    from memory; `parameter` names a buffer's pointer, or its element if it comes `by_value`;
    `policy` tells what a cache should do with what is read. `paired` gives what is read with its
    neighbour in memory, or None for what is read by itself.
    """

    parameter: Callable[[str], str]
    forward: Callable[[Load], str | None]
    by_value: Callable[[str], bool] = lambda buffer: False
    policy: Callable[[Load], str | None] = lambda load: None
    paired: Callable[[Load], str | None] = lambda load: None


@dataclass
class BodyEmitter:
    """Emits expressions.

    With `narrow` the values of transcendental functions end in 2 bytes. `rough`: the uids of
    quotients that may be off by their last digits.
    """

    lines: Lines
    tiling: Tiling
    buffers: Mapping[str, Buffer]
    wide: bool  # 64-bit index arithmetic
    reads: Reads
    narrow: bool = False
    rough: Container[int] = ()

    def constant(self, value: Scalar, dtype: torch.dtype) -> str:
        """A typed one-element block."""
        return literal(value, dtype, self.tiling.rank)

    def index_value(self, index: Index, dtype: torch.dtype, read: Callable[[Expr], str]) -> str:
        """An index as a value."""
        return self.lines.define(f"({self.index(index, read)}).to({TRITON_TYPES[dtype]})")

    def apply(self, op: str, args: Sequence[str], expr: Apply) -> str:
        """A scalar op."""
        if expr.check is not None:
            text = f"({args[0]} >= 0) & ({args[0]} < {expr.check.size})"
            valid = " & ".join(a.mask for a in self.masked_axes(expr.free))
            outside = f" | ~({valid})" if valid else ""
            self.lines.add(f'tl.device_assert(({text}){outside}, "index out of bounds")')
            return args[0]
        if op == "where" and isinstance(element := expr.args[1], Load):
            mask, _, other = expr.args
            zero = isinstance(other, Constant) and repr(other.value) in ("0", "0.0", "False")
            if zero and element.mask is mask and self.reads.forward(element) is None:
                return args[1]  # it is 0 where the mask lets nothing be read
        operand = expr.args[1 if op == "where" else 0].dtype
        if expr.uid in self.rough:
            return self.lines.define(
                f"({args[0]} / {args[1]})" if op == "div" else f"(1.0 / {args[0]})"
            )
        return self.lines.define(emit_op(op, args, operand, expr.dtype, self.narrow))

    def load(self, load: Load, mask: str | None, read: Callable[[Expr], str]) -> str:
        """A read from memory, or the value just computed for that buffer."""
        forwarded = self.reads.forward(load)
        if forwarded is not None:
            return forwarded
        if self.reads.by_value(load.buffer):
            return self._given(load, mask)
        storage = self.buffers[load.buffer].dtype
        if (element := self.reads.paired(load)) is not None:
            if storage == load.dtype:
                return element
            return self.lines.define(f"{element}.to({TRITON_TYPES[load.dtype]})")
        offset = self._offset(load.index, read)
        buffer = self.buffers[load.buffer]
        conditions = [
            _load_condition(axis, load.index, buffer)
            for axis in self.masked_axes(index_free(load.index))
        ]
        select = load.mask is not None and _is_upper_edge(load.mask, load.index, buffer)
        if mask is not None and not select:
            conditions.append(mask)
            assert load.mask is not None
            for axis in self.masked_axes(load.mask.free):
                if axis.mask not in conditions:
                    conditions.append(axis.mask)
            offset += f" + {self._zeros(load.mask.free)}"
        text = f"{self.reads.parameter(load.buffer)} + {offset}"
        if conditions:
            nothing = "0.0" if storage in EIGHT_BIT_FLOATS else "0"
            text += f", {' & '.join(conditions)}, other={nothing}"
        if (policy := self.reads.policy(load)) is not None:
            text += f', eviction_policy="{policy}"'
        value = f"tl.load({text})"
        if storage != load.dtype:
            value += f".to({TRITON_TYPES[load.dtype]})"
        if select and load.dtype is torch.bool:
            value = f"({mask} & {value})"
        elif select:
            value = f"tl.where({mask}, {value}, 0).to({TRITON_TYPES[load.dtype]})"
        return self.lines.define(value)

    def _given(self, load: Load, mask: str | None) -> str:
        """An element that the launch passes: an integer, or the bits of a float64."""
        ones = ", ".join(["1"] * self.tiling.rank)
        value = f"tl.full([{ones}], {self.reads.parameter(load.buffer)}, tl.int64)"
        if load.dtype.is_floating_point:
            value += ".to(tl.float64, bitcast=True)"
        kind = TRITON_TYPES[load.dtype]
        value = f"({value} != 0)" if load.dtype is torch.bool else f"{value}.to({kind})"
        if mask is not None:
            value = f"tl.where({mask}, {value}, 0).to({kind})"
        return self.lines.define(value)

    def store(self, nest: LoopNest, value: str, paired: PairedStore | None) -> None:
        """Write a nest's value at all its points, by `paired` with that of its neighbours in memory
        if they are written, too."""
        free = sum(1 << var.id for var in nest.vars)
        shape, stored = self._to_store(nest, value)
        parameter = self.reads.parameter(nest.buffer)
        if paired and paired(self.lines, parameter, (nest.buffer, nest.index), stored, free):
            return
        masks = [a.mask for a in self.masked_axes(free)]
        condition = f", {' & '.join(masks)}" if masks else ""
        offset = self.index(nest.index, no_reads)
        self.lines.add(
            f"tl.store({parameter} + tl.broadcast_to({offset}, {shape}), {stored}{condition})"
        )

    def scatter(self, nest: LoopNest, how: Scatter, value: str, memo: dict[int, str]) -> None:
        """Write to computed places, none of them out of bounds, also where assertions are off."""
        masks = [a.mask for a in self.masked_axes(sum(1 << var.id for var in nest.vars))]
        for atom in nest.index.indirects():
            place = memo[atom.value.uid]
            masks.append(f"({place} >= 0) & ({place} < {atom.size})")
        shape, stored = self._to_store(nest, value)
        offset = self.index(nest.index, lambda e: memo[e.uid])
        pointer = f"{self.reads.parameter(nest.buffer)} + tl.broadcast_to({offset}, {shape})"
        condition = f", tl.broadcast_to({' & '.join(masks)}, {shape})" if masks else ""
        call = "tl.store" if how.reduction is None else f"tl.atomic_{how.operation}"
        order = "" if how.reduction is None else ', sem="relaxed"'
        self.lines.add(f"{call}({pointer}, {stored}{condition}{order})")

    def _to_store(self, nest: LoopNest, value: str) -> tuple[str, str]:
        """The shape of a block of all points of a nest, and a value as such a block of what its
        buffer holds."""
        shape = self.tiling.shape(sum(1 << var.id for var in nest.vars))
        dtype = self.buffers[nest.buffer].dtype
        narrowed = NARROWED.get(dtype, f"{{0}}.to({TRITON_TYPES[dtype]})")
        return shape, narrowed.format(f"tl.broadcast_to({value}, {shape})")

    def masked_axes(self, free: int) -> list[Axis]:
        """The axes that a value with these free variables depends on and that have a mask."""
        return [a for a in self.tiling.axes if a.masked and any(free >> v.id & 1 for v in a.vars)]

    def _zeros(self, free: int) -> str:
        """A zero block that spans the axes of `free`: an address must be as wide as its mask."""
        return f"tl.zeros({self.tiling.shape(free)}, tl.int32)"

    def _offset(self, index: Index, read: Callable[[Expr], str]) -> str:
        """An index as text in parentheses: two sums, if a loop over columns changes only one."""
        turning = sum(1 << v.id for v in self.tiling.axes[-1].vars if self.tiling.looped)
        inner = tuple(t for t in index.terms if index_free(Index(0, (t,))) & turning)
        outer = Index(index.const, tuple(t for t in index.terms if t not in inner))
        if not inner or not outer.terms:
            return f"({self.index(index, read)})"
        return f"({self.index(outer, read)}) + ({self.index(Index(0, inner), read)})"

    def index(self, index: Index, read: Callable[[Expr], str]) -> str:
        """An index as text over the names of the loop variables."""
        parts = []
        for atom, coefficient in index.terms:
            text = self._atom(atom, read)
            parts.append(text if coefficient == 1 else f"{coefficient} * {text}")
        if index.const != 0 or not parts:
            parts.append(str(index.const))
        text = " + ".join(parts)
        if not index.terms:  # a plain number is no block
            wide = self.wide or is_symbolic(index.const)  # which may be a float's bits
            return literal(index.const, torch.int64 if wide else torch.int32, self.tiling.rank)
        return text

    def _atom(self, atom: Var | FloorDiv | Mod | Indirect, read: Callable[[Expr], str]) -> str:
        if isinstance(atom, Var):
            return f"v{self._var_position(atom)}"
        if isinstance(atom, Indirect):
            return read(atom.value) + ("" if self.wide else ".to(tl.int32)")
        inner = self.index(atom.inner, read)
        divisor, low = atom.divisor, atom.inner.bounds[0]
        if low < 0:  # Triton's integer division truncates: shift into the non-negative
            shift = (-low + divisor - 1) // divisor
            if isinstance(atom, FloorDiv):
                return f"(({inner} + {shift * divisor}) // {divisor} - {shift})"
            inner = f"{inner} + {shift * divisor}"
        return f"(({inner}) {'//' if isinstance(atom, FloorDiv) else '%'} {divisor})"

    def _var_position(self, var: Var) -> int:
        """Variables are numbered by their place in the kernel, so that equal kernels read equal."""
        position = 0
        for axis in self.tiling.axes:
            for own in axis.vars:
                if own.id == var.id:
                    return position
                position += 1
        raise KeyError(f"variable {var} is not a loop of this kernel")


@dataclass
class ScoreEmitter(BodyEmitter):
    """Emits what is made of a score: variables have names of their own, and what goes into an
    exponent needs no last digit."""

    names: Mapping[int, str] = field(default_factory=dict)

    def apply(self, op: str, args: Sequence[str], expr: Apply) -> str:
        if op in ("div", "reciprocal") and expr.dtype is torch.float32:
            return self.lines.define(
                f"({args[0]} / {args[1]})" if op == "div" else f"(1.0 / {args[0]})"
            )
        if op == "tanh" and expr.dtype is torch.float32:
            return self.lines.define(f"dv_tanh_rough({args[0]})")
        return super().apply(op, args, expr)

    def _atom(self, atom: Any, read: Callable[[Expr], str]) -> str:
        return self.names[atom.id] if isinstance(atom, Var) else super()._atom(atom, read)


def no_reads(expr: object) -> str:
    """Where an index is written that reads no memory: that of a store, or a position."""
    raise AssertionError("the index of a store, or a position, reads no memory")


# --- masks that may be wider than what they stand for ---------------------------------------------

# A vector of eight elements (16 bytes of the narrow types) is loaded at once only if its mask is
# the same for all eight: `r < 50257` never is, at the end of a row. If the memory goes on there
# (the row is padded, say), the mask may let the whole last vector through; what it reads beyond is
# masked again where values are used.
VECTOR = 8


def _load_condition(axis: Axis, index: Index, buffer: Buffer) -> str:
    """The condition under which a load that depends on `axis` touches memory."""
    if len(axis.vars) != 1 or any_symbolic((axis.size, buffer.extent)):
        return axis.mask
    rounded = -(-axis.size // VECTOR) * VECTOR
    past = rounded - axis.size
    if past == 0 or axis.block % VECTOR or index.indirects():
        return axis.mask
    (var,) = axis.vars
    if index.coefficient(var) != 1 or not _begins_vectors(index, var):
        return axis.mask
    if any_symbolic(index.bounds) or index.bounds[1] + past >= buffer.extent:
        return axis.mask
    return f"({axis.name} < {rounded})"


def _begins_vectors(index: Index, along: Var) -> bool:
    """True if the address is a multiple of a vector wherever `along` is."""
    others = [c for atom, c in index.terms if atom != along]
    return not any_symbolic(others) and all(c % VECTOR == 0 for c in (*others, index.const))


def _is_upper_edge(mask: Expr, index: Index, buffer: Buffer) -> bool:
    """True if the mask only cuts off the end of a loop, by an eighth at most, and the load may as
    well touch memory there."""
    if not isinstance(mask, Apply) or mask.op != "lt" or index.indirects():
        return False
    position, limit = mask.args
    if not isinstance(position, IndexValue) or not isinstance(limit, Constant):
        return False
    if len(position.index.terms) != 1 or position.index.const != 0:
        return False
    atom, coefficient = position.index.terms[0]
    if not isinstance(atom, Var) or coefficient != 1 or any_symbolic((atom.size, buffer.extent)):
        return False
    low, high = index.bounds
    if any_symbolic((low, high)) or 8 * limit.value < 7 * atom.size:
        return False
    return low >= 0 and high < buffer.extent
