"""`interpolate` between symbolic sizes. See `symbolic_forms`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_RESIZES = {
    **{("nearest", n + 2): f"upsample_nearest{n}d" for n in (1, 2, 3)},
    **{("nearest-exact", n + 2): f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)},
    ("linear", 3): "upsample_linear1d",
    ("bilinear", 4): "upsample_bilinear2d",
    ("bicubic", 4): "upsample_bicubic2d",
    ("trilinear", 5): "upsample_trilinear3d",
}


def interpolate(
    x: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """`interpolate` of or to sizes that are symbolic, given as such or by what multiplies them."""
    dims = x.dim() - 2
    name = _RESIZES.get((mode, x.dim()))
    if mode != "area" and name is None:
        return NotImplemented
    if antialias and name not in ("upsample_bilinear2d", "upsample_bicubic2d"):
        return NotImplemented
    if (size is None) == (scale_factor is None) or (size is not None and recompute_scale_factor):
        return NotImplemented  # an error of eager's
    factors: list[float] | None = None
    sizes: Sequence[Any]
    if scale_factor is not None:
        given = _for_each(scale_factor, dims)
        sizes = [torch.sym_int(n * f) for n, f in zip(x.shape[2:], given, strict=False)]
        if not recompute_scale_factor and mode != "area":
            if any(isinstance(f, torch.SymFloat) for f in given):
                return NotImplemented  # a kernel takes them as numbers
            factors = [float(f) for f in given]
    else:
        sizes = given = _for_each(size, dims)
    symbolic = any(isinstance(n, torch.SymInt) for n in (*sizes, *x.shape))
    if len(given) != dims or not symbolic:
        return NotImplemented
    if mode == "area":
        if scale_factor is None or align_corners is not None:
            return NotImplemented
        return torch.nn.functional.interpolate(x, sizes, mode="area")
    operator = getattr(torch.ops.aten, f"_{name}_aa" if antialias else str(name)).default
    if "nearest" in mode:
        if align_corners is not None:
            return NotImplemented
        return operator(x, sizes, *(factors or ()))
    return operator(x, sizes, bool(align_corners), *(factors or ()))


def _for_each(value: Any, dims: int) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value] * dims
