"""The meaning of PRIMS, written plainly: the oracle of whatever compiles it.

Each op is a few lines of ordinary tensor code that also checks what PRIMS promises (one shape, one
dtype, named dimensions), so that a graph which runs here is a PRIMS graph. Speed is no aim.
Library kernels and samplers (`EXTERN`) have no plainer meaning than themselves and are called.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from dovetail_prims.ops import catalog
from dovetail_prims.ops.card import Card, Dialect, Kind, Result
from dovetail_prims.ops.promises import PrimsError, require
from dovetail_prims.ops.views import slice_of
from dovetail_prims.opsets import EXTERN


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


def _clone(x: Tensor, *, memory_format: torch.memory_format = torch.preserve_format) -> Tensor:
    return x.clone(memory_format=memory_format)


# --- indexing ------------------------------------------------------------------------------------


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    dtypes = {t.dtype for t in tensors}
    require(len(dtypes) == 1, f"cat of several dtypes: {dtypes}")
    return torch.cat(list(tensors), dim)


def _pad(x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    """Pairs from the last dimension on; a negative pair crops"""
    pairs = list(zip(pad[::2], pad[1::2], strict=True))
    before, after = [0] * x.dim(), [0] * x.dim()
    for i, (left, right) in enumerate(pairs):
        before[-1 - i], after[-1 - i] = left, right
    shape = [b + s + a for b, s, a in zip(before, x.shape, after, strict=True)]
    out = torch.full(shape, value, dtype=x.dtype)
    inner = tuple(
        slice(max(b, 0), n - max(a, 0)) for b, n, a in zip(before, shape, after, strict=True)
    )
    outer = tuple(
        slice(max(-b, 0), s - max(-a, 0)) for b, s, a in zip(before, x.shape, after, strict=True)
    )
    out[inner] = x[outer]
    return out


def _flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    for dim in dims:
        x = x.index_select(dim, torch.arange(x.shape[dim] - 1, -1, -1))
    return x


def _index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    return x[tuple(slice(None) if i is None else i for i in indices)]


def _index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    require(values.dtype == x.dtype, "index_put of another dtype")
    out = x.clone()
    where = tuple(slice(None) if i is None else i for i in indices)
    if not accumulate:
        out[where] = values
        return out
    places = torch.arange(x.numel()).view(x.shape)[where]
    flat, added = out.reshape(-1), values.expand(places.shape).reshape(-1)
    flat.index_add_(0, places.reshape(-1), added)
    return flat.view(x.shape)


def _gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    out = torch.empty(index.shape, dtype=x.dtype)
    for place in itertools.product(*map(range, index.shape)):
        source = list(place)
        if place:
            source[dim] = int(index[place])
        out[place] = x[tuple(source)]
    return out


def _scatter(x: Tensor, dim: int, index: Tensor, src: Tensor, add: bool) -> Tensor:
    require(src.dtype == x.dtype, "scatter of another dtype")
    out = x.clone()
    for place in itertools.product(*map(range, index.shape)):
        target = list(place)
        if place:
            target[dim] = int(index[place])
        new = src[place]
        out[tuple(target)] = out[tuple(target)] + new if add else new
    return out


def _scatter_src(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter(x, dim, index, src, False)


def _scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter(x, dim, index, src, True)


def _into(view: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The scatter twin of a view: a copy with the view's part overwritten"""

    def run(x: Tensor, src: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        require(src.dtype == x.dtype, "a scatter of another dtype")
        out = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
        out.copy_(x)
        view(out, *args, **kwargs).copy_(src)
        return out

    return run


# --- creation ------------------------------------------------------------------------------------


def _full(size: Sequence[int], value: Any, *, dtype: torch.dtype, **options: Any) -> Tensor:
    return torch.full(list(size), value, dtype=dtype, device=options.get("device"))


def _arange(start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype, **options: Any) -> Tensor:
    return torch.arange(start, end, step, dtype=dtype, device=options.get("device"))


def _pointwise(card: Card) -> Callable[..., Tensor]:
    if card.arity == 1:
        return _unary(card.reference(), card.result is Result.FLOAT)
    return _binary(card.reference())


RULES: dict[str, Callable[..., Any]] = {
    **{
        name: _pointwise(card) if card.kind is Kind.POINTWISE else card.reference()
        for name, card, form in catalog.forms()
        if form.dialect is Dialect.PRIMS
    },
    "where.self": _where,
    "_to_copy.default": _to_copy,
    "clone.default": _clone,
    "cat.default": _cat,
    "constant_pad_nd.default": _pad,
    "flip.default": _flip,
    "index.Tensor": _index,
    "index_put.default": _index_put,
    "gather.default": _gather,
    "scatter.src": _scatter_src,
    "scatter_add.default": _scatter_add,
    "slice_scatter.default": _into(slice_of),
    "as_strided_scatter.default": _into(torch.as_strided),
    "diagonal_scatter.default": _into(torch.diagonal),
    "full.default": _full,
    "arange.start_step": _arange,
    "empty.memory_format": torch.ops.aten.empty.memory_format,
    "empty_strided.default": torch.ops.aten.empty_strided.default,
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
