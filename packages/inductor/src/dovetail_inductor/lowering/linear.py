"""Products and convolutions: what the library call adds of a bias itself, what the consumers'
kernels add, which gradient is a sum, and operands laid out as the library would copy them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.loops import same_strides
from dovetail_inductor.loop_ir.ops import STORED_DTYPES, arithmetic_dtype
from dovetail_inductor.loop_ir.reduction import SUM
from dovetail_inductor.lowering.externs import extern_call
from dovetail_inductor.lowering.pointwise import pointwise
from dovetail_inductor.lowering.reductions import reduce_into
from dovetail_inductor.lowering.values import (
    Context,
    Indices,
    Value,
    contiguous_strides,
    tensor_of,
    value_like,
)

# Wide enough that a product rounded before the bias is added is as good as one rounded after.
WIDE = (torch.float32, torch.float64)


def adds_a_row(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """True for `addmm(bias, a, b)` of wide floats on a CPU whose bias is one row, not scaled."""
    if kwargs.get("beta", 1) != 1 or kwargs.get("alpha", 1) != 1 or len(args) != 3:
        return False
    bias = args[0]
    return (
        isinstance(bias, Value)
        and all(isinstance(a, Value) and a.dtype == bias.dtype for a in args)
        and bias.device.type == "cpu"
        and bias.dtype in WIDE
        and len(bias.shape) == 1
    )


def product_plus_row(ctx: Context, node: fx.Node, args: Sequence[Any]) -> Value:
    """`addmm` as a product and an addition for the kernels that read it.

    On a CPU the library copies the bias into the result first, and reads that again while it
    multiplies: two passes over memory that a kernel which reads the product anyway does not need.
    """
    product = extern_call(ctx, node, args[1:], {}, torch.ops.aten.mm.default)
    assert isinstance(product, Value)
    return pointwise(
        ctx, node, (product, args[0]), tensor_of(node).dtype, lambda e: ctx.builder.apply("add", e)
    )


def is_outer(name: str, args: Sequence[Any]) -> bool:
    """True for a product of a column and a row (`mm`, or of each of a batch, `bmm`) of floats: no
    element of it is a sum."""
    if name not in ("mm.default", "bmm.default") or not isinstance(args[0], Value):
        return False
    inner = args[0].shape[-1]
    return args[0].dtype.is_floating_point and type(inner) is int and inner == 1


def outer_product(ctx: Context, node: fx.Node, args: Sequence[Any]) -> Value:
    """A column times a row, computed in the kernels that read it.

    A library's call would be a launch of its own, and cuBLAS takes a workspace for it. As there,
    each element is a sum that begins with zero, which is never -0.
    """
    dtype = tensor_of(node).dtype
    zero = ctx.builder.constant(0.0, arithmetic_dtype(dtype))

    def combine(operands: list[Expr]) -> Expr:
        return ctx.builder.apply("add", [ctx.builder.apply("mul", operands), zero])

    return pointwise(ctx, node, args, dtype, combine)


def convolution_plus_channels(ctx: Context, node: fx.Node, args: Sequence[Any]) -> Value:
    """A convolution, and the addition of its bias for the kernels that read it: the library would
    add that in a kernel of its own, after rounding. But where only the caller reads one of each
    channel alone, the call adds it: some of the library's own kernels do before they write."""
    bias, by_channel = args[2], args[8] != 1 and args[1].shape[1] == 1
    whole = by_channel and all(user.op == "output" for user in node.users)
    product = extern_call(ctx, node, args if whole else (*args[:2], None, *args[3:]), {})
    assert isinstance(product, Value)
    return product if whole else plus_channels(ctx, node, product, bias)


def plus_channels(ctx: Context, node: fx.Node, product: Value, bias: Value) -> Value:
    """A convolution's result and its bias, for the kernels that read it."""

    def channel(indices: Indices, mask: Expr | None) -> Expr:
        return ctx.load(bias, indices[1:2], mask)

    ones = (1,) * (len(product.shape) - 2)
    shape, stride = (1, *bias.shape, *ones), (0, 1, *(0 for _ in ones))
    rows = Value(shape, stride, bias.dtype, bias.device, node.name, loader=channel)
    return pointwise(
        ctx, node, (product, rows), tensor_of(node).dtype, lambda e: ctx.builder.apply("add", e)
    )


def gradients_and_channels(ctx: Context, node: fx.Node, args: Sequence[Any]) -> tuple[Any, ...]:
    """The gradients of a convolution's operands by the library, and that of its bias as a sum,
    which may join the kernel that computes what it sums up; the library has one of its own."""
    gradient: Value = args[0]
    of_x, of_weight, of_bias = node.meta["val"]
    others: list[Any] = [None, None]
    if of_x is not None or of_weight is not None:
        asked = [*args[10][:2], False]
        given = (*args[:3], None, *args[4:10], asked)
        made = extern_call(ctx, node, given, {}, val=(of_x, of_weight, None))
        assert isinstance(made, tuple)
        others = list(made[:2])
    value = value_like(of_bias, node.name)
    dims = tuple(d for d in range(len(gradient.shape)) if d != 1)
    reduce_into(ctx, value, gradient, dims, SUM, lambda indices: ctx.load(gradient, indices))
    return (*others, value)


# The operands with rows, and the place of the groups, by call.
ROWS = {"convolution.default": (1, 8), "convolution_backward.default": (2, 9)}


def row_major_operands(ctx: Context, name: str, args: Sequence[Any]) -> list[Any]:
    """The arguments of a call, those of a grouped convolution over rows on a GPU row-major.

    `x.transpose(1, 2)` is what such convolutions are often given. The library copies it; the kernel
    that computes x can write that copy instead.
    """
    operands, groups = ROWS.get(name, (0, 0))
    copied = list(args)
    if not operands or not ctx.target.library.convolves_in_steps or args[groups] == 1:
        return copied
    for position, x in enumerate(args[:operands]):
        if isinstance(x, Value) and len(x.shape) == 3 and x.dtype in STORED_DTYPES:
            copied[position] = _row_major(ctx, x)
    return copied


def _row_major(ctx: Context, x: Value) -> Value:
    strides = contiguous_strides(x.shape)
    if same_strides(x.shape, x.stride, strides):
        return x
    copy = Value(x.shape, strides, x.dtype, x.device, x.origin)
    copy.loader = lambda indices, mask: ctx.load(x, indices, mask)
    ctx.realize(copy)
    return copy
