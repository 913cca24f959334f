"""Functions of two numbers that loop as long as these say: what is left of them to decompose."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dovetail_prims.opsets import LOOPING_FUNCTIONS

from ._common import (
    Family,
    Number,
    aten,
    cast,
    constant,
    lookup,
    made_for,
    promoted_together,
    where,
)


def lcm(self: Tensor, other: Tensor) -> Tensor:
    """|a / gcd(a, b) b|, 0 where both are 0: of small integers as C has it, which are ints there"""
    dtype = promoted_together(self, other)
    common = aten.gcd.default(self, other)
    nothing = aten.eq.Scalar(common, 0)
    computed = torch.int32 if dtype.itemsize < torch.int32.itemsize else dtype
    safe = where(nothing, 1, cast(common, computed))
    parts = aten.div.Tensor_mode(cast(self, computed), safe, rounding_mode="trunc")
    product = aten.abs.default(aten.mul.Tensor(parts, cast(other, computed)))
    return cast(where(nothing, 0, product), dtype)


def _number_dtype(value: Number, beside: Tensor) -> torch.dtype:
    """Of a number as a tensor: that of a tensor of floats beside it"""
    if beside.is_floating_point():
        return beside.dtype
    whole = isinstance(value, (int, torch.SymInt))
    return torch.int64 if whole else torch.get_default_dtype()


def _with_number(name: str, overload: str) -> Family:
    """A function of two numbers one of which is a Python number"""
    op = lookup(f"{name}.default")
    if op is None or lookup(f"{name}.{overload}") is None:
        return {}

    def entry(a: Tensor | Number, b: Tensor | Number) -> Any:
        """With the number as a tensor"""
        if isinstance(a, Tensor):
            assert not isinstance(b, Tensor)
            return op(a, constant(b, a, _number_dtype(b, a)))
        assert isinstance(b, Tensor)
        return op(constant(a, b, _number_dtype(a, b)), b)

    return made_for(f"{name}.{overload}", entry)


TABLE: Family = {
    "lcm.default": lcm,
    **{
        op: entry
        for name in LOOPING_FUNCTIONS
        for overload in ("self_scalar", "other_scalar", "x_scalar", "n_scalar")
        for op, entry in _with_number(name, overload).items()
    },
}
