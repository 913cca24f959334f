"""Which conversions to a half type round where they are fused.

Fused arithmetic of half types goes on in float32: what eager rounds between two operators is
rounded only where it is stored. A conversion that the program writes rounds, unless all that
reads the result is such arithmetic: `(x.float() * scale).to(x.dtype) * weight`, the end of every
norm, loses nothing by it and has one rounding less. Where it is converted on (`x.half().float()`),
compared, or read by anything that is not on the short list below, it rounds.
"""

from __future__ import annotations

import torch
from torch import fx

from dovetail_inductor.lowering.values import tensor_of

aten = torch.ops.aten

# Operators of half types whose results move with their operands, and no further than these.
_ARITHMETIC = (
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.mul.Tensor,
    aten.neg.default,
    aten.where.self,
    aten.cat.default,
)
_VIEWS = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.permute.default,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.squeeze.dims,
    aten.alias.default,
    aten.slice.Tensor,
    aten.select.int,
)


def goes_on_in_float32(node: fx.Node) -> bool:
    """Whether all that reads the result of a conversion to a half type is arithmetic in that type
    or takes it from memory."""
    dtype = tensor_of(node).dtype
    for user in node.users:
        if user.op == "output":
            continue
        if user.target in _VIEWS:
            if not goes_on_in_float32(user):
                return False
        elif user.target not in _ARITHMETIC or tensor_of(user).dtype is not dtype:
            return False
    return True


__all__ = ["goes_on_in_float32"]
