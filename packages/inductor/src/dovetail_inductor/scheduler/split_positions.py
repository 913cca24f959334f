"""Where the largest (or smallest) element of a few long rows is, in two stages.

Each piece gives its largest element and where it is in the piece; of the pieces the first with the
largest of all is then asked. So the first of equal elements wins, and NaN, as in one stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch

from dovetail_inductor.loop_ir.expr import Builder
from dovetail_inductor.loop_ir.index import indirect, linear, variable
from dovetail_inductor.loop_ir.loops import Buffer, LoopNest
from dovetail_inductor.scheduler.two_stages import (
    cut_evenly,
    cut_unevenly,
    divisor,
    row_major,
    two_stages,
)


def split_position(
    builder: Builder, nest: LoopNest, wanted: int, buffers: dict[str, Buffer]
) -> Sequence[LoopNest]:
    """The nests that find positions in about `wanted` pieces; the nest itself where it cannot be
    cut. Pieces are of the outermost variable, so that each holds elements in a row."""
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
