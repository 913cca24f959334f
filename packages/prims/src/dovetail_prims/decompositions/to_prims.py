"""CORE_ATEN -> PRIMS: one shape and one dtype an op, no numbers, no op that others can express.

Most ops are in both sets; their entries only put the operands in order, and leave an op whose
operands are in order as it is (NotImplemented).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.opsets import LOOPING_FUNCTIONS, POINTWISE_UNARY, SCALAR_FORMS

from ._common import (
    Family,
    Number,
    aten,
    broadcast,
    cast,
    compute_dtype,
    count,
    dims_of,
    kind,
    lookup,
    promote_types,
    reshape,
    wide,
    wrap,
)

Operand = Tensor | Number
# Unary ops that take integers as they are; all others work in floats.
INTEGER_UNARY = {"abs", "neg", "floor", "ceil", "round", "trunc", "sign", "bitwise_not"}


def _number_dtype(value: Number) -> torch.dtype:
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
        dtype = x.dtype if isinstance(x, Tensor) else _number_dtype(x)
        held = classes[place]
        classes[place] = dtype if held is None else promote_types(held, dtype)
    found: torch.dtype | None = None
    for dtype in (d for d in classes if d is not None):
        if found is None:
            found = dtype
        elif kind(dtype) > kind(found):
            found = promote_types(found, dtype)
    assert found is not None
    return found


def _shape(*operands: Operand) -> list[int]:
    shape: list[int] = []
    for x in operands:
        if isinstance(x, Tensor):
            shape = broadcast(shape, x.shape)
    return shape


def _device(*operands: Operand) -> torch.device:
    """The device of the operands that have a rank; a 0-dim CPU tensor may go with any"""
    tensors = [x for x in operands if isinstance(x, Tensor)]
    return next((x.device for x in tensors if x.dim()), tensors[0].device)


def _ready(x: Operand, dtype: torch.dtype, shape: Sequence[int]) -> bool:
    """Whether an operand is in order already"""
    return isinstance(x, Tensor) and x.dtype == dtype and list(x.shape) == list(shape)


def _in_order(x: Operand, dtype: torch.dtype, shape: Sequence[int], device: torch.device) -> Tensor:
    """An operand as a tensor of the dtype and shape"""
    if not isinstance(x, Tensor):
        x = aten.full.default([], x, dtype=dtype, device=device)
    x = cast(x, dtype)
    return x if list(x.shape) == list(shape) else aten.expand.default(x, shape)


def _binary(name: str, *, to_float: bool = False, compares: bool = False) -> Callable[..., Any]:
    """A two-operand op with its operands put in order"""
    op = lookup(name)
    assert op is not None, name

    def entry(self: Operand, other: Operand, *, alpha: Number = 1, **kwargs: Any) -> Any:
        dtype = result_dtype(self, other)
        if to_float and kind(dtype) < 2:
            dtype = torch.get_default_dtype()
        shape = _shape(self, other)
        tensors = isinstance(self, Tensor) and isinstance(other, Tensor)
        if alpha == 1 and _ready(self, dtype, shape) and _ready(other, dtype, shape):
            return NotImplemented
        # A number keeps its precision beside a half type: eager rounds the result, not the number.
        rounded_late = not compares and (not tensors or alpha != 1)
        work = compute_dtype(dtype) if rounded_late else dtype
        device = _device(self, other)
        a, b = (_in_order(x, work, shape, device) for x in (self, other))
        if alpha != 1:
            b = aten.mul.Tensor(b, _in_order(alpha, work, shape, device))
        out = op(a, b, **kwargs)
        return out if compares else cast(out, dtype)

    return entry


def _div_mode(self: Operand, other: Operand, *, rounding_mode: str | None) -> Any:
    """Without a mode, plain division"""
    if rounding_mode is None:
        return aten.div.Tensor(self, other)
    return _ROUNDED(self, other, rounding_mode=rounding_mode)


_ROUNDED = _binary("div.Tensor_mode")


def _unary(name: str) -> Callable[..., Any]:
    """A float function: integers are converted first"""
    op = lookup(f"{name}.default")
    assert op is not None, name

    def entry(self: Tensor) -> Any:
        if kind(self.dtype) >= 2:
            return NotImplemented
        return op(cast(self, torch.get_default_dtype()))

    return entry


def _full_like(x: Tensor, value: Number) -> Tensor:
    """A number in the shape and dtype of x"""
    one = aten.full.default([], value, dtype=x.dtype, device=x.device)
    return aten.expand.default(one, x.shape) if x.dim() else one


def _float(x: Tensor) -> Tensor:
    """Floats in the compute dtype"""
    return wide(x) if kind(x.dtype) >= 2 else cast(x, torch.get_default_dtype())


def _back(x: Tensor, like: Tensor) -> Tensor:
    """Half types rounded back"""
    return cast(x, like.dtype) if kind(like.dtype) >= 2 else x


def relu(self: Tensor) -> Tensor:
    """max(x, 0)"""
    return aten.maximum.default(self, _full_like(self, 0))


def sigmoid(self: Tensor) -> Tensor:
    """1 / (1 + exp(-x))"""
    x = _float(self)
    one = _full_like(x, 1)
    return _back(
        aten.div.Tensor(one, aten.add.Tensor(one, aten.exp.default(aten.neg.default(x)))), self
    )


def rsqrt(self: Tensor) -> Tensor:
    """1 / sqrt(x)"""
    x = _float(self)
    return _back(aten.div.Tensor(_full_like(x, 1), aten.sqrt.default(x)), self)


def reciprocal(self: Tensor) -> Tensor:
    """1 / x"""
    x = _float(self)
    return _back(aten.div.Tensor(_full_like(x, 1), x), self)


def _truth(x: Tensor) -> Tensor:
    """x is not 0"""
    return x if x.dtype == torch.bool else aten.ne.Tensor(x, _full_like(x, 0))


def logical_not(self: Tensor) -> Tensor:
    """x is 0"""
    return aten.eq.Tensor(self, _full_like(self, 0))


def _logical(name: str) -> Callable[..., Any]:
    op = lookup(name)
    assert op is not None, name

    def entry(self: Tensor, other: Tensor) -> Any:
        """The bitwise op on truth values"""
        return op(_truth(self), _truth(other))

    return entry


def isnan(self: Tensor) -> Tensor:
    """x differs from itself"""
    return aten.ne.Tensor(self, self)


def isinf(self: Tensor) -> Tensor:
    """|x| is infinite"""
    if kind(self.dtype) < 2:
        return aten.ne.Tensor(self, self)
    return aten.eq.Tensor(aten.abs.default(self), _full_like(self, math.inf))


def where(condition: Tensor, self: Tensor, other: Tensor) -> Any:
    """A boolean condition, branches of one dtype, all of one shape"""
    dtype, shape = result_dtype(self, other), _shape(condition, self, other)
    operands = (condition, self, other)
    wanted = (torch.bool, dtype, dtype)
    pairs = list(zip(operands, wanted, strict=True))
    if all(_ready(x, d, shape) for x, d in pairs):
        return NotImplemented
    device = _device(*operands)
    return aten.where.self(*(_in_order(x, d, shape, device) for x, d in pairs))


def _accumulated(x: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype a sum is taken and given in: int64 for integers unless told"""
    return dtype or (torch.int64 if kind(x.dtype) < 2 else x.dtype)


