"""Shape rules of resizing, sampling at places, and windows as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dovetail_prims.fake_tensor import FakeTensor, Size, make
from dovetail_prims.shape_rules.layout import (
    channels_last,
    contiguous,
    equal_sizes,
    fresh,
    has_zero,
    insisted,
    suggests_channels_last,
)

_CUBIC = 2
_UPSAMPLES = (
    *(f"{kind}{rank}d" for kind in ("upsample_nearest", "_upsample_nearest_exact")
      for rank in (1, 2, 3)),
    "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)  # fmt: skip


def upsample(x: FakeTensor, output_size: Sequence[Size], *rest: Any) -> FakeTensor:
    """The resizing of a row, an image or a volume."""
    sizes = (*x._sizes[:2], *output_size)
    if len(sizes) != len(x._sizes):
        return NotImplemented  # type: ignore[no-any-return]
    for size in (*sizes[1:], *x._sizes[2:]):
        if not insisted(size > 0):
            raise RuntimeError(f"Input and output sizes should be greater than 0: {sizes}")
    strides = channels_last(sizes) if suggests_channels_last(x) else contiguous(sizes)
    return make(sizes, strides, x._dtype, x._device)


def grid_sample(x: FakeTensor, grid: FakeTensor, interpolation: int = 0, *rest: Any) -> FakeTensor:
    """Samples of an image at the places of a grid."""
    sizes = (*x._sizes[:2], *grid._sizes[1:-1])
    if len(sizes) != len(x._sizes) or x._dtype is not grid._dtype or x._device != grid._device:
        return NotImplemented  # type: ignore[no-any-return]
    cubic_volume = interpolation == _CUBIC and len(sizes) != 4
    if not equal_sizes((grid._sizes[-1],), (len(sizes) - 2,)) or cubic_volume:
        return NotImplemented  # type: ignore[no-any-return]
    if not insisted(x._sizes[0] == grid._sizes[0]):
        raise RuntimeError("grid_sampler(): expected grid and input to have same batch size")
    for size in x._sizes[2:]:
        if not insisted(size > 0):
            raise RuntimeError(f"grid_sampler(): empty spatial dimensions: {x._sizes}")
    return fresh(sizes, x._dtype, x._device)


def cudnn_grid_sample(x: FakeTensor, grid: FakeTensor) -> FakeTensor:
    """The same in cuDNN, for which PyTorch has no meta kernel."""
    found = grid_sample(x, grid)
    if found is not NotImplemented:
        return found
    if x._sizes[0] != grid._sizes[0]:
        raise RuntimeError("grid_sampler(): expected grid and input to have same batch size")
    return fresh((*x._sizes[:2], *grid._sizes[1:-1]), x._dtype, x._device)


def _places(
    sizes: Sequence[Size],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> int | None:
    """How many windows an image has; None where that is no number, or none fits."""
    options = (kernel_size, dilation, padding, stride)
    if len(sizes) != 2 or any(len(option) != 2 for option in options):
        return None
    found = 1
    for size, kernel, gap, pad, step in zip(sizes, *options, strict=True):
        if type(size) is not int or min(kernel, gap, step) < 1 or pad < 0:
            return None
        places = (size + 2 * pad - gap * (kernel - 1) - 1) // step + 1
        if places < 1:
            return None
        found *= places
    return found


def im2col(
    x: FakeTensor,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> FakeTensor:
    """Windows of an image as columns."""
    columns = _places(x._sizes[2:], kernel_size, dilation, padding, stride)
    if columns is None or len(x._sizes) != 4 or has_zero(x._sizes):
        return NotImplemented  # type: ignore[no-any-return]
    rows = x._sizes[1] * kernel_size[0] * kernel_size[1]
    return fresh((x._sizes[0], rows, columns), x._dtype, x._device)


def col2im(
    x: FakeTensor,
    output_size: Sequence[Size],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> FakeTensor:
    """An image of columns."""
    if len(x._sizes) not in (2, 3):
        return NotImplemented  # type: ignore[no-any-return]
    *batch, rows, columns = x._sizes
    if all(type(n) is int for n in (*output_size, *x._sizes)):
        fits = columns == _places(output_size, kernel_size, dilation, padding, stride)
        if not fits or has_zero(x._sizes) or rows % (kernel_size[0] * kernel_size[1]) != 0:
            return NotImplemented  # type: ignore[no-any-return]
    channels = rows // (kernel_size[0] * kernel_size[-1])
    return fresh((*batch, channels, *output_size), x._dtype, x._device)


def rules() -> dict[str, Callable[..., Any]]:
    """The table of this family."""
    return {
        **{f"{name}.default": upsample for name in _UPSAMPLES},
        "grid_sampler_2d.default": grid_sample,
        "grid_sampler_3d.default": grid_sample,
        "cudnn_grid_sampler.default": cudnn_grid_sample,
        "col2im.default": col2im,
        "im2col.default": im2col,
    }
