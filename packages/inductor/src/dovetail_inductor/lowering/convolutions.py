"""Convolutions of few taps, and by one pixel, as loops whose sums stay in registers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import fx

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.reduction import SUM_OF_PRODUCTS
from dovetail_inductor.loop_ir.sizes import any_symbolic
from dovetail_inductor.lowering.indexing import both, masked_load
from dovetail_inductor.lowering.linear import plus_channels
from dovetail_inductor.lowering.pooling.windows import places, reduced, steps_of
from dovetail_inductor.lowering.values import Context, Indices, Value, in_order_of, value_like

# Windows with more elements, over all channels that they are of, are left to the library.
MOST_TAPS = 49
# Of fewer channels no vector is full.
LEAST_CHANNELS = 8
# Multiplications by one pixel from which on the library's own order of weights pays, but for so few
# weights.
MOST_BY_PIXEL = 1 << 24
FEW_WEIGHTS = 1 << 16


def has_few_taps(node: fx.Node) -> bool:
    """Whether a node is a convolution for loops, by small windows of one channel a group, or of all
    of few channels."""
    if not _has_channels_side_by_side(node):
        return False
    x, weight = _operands(node)
    groups: Any = node.args[8]
    apart = x.shape[1] == weight.shape[0] == groups
    few = prod(weight.shape[1:]) <= MOST_TAPS
    return few and (apart or (groups == 1 and prod(weight.shape[2:]) > 1))


def is_by_pixel(node: fx.Node) -> bool:
    """Whether a node is a convolution that makes of each pixel one, and no large one: one for loops
    if the weight has its results side by side."""
    if not _has_channels_side_by_side(node):
        return False
    x, weight = _operands(node)
    args: Any = node.args
    plain = all(n == 1 for n in (*args[3], *weight.shape[2:], args[8])) and not any(args[4])
    return plain and (x.numel * weight.shape[0] <= MOST_BY_PIXEL or weight.numel <= FEW_WEIGHTS)


def _operands(node: fx.Node) -> tuple[Value, Value]:
    args: Any = node.args
    x, weight = (value_like(n.meta["val"], n.name) for n in args[:2])
    return x, weight


def _has_channels_side_by_side(node: fx.Node) -> bool:
    """Whether a node is a float32 convolution from channels-last to channels-last on a CPU, all of
    known sizes."""
    if node.target is not torch.ops.aten.convolution.default or node.kwargs or node.args[6]:
        return False
    (x, weight), made = _operands(node), value_like(node.meta["val"], node.name)
    if x.dtype is not torch.float32 or len(x.shape) != 4 or x.device.type != "cpu":
        return False
    if any_symbolic((*x.shape, *weight.shape)) or 0 in x.shape:
        return False
    return x.stride[1] == made.stride[1] == 1 and weight.shape[0] >= LEAST_CHANNELS


def convolution(ctx: Context, node: fx.Node, args: Sequence[Any]) -> Any:
    """A convolution that `has_few_taps`, or that `is_by_pixel` with its weight laid out for it, and
    its bias for the kernels that read it; `NotImplemented` of any other.

    Windows end where the images do: what eager pads with is multiplied by nothing.
    """
    x, weight, bias, step, pad, dilation, _, _, groups = args
    few = has_few_taps(node)
    laid_out = weight.stored is not None and weight.stored.stride[0] == 1
    if ctx.target.library.leads_by_channel or not (few or (laid_out and is_by_pixel(node))):
        return NotImplemented
    value, window = value_like(node.meta["val"], node.name), weight.shape[2:]
    dims = steps_of(2, x.shape, value.shape, window, step, pad, dilation)
    assert dims is not None
    x_dims, taps = dims, weight if laid_out else _taps(ctx, weight)
    ctx.realize(x)
    ctx.realize(taps)

    def part(indices: Indices, place: Indices, mask: Expr | None) -> Expr:
        own = zip(x_dims, indices[2:], place[1:], strict=True)
        at, valid = places(ctx, [dim.element(ctx, i, k) for dim, i, k in own])
        tap = ctx.load(taps, (indices[1], *place), mask)
        channel = indices[1] if groups > 1 else place[0]
        element = masked_load(ctx, x, (indices[0], channel, *at), both(ctx, valid, mask))
        nothing = ctx.builder.constant(0, x.dtype)
        if element is None:
            return nothing
        product = ctx.builder.apply("mul", [element, tap])
        return ctx.builder.apply("where", [valid, product, nothing])

    reduced(ctx, value, weight.shape[1:], SUM_OF_PRODUCTS, part)
    return value if bias is None else plus_channels(ctx, node, value, bias)


def _taps(ctx: Context, weight: Value) -> Value:
    """The weight, with the channels of each place in its windows side by side."""
    stride = in_order_of((1, 4, 3, 2), weight.shape)
    taps = Value(weight.shape, stride, weight.dtype, weight.device, weight.origin)
    return taps.made_by(lambda indices, mask: ctx.load(weight, indices, mask))
