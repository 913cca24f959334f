"""Operands in order: of one dtype, by ATen's promotion, and of one shape, as tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor, Sizes, hint_of, make
from dovetail_prims.ops import common
from dovetail_prims.shape_rules.layout import equal_sizes, has_zero, pointwise_layout, same_strides

Operand = Tensor | common.Number


def number_dtype(value: common.Number) -> torch.dtype:
    """The dtype that a number counts as in promotion."""
    if isinstance(value, bool):
        return torch.bool
    whole = isinstance(value, (int, torch.SymInt))
    return torch.int64 if whole else torch.get_default_dtype()


def result_dtype(*operands: Operand) -> torch.dtype:
    """ATen's promotion: tensors of rank, then 0-dim tensors, then numbers; a later class decides
    only where its kind is higher"""
    classes: list[torch.dtype | None] = [None, None, None]
    for x in operands:
        place = 2 if not isinstance(x, Tensor) else 0 if x.dim() else 1
        dtype = x.dtype if isinstance(x, Tensor) else number_dtype(x)
        held = classes[place]
        classes[place] = dtype if held is None else common.promote_types(held, dtype)
    found: torch.dtype | None = None
    for dtype in (d for d in classes if d is not None):
        if found is None:
            found = dtype
        elif common.kind(dtype) > common.kind(found):
            found = common.promote_types(found, dtype)
    assert found is not None
    return found


def common_shape(*operands: Operand) -> list[int]:
    """The shape that the operands broadcast to."""
    shape: list[int] = []
    for x in operands:
        if isinstance(x, Tensor):
            shape = common.broadcast(shape, x.shape)
    return shape


def common_device(*operands: Operand) -> torch.device:
    """The device of the operands that have a rank; a 0-dim CPU tensor may go with any"""
    tensors = [x for x in operands if isinstance(x, Tensor)]
    return next((x.device for x in tensors if x.dim()), tensors[0].device)


def is_in_order(x: Operand, dtype: torch.dtype, shape: Sequence[int]) -> bool:
    """Whether an operand is in order already"""
    return isinstance(x, Tensor) and x.dtype == dtype and list(x.shape) == list(shape)


def in_order(x: Operand, dtype: torch.dtype, shape: Sequence[int], device: torch.device) -> Tensor:
    """An operand as a tensor of the dtype and shape"""
    if not isinstance(x, Tensor):
        x = common.aten.full.default([], x, dtype=dtype, device=device)
    x = common.cast(x, dtype)
    return x if list(x.shape) == list(shape) else common.aten.expand.default(x, shape)


def filled_like(x: Tensor, value: common.Number) -> Tensor:
    """A number in the shape and dtype of x"""
    one = common.aten.full.default([], value, dtype=x.dtype, device=x.device)
    return common.aten.expand.default(one, x.shape) if x.dim() else one


def truth_of(x: Tensor) -> Tensor:
    """x is not 0"""
    return x if x.dtype == torch.bool else common.aten.ne.Tensor(x, filled_like(x, 0))


# --- what puts the operands of pointwise operators in order ---------------------------------------


def ordered(name: str, *, to_float: bool = False, compares: bool = False) -> Callable[..., Any]:
    """A two-operand op with its operands put in order"""
    op = common.lookup(name)
    assert op is not None, name

    def entry(self: Operand, other: Operand, *, alpha: common.Number = 1, **kwargs: Any) -> Any:
        dtype = result_dtype(self, other)
        if to_float and common.kind(dtype) < 2:
            dtype = torch.get_default_dtype()
        shape = common_shape(self, other)
        tensors = isinstance(self, Tensor) and isinstance(other, Tensor)
        if alpha == 1 and is_in_order(self, dtype, shape) and is_in_order(other, dtype, shape):
            return NotImplemented
        # A number keeps its precision beside a half type: eager rounds the result, not the number.
        rounded_late = not compares and (not tensors or alpha != 1)
        work = common.compute_dtype(dtype) if rounded_late else dtype
        device = common_device(self, other)
        a, b = (in_order(x, work, shape, device) for x in (self, other))
        if alpha != 1:
            b = common.aten.mul.Tensor(b, in_order(alpha, work, shape, device))
        out = op(a, b, **kwargs)
        return out if compares else common.cast(out, dtype)

    return entry


def of_floats(name: str) -> Callable[..., Any]:
    """A float function of one operand: integers are converted first"""
    op = common.lookup(name)
    assert op is not None, name

    def entry(self: Tensor) -> Any:
        if common.kind(self.dtype) >= 2:
            return NotImplemented
        return op(common.cast(self, torch.get_default_dtype()))

    return entry


def ordered_where(condition: Tensor, self: Tensor, other: Tensor) -> Any:
    """A boolean condition, branches of one dtype, all of one shape"""
    dtype, shape = result_dtype(self, other), common_shape(condition, self, other)
    operands = (condition, self, other)
    wanted = (torch.bool, dtype, dtype)
    pairs = list(zip(operands, wanted, strict=True))
    if all(is_in_order(x, d, shape) for x, d in pairs):
        return NotImplemented
    device = common_device(*operands)
    return common.aten.where.self(*(in_order(x, d, shape, device) for x, d in pairs))


# --- layouts --------------------------------------------------------------------------------------


def laid_out_by(result: Tensor, *operands: Tensor) -> Tensor:
    """`result`, laid out as eager lays out what its iterator computes from `operands`."""
    return relaid(result, pointwise_layout([as_fake(x) for x in operands], False)[1])


def _layout_of(x: Tensor) -> tuple[Sizes, Sizes]:
    if isinstance(x, FakeTensor):
        return x._sizes, x._strides
    return tuple(x.shape), x.stride()


def as_fake(x: Tensor) -> FakeTensor:
    """A fake with the sizes and strides of `x`."""
    return x if isinstance(x, FakeTensor) else make(*_layout_of(x), x.dtype, x.device)


def lies_like(x: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same sizes and strides."""
    if x is other:
        return True
    (sizes, strides), (other_sizes, other_strides) = _layout_of(x), _layout_of(other)
    return equal_sizes(sizes, other_sizes) and same_strides(strides, other_strides)


def relaid(x: Tensor, strides: Sizes) -> Tensor:
    """`x` with the strides of a dense tensor; itself if it has them."""
    sizes, own = _layout_of(x)
    if has_zero(sizes) or len(strides) != len(own):
        return x
    some = [d for d, n in enumerate(sizes) if type(n) is not int or n != 1]
    if same_strides(tuple(own[d] for d in some), tuple(strides[d] for d in some)):
        return x
    order = sorted(range(len(own)), key=lambda d: (-hint_of(strides[d]), d))
    moved = common.aten.permute.default(x, order)
    dense = common.aten.clone.default(moved, memory_format=torch.contiguous_format)
    return common.aten.permute.default(dense, [order.index(d) for d in range(len(order))])
