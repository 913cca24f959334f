"""Values in the very layout that somebody was promised."""

from __future__ import annotations

from dataclasses import replace

from dovetail_inductor.loop_ir.loops import Strided, same_strides
from dovetail_inductor.loop_ir.ops import STORED_DTYPES
from dovetail_inductor.loop_ir.sizes import any_symbolic, only_data_tells
from dovetail_inductor.lowering import scatters
from dovetail_inductor.lowering.externs import copied
from dovetail_inductor.lowering.values import Context, Value, contiguous_strides, is_dense


def as_promised(ctx: Context, value: Value, promised: Value) -> Strided:
    """`value` in memory, laid out as `promised` (another value of its shape) says."""
    stored = ctx.realize(value)
    if same_strides(promised.shape, stored.stride, promised.stride):
        return replace(stored, stride=promised.stride)  # users see all of them
    # Laid out otherwise than promised: a copy in the promised layout. Views of one tensor are views
    # of one copy, as they would be of the tensor.
    seen = _as_seen(stored, promised)
    if seen is None:
        return _copied(ctx, value, stored, promised)
    if seen not in ctx.copies:
        ctx.copies[seen] = _copied(ctx, value, stored, promised)
    return replace(ctx.copies[seen], shape=promised.shape, stride=promised.stride)


def _as_seen(stored: Strided, promised: Value) -> tuple[object, ...] | None:
    """The elements of a memory that are copied, and their order, if each lies behind the one before
    in the copy: the same for all shapes that they are seen in. None if they lie otherwise."""
    if any_symbolic((*promised.shape, *stored.stride)) or promised.stride != contiguous_strides(
        promised.shape
    ):
        return None
    steps: list[tuple[int, int]] = []  # sizes and strides, dimensions that go on evenly as one
    for size, stride in zip(promised.shape, stored.stride, strict=True):
        if size == 1:
            continue
        if steps and steps[-1][1] == size * stride:
            steps[-1] = (steps[-1][0] * size, stride)
        else:
            steps.append((size, stride))
    return stored.buffer, promised.dtype, stored.offset, *steps


def _copied(ctx: Context, value: Value, stored: Strided, promised: Value) -> Strided:
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
