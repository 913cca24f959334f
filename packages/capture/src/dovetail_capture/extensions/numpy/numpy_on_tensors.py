"""Which function of tensors computes each of NumPy's.

Most are torch's own translations (`torch._numpy`), whose bodies take tensors. Those written here
differ from these: in keeping dimensions, in what NumPy takes, or in a result. The interpreter runs
the bodies in place of the originals. Dtypes are settled around them: the tensors come in the dtype
that NumPy computes in, and the result is given NumPy's dtype.
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


def max_(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    return torch.amax(a, dim=_dims(a, axis), keepdim=keepdims)


def min_(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    return torch.amin(a, dim=_dims(a, axis), keepdim=keepdims)


def transpose_method(a: Any, *axes: Any) -> Any:
    if not axes or axes == (None,):
        return a.permute(tuple(reversed(range(a.dim()))))
    return a.permute(axes[0] if isinstance(axes[0], (tuple, list)) else axes)


def reshape(a: Any, shape: Any) -> Any:
    return a.reshape(shape)


def reshape_method(a: Any, *shape: Any) -> Any:
    return a.reshape(shape[0] if len(shape) == 1 else shape)


def flatten(a: Any) -> Any:
    return a.reshape(-1).clone()


def squeeze(a: Any, axis: Any = None) -> Any:
    return torch.squeeze(a) if axis is None else torch.squeeze(a, dim=axis)


# (Those of `torch._numpy` settle dtypes, which takes long to interpret.)
def concatenate(arrays: Any, axis: Any = 0, dtype: Any = None) -> Any:
    parts = arrays if axis is not None else [part.reshape(-1) for part in arrays]
    return torch.cat(tuple(parts), dim=axis or 0)


def stack(arrays: Any, axis: int = 0, *, dtype: Any = None) -> Any:
    return torch.stack(tuple(arrays), dim=axis)


def vstack(tup: Any, *, dtype: Any = None) -> Any:
    return torch.vstack(tuple(tup))


def hstack(tup: Any, *, dtype: Any = None) -> Any:
    return torch.hstack(tuple(tup))


def clip(a: Any, a_min: Any = None, a_max: Any = None) -> Any:
    return torch.clamp(a, min=a_min, max=a_max)


def clip_method(a: Any, min: Any = None, max: Any = None) -> Any:
    return torch.clamp(a, min=min, max=max)


def dot(a: Any, b: Any) -> Any:
    """Over the last dimension of `a` and the last but one of `b`: `matmul` goes through the others
    side by side, `dot` takes every one of `a` with every one of `b`."""
    return torch.matmul(a, b) if b.dim() <= 2 else torch.tensordot(a, b, ([-1], [-2]))


def outer(a: Any, b: Any) -> Any:
    return torch.outer(a.reshape(-1), b.reshape(-1))


def einsum(subscripts: str, *operands: Any) -> Any:
    return torch.einsum(subscripts, *operands)


def sort(a: Any, axis: int = -1) -> Any:
    return torch.sort(a, dim=axis, stable=True).values


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


def atleast_1d(ary: Any) -> Any:
    return ary.reshape(1) if ary.dim() == 0 else ary.view(ary.shape)


def atleast_2d(ary: Any) -> Any:
    return ary.reshape(1, -1) if ary.dim() < 2 else ary.view(ary.shape)


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


UFUNCS = {
    "+": "add", "-": "subtract", "*": "multiply", "/": "true_divide", "//": "floor_divide",
    "%": "remainder", "**": "power", "@": "matmul", "&": "bitwise_and", "|": "bitwise_or",
    "^": "bitwise_xor", "<<": "left_shift", ">>": "right_shift", "<": "less", "<=": "less_equal",
    "==": "equal", "!=": "not_equal", ">": "greater", ">=": "greater_equal",
}  # fmt: skip
# Functions that compute in the dtype of their results, and those that keep that of an argument or
# have one of their own.
_COMPUTING = (
    "sum", "mean", "std", "var", "prod", "max", "min", "amax", "amin", "cumsum", "cumprod",
    "concatenate", "stack", "vstack", "hstack", "dstack", "column_stack", "clip", "dot", "outer",
    "einsum", "full_like", "trace", "diff", "nan_to_num", "kron", "inner", "ptp", "round", "around",
)  # fmt: skip
_KEEPING = (
    "argmax", "argmin", "all", "any", "transpose", "reshape", "ravel", "copy", "squeeze",
    "expand_dims", "swapaxes", "moveaxis", "tile", "flip", "roll", "tril", "triu", "sort",
    "broadcast_to", "zeros_like", "empty_like", "ones_like", "meshgrid", "take_along_axis",
    "repeat", "split", "fliplr", "flipud", "rot90", "diag", "atleast_1d", "atleast_2d",
    "count_nonzero",
)  # fmt: skip
_OWN: dict[str, Any] = {
    "sum": sum_, "mean": mean, "std": std, "var": var, "max": max_, "amax": max_, "min": min_,
    "amin": min_, "ptp": ptp, "reshape": reshape, "squeeze": squeeze, "clip": clip, "dot": dot,
    "concatenate": concatenate, "stack": stack, "vstack": vstack, "hstack": hstack,
    "outer": outer, "einsum": einsum, "sort": sort, "meshgrid": meshgrid, "round": round_,
    "around": round_, "take_along_axis": take_along_axis, "atleast_1d": atleast_1d,
    "atleast_2d": atleast_2d, "empty_like": "zeros_like",
}  # fmt: skip


def translated(name: str) -> Any:
    """torch's translation of NumPy's function of this name. (To load them takes 40 ms.)"""
    from torch._numpy import _funcs_impl, _reductions_impl

    return getattr(_reductions_impl, name, None) or getattr(_funcs_impl, name)


# name -> (twin, or the name of a translation; does it compute in the result's dtype)
FUNCTIONS: dict[str, tuple[Any, bool]] = {
    **{name: (_OWN.get(name, name), True) for name in _COMPUTING},
    **{name: (_OWN.get(name, name), False) for name in _KEEPING},
}
# Functions of a sequence of arrays, or of what becomes an array.
OF_SEQUENCES = ("concatenate", "stack", "vstack", "hstack", "dstack", "column_stack")
OF_SEVERAL = ("meshgrid", "einsum")  # arguments, as many as there are
OF_TWO = ("dot", "outer", "kron", "inner", "take_along_axis")
METHODS: dict[str, tuple[Any, bool]] = {
    **{name: FUNCTIONS[name] for name in (
        "sum", "mean", "std", "var", "prod", "max", "min", "argmax", "argmin", "all", "any",
        "cumsum", "cumprod", "ravel", "copy", "squeeze", "swapaxes", "dot", "trace", "round",
        "repeat",
    )},
    "transpose": (transpose_method, False), "reshape": (reshape_method, False),
    "clip": (clip_method, True), "flatten": (flatten, False),
}  # fmt: skip
