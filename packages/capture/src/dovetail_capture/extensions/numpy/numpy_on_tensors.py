"""NumPy's functions, said in torch: plain functions over tensors, with NumPy's parameter names.

The interpreter runs these bodies in place of the originals. Dtypes are settled around them: the
tensors come in the dtype that NumPy computes in, and the result is given NumPy's dtype. What the
parameters leave out (`out`, `where`, `order` ...) breaks the graph.
"""

from __future__ import annotations

from typing import Any

import torch


def _dims(a: Any, axis: Any) -> Any:
    return tuple(range(a.dim())) if axis is None else axis


def sum_(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    return torch.sum(a, dim=_dims(a, axis), keepdim=keepdims)


def mean(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    return torch.mean(a, dim=_dims(a, axis), keepdim=keepdims)


def std(
    a: Any, axis: Any = None, dtype: Any = None, ddof: int = 0, *, keepdims: bool = False
) -> Any:
    return torch.std(a, dim=_dims(a, axis), correction=ddof, keepdim=keepdims)


def var(
    a: Any, axis: Any = None, dtype: Any = None, ddof: int = 0, *, keepdims: bool = False
) -> Any:
    return torch.var(a, dim=_dims(a, axis), correction=ddof, keepdim=keepdims)


def sign(x: Any) -> Any:
    signs = torch.sign(x)
    return torch.where(torch.isnan(x), x, signs) if x.is_floating_point() else signs


def remainder(x1: Any, x2: Any) -> Any:
    rest = torch.remainder(x1, x2)
    if not rest.is_floating_point():
        return rest
    return torch.where(rest == 0, torch.copysign(torch.zeros_like(rest), x2), rest)


def prod(a: Any, axis: Any = None, dtype: Any = None) -> Any:
    return torch.prod(a) if axis is None else torch.prod(a, dim=axis)


def max_(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    return torch.amax(a, dim=_dims(a, axis), keepdim=keepdims)


def min_(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    return torch.amin(a, dim=_dims(a, axis), keepdim=keepdims)


def argmax(a: Any, axis: Any = None) -> Any:
    return torch.argmax(a, dim=axis)


def argmin(a: Any, axis: Any = None) -> Any:
    return torch.argmin(a, dim=axis)


def all_(a: Any, axis: Any = None) -> Any:
    return torch.all(a) if axis is None else torch.all(a, dim=axis)


def any_(a: Any, axis: Any = None) -> Any:
    return torch.any(a) if axis is None else torch.any(a, dim=axis)


def cumsum(a: Any, axis: Any = None, dtype: Any = None) -> Any:
    return torch.cumsum(a.reshape(-1) if axis is None else a, dim=axis or 0)


def cumprod(a: Any, axis: Any = None, dtype: Any = None) -> Any:
    return torch.cumprod(a.reshape(-1) if axis is None else a, dim=axis or 0)


def transpose(a: Any, axes: Any = None) -> Any:
    return a.permute(tuple(reversed(range(a.dim()))) if axes is None else axes)


def transpose_method(a: Any, *axes: Any) -> Any:
    if not axes or axes == (None,):
        return a.permute(tuple(reversed(range(a.dim()))))
    return a.permute(axes[0] if isinstance(axes[0], (tuple, list)) else axes)


def reshape(a: Any, shape: Any) -> Any:
    return a.reshape(shape)


def reshape_method(a: Any, *shape: Any) -> Any:
    return a.reshape(shape[0] if len(shape) == 1 else shape)


def ravel(a: Any) -> Any:
    return a.reshape(-1)


def flatten(a: Any) -> Any:
    return a.reshape(-1).clone()


def copy(a: Any) -> Any:
    return a.clone()


def squeeze(a: Any, axis: Any = None) -> Any:
    return torch.squeeze(a) if axis is None else torch.squeeze(a, dim=axis)


def expand_dims(a: Any, axis: int) -> Any:
    return torch.unsqueeze(a, axis)


def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    return torch.swapaxes(a, axis1, axis2)


def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    return torch.moveaxis(a, source, destination)


def concatenate(arrays: Any, axis: int = 0) -> Any:
    return torch.cat(tuple(arrays), dim=axis)


def stack(arrays: Any, axis: int = 0) -> Any:
    return torch.stack(tuple(arrays), dim=axis)


def vstack(tup: Any) -> Any:
    return torch.vstack(tuple(tup))


def hstack(tup: Any) -> Any:
    return torch.hstack(tuple(tup))


def where(condition: Any, x: Any, y: Any) -> Any:
    return torch.where(condition, x, y)


def clip(a: Any, a_min: Any = None, a_max: Any = None) -> Any:
    return torch.clamp(a, min=a_min, max=a_max)


def clip_method(a: Any, min: Any = None, max: Any = None) -> Any:
    return torch.clamp(a, min=min, max=max)


def dot(a: Any, b: Any) -> Any:
    return torch.matmul(a, b)


def outer(a: Any, b: Any) -> Any:
    return torch.outer(a.reshape(-1), b.reshape(-1))


def einsum(subscripts: str, *operands: Any) -> Any:
    return torch.einsum(subscripts, *operands)


def tile(A: Any, reps: Any) -> Any:
    return torch.tile(A, (reps,) if isinstance(reps, int) else reps)


def flip(m: Any, axis: Any = None) -> Any:
    dims = _dims(m, axis)
    return torch.flip(m, (dims,) if isinstance(dims, int) else dims)


def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    return torch.roll(a, shift, axis)


def tril(m: Any, k: int = 0) -> Any:
    return torch.tril(m, k)


def triu(m: Any, k: int = 0) -> Any:
    return torch.triu(m, k)


def sort(a: Any, axis: int = -1) -> Any:
    return torch.sort(a, dim=axis, stable=True).values


def broadcast_to(array: Any, shape: Any) -> Any:
    return torch.broadcast_to(array, shape)


def zeros_like(a: Any, dtype: Any = None) -> Any:
    return torch.zeros_like(a)


def ones_like(a: Any, dtype: Any = None) -> Any:
    return torch.ones_like(a)


def full_like(a: Any, fill_value: Any, dtype: Any = None) -> Any:
    return torch.full_like(a, fill_value)


def trace(a: Any) -> Any:
    return torch.trace(a)


def diff(a: Any) -> Any:
    return torch.diff(a)


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    return torch.linalg.norm(x, ord, axis, keepdims)


def meshgrid(*xi: Any, indexing: str = "xy") -> Any:
    places = list(range(len(xi)))
    if indexing == "xy" and len(xi) > 1:
        places[:2] = [1, 0]
    shape = [1] * len(xi)
    for x, place in zip(xi, places, strict=True):
        shape[place] = x.numel()
    grids = []
    for x, place in zip(xi, places, strict=True):
        along = [1] * len(xi)
        along[place] = -1
        grids.append(x.reshape(along).expand(shape).clone(memory_format=torch.contiguous_format))
    return tuple(grids)


def take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> Any:
    if axis is None:
        arr, axis = arr.reshape(-1), 0
    places = indices.to(torch.int64)
    return torch.take_along_dim(
        arr, torch.where(places < 0, places + arr.shape[axis], places), axis
    )


def repeat(a: Any, repeats: int, axis: Any = None) -> Any:
    return torch.repeat_interleave(a, repeats, axis)


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    return list(torch.tensor_split(ary, indices_or_sections, axis))


def fliplr(m: Any) -> Any:
    return torch.fliplr(m)


def flipud(m: Any) -> Any:
    return torch.flipud(m)


def rot90(m: Any, k: int = 1, axes: Any = (0, 1)) -> Any:
    return torch.rot90(m, k, axes)


def diag(v: Any, k: int = 0) -> Any:
    return torch.diag(v, k)


def atleast_1d(ary: Any) -> Any:
    return ary.reshape(1) if ary.dim() == 0 else ary.view(ary.shape)


def atleast_2d(ary: Any) -> Any:
    return ary.reshape(1, -1) if ary.dim() < 2 else ary.view(ary.shape)


def column_stack(tup: Any) -> Any:
    return torch.column_stack(tuple(tup))


def dstack(tup: Any) -> Any:
    return torch.dstack(tuple(tup))


def nan_to_num(x: Any, copy: bool = True, nan: float = 0.0) -> Any:
    return torch.nan_to_num(x, nan)


def kron(a: Any, b: Any) -> Any:
    return torch.kron(a, b)


def count_nonzero(a: Any, axis: Any = None) -> Any:
    return torch.count_nonzero(a, axis)


def inner(a: Any, b: Any) -> Any:
    return torch.inner(a, b)


def ptp(a: Any, axis: Any = None) -> Any:
    dims = _dims(a, axis)
    return torch.amax(a, dim=dims) - torch.amin(a, dim=dims)


def round_(a: Any, decimals: int = 0) -> Any:
    if not a.is_floating_point():
        return a.clone()
    if decimals == 0:
        return torch.round(a)
    if decimals > 0:
        return torch.round(a * 10.0**decimals) / 10.0**decimals
    return torch.round(a / 10.0**-decimals) * 10.0**-decimals


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None) -> Any:
    """The segment of each point is the one that begins at or before it. (As NumPy does, from its
    other end where the first formula gives no number: at an end that is infinite, say.)"""
    last = xp.shape[0] - 1
    place = torch.clamp(torch.searchsorted(xp, x, right=True) - 1, 0, max(last - 1, 0))
    after = torch.clamp(place + 1, max=last)
    x0, x1, y0, y1 = (torch.take(of, at) for of in (xp, fp) for at in (place, after))
    slope = (y1 - y0) / (x1 - x0)
    found = slope * (x - x0) + y0
    found = torch.where(torch.isnan(found), slope * (x - x1) + y1, found)
    found = torch.where(torch.isnan(found) & (y0 == y1), y0, found)
    found = torch.where(x == x0, y0, found)
    found = torch.where(torch.isnan(x), x, found)
    found = torch.where((x >= xp[last]) | (last == 0), fp[last], found)
    found = torch.where(x < xp[0], fp[0] if left is None else left, found)
    return torch.where(x > xp[last], fp[last] if right is None else right, found)


def fftshift(x: Any, axes: Any = None) -> Any:
    return torch.fft.fftshift(x, axes)


def ifftshift(x: Any, axes: Any = None) -> Any:
    return torch.fft.ifftshift(x, axes)


def forced(a: Any) -> Any:
    """`a.numpy(force=True)` up to the array."""
    return a.detach().cpu().resolve_conj().resolve_neg()
