"""Lowering rules of ops that make tensors from numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from dovetail_prims.graphs.functional_forms import functional_form_named
from torch import fx
from torch._ops import OpOverload

from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.ops import arithmetic_dtype
from dovetail_inductor.loop_ir.sizes import Dim, FloatSize
from dovetail_inductor.lowering.pointwise import Rule
from dovetail_inductor.lowering.promotion import number
from dovetail_inductor.lowering.values import (
    Context,
    Indices,
    Value,
    is_dense,
    tensor_of,
    value_like,
)


def _only_written(node: fx.Node) -> bool:
    """Is memory only given to operators that write to it? (In graphs to their functional forms.)"""
    return bool(node.users) and all(map(_is_functional_form, node.users))


def _is_functional_form(user: fx.Node) -> bool:
    target = user.target
    if target is torch.ops.aten.alias.default:
        return _only_written(user)
    return isinstance(target, OpOverload) and functional_form_named(target._schema.name) is not None


def _filled(ctx: Context, node: fx.Node, fill: bool | int | float) -> Value:
    value = value_like(tensor_of(node), node.name)
    value.loader = lambda indices, mask: number(ctx, fill, value.dtype, True)
    return value


def _full(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    return _filled(ctx, node, args[-1])


def _empty(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Any contents will do; zero is one, and lets consumers fold it. (What has gaps, or lies over
    itself, only PyTorch makes; so is memory that is only there to be written to.)"""
    if _only_written(node):
        return NotImplemented
    value = _filled(ctx, node, 0)
    return value if is_dense(value.shape, value.stride) else NotImplemented


def _arange(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    start = args[0]
    step = args[2] if len(args) > 2 else 1
    value = value_like(tensor_of(node), node.name)
    if isinstance(start, FloatSize) or isinstance(step, FloatSize):
        return NotImplemented
    whole = isinstance(start, int | Dim) and isinstance(step, int | Dim)
    if not whole and not value.dtype.is_floating_point:
        return NotImplemented
    b = ctx.builder

    def loader(indices: Indices, mask: Expr | None) -> Expr:
        if whole:
            at = b.index_value(indices[0] * step + start)
            return b.apply("cast", [at], arithmetic_dtype(value.dtype))
        dtype = arithmetic_dtype(value.dtype)
        at = b.apply("cast", [b.index_value(indices[0])], dtype)
        scaled = b.apply("mul", [at, b.constant(step, dtype)])
        return b.apply("add", [b.constant(start, dtype), scaled])

    return value.made_by(loader)


RULES: dict[str, Rule] = {
    "full.default": _full,
    "scalar_tensor.default": _full,
    "empty.memory_format": _empty,
    "empty_strided.default": _empty,
    "arange.start_step": _arange,
}
