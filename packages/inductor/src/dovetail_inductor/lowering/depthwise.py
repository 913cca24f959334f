"""Convolutions of one channel a group, as loops whose sums stay in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import fx

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.index import constant
from dovetail_inductor.loop_ir.reduction import SUM_OF_PRODUCTS
from dovetail_inductor.loop_ir.sizes import any_symbolic
from dovetail_inductor.lowering.indexing import both, masked_load
from dovetail_inductor.lowering.linear import plus_channels
from dovetail_inductor.lowering.pooling.windows import places, reduced, steps_of
from dovetail_inductor.lowering.values import Context, Indices, Value, in_order_of, value_like

# Larger windows are left to the library.
MOST_TAPS = 49
# Of fewer channels no vector is full.
LEAST_CHANNELS = 8


def is_by_channel(node: fx.Node) -> bool:
    """Whether a node is a float32 convolution of images in channels-last with a small window of its
    own for each channel, all of known sizes."""
    if node.target is not torch.ops.aten.convolution.default or node.kwargs:
        return False
    args: Any = node.args
    x, weight, made = (value_like(n.meta["val"], n.name) for n in (*args[:2], node))
    transposed, groups = args[6], args[8]
    if transposed or x.dtype is not torch.float32 or len(x.shape) != 4:
        return False
    if any_symbolic((*x.shape, *weight.shape)) or 0 in x.shape or x.device.type != "cpu":
        return False
    apart = x.shape[1] == weight.shape[0] == groups >= LEAST_CHANNELS
    return apart and prod(weight.shape[2:]) <= MOST_TAPS and x.stride[1] == made.stride[1] == 1


def depthwise(ctx: Context, node: fx.Node, args: Sequence[Any]) -> Any:
    """A convolution that `is_by_channel`, and its bias for the kernels that read it;
    `NotImplemented` of any other.

    Windows end where the images do: what eager pads with is multiplied by nothing.
    """
    if ctx.target.library.leads_by_channel or not is_by_channel(node):
        return NotImplemented
    x, weight, bias, step, pad, dilation, *_ = args
    value, window = value_like(node.meta["val"], node.name), weight.shape[2:]
    dims = steps_of(2, x.shape, value.shape, window, step, pad, dilation)
    assert dims is not None
    x_dims, taps = dims, _taps(ctx, weight)
    ctx.realize(x)
    ctx.realize(taps)

    def part(indices: Indices, place: Indices, mask: Expr | None) -> Expr:
        own = zip(x_dims, indices[2:], place, strict=True)
        at, valid = places(ctx, [dim.element(ctx, i, k) for dim, i, k in own])
        tap = ctx.load(taps, (indices[1], *place), mask)
        element = masked_load(ctx, x, (*indices[:2], *at), both(ctx, valid, mask))
        nothing = ctx.builder.constant(0, x.dtype)
        if element is None:
            return nothing
        product = ctx.builder.apply("mul", [element, tap])
        return ctx.builder.apply("where", [valid, product, nothing])

    reduced(ctx, value, window, SUM_OF_PRODUCTS, part)
    return value if bias is None else plus_channels(ctx, node, value, bias)


def _taps(ctx: Context, weight: Value) -> Value:
    """The weight, with the channels of each place in its windows side by side."""
    shape = (weight.shape[0], *weight.shape[2:])
    taps = Value(shape, in_order_of((1, 3, 2), shape), weight.dtype, weight.device, weight.origin)
    if weight.stored is not None and weight.stored.stride[0] == 1:
        stored, stride = weight.stored, weight.stored.stride
        taps.stored = replace(stored, shape=shape, stride=(stride[0], *stride[2:]))
        return taps
    return taps.made_by(
        lambda indices, mask: ctx.load(weight, (indices[0], constant(0), *indices[1:]), mask)
    )
