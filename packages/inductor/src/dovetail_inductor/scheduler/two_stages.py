"""Reductions in two stages: pieces of the reduced range, then the pieces' results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import torch

from dovetail_inductor.loop_ir.expr import Builder, mask_loads
from dovetail_inductor.loop_ir.index import Var, indirect, linear, variable
from dovetail_inductor.loop_ir.loops import Buffer, LoopNest
from dovetail_inductor.loop_ir.sizes import hint_of, is_symbolic
from dovetail_inductor.scheduler.loops import piece_index, replace_vars

# Pieces of uneven reductions are multiples of so many elements: four vectors of a CPU.
EVEN_LENGTH = 64


@dataclass(frozen=True)
class Cut:
    """A reduction whose loops are cut: `outer` are the pieces, `rest` runs through one of them;
    `even` if all pieces have as many elements."""

    whole: LoopNest
    outer: tuple[Var, ...]
    rest: tuple[Var, ...]
    even: bool = True

    @property
    def parts(self) -> str:
        """The buffer of the pieces' results."""
        return f"{self.whole.buffer}_parts"


def cut_evenly(builder: Builder, nest: LoopNest, v: Var, parts: int) -> Cut:
    """One reduced variable cut into pieces, whose number divides its size."""
    next_id = 1 + max(w.id for w in (*nest.vars, *nest.reduce_vars))
    big, small = Var(next_id, parts), Var(next_id + 1, v.size // parts)
    pieces: dict[Var, tuple[Var, ...]] = {w: (w,) for w in (*nest.vars, *nest.reduce_vars)}
    pieces[v] = (big, small)
    whole = replace_vars(builder, nest, pieces, {w: piece_index(p) for w, p in pieces.items()})
    return Cut(whole, (big,), tuple(w for w in whole.reduce_vars if w != big))


def cut_unevenly(builder: Builder, nest: LoopNest, v: Var, wanted: int) -> Cut:
    """One reduced variable cut into pieces of equal size but for the last, whose surplus elements
    are masked; where its size is symbolic, as those of more pieces may be."""
    assert nest.reduction is not None
    length = (v.size + wanted - 1) // wanted
    if hint_of(length) >= 4 * EVEN_LENGTH:  # only the last piece has elements that fill no vector
        length = (length + EVEN_LENGTH - 1) // EVEN_LENGTH * EVEN_LENGTH
    next_id = 1 + max(w.id for w in (*nest.vars, *nest.reduce_vars))
    parts = wanted if is_symbolic(v.size) else -(-v.size // length)
    big, small = Var(next_id, parts), Var(next_id + 1, length)
    at = variable(big) * length + variable(small)
    indices = {w: variable(w) for w in (*nest.vars, *nest.reduce_vars)}
    indices[v] = at
    pieces: dict[Var, tuple[Var, ...]] = {w: (w,) for w in indices}
    pieces[v] = (big, small)
    whole = replace_vars(builder, nest, pieces, indices)
    inside = builder.apply("lt", [builder.index_value(at), builder.constant(v.size, torch.int64)])
    body = mask_loads(builder, whole.body, inside)
    neutral = builder.constant(nest.reduction.identity(body.dtype), body.dtype)
    whole = replace(whole, body=builder.apply("where", [inside, body, neutral]))
    rest = tuple(w for w in whole.reduce_vars if w is not big and w != big)
    return Cut(whole, (big,), rest, even=False)


def two_stages(
    builder: Builder, nest: LoopNest, cut: Cut, buffers: dict[str, Buffer]
) -> tuple[LoopNest, LoopNest]:
    target = buffers[nest.buffer]
    results = prod(v.size for v in nest.vars)
    parts = prod(v.size for v in cut.outer)
    dtype = nest.body.dtype
    buffers[cut.parts] = Buffer(cut.parts, dtype, target.device, (parts, results), (results, 1))
    row = linear([variable(v) for v in cut.outer], row_major(cut.outer))
    column = linear([variable(v) for v in nest.vars], row_major(nest.vars))
    address = row * results + column
    first = replace(
        cut.whole, buffer=cut.parts, vars=(*cut.outer, *nest.vars), reduce_vars=cut.rest,
        index=address, origin=f"{nest.origin}_parts",
    )  # fmt: skip
    if not cut.rest:
        first = replace(first, reduction=None)
    body = builder.load(cut.parts, address, dtype)
    return first, replace(nest, reduce_vars=cut.outer, body=body)


def split_position(
    builder: Builder, nest: LoopNest, wanted: int, buffers: dict[str, Buffer]
) -> Sequence[LoopNest]:
    """The nests that find positions in about `wanted` pieces; the nest itself where it cannot be
    cut. Pieces are of the outermost variable, so that each holds elements in a row.

    Each piece gives its largest element and where it is in the piece; of the pieces the first with
    the largest of all is then asked. So the first of equal elements wins, and NaN, as in one stage.
    """
    assert nest.reduction is not None
    v = nest.reduce_vars[0]
    parts = divisor(v.size, wanted)
    if 1 < parts < v.size:
        cut = cut_evenly(builder, nest, v, parts)
    elif v.size >= 2 * wanted > 2:
        cut = cut_unevenly(builder, nest, v, wanted)
    else:
        return [nest]
    extremes, winner = two_stages(builder, nest, cut, buffers)
    device, results = buffers[nest.buffer].device, prod(v.size for v in nest.vars)
    parts = prod(v.size for v in cut.outer)

    def new_buffer(name: str, *shape: int) -> str:
        strides = (shape[-1], 1)[-len(shape) :]
        buffers[name] = Buffer(name, torch.int64, device, shape, strides)
        return name

    # Where each piece has it, which piece it is, and where that is in the row.
    positions = replace(extremes, buffer=new_buffer(f"{nest.buffer}_positions", parts, results))
    column = linear([variable(v) for v in nest.vars], row_major(nest.vars))
    winner = replace(winner, buffer=new_buffer(f"{nest.buffer}_piece", results), index=column)
    piece = builder.load(winner.buffer, column, torch.int64)
    within = builder.load(positions.buffer, indirect(piece, parts) * results + column, torch.int64)
    elements = builder.constant(prod(v.size for v in cut.rest), torch.int64)
    body = builder.apply("add", [builder.apply("mul", [piece, elements]), within])
    return [
        replace(extremes, reduction=nest.reduction.of_values.on(nest.body.dtype)),
        positions,
        winner,
        replace(nest, reduce_vars=(), reduction=None, body=body),
    ]


def row_major(variables: tuple[Var, ...]) -> list[int]:
    """The strides of loops that go through memory without gaps."""
    strides: list[int] = []
    step = 1
    for v in reversed(variables):
        strides.insert(0, step)
        step *= v.size
    return strides


def divisor(size: int, wanted: int) -> int:
    """All of `size` if it is at most `wanted`; else the divisor nearest to `wanted` (as a ratio)
    within a factor of 4, else 1."""
    if size <= wanted:
        return size
    near = (n for n in range(-(-wanted // 4), 4 * wanted + 1) if size % n == 0)
    return min(near, key=lambda n: max(n / wanted, wanted / n), default=1)
