"""`col2im`: columns of windows added up to images."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import fx

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.sizes import hint_of, is_symbolic
from dovetail_inductor.lowering.indexing import both, in_range
from dovetail_inductor.lowering.pooling.windows import (
    Steps,
    in_memory_if_costly,
    masked_part,
    places,
    summed,
)
from dovetail_inductor.lowering.values import Context, Indices, Value, value_like

_MOST_COLUMNS = 49
_FEW_COLUMNS = 1 << 14  # all reads of columns


def _slow_columns(value: Value, dims: Sequence[Steps]) -> bool:
    """Whether the library's kernel is faster"""
    count = prod(dim.kernel for dim in dims)
    apart = any(dim.step != 1 for dim in dims)
    return count > _MOST_COLUMNS or (apart and hint_of(value.numel) * count > _FEW_COLUMNS)


def col2im(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The sum of an element's copies: for each element of the kernel, of the window that had it
    there, if there is one."""
    columns, size, kernel, dilation, pad, step = args
    value = value_like(node.meta["val"], node.name)
    parts = [x if len(x) == 2 else list(x) * 2 for x in (size, kernel, step, pad, dilation)]
    if value.numel == 0 or any(map(is_symbolic, (*value.shape[-2:], *columns.shape))):
        return NotImplemented
    dims = []
    for n, k, s, p, d in zip(*parts, strict=True):
        dims.append(Steps(n, (n + 2 * p - d * (k - 1) - 1) // s + 1, k, s, p, d))
    if ctx.leaves_to_library and _slow_columns(value, dims):
        return NotImplemented
    b = ctx.builder

    def part(indices: Indices, place: Indices, mask: Expr | None) -> Expr:
        found = []
        for dim, i, k in zip(dims, indices[-2:], place, strict=True):
            start = i + dim.pad - k * dim.dilation
            window = start.floordiv(dim.step)
            valid = in_range(ctx, window, 0, dim.pooled)
            if dim.step != 1:
                phase = b.index_value(start.mod(dim.step))
                valid = both(ctx, b.apply("eq", [phase, b.constant(0, torch.int64)]), valid)
            found.append((window, valid))
        (y, x), valid = places(ctx, found)
        *batch, channel = indices[:-2]
        row = (channel * dims[0].kernel + place[0]) * dims[1].kernel + place[1]
        return masked_part(ctx, columns, (*batch, row, y * dims[1].pooled + x), valid, mask)

    in_memory_if_costly(ctx, columns, prod(dim.kernel for dim in dims))
    return summed(ctx, value, [dim.kernel for dim in dims], part)
