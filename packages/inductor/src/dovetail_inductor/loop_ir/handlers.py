"""Handlers: one loop body, many readings of it.

A handler is passed explicitly to `interpret`, which walks a body in SSA order. The C++ and Triton
emitters are handlers; so are the two here: `Printer` and `Counter`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch

from dovetail_inductor.loop_ir.expr import (
    Apply,
    Constant,
    Expr,
    IndexCheck,
    IndexValue,
    Load,
    Scalar,
    walk,
)
from dovetail_inductor.loop_ir.index import Index
from dovetail_inductor.loop_ir.ops import SCALAR_OPS

T = TypeVar("T")


class Handler(Protocol[T]):
    """Gives a meaning of type `T` to each kind of expression."""

    def constant(self, value: Scalar, dtype: torch.dtype) -> T:
        """A literal."""
        ...

    def index_value(self, index: Index, dtype: torch.dtype, read: Callable[[Expr], T]) -> T:
        """An index as a value. `read` gives the meaning of an indirect atom's value."""
        ...

    def load(self, load: Load, mask: T | None, read: Callable[[Expr], T]) -> T:
        """A read from memory."""
        ...

    def apply(self, op: str, args: Sequence[T], expr: Apply) -> T:
        """A scalar op; `expr` has its dtypes (`expr.dtype`, `expr.args[i].dtype`)."""
        ...


def interpret(
    roots: Sequence[Expr], handler: Handler[T], memo: dict[int, T] | None = None
) -> list[T]:
    """The meaning of each root; every node is visited once, operands first.

    `memo` maps the uid of nodes already visited to their meanings, and is filled further. What only
    those are made of is not visited.
    """
    meaning: dict[int, T] = {} if memo is None else memo

    def read(expr: Expr) -> T:
        return meaning[expr.uid]

    for node in walk(roots, meaning):
        if isinstance(node, Constant):
            value = handler.constant(node.value, node.dtype)
        elif isinstance(node, IndexValue):
            value = handler.index_value(node.index, node.dtype, read)
        elif isinstance(node, Load):
            mask = None if node.mask is None else meaning[node.mask.uid]
            value = handler.load(node, mask, read)
        else:
            value = handler.apply(node.op, [meaning[a.uid] for a in node.args], node)
        meaning[node.uid] = value
    return [meaning[r.uid] for r in roots]


def dtype_name(dtype: torch.dtype) -> str:
    """Short name: f32, bf16, i64, bool."""
    name = str(dtype).removeprefix("torch.")
    for long, short in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i")):
        if name.startswith(long):
            return short + name.removeprefix(long)
    return name


@dataclass
class Printer:
    """Writes a body as numbered statements; a meaning is a value's name."""

    lines: list[str] = field(default_factory=list)

    def _define(self, text: str, dtype: torch.dtype) -> str:
        name = f"%{len(self.lines)}"
        self.lines.append(f"{name}: {dtype_name(dtype)} = {text}")
        return name

    def _index(self, index: Index, read: Callable[[Expr], str]) -> str:
        text = str(index)
        for atom in index.indirects():
            text = text.replace(str(atom), read(atom.value))
        return text

    def constant(self, value: Scalar, dtype: torch.dtype) -> str:
        """The literal itself."""
        return repr(value)

    def index_value(self, index: Index, dtype: torch.dtype, read: Callable[[Expr], str]) -> str:
        """`index(i0 + 3)`."""
        return self._define(f"index({self._index(index, read)})", dtype)

    def load(self, load: Load, mask: str | None, read: Callable[[Expr], str]) -> str:
        """`load buffer[index]`."""
        condition = "" if mask is None else f" if {mask}"
        return self._define(
            f"load {load.buffer}[{self._index(load.index, read)}]{condition}", load.dtype
        )

    def apply(self, op: str, args: Sequence[str], expr: Apply) -> str:
        """`op(a, b)`."""
        of = "" if expr.check is None else f", {_as_text(expr.check)}"
        return self._define(f"{op}({', '.join(args)}{of})", expr.dtype)


def _as_text(check: IndexCheck) -> str:
    wrapped = ", wrapped" if check.wrapped else ""
    return f"size={check.size}, dim={check.dim}{wrapped}, {check.error}"


@dataclass
class Counter:
    """Counts the cost of a body (in additions), its loads, and which buffers it reads."""

    cost: int = 0
    loads: int = 0
    buffers: set[str] = field(default_factory=set)

    def constant(self, value: Scalar, dtype: torch.dtype) -> None:
        """Free."""

    def index_value(self, index: Index, dtype: torch.dtype, read: Callable[[Expr], None]) -> None:
        """One unit."""
        self.cost += 1

    def load(self, load: Load, mask: None, read: Callable[[Expr], None]) -> None:
        """One load; one unit, more behind an indirect index."""
        self.loads += 1
        self.cost += 1 + 4 * len(load.index.indirects())
        self.buffers.add(load.buffer)

    def apply(self, op: str, args: Sequence[None], expr: Apply) -> None:
        """The op's own cost."""
        self.cost += SCALAR_OPS[op].cost


def count(roots: Sequence[Expr]) -> Counter:
    """Cost, loads and buffers of the expressions."""
    counter = Counter()
    interpret(roots, counter)
    return counter
