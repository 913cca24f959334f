"""Results of functions of several tensors, laid out in memory as eager lays them out.

Eager's iterator asks the operands in their order, and the first that tells decides; a decomposition
combines them in an order of its own. Where operands lie differently, its result is laid out again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from dovetail_prims.fake_tensor import FakeTensor, Sizes, hint_of, make
from dovetail_prims.ops import catalog
from dovetail_prims.ops.common import aten
from dovetail_prims.shape_rules.layout import (
    as_converted,
    empty_like_strides,
    equal_sizes,
    has_zero,
    pointwise_layout,
    same_strides,
)
from dovetail_prims.shape_rules.promotion import promote

# Functions whose result is laid out like one of their arguments.
_LIKE = {"log_sigmoid_backward": 0, "binary_cross_entropy_backward": 1, "huber_loss": 0}
# Functions that eager hands its iterator in another order.
_ORDER = {
    "leaky_relu_backward": (1, 0), "threshold_backward": (1, 0),
    "_prelu_kernel_backward": (1, 2, 0),
}  # fmt: skip
# Those of other layouts, which their decompositions give.
_OTHERWISE = frozenset(
    {
        "masked_fill", "fill", "copy", "rsub", "ldexp", "isin", "pow", "where",
        "native_dropout_backward", "floor_divide", "_prelu_kernel", "glu_backward",
    }
)  # fmt: skip


def laid_out(op: OpOverload, entry: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition `entry` of `op`, its result laid out as eager's; `entry` itself for an
    operator that does not combine tensors element by element."""
    name = op._schema.name.removeprefix("aten::")
    like = _LIKE.get(name)
    tensors = [a for a in op._schema.arguments if str(a.type) == "Tensor"]
    pointwise = torch.Tag.pointwise in op.tags or name in catalog.POINTWISE_NAMES
    tagged = pointwise and name not in _OTHERWISE
    if like is None and (len(tensors) < 2 or not tagged):
        return entry

    @wraps(entry)
    def in_order(*args: Any, **kwargs: Any) -> Any:
        result = entry(*args, **kwargs)
        if result is NotImplemented:
            return result
        given = [a for a in args if isinstance(a, Tensor)]
        if all(_lies_like(a, given[0]) for a in given):
            return result
        fakes = [_as_fake(a) for a in given]
        if like is not None:
            return _relaid(result, empty_like_strides(fakes[like]))
        # Truths are computed in what their operands have in common.
        dtype = (result[0] if isinstance(result, tuple) else result).dtype
        found = as_converted(fakes, promote(fakes) if dtype is torch.bool else dtype)
        strides = pointwise_layout([found[i] for i in _ORDER.get(name, range(len(found)))], False)[
            1
        ]
        if isinstance(result, tuple):
            return tuple(_relaid(r, strides) for r in result)
        return _relaid(result, strides)

    return in_order


def laid_out_by(result: Tensor, *operands: Tensor) -> Tensor:
    """`result`, laid out as eager lays out what its iterator computes from `operands`."""
    return _relaid(result, pointwise_layout([_as_fake(x) for x in operands], False)[1])


def _layout_of(x: Tensor) -> tuple[Sizes, Sizes]:
    if isinstance(x, FakeTensor):
        return x._sizes, x._strides
    return tuple(x.shape), x.stride()


def _as_fake(x: Tensor) -> FakeTensor:
    return x if isinstance(x, FakeTensor) else make(*_layout_of(x), x.dtype, x.device)


def _lies_like(x: Tensor, other: Tensor) -> bool:
    if x is other:
        return True
    (sizes, strides), (other_sizes, other_strides) = _layout_of(x), _layout_of(other)
    return equal_sizes(sizes, other_sizes) and same_strides(strides, other_strides)


def _relaid(x: Tensor, strides: Sizes) -> Tensor:
    """`x` with the strides of a dense tensor; itself if it has them."""
    sizes, own = _layout_of(x)
    if has_zero(sizes) or len(strides) != len(own):
        return x
    some = [d for d, n in enumerate(sizes) if type(n) is not int or n != 1]
    if same_strides(tuple(own[d] for d in some), tuple(strides[d] for d in some)):
        return x
    order = sorted(range(len(own)), key=lambda d: (-hint_of(strides[d]), d))
    moved = aten.permute.default(x, order)
    dense = aten.clone.default(moved, memory_format=torch.contiguous_format)
    return aten.permute.default(dense, [order.index(d) for d in range(len(order))])
