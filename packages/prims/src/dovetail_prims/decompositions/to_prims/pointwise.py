"""Pointwise ops: operands put in order, and what a few others express."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.decompositions._common import (
    Number,
    aten,
    cast,
    compute_dtype,
    kind,
    lookup,
    wide,
)
from dovetail_prims.decompositions.to_prims.operands import (
    Operand,
    common_device,
    common_shape,
    filled_like,
    in_order,
    is_in_order,
    result_dtype,
    truth_of,
)

# Unary ops that take integers as they are; all others work in floats.
INTEGER_UNARY = {"abs", "neg", "floor", "ceil", "round", "trunc", "sign", "bitwise_not"}


def binary(name: str, *, to_float: bool = False, compares: bool = False) -> Callable[..., Any]:
    """A two-operand op with its operands put in order"""
    op = lookup(name)
    assert op is not None, name

    def entry(self: Operand, other: Operand, *, alpha: Number = 1, **kwargs: Any) -> Any:
        dtype = result_dtype(self, other)
        if to_float and kind(dtype) < 2:
            dtype = torch.get_default_dtype()
        shape = common_shape(self, other)
        tensors = isinstance(self, Tensor) and isinstance(other, Tensor)
        if alpha == 1 and is_in_order(self, dtype, shape) and is_in_order(other, dtype, shape):
            return NotImplemented
        # A number keeps its precision beside a half type: eager rounds the result, not the number.
        rounded_late = not compares and (not tensors or alpha != 1)
        work = compute_dtype(dtype) if rounded_late else dtype
        device = common_device(self, other)
        a, b = (in_order(x, work, shape, device) for x in (self, other))
        if alpha != 1:
            b = aten.mul.Tensor(b, in_order(alpha, work, shape, device))
        out = op(a, b, **kwargs)
        return out if compares else cast(out, dtype)

    return entry


def div_mode(self: Operand, other: Operand, *, rounding_mode: str | None) -> Any:
    """Without a mode, plain division"""
    if rounding_mode is None:
        return aten.div.Tensor(self, other)
    return _ROUNDED(self, other, rounding_mode=rounding_mode)


_ROUNDED = binary("div.Tensor_mode")


def unary(name: str) -> Callable[..., Any]:
    """A float function: integers are converted first"""
    op = lookup(f"{name}.default")
    assert op is not None, name

    def entry(self: Tensor) -> Any:
        if kind(self.dtype) >= 2:
            return NotImplemented
        return op(cast(self, torch.get_default_dtype()))

    return entry


def _float(x: Tensor) -> Tensor:
    """Floats in the compute dtype"""
    return wide(x) if kind(x.dtype) >= 2 else cast(x, torch.get_default_dtype())


def _back(x: Tensor, like: Tensor) -> Tensor:
    """Half types rounded back"""
    return cast(x, like.dtype) if kind(like.dtype) >= 2 else x


def relu(self: Tensor) -> Tensor:
    """max(x, 0)"""
    return aten.maximum.default(self, filled_like(self, 0))


def sigmoid(self: Tensor) -> Tensor:
    """1 / (1 + exp(-x))"""
    x = _float(self)
    one = filled_like(x, 1)
    return _back(
        aten.div.Tensor(one, aten.add.Tensor(one, aten.exp.default(aten.neg.default(x)))), self
    )


def rsqrt(self: Tensor) -> Tensor:
    """1 / sqrt(x)"""
    x = _float(self)
    return _back(aten.div.Tensor(filled_like(x, 1), aten.sqrt.default(x)), self)


def reciprocal(self: Tensor) -> Tensor:
    """1 / x"""
    x = _float(self)
    return _back(aten.div.Tensor(filled_like(x, 1), x), self)


def logical_not(self: Tensor) -> Tensor:
    """x is 0"""
    return aten.eq.Tensor(self, filled_like(self, 0))


def logical(name: str) -> Callable[..., Any]:
    """A logical op as the bitwise op `name` on truth values"""
    op = lookup(name)
    assert op is not None, name

    def entry(self: Tensor, other: Tensor) -> Any:
        """The bitwise op on truth values"""
        return op(truth_of(self), truth_of(other))

    return entry


def isnan(self: Tensor) -> Tensor:
    """x differs from itself"""
    return aten.ne.Tensor(self, self)


def isinf(self: Tensor) -> Tensor:
    """|x| is infinite"""
    if kind(self.dtype) < 2:
        return aten.ne.Tensor(self, self)
    return aten.eq.Tensor(aten.abs.default(self), filled_like(self, math.inf))


def where(condition: Tensor, self: Tensor, other: Tensor) -> Any:
    """A boolean condition, branches of one dtype, all of one shape"""
    dtype, shape = result_dtype(self, other), common_shape(condition, self, other)
    operands = (condition, self, other)
    wanted = (torch.bool, dtype, dtype)
    pairs = list(zip(operands, wanted, strict=True))
    if all(is_in_order(x, d, shape) for x, d in pairs):
        return NotImplemented
    device = common_device(*operands)
    return aten.where.self(*(in_order(x, d, shape, device) for x, d in pairs))
