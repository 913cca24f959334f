"""The meaning of PRIMS, written plainly: the oracle of whatever compiles it.

Each op is a few lines of ordinary tensor code that also checks what PRIMS promises (one shape, one
dtype, named dimensions), so that a graph which runs here is a PRIMS graph. Speed is no aim.
Library kernels and samplers (`EXTERN`) have no plainer meaning than themselves and are called.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from dovetail_prims.dialects.opsets import EXTERN
from dovetail_prims.ops import catalog
from dovetail_prims.ops.card import Card, Dialect, Kind, Result
from dovetail_prims.ops.promises import PrimsError, require
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg


def _alike(*tensors: Tensor) -> None:
    """Operands have one shape and one dtype"""
    first = tensors[0]
    for t in tensors:
        require(isinstance(t, Tensor), f"operand {t!r} is no tensor")
        require(t.shape == first.shape, f"shapes differ: {first.shape}, {t.shape}")
        require(t.dtype == first.dtype, f"dtypes differ: {first.dtype}, {t.dtype}")


def _unary(function: Callable[[Tensor], Tensor], floats: bool) -> Callable[..., Tensor]:
    def run(x: Tensor) -> Tensor:
        if floats:
            require(x.is_floating_point() or x.is_complex(), f"{function} of {x.dtype}")
        return function(x)

    return run


def _binary(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(a: Tensor, b: Tensor, **kwargs: Any) -> Tensor:
        _alike(a, b)
        return function(a, b, **kwargs)

    return run


def _where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    _alike(a, b)
    require(condition.dtype == torch.bool and condition.shape == a.shape, "where: condition")
    return torch.where(condition, a, b)


def _to_copy(x: Tensor, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    return torch.ops.aten._to_copy.default(x, dtype=dtype, **options)  # type: ignore[no-any-return]


def _pointwise(card: Card) -> Callable[..., Tensor]:
    if card.arity == 1:
        return _unary(card.reference(), card.result is Result.FLOAT)
    return _binary(card.reference())


RULES: dict[str, Callable[..., Any]] = {
    **{
        name: _pointwise(card) if card.kind is Kind.POINTWISE else card.reference()
        for name, card, form in catalog.forms()
        if form.dialect is Dialect.PRIMS and card.kind is not Kind.LIBRARY and not form.library
    },
    "where.self": _where,
    "_to_copy.default": _to_copy,
}
# Size arithmetic and the parts of a multiple result may stand in any dialect.
PYTHON = {
    *(operator.getitem, operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod),
    *(torch.sym_min, torch.sym_max),
}
SIZES = {"sym_size.int", "sym_stride.int", "sym_numel.default", "sym_storage_offset.default"}


def rule(op: OpOverload) -> Callable[..., Any]:
    """What a PRIMS op means; an error for any other op."""
    name = f"{op._schema.name.removeprefix('aten::')}.{op._overloadname}"
    if name in RULES:
        return RULES[name]
    require(name in EXTERN or name in SIZES, f"{name} is not in PRIMS")
    return op


def interpret(gm: GraphModule, *args: Any) -> Any:
    """The outputs of a PRIMS graph. Raises PrimsError, with the node, where it is not one."""
    inputs = iter(args)
    values: dict[Node, Any] = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(inputs)
        elif node.op == "get_attr":
            values[node] = operator.attrgetter(str(node.target))(gm)
        elif node.op == "output":
            return map_arg(node.args[0], values.__getitem__)
        else:
            values[node] = _run(node, values)
    raise PrimsError("the graph has no output")


def _run(node: Node, values: dict[Node, Any]) -> Any:
    """One call, by its rule; an error names the node"""
    target = node.target
    try:
        if isinstance(target, OpOverload):
            function = rule(target)
        else:
            require(target in PYTHON, f"{target} is not in PRIMS")
            assert callable(target)
            function = target
        args = map_arg(node.args, values.__getitem__)
        kwargs = map_arg(node.kwargs, values.__getitem__)
        return function(*args, **kwargs)
    except PrimsError as error:
        raise PrimsError(f"node {node.name} ({target}): {error}") from None
