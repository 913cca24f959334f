"""Lowering rules of pointwise ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from dovetail_prims.dialects.opsets import SCALAR_FORMS
from dovetail_prims.ops import catalog
from dovetail_prims.ops.card import Card, Dialect, Result
from torch import fx

from dovetail_inductor.loop_ir.expr import Expr, Load
from dovetail_inductor.loop_ir.ops import EIGHT_BIT_FLOATS, HALVES, arithmetic_dtype, scalar_name
from dovetail_inductor.lowering.promotion import (
    Operand,
    broadcast_load,
    cast,
    goes_on_in_float32,
    number,
    operand_expr,
    promote,
)
from dovetail_inductor.lowering.values import (
    Context,
    Indices,
    UnsupportedGraph,
    Value,
    tensor_of,
    value_like,
)

Rule = Callable[[Context, fx.Node, Sequence[Any], dict[str, Any]], Any]


def pointwise(
    ctx: Context,
    node: fx.Node,
    operands: Sequence[Operand],
    common: torch.dtype,
    combine: Callable[[list[Expr]], Expr],
    compare: bool = False,
) -> Value:
    """A value computed element by element from broadcast operands in the type `common`."""
    value = value_like(tensor_of(node), node.name)
    target = arithmetic_dtype(value.dtype)

    def loader(indices: Indices, mask: Expr | None) -> Expr:
        args = [operand_expr(ctx, o, common, value, indices, mask, compare) for o in operands]
        return ctx.builder.apply("cast", [combine(args)], target)

    return value.made_by(loader)


def _plain(op: str, operands: int) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
        dtype = tensor_of(node).dtype
        return pointwise(ctx, node, args[:operands], dtype, lambda e: ctx.builder.apply(op, e))

    return rule


def _identity_on_ints(op: str) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
        dtype = tensor_of(node).dtype

        def combine(e: list[Expr]) -> Expr:
            return ctx.builder.apply(op, e) if dtype.is_floating_point else e[0]

        return pointwise(ctx, node, args[:1], dtype, combine)

    return rule


def _float_test(op: str) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
        dtype = args[0].dtype

        def combine(e: list[Expr]) -> Expr:
            if dtype.is_floating_point:
                return ctx.builder.apply(op, e)
            return ctx.builder.constant(False, torch.bool)

        return pointwise(ctx, node, args[:1], dtype, combine)

    return rule


def _scaled(op: str) -> Rule:
    """add, sub: the second operand may be scaled by `alpha`; on bool, add is `or`."""

    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
        alpha = kwargs.get("alpha", 1)
        common = tensor_of(node).dtype
        b = ctx.builder

        def combine(e: list[Expr]) -> Expr:
            if common is torch.bool:
                if op == "sub" or not isinstance(alpha, int):
                    raise UnsupportedGraph(f"{node.name}: {op} of bool with alpha={alpha}")
                return b.apply("bitwise_or", e) if alpha else e[0]
            scaled = (
                e[1] if alpha == 1 else b.apply("mul", [e[1], number(ctx, alpha, common, False)])
            )
            return b.apply(op, [e[0], scaled])

        return pointwise(ctx, node, args[:2], common, combine)

    return rule


def _mul(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    common = tensor_of(node).dtype
    op = "bitwise_and" if common is torch.bool else "mul"
    return pointwise(ctx, node, args[:2], common, lambda e: ctx.builder.apply(op, e))


def _div_mode(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    mode = kwargs.get("rounding_mode", args[2] if len(args) > 2 else None)
    common = tensor_of(node).dtype
    b = ctx.builder

    def combine(e: list[Expr]) -> Expr:
        if mode is None:
            return b.apply("div", e)
        if mode == "floor":
            return b.apply("floordiv", e)
        if common.is_floating_point:
            return b.apply("trunc", [b.apply("div", e)])
        return b.apply("truncdiv", e)

    return pointwise(ctx, node, args[:2], common, combine)


def _extreme(op: str) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
        common = tensor_of(node).dtype
        name = op
        if common is torch.bool:
            name = "bitwise_or" if op == "maximum" else "bitwise_and"
        return pointwise(ctx, node, args[:2], common, lambda e: ctx.builder.apply(name, e))

    return rule


def _comparison(op: str) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
        common = promote(args[:2])

        def combine(e: list[Expr]) -> Expr:
            if common is torch.bool:  # order bools as numbers
                e = [ctx.builder.apply("cast", [x], torch.uint8) for x in e]
            return ctx.builder.apply(op, e)

        return pointwise(ctx, node, args[:2], common, combine, compare=True)

    return rule


def _logical(op: str) -> Rule:
    def rule(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
        value = value_like(tensor_of(node), node.name)

        def loader(indices: Indices, mask: Expr | None) -> Expr:
            truths = []
            for a in args:
                if isinstance(a, Value):
                    e = broadcast_load(ctx, a, value.shape, indices, mask)
                    truths.append(ctx.builder.apply("cast", [e], torch.bool))
                else:
                    truths.append(ctx.builder.constant(bool(a), torch.bool))
            return ctx.builder.apply(op, truths)

        return value.made_by(loader)

    return rule


def _where(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    value = value_like(tensor_of(node), node.name)
    condition, a, b = args

    def loader(indices: Indices, mask: Expr | None) -> Expr:
        c = operand_expr(ctx, condition, condition.dtype, value, indices, mask)
        c = ctx.builder.apply("cast", [c], torch.bool)
        x, y = (operand_expr(ctx, o, value.dtype, value, indices, mask) for o in (a, b))
        if isinstance(x, Load) and x.index.indirects() and ctx.target.scatters.parallel:
            # Of places that data tell a GPU reads one by one: none that is not asked for.
            wanted = c if x.mask is None else ctx.builder.apply("bitwise_and", [c, x.mask])
            x = ctx.builder.load(x.buffer, x.index, x.dtype, wanted)
            if y is ctx.builder.constant(0, y.dtype):
                return x
        return ctx.builder.apply("where", [c, x, y])

    return value.made_by(loader)


def _to_copy(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    (source,) = args
    value = value_like(tensor_of(node), node.name)
    # A decomposition's own rounding: what is fused goes on in the arithmetic type. The user's
    # `x.to(other)` gives a layout too, and a device with it.
    own = kwargs.get("layout") is not None and kwargs.get("device") is None
    unrounded = source.dtype is arithmetic_dtype(value.dtype) and (own or goes_on_in_float32(node))
    unrounded &= value.dtype not in EIGHT_BIT_FLOATS
    if source.dtype is not value.dtype and arithmetic_dtype(source.dtype) is value.dtype:
        value.forms = replace(value.forms, widened=source)

    def loader(indices: Indices, mask: Expr | None) -> Expr:
        expr = ctx.load(source, indices, mask)
        if source.dtype == value.dtype or unrounded:
            return expr
        if source.dtype in EIGHT_BIT_FLOATS and value.dtype in (torch.float32, *HALVES):
            return expr  # each is one of the wider type, too
        return cast(ctx, expr, value.dtype)

    return value.made_by(loader)


def _copy(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    """copy(self, source): the source broadcast to self's shape, in self's type."""
    value = value_like(tensor_of(node), node.name)

    def loader(indices: Indices, mask: Expr | None) -> Expr:
        return operand_expr(ctx, args[1], value.dtype, value, indices, mask)

    return value.made_by(loader)


def _pow(ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    common = tensor_of(node).dtype
    b = ctx.builder
    exponent = args[1]

    def combine(e: list[Expr]) -> Expr:
        if not isinstance(exponent, Value):
            # Exact, cheaper forms of what `pow` would give.
            if exponent == 2:
                return b.apply("mul", [e[0], e[0]])
            if exponent == 3:
                return b.apply("mul", [b.apply("mul", [e[0], e[0]]), e[0]])
            if exponent == 1:
                return e[0]
            if common.is_floating_point:
                if exponent == 0.5:
                    return b.apply("sqrt", [e[0]])
                if exponent == -0.5:
                    return b.apply("rsqrt", [e[0]])
                if exponent == -1:
                    return b.apply("reciprocal", [e[0]])
                if exponent == -2:
                    return b.apply("reciprocal", [b.apply("mul", [e[0], e[0]])])
        return b.apply("pow", e)

    return pointwise(ctx, node, args[:2], common, combine)


def _of_card(card: Card) -> Rule:
    """The scalar op of the operator's name, on operands of the promoted dtype."""
    op = scalar_name(card.name)
    if card.result is Result.BOOL:
        return _float_test(op) if card.arity == 1 else _comparison(op)
    return _plain(op, card.arity)


RULES: dict[str, Rule] = {
    **{
        name: _of_card(card)
        for name, card, form in catalog.forms(catalog.POINTWISE)
        if form.dialect is not Dialect.ATEN and name not in SCALAR_FORMS
    },
    "floor.default": _identity_on_ints("floor"),
    "ceil.default": _identity_on_ints("ceil"),
    "round.default": _identity_on_ints("round"),
    "trunc.default": _identity_on_ints("trunc"),
    "add.Tensor": _scaled("add"),
    "sub.Tensor": _scaled("sub"),
    "mul.Tensor": _mul,
    "div.Tensor_mode": _div_mode,
    "pow.Tensor_Tensor": _pow,
    "pow.Tensor_Scalar": _pow,
    "maximum.default": _extreme("maximum"),
    "minimum.default": _extreme("minimum"),
    "logical_and.default": _logical("bitwise_and"),
    "logical_or.default": _logical("bitwise_or"),
    "logical_xor.default": _logical("bitwise_xor"),
    "logical_not.default": _logical("bitwise_not"),
    "where.self": _where,
    "clone.default": _to_copy,
    "_to_copy.default": _to_copy,
    "copy.default": _copy,
}
