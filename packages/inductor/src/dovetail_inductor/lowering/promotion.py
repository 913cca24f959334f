"""ATen's type promotion, operands brought to a common type, and which conversions to a half type
round where they are fused.

Fused arithmetic of half types goes on in float32: what eager rounds between two operators is
rounded only where it is stored. A conversion that the program writes rounds, unless all that
reads the result is such arithmetic: `(x.float() * scale).to(x.dtype) * weight`, the end of every
norm, loses nothing by it and has one rounding less. Where it is converted on (`x.half().float()`),
compared, or read by anything that is not on the short list of `goes_on_in_float32`, it rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from dovetail_inductor.loop_ir.expr import Expr, Scalar
from dovetail_inductor.loop_ir.index import constant
from dovetail_inductor.loop_ir.ops import ROUNDING, arithmetic_dtype
from dovetail_inductor.loop_ir.sizes import Dim, FloatSize, is_stretched
from dovetail_inductor.lowering.values import Context, Indices, Value, tensor_of

Operand = Value | bool | int | float | FloatSize


def _category(dtype: torch.dtype) -> int:
    if dtype is torch.bool:
        return 0
    return 2 if dtype.is_floating_point else 1


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    # A type of lower priority counts only if it is of a higher category.
    if higher is None or lower is None:
        return higher or lower
    return torch.promote_types(higher, lower) if _category(lower) > _category(higher) else higher


def promote(operands: Sequence[Operand]) -> torch.dtype:
    """The common type of tensors, 0-d tensors and Python numbers, as `torch.result_type` has it."""
    dims: torch.dtype | None = None
    zeros: torch.dtype | None = None
    numbers: torch.dtype | None = None

    def join(a: torch.dtype | None, b: torch.dtype) -> torch.dtype:
        return b if a is None else torch.promote_types(a, b)

    for operand in operands:
        if not isinstance(operand, Value):
            if isinstance(operand, bool):
                number = torch.bool
            elif isinstance(operand, int | Dim):
                number = torch.int64
            else:
                number = torch.get_default_dtype()
            numbers = join(numbers, number)
        elif operand.shape:
            dims = join(dims, operand.dtype)
        else:
            zeros = join(zeros, operand.dtype)
    result = _combine(_combine(dims, zeros), numbers)
    assert result is not None
    return result


def broadcast_load(
    ctx: Context, value: Value, shape: tuple[int, ...], indices: Indices, mask: Expr | None
) -> Expr:
    """The element of `value`, broadcast to `shape`, at `indices`."""
    if value.shape == shape:
        return ctx.load(value, indices, mask)
    lead = len(shape) - len(value.shape)
    own = tuple(
        constant(0) if is_stretched(n, m) else i
        for n, m, i in zip(value.shape, shape[lead:], indices[lead:], strict=True)
    )
    return ctx.load(value, own, mask)


def cast(ctx: Context, expr: Expr, dtype: torch.dtype) -> Expr:
    """Convert to the storage type `dtype`, kept in its arithmetic type."""
    b = ctx.builder
    target = arithmetic_dtype(dtype)
    result = b.apply("cast", [expr], target)
    return b.apply(ROUNDING[dtype], [result]) if dtype in ROUNDING else result


def operand_expr(
    ctx: Context,
    operand: Operand,
    common: torch.dtype,
    result: Value,
    indices: Indices,
    mask: Expr | None,
    round_numbers: bool = False,
) -> Expr:
    """One operand's element, broadcast to `result`, in the arithmetic type of `common`.

    A number, from Python or in a CPU tensor beside those of a GPU, enters arithmetic unrounded (as
    ATen's opmath does), a comparison rounded to `common`.
    """
    if isinstance(operand, Value):
        expr = broadcast_load(ctx, operand, result.shape, indices, mask)
        if operand.dtype == common:
            return expr
        as_number = operand.device != result.device and not round_numbers
        return cast(ctx, expr, arithmetic_dtype(common) if as_number else common)
    return number(ctx, operand, common, round_numbers)


def number(ctx: Context, value: Scalar | FloatSize, common: torch.dtype, rounded: bool) -> Expr:
    """A Python number in the arithmetic type of `common`."""
    if isinstance(value, Dim):
        whole = ctx.builder.constant(value, torch.int64)
        return cast(ctx, whole, common if rounded else arithmetic_dtype(common))
    if isinstance(value, FloatSize):
        return cast(ctx, ctx.float_value(value), common if rounded else arithmetic_dtype(common))
    if common.is_floating_point:
        own = common if rounded else arithmetic_dtype(common)
        value = torch.tensor(float(value), dtype=own).item()
    return ctx.builder.constant(value, arithmetic_dtype(common))


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
