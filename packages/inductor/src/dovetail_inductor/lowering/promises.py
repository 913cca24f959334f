"""Values in the very layout that somebody was promised."""

from __future__ import annotations

from dataclasses import replace

import torch

from dovetail_inductor.loop_ir.loops import ExternCall, Strided, same_strides
from dovetail_inductor.loop_ir.ops import STORED_DTYPES
from dovetail_inductor.loop_ir.sizes import hint_of
from dovetail_inductor.lowering import scatters
from dovetail_inductor.lowering.values import (
    Context,
    UnsupportedGraph,
    Value,
    contiguous_strides,
    is_dense,
)


def as_promised(ctx: Context, value: Value, promised: Value) -> Strided:
    """`value` in memory, laid out as `promised` (another value of its shape) says."""
    stored = ctx.realize(value)
    if same_strides(promised.shape, stored.stride, promised.stride):
        return replace(stored, stride=promised.stride)  # users see all of them
    # Laid out otherwise than promised: a copy in the promised layout.
    if value.dtype not in STORED_DTYPES:
        return _copied_by_library(ctx, stored, promised)
    if not is_dense(promised.shape, promised.stride):
        spread = scatters.with_gaps(ctx, value, promised.stride)
        if spread is not None:
            return spread
    promised.loader = lambda indices, mask: ctx.load(value, indices, mask)
    return ctx.realize(promised)


def _copied_by_library(ctx: Context, stored: Strided, promised: Value) -> Strided:
    """A copy of what loops cannot hold: row-major in the order that the promised strides have."""
    shape, stride = promised.shape, promised.stride
    if not is_dense(shape, stride):
        raise UnsupportedGraph(f"{promised.origin}: {promised.dtype} with gaps, strides {stride}")
    order = sorted(range(len(shape)), key=lambda d: -hint_of(stride[d]))
    source = replace(
        stored,
        shape=tuple(shape[d] for d in order),
        stride=tuple(stored.stride[d] for d in order),
    )
    row_major = replace(promised, shape=source.shape, stride=contiguous_strides(source.shape))
    buffer = ctx.new_buffer(row_major)
    kwargs = (("memory_format", torch.contiguous_format),)
    ctx.nodes.append(
        ExternCall("aten::clone", (source,), kwargs, (buffer.name,), False, promised.origin)
    )
    return Strided(buffer.name, shape, stride, 0)


__all__ = ["as_promised"]
