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

from dovetail_prims.ops import catalog
from dovetail_prims.ops.operands import as_fake, lies_like, relaid
from dovetail_prims.shape_rules.layout import as_converted, empty_like_strides, pointwise_layout
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
        if all(lies_like(a, given[0]) for a in given):
            return result
        fakes = [as_fake(a) for a in given]
        if like is not None:
            return relaid(result, empty_like_strides(fakes[like]))
        # Truths are computed in what their operands have in common.
        dtype = (result[0] if isinstance(result, tuple) else result).dtype
        found = as_converted(fakes, promote(fakes) if dtype is torch.bool else dtype)
        strides = pointwise_layout([found[i] for i in _ORDER.get(name, range(len(found)))], False)[
            1
        ]
        if isinstance(result, tuple):
            return tuple(relaid(r, strides) for r in result)
        return relaid(result, strides)

    return in_order
