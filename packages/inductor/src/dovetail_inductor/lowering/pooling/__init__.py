"""Lowering rules of pooling: windows are read, not scattered to.

An element of the gradient reads the few windows that it lies in, and takes its share of theirs. So
both ways fuse with what is around them, and nothing is added up in memory. Small windows are read
one element after the other in an expression; larger ones by a loop of their own.

On a CPU the library's kernels stay where they were measured to be faster: maxima of more than nine
elements or of adaptive windows, gradients of maxima that are scattered along rows or lie in four
windows, gradients of averages of many elements, and columns of windows that are apart (unless there
are few), or of more than 49 elements.
"""

from __future__ import annotations

from functools import partial

from dovetail_inductor.lowering.pointwise import Rule
from dovetail_inductor.lowering.pooling.averages import (
    adaptive_avg_pool,
    adaptive_avg_pool_backward,
    avg_pool,
    avg_pool_backward,
    col2im,
)
from dovetail_inductor.lowering.pooling.maxima import (
    adaptive_max_pool,
    adaptive_max_pool_backward,
    max_pool,
    max_pool_backward,
)

RULES: dict[str, Rule] = {
    name: partial(rule, rank)
    for rank in (2, 3)
    for name, rule in {
        f"avg_pool{rank}d.default": avg_pool,
        f"avg_pool{rank}d_backward.default": avg_pool_backward,
        f"_adaptive_avg_pool{rank}d.default": adaptive_avg_pool,
        f"_adaptive_avg_pool{rank}d_backward.default": adaptive_avg_pool_backward,
        f"max_pool{rank}d_with_indices.default": max_pool,
        f"max_pool{rank}d_with_indices_backward.default": max_pool_backward,
        f"adaptive_max_pool{rank}d.default": adaptive_max_pool,
        f"adaptive_max_pool{rank}d_backward.default": adaptive_max_pool_backward,
    }.items()
}
RULES["col2im.default"] = col2im
