"""In which order the dimensions of a tensor that only loops read lie in memory."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail_inductor.loop_ir.expr import Load, walk
from dovetail_inductor.loop_ir.sizes import hint_of, is_symbolic
from dovetail_inductor.lowering.values import Context, Value, contiguous_strides, is_dense


def in_order_of(strides: Sequence[int], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a dense tensor of these sizes whose dimensions lie in memory in the order of
    other strides: what reads both then reads neighbours of both."""
    order = sorted(range(len(sizes)), key=lambda d: -hint_of(strides[d]))
    dense = contiguous_strides(tuple(sizes[d] for d in order))
    return tuple(dense[order.index(d)] for d in range(len(sizes)))


def strides_as_read(ctx: Context, value: Value) -> tuple[int, ...]:
    """The strides promised for a value, unless all that is read for each of its elements alone lies
    in one other order: then that of a dense tensor in this order."""
    if any(is_symbolic(n) for n in value.shape) or not is_dense(value.shape, value.stride):
        return value.stride
    variables, _ = ctx.loop_indices(value.shape)
    long = [d for d, n in enumerate(value.shape) if n > 1]

    def order(strides: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(long, key=lambda d: -strides[d]))

    found: dict[tuple[int, ...], list[int]] = {}
    for load in walk([ctx.body(value)]):
        if isinstance(load, Load):
            strides = [load.index.coefficient(v) for v in variables]
            known = [s or 0 for s in strides]
            if all(known[d] > 0 for d in long):
                found.setdefault(order(known), known)
    if len(found) != 1 or order(value.stride) in found:
        return value.stride
    (strides_of_load,) = found.values()
    return in_order_of(strides_of_load, value.shape)


__all__ = ["in_order_of", "strides_as_read"]
