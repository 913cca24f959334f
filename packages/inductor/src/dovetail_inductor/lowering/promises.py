"""Values in the very layout that somebody was promised."""

from __future__ import annotations

from dataclasses import replace

from dovetail_inductor.loop_ir.loops import Strided, same_strides
from dovetail_inductor.loop_ir.ops import STORED_DTYPES
from dovetail_inductor.loop_ir.sizes import only_data_tells
from dovetail_inductor.lowering import scatters
from dovetail_inductor.lowering.externs import copied
from dovetail_inductor.lowering.values import Context, Value, is_dense


def as_promised(ctx: Context, value: Value, promised: Value) -> Strided:
    """`value` in memory, laid out as `promised` (another value of its shape) says."""
    stored = ctx.realize(value)
    if same_strides(promised.shape, stored.stride, promised.stride):
        return replace(stored, stride=promised.stride)  # users see all of them
    # Laid out otherwise than promised: a copy in the promised layout.
    if value.dtype not in STORED_DTYPES:
        return copied(ctx, stored, promised)
    # (Where only data tells a size, gaps were guessed: results have none, unless elements of them
    # lie on one another.)
    guessed = any(map(only_data_tells, (*promised.shape, *promised.stride)))
    told = 0 in promised.stride or not guessed
    if told and not is_dense(promised.shape, promised.stride):
        spread = scatters.with_gaps(ctx, value, promised.stride)
        # (None: elements of it lie on one another, or may do so: the sizes are symbolic.)
        return copied(ctx, stored, promised) if spread is None else spread
    promised.loader = lambda indices, mask: ctx.load(value, indices, mask)
    return ctx.realize(promised)


__all__ = ["as_promised"]
