"""The Triton emitter of loop bodies: a handler whose meanings are names of block values.

Every value is a block that broadcasts against the kernel's tile (one dimension an axis; an axis on
which a value does not depend has extent 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from dovetail_inductor.loop_ir.expr import Apply, Expr, Load, Scalar, index_free
from dovetail_inductor.loop_ir.index import FloorDiv, Index, Indirect, Mod, Var
from dovetail_inductor.loop_ir.loops import Buffer
from dovetail_inductor.loop_ir.sizes import is_symbolic
from dovetail_inductor.targets.cuda.edges import is_upper_edge, load_condition
from dovetail_inductor.targets.cuda.tiling import Axis, Tiling
from dovetail_inductor.targets.cuda.triton_ops import TRITON_TYPES, emit_op


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


@dataclass
class BodyEmitter:
    """Emits expressions.

    `forward` gives the value of a buffer written in this very kernel, or None for one to be read
    from memory; `parameter` names a buffer's pointer, or its element if it comes `by_value`; `use`
    is told each helper that is called; `policy` tells what a cache should do with what is read.
    With `narrow` the values of transcendental functions end in 2 bytes. `rough`: the uids of
    quotients that may be off by their last digits. `paired` gives what is read with its neighbour
    in memory, or None for what is read by itself.
    """

    lines: Lines
    tiling: Tiling
    buffers: Mapping[str, Buffer]
    wide: bool  # 64-bit index arithmetic
    parameter: Callable[[str], str]
    by_value: Callable[[str], bool]
    forward: Callable[[Load], str | None]
    use: Callable[[str], None]
    policy: Callable[[Load], str | None]
    paired: Callable[[Load], str | None]
    narrow: bool = False
    rough: Container[int] = ()

    def constant(self, value: Scalar, dtype: torch.dtype) -> str:
        """A typed one-element block."""
        return literal(value, dtype, len(self.tiling.axes))

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
        operand = expr.args[1 if op == "where" else 0].dtype
        if expr.uid in self.rough:
            return self.lines.define(
                f"({args[0]} / {args[1]})" if op == "div" else f"(1.0 / {args[0]})"
            )
        return self.lines.define(emit_op(op, args, operand, expr.dtype, self.use, self.narrow))

    def load(self, load: Load, mask: str | None, read: Callable[[Expr], str]) -> str:
        """A read from memory, or the value just computed for that buffer."""
        forwarded = self.forward(load)
        if forwarded is not None:
            return forwarded
        if self.by_value(load.buffer):
            return self._given(load, mask)
        storage = self.buffers[load.buffer].dtype
        if (element := self.paired(load)) is not None:
            if storage == load.dtype:
                return element
            return self.lines.define(f"{element}.to({TRITON_TYPES[load.dtype]})")
        offset = self.index(load.index, read)
        buffer = self.buffers[load.buffer]
        conditions = [
            load_condition(axis, load.index, buffer)
            for axis in self.masked_axes(index_free(load.index))
        ]
        select = load.mask is not None and is_upper_edge(load.mask, load.index, buffer)
        if mask is not None and not select:
            conditions.append(mask)
            assert load.mask is not None
            for axis in self.masked_axes(load.mask.free):
                if axis.mask not in conditions:
                    conditions.append(axis.mask)
            offset = f"{offset} + {self._zeros(load.mask.free)}"
        text = f"{self.parameter(load.buffer)} + ({offset})"
        if conditions:
            text += f", {' & '.join(conditions)}, other=0"
        if (policy := self.policy(load)) is not None:
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
        ones = ", ".join(["1"] * len(self.tiling.axes))
        value = f"tl.full([{ones}], {self.parameter(load.buffer)}, tl.int64)"
        if load.dtype.is_floating_point:
            value += ".to(tl.float64, bitcast=True)"
        kind = TRITON_TYPES[load.dtype]
        value = f"({value} != 0)" if load.dtype is torch.bool else f"{value}.to({kind})"
        if mask is not None:
            value = f"tl.where({mask}, {value}, 0).to({kind})"
        return self.lines.define(value)

    def masked_axes(self, free: int) -> list[Axis]:
        """The axes that a value with these free variables depends on and that have a mask."""
        return [a for a in self.tiling.axes if a.masked and any(free >> v.id & 1 for v in a.vars)]

    def _zeros(self, free: int) -> str:
        """A zero block that spans the axes of `free`: an address must be as wide as its mask."""
        return f"tl.zeros({self.tiling.shape(free)}, tl.int32)"

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
            return literal(index.const, torch.int64 if wide else torch.int32, len(self.tiling.axes))
        return text

    def _atom(self, atom: Var | FloorDiv | Mod | Indirect, read: Callable[[Expr], str]) -> str:
        if isinstance(atom, Var):
            return f"v{self._var_position(atom)}"
        if isinstance(atom, Indirect):
            return read(atom.value)
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