def sum(
    self: Tensor,
    dim: Sequence[int] | None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """Over named dimensions, the input converted first"""
    wanted = _accumulated(self, dtype)
    if dim and dtype is None and wanted == self.dtype:
        return NotImplemented
    if not self.dim():
        return cast(aten.clone.default(self), wanted)
    return aten.sum.dim_IntList(cast(self, wanted), dims_of(self, dim), keepdim)


def _along(name: str) -> Callable[..., Any]:
    """prod, cumsum and cumprod: over one dimension, the input converted first"""
    op = lookup(name)
    assert op is not None, name

    def entry(self: Tensor, dim: int, *rest: Any, dtype: torch.dtype | None = None) -> Any:
        wanted = _accumulated(self, dtype)
        if dtype is None and wanted == self.dtype:
            return NotImplemented
        return op(cast(self, wanted), dim, *rest)

    return entry


def _extreme(name: str) -> Callable[..., Any]:
    op = lookup(name)
    assert op is not None, name

    def entry(self: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
        """Over named dimensions"""
        if dim:
            return NotImplemented
        if not self.dim():
            return aten.clone.default(self)
        return op(self, dims_of(self, dim), keepdim)

    return entry


def _place(name: str) -> Callable[..., Any]:
    op = lookup(name)
    assert op is not None, name

    def entry(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        """Along a named dimension; of the whole tensor, along its row-major line"""
        if dim is not None:
            return NotImplemented
        found = op(reshape(self, [-1]), 0)
        return aten.view.default(found, [1] * self.dim()) if keepdim else found

    return entry


def _truths(name: str) -> Callable[..., Any]:
    op = lookup(name)
    assert op is not None, name

    def entry(self: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False) -> Any:
        """Of booleans, over named dimensions (uint8 stays uint8, as in ATen)"""
        if self.dtype == torch.bool and dim:
            return NotImplemented
        truth = _truth(self)
        dims = dims_of(self, dim)
        out = op(truth, dims, keepdim) if dims else aten.clone.default(truth)
        return cast(out, torch.uint8) if self.dtype == torch.uint8 else out

    return entry


def var_mean(
    self: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: Number | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    """Two passes: the mean, then the mean square distance from it"""
    x = wide(self)
    dims = dims_of(x, dim)
    n = count(x, dims)
    mean = aten.div.Tensor(aten.sum.dim_IntList(x, dims, True), n)
    distance = aten.sub.Tensor(x, mean)
    square = aten.sum.dim_IntList(aten.mul.Tensor(distance, distance), dims, keepdim)
    left = n - (1 if correction is None else correction)
    variance = aten.div.Tensor(square, left if left > 0 else 0)
    mean = mean if keepdim else aten.squeeze.dims(mean, dims)
    return cast(variance, self.dtype), cast(mean, self.dtype)


def select(self: Tensor, dim: int, index: int) -> Tensor:
    """A slice of one, its dimension dropped"""
    dim = wrap(dim, self.dim())
    start = index if index >= 0 else index + self.shape[dim]
    shape = [s for d, s in enumerate(self.shape) if d != dim]
    return aten.view.default(aten.slice.Tensor(self, dim, start, start + 1), shape)


def unsqueeze(self: Tensor, dim: int) -> Tensor:
    """A dimension of size 1 put in"""
    shape = list(self.shape)
    shape.insert(wrap(dim, self.dim() + 1), 1)
    return aten.view.default(self, shape)


def squeeze(self: Tensor, dim: Sequence[int]) -> Tensor:
    """Dimensions of size 1 dropped"""
    named = {wrap(d, self.dim()) for d in dim}
    shape = [s for d, s in enumerate(self.shape) if d not in named or s != 1]
    return aten.view.default(self, shape)


def alias(self: Tensor) -> Tensor:
    """A view of the same shape"""
    return aten.view.default(self, self.shape)


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    """Of one dtype, without the empty vectors ATen ignores"""
    kept = [x for x in tensors if x.dim() != 1 or x.shape[0] != 0] or tensors[:1]
    dtype = result_dtype(*tensors)
    if len(kept) == len(tensors) and all(x.dtype == dtype for x in tensors):
        return NotImplemented
    return aten.cat.default([cast(x, dtype) for x in kept], dim)


def scatter_number(self: Tensor, dim: int, index: Tensor, value: Number) -> Tensor:
    """The number as a tensor"""
    one = aten.full.default([], value, dtype=self.dtype, device=self.device)
    return aten.scatter.src(self, dim, index, aten.expand.default(one, index.shape))


def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of the weight"""
    return aten.index.Tensor(weight, [indices])


def select_scatter(self: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """slice_scatter of one slice"""
    dim = wrap(dim, self.dim())
    start = index if index >= 0 else index + self.shape[dim]
    return aten.slice_scatter.default(self, unsqueeze(src, dim), dim, start, start + 1)


def scalar_tensor(
    s: Number,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    """A full tensor of no dimensions"""
    return aten.full.default([], s, dtype=dtype or torch.get_default_dtype(), device=device)


def full(
    size: Sequence[int],
    fill_value: Number,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Any:
    """With its dtype named"""
    if dtype is not None:
        return NotImplemented
    return aten.full.default(size, fill_value, dtype=_number_dtype(fill_value), device=device)


def arange(
    start: Number,
    end: Number,
    step: Number = 1,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Any:
    """With its dtype named"""
    if dtype is not None:
        return NotImplemented
    whole = all(_number_dtype(x) == torch.int64 for x in (start, end, step))
    named = torch.int64 if whole else torch.get_default_dtype()
    return aten.arange.start_step(start, end, step, dtype=named, device=device)


def _family() -> Family:
    table: dict[str, Callable[..., Any]] = {
        "relu.default": relu,
        "sigmoid.default": sigmoid,
        "rsqrt.default": rsqrt,
        "reciprocal.default": reciprocal,
        "logical_not.default": logical_not,
        "logical_and.default": _logical("bitwise_and.Tensor"),
        "logical_or.default": _logical("bitwise_or.Tensor"),
        "logical_xor.default": _logical("bitwise_xor.Tensor"),
        "isnan.default": isnan,
        "isinf.default": isinf,
        "where.self": where,
        "div.Tensor_mode": _div_mode,
        "sum.dim_IntList": sum,
        "prod.dim_int": _along("prod.dim_int"),
        "cumsum.default": _along("cumsum.default"),
        "cumprod.default": _along("cumprod.default"),
        "amax.default": _extreme("amax.default"),
        "amin.default": _extreme("amin.default"),
        "argmax.default": _place("argmax.default"),
        "argmin.default": _place("argmin.default"),
        "any.dims": _truths("any.dims"),
        "all.dims": _truths("all.dims"),
        "var_mean.correction": var_mean,
        "select.int": select,
        "unsqueeze.default": unsqueeze,
        "squeeze.dims": squeeze,
        "alias.default": alias,
        "cat.default": cat,
        "scatter.value": scatter_number,
        "embedding.default": embedding,
        "select_scatter.default": select_scatter,
        "scalar_tensor.default": scalar_tensor,
        "full.default": full,
        "arange.start_step": arange,
    }
    for name in POINTWISE_UNARY:
        op = name.split(".")[0]
        if name not in table and op not in INTEGER_UNARY:
            table[name] = _unary(op)
    for name in ("add", "sub", "mul", "remainder", "fmod"):
        table[f"{name}.Tensor"] = _binary(f"{name}.Tensor")
    looping = (f"{name}.default" for name in LOOPING_FUNCTIONS)
    for name in ("div.Tensor", "atan2.default", "hypot.default", "copysign.Tensor", *looping):
        table[name] = _binary(name, to_float=True)
    for name in ("pow.Tensor_Tensor", "maximum.default", "minimum.default", "nextafter.default"):
        table[name] = _binary(name)
    table["gcd.default"] = _binary("gcd.default")
    for name in ("and", "or", "xor", "left_shift", "right_shift"):
        table[f"bitwise_{name}.Tensor"] = _binary(f"bitwise_{name}.Tensor")
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        table[f"{name}.Tensor"] = _binary(f"{name}.Tensor", compares=True)
    for number_form, tensor_form in SCALAR_FORMS.items():
        table[number_form] = table[tensor_form]
    return table


TABLE: Family = _family()
