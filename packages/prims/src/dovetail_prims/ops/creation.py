"""Tensors made from nothing: all in terms of full, empty, arange and scalar_tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import Sizes, hint_of
from dovetail_prims.ops.card import Card, Dialect, Form, Kind, also, composed, moving
from dovetail_prims.ops.common import Number, aten, cast, contiguous, iota, where
from dovetail_prims.ops.operands import number_dtype
from dovetail_prims.shape_rules import factories as rules
from dovetail_prims.shape_rules import indexing
from dovetail_prims.shape_rules.layout import contiguous as row_major
from dovetail_prims.shape_rules.layout import dense_order, infer_dense_strides

Device = torch.device | None
Dtype = torch.dtype | None
Format = torch.memory_format | None


def _filled(value: Number) -> Callable[..., Tensor]:
    def filled(
        size: Sequence[int], *, dtype: Dtype = None, device: Device = None, **options: Any
    ) -> Tensor:
        dtype = dtype or torch.get_default_dtype()
        return aten.full.default(size, value, dtype=dtype, device=device)

    filled.__doc__ = f"{value} everywhere"
    return filled


def _physical_order(x: Tensor) -> list[int]:
    """Dimensions from the outermost in memory to the innermost. Those of one element come where
    they get the stride that they have, if there is such a place: how what is computed from the new
    tensor lies depends on it."""
    sizes: Sizes = tuple(x.shape)
    strides: Sizes = x.stride()
    if not x.is_contiguous() and dense_order(sizes, strides) is None:
        strides = infer_dense_strides(sizes, strides)
    lengths, steps = tuple(map(hint_of, sizes)), tuple(map(hint_of, strides))
    if steps == row_major(lengths):
        return list(range(x.dim()))
    order = sorted(range(x.dim()), key=lambda d: (-steps[d], lengths[d] == 1, d))
    if 0 in lengths:  # (nothing lies anywhere: strides that no order gives are not kept)
        given = dict(zip(order, row_major(tuple(lengths[d] for d in order)), strict=True))
        if any(given[d] != steps[d] for d in order):
            return list(range(x.dim()))
    return order


def _permuted_like(
    self: Tensor, memory_format: Format, make: Callable[[Sequence[int]], Tensor]
) -> Tensor:
    """`make(size)` in the memory order of `self`, so that a dense layout is preserved"""
    if memory_format == torch.channels_last:
        order = [0, 2, 3, 1]
    elif memory_format == torch.channels_last_3d:
        order = [0, 2, 3, 4, 1]
    elif memory_format == torch.contiguous_format:
        return make(self.shape)
    else:
        order = _physical_order(self)
        if order == list(range(self.dim())):
            return make(self.shape)
    shape = self.shape
    base = make([shape[d] for d in order])
    inverse = [order.index(d) for d in range(len(order))]
    return aten.permute.default(base, inverse)


def full_like(
    self: Tensor,
    fill_value: Number,
    *,
    dtype: Dtype = None,
    device: Device = None,
    memory_format: Format = None,
    **options: Any,
) -> Tensor:
    """A number everywhere, in the layout of `self`"""
    dtype, device = dtype or self.dtype, device or self.device
    return _permuted_like(
        self,
        memory_format,
        lambda size: aten.full.default(size, fill_value, dtype=dtype, device=device),
    )


def _filled_like(value: Number) -> Callable[..., Tensor]:
    def filled_like(
        self: Tensor,
        *,
        dtype: Dtype = None,
        device: Device = None,
        memory_format: Format = None,
        **options: Any,
    ) -> Tensor:
        return full_like(self, value, dtype=dtype, device=device, memory_format=memory_format)

    filled_like.__doc__ = f"{value} everywhere"
    return filled_like


def empty_like(
    self: Tensor,
    *,
    dtype: Dtype = None,
    device: Device = None,
    memory_format: Format = None,
    **options: Any,
) -> Tensor:
    """Anything everywhere"""
    dtype, device = dtype or self.dtype, device or self.device
    return _permuted_like(
        self, memory_format, lambda size: aten.empty.memory_format(size, dtype=dtype, device=device)
    )


def new_full(
    self: Tensor,
    size: Sequence[int],
    fill_value: Number,
    *,
    dtype: Dtype = None,
    device: Device = None,
    **options: Any,
) -> Tensor:
    """A number everywhere, row-major"""
    return aten.full.default(
        size, fill_value, dtype=dtype or self.dtype, device=device or self.device
    )


def _new_filled(value: Number) -> Callable[..., Tensor]:
    def new_filled(
        self: Tensor,
        size: Sequence[int],
        *,
        dtype: Dtype = None,
        device: Device = None,
        **options: Any,
    ) -> Tensor:
        return new_full(self, size, value, dtype=dtype, device=device)

    new_filled.__doc__ = f"{value} everywhere, row-major"
    return new_filled


def new_empty(
    self: Tensor, size: Sequence[int], *, dtype: Dtype = None, device: Device = None, **options: Any
) -> Tensor:
    """Anything everywhere, row-major"""
    return aten.empty.memory_format(size, dtype=dtype or self.dtype, device=device or self.device)


def new_empty_strided(
    self: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: Dtype = None,
    device: Device = None,
    **options: Any,
) -> Tensor:
    """Anything everywhere, with given strides"""
    return aten.empty_strided.default(
        size, stride, dtype=dtype or self.dtype, device=device or self.device
    )


def _range_dtype(dtype: torch.dtype | None, *ends: Number) -> torch.dtype:
    """int64 for integers, else the default float dtype"""
    if dtype is not None:
        return dtype
    whole = all(isinstance(e, (int, torch.SymInt)) for e in ends)
    return torch.int64 if whole else torch.get_default_dtype()


def arange_end(
    end: Number, *, dtype: Dtype = None, device: Device = None, **options: Any
) -> Tensor:
    """0, 1, ... below end"""
    return aten.arange.start_step(0, end, 1, dtype=_range_dtype(dtype, end), device=device)


def arange_start(
    start: Number, end: Number, *, dtype: Dtype = None, device: Device = None, **options: Any
) -> Tensor:
    """start, start + 1, ... below end"""
    dtype = _range_dtype(dtype, start, end)
    return aten.arange.start_step(start, end, 1, dtype=dtype, device=device)


def _eye(n: int, m: int, dtype: torch.dtype | None, device: Device) -> Tensor:
    rows = aten.arange.start_step(0, n, 1, dtype=torch.int64, device=device)
    columns = aten.arange.start_step(0, m, 1, dtype=torch.int64, device=device)
    same = aten.eq.Tensor(aten.unsqueeze.default(rows, 1), columns)
    return cast(same, dtype or torch.get_default_dtype())


def eye(n: int, *, dtype: Dtype = None, device: Device = None, **options: Any) -> Tensor:
    """The identity matrix"""
    return _eye(n, n, dtype, device)


def eye_m(n: int, m: int, *, dtype: Dtype = None, device: Device = None, **options: Any) -> Tensor:
    """Ones on the diagonal of an n by m matrix"""
    return _eye(n, m, dtype, device)


def _band(self: Tensor, diagonal: int) -> Tensor:
    """Column minus row minus diagonal, over the last two dimensions"""
    rows = iota(self.shape[-2], self)
    columns = iota(self.shape[-1], self)
    offset = aten.sub.Tensor(columns, aten.unsqueeze.default(rows, 1))
    return (
        offset if isinstance(diagonal, int) and diagonal == 0 else aten.sub.Tensor(offset, diagonal)
    )


def tril(self: Tensor, diagonal: int = 0) -> Tensor:
    """0 above the diagonal"""
    return contiguous(where(aten.le.Scalar(_band(self, diagonal), 0), self, 0))


def triu(self: Tensor, diagonal: int = 0) -> Tensor:
    """0 below the diagonal"""
    return contiguous(where(aten.ge.Scalar(_band(self, diagonal), 0), self, 0))


# --- in PRIMS -------------------------------------------------------------------------------------


def scalar_tensor_in_prims(
    s: Number, *, dtype: Dtype = None, device: Device = None, **options: Any
) -> Tensor:
    """A full tensor of no dimensions"""
    return aten.full.default([], s, dtype=dtype or torch.get_default_dtype(), device=device)


def full_in_prims(
    size: Sequence[int],
    fill_value: Number,
    *,
    dtype: Dtype = None,
    device: Device = None,
    **options: Any,
) -> Any:
    """With its dtype named"""
    if dtype is not None:
        return NotImplemented
    return aten.full.default(size, fill_value, dtype=number_dtype(fill_value), device=device)


def arange_in_prims(
    start: Number,
    end: Number,
    step: Number = 1,
    *,
    dtype: Dtype = None,
    device: Device = None,
    **options: Any,
) -> Any:
    """With its dtype named"""
    if dtype is not None:
        return NotImplemented
    whole = all(number_dtype(x) == torch.int64 for x in (start, end, step))
    named = torch.int64 if whole else torch.get_default_dtype()
    return aten.arange.start_step(start, end, step, dtype=named, device=device)


def full_of(size: Sequence[int], value: Any, *, dtype: torch.dtype, **options: Any) -> Tensor:
    return torch.full(list(size), value, dtype=dtype, device=options.get("device"))


def arange_of(start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype, **options: Any) -> Tensor:
    return torch.arange(start, end, step, dtype=dtype, device=options.get("device"))


def empty_permuted(
    size: Sequence[int],
    physical_layout: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **options: Any,
) -> Tensor:
    """Dense in a given order of dimensions"""
    base = aten.empty.memory_format([size[d] for d in physical_layout], dtype=dtype, device=device)
    inverse = [list(physical_layout).index(d) for d in range(len(size))]
    return aten.permute.default(base, inverse)


_PRIMS, _CORE = Dialect.PRIMS, Dialect.CORE_ATEN
_creation = partial(moving, kind=Kind.CREATION)


def _filling(name: str, value: Number) -> tuple[Card, ...]:
    """The new tensors that hold one number everywhere."""
    says = f"{value} everywhere"
    return (
        _creation(name, says, also("default", rules.empty, _filled(value))),
        _creation(f"{name}_like", says, also("default", rules.like, _filled_like(value))),
        _creation(f"new_{name}", says, also("default", rules.new, _new_filled(value))),
    )


_WINDOWS = {
    **dict.fromkeys(("bartlett_window", "blackman_window", "hann_window"), ("periodic",)),
    "kaiser_window": ("periodic", "beta"),
    "hamming_window": ("periodic", "periodic_alpha", "periodic_alpha_beta"),
}

CARDS = (
    _creation("full", "a number everywhere",
              Form("default", _PRIMS, rules.full, to_prims=full_in_prims), meaning=full_of),
    _creation("empty", "uninitialised", Form("memory_format", _PRIMS, rules.empty),
              meaning=aten.empty.memory_format),
    _creation("empty_strided", "uninitialised, with given strides",
              Form("default", _PRIMS, rules.empty_strided), meaning=aten.empty_strided.default),
    _creation("arange", "start, start + step, ... before end",
              Form("start_step", _PRIMS, rules.arange_step, to_prims=arange_in_prims),
              also("default", rules.arange, arange_end),
              also("start", rules.arange_start, arange_start), meaning=arange_of),
    _creation("scalar_tensor", "A full tensor of no dimensions",
              Form("default", _CORE, rules.scalar_tensor, to_prims=scalar_tensor_in_prims)),
    *_filling("zeros", 0),
    *_filling("ones", 1),
    _creation("_efficientzerotensor", "0 everywhere",  # no lazy zero reaches a graph
              also("default", None, _filled(0))),
    _creation("full_like", "a number everywhere", also("default", rules.like, full_like)),
    _creation("new_full", "a number everywhere", also("default", rules.new, new_full)),
    _creation("empty_like", "uninitialised", also("default", rules.like, empty_like)),
    _creation("new_empty", "uninitialised", also("default", rules.new, new_empty)),
    _creation("new_empty_strided", "uninitialised",
              also("default", rules.new_empty_strided, new_empty_strided)),
    _creation("eye", "ones on the diagonal", also("default", rules.eye, eye),
              also("m", rules.eye, eye_m)),
    _creation("tril", "0 above the diagonal", also("default", indexing.triangle, tril),
              in_place=("default",)),
    _creation("triu", "0 below the diagonal", also("default", indexing.triangle, triu),
              in_place=("default",)),
    *(composed(name, rules.window, None, *(also(form, rules.window) for form in forms))
      for name, forms in _WINDOWS.items()),
    composed("empty_permuted", None, empty_permuted, kind=Kind.CREATION),
)  # fmt: skip
