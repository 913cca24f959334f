"""Images and signals of symbolic sizes: resized, pooled, sampled by `affine_grid`, and windows of
them as spectra. See `symbolic_forms`.

PyTorch's `stft` takes the length of a signal as a number, and its `istft` asks whether the windows
leave a gap.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from dovetail_prims.sizes.batched_matmul import has_symbolic_sizes

_RESIZES = {
    **{("nearest", n + 2): f"upsample_nearest{n}d" for n in (1, 2, 3)},
    **{("nearest-exact", n + 2): f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)},
    ("linear", 3): "upsample_linear1d",
    ("bilinear", 4): "upsample_bilinear2d",
    ("bicubic", 4): "upsample_bicubic2d",
    ("trilinear", 5): "upsample_trilinear3d",
}


def _interpolate(
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


def _affine_grid(theta: Tensor, size: Any, align_corners: bool | None = None) -> Any:
    """`affine_grid`: the places of an image's points, from -1 to 1 along each dimension, each by
    its image's matrix. (C++ takes numbers as sizes, and its product of matrices is autocast.)"""
    if not isinstance(theta, Tensor) or len(size) not in (4, 5) or not theta.is_floating_point():
        return NotImplemented
    n, _, *image = size
    k = len(image) + 1
    if theta.dim() != 3 or theta.shape[1:] != (k - 1, k) or 0 in image:
        return NotImplemented
    if align_corners is None:
        warnings.warn("affine_grid takes align_corners=False: say which is meant", stacklevel=2)

    def places(length: Any) -> Tensor:
        first = 0 if type(length) is int and length == 1 else -1
        ends = torch.linspace(first, 1, length, dtype=theta.dtype, device=theta.device)
        return ends if align_corners else ends * (length - 1) / length

    grids = torch.meshgrid(*(places(length) for length in image), indexing="ij")
    base = torch.stack([*reversed(grids), torch.ones_like(grids[0])], -1).reshape(-1, k)
    moved = base.expand(n, -1, -1).bmm(theta.transpose(1, 2))
    return moved.view(n, *image, k - 1)


def _max_pool1d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """`max_pool1d` as `max_pool2d` of images of one row: without gradients C++ takes numbers, and
    its kernel for a CPU gives what is row-major."""
    if return_indices or not isinstance(x, Tensor) or x.dim() not in (2, 3):
        return NotImplemented
    learns = torch.is_grad_enabled() and x.requires_grad
    alone = x.device.type == "cpu" and not learns
    if alone and not x.is_floating_point():
        raise NotImplementedError(f'"max_pool1d_impl" not implemented for {x.dtype}')
    if not has_symbolic_sizes(x) and (not alone or x.is_contiguous()):
        return NotImplemented
    step = kernel_size if stride is None else stride
    (k,), (s,), (p,), (d,) = (
        n if isinstance(n, (list, tuple)) else (n,) for n in (kernel_size, step, padding, dilation)
    )
    pool: Any = torch.nn.functional.max_pool2d
    out = pool(x.unsqueeze(-2), (1, k), (1, s), (0, p), (1, d), ceil_mode).squeeze(-2)
    return out.clone(memory_format=torch.contiguous_format) if alone else out


IMAGE_FORMS: Mapping[Any, Callable[..., Any]] = {
    torch.nn.functional.interpolate: _interpolate,
    torch.nn.functional.affine_grid: _affine_grid,
    torch.nn.functional.max_pool1d: _max_pool1d,
    torch.max_pool1d: _max_pool1d,
}
"""The forms, by the function that is called."""


def _window(window: Tensor | None, width: int, n_fft: int, like: Tensor) -> Tensor | None:
    """A window as long as a frame: 0 where it ends before; None if it does not fit."""
    if window is None:
        window = torch.ones(width, dtype=like.dtype.to_real(), device=like.device)
    if tuple(window.shape) != (width,) or window.is_complex():
        return None
    left = (n_fft - width) // 2
    return window if width == n_fft else pad(window, (left, n_fft - width - left))


def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    """`stft` of real signals, (batch x) time -> (batch x) frequency x frame, where a size is
    symbolic: the transforms of frames under a window."""
    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    if not any(isinstance(n, torch.SymInt) for n in input.shape) or not return_complex:
        return NotImplemented
    if align_to_window is not None or onesided is False or input.dim() not in (1, 2):
        return NotImplemented
    if not input.is_floating_point() or not (hop > 0 and 0 < width <= n_fft):
        return NotImplemented  # the kernel names the argument
    held = _window(window, width, n_fft, input)
    if held is None or (not center and input.shape[-1] < n_fft):
        return NotImplemented
    signal = input if input.dim() == 2 else input.unsqueeze(0)
    if center:
        signal = pad(signal.unsqueeze(0), (n_fft // 2, n_fft // 2), mode=pad_mode).squeeze(0)
    frames = signal.unfold(-1, n_fft, hop)
    norm = "ortho" if normalized else "backward"
    heard = frames if window is None and width == n_fft else frames * held
    spectra = torch.fft.rfft(heard, dim=-1, norm=norm).transpose(1, 2)
    return spectra if input.dim() == 2 else spectra.squeeze(0)


def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Any = None,
    return_complex: bool = False,
) -> Any:
    """`istft` to real numbers: the frames' inverse transforms, each under its window, added up
    where they overlap and divided by what the windows add up to, which is asserted not to be 0."""
    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    if not input.is_complex() or return_complex or input.dim() not in (2, 3):
        return NotImplemented
    kept = n_fft // 2 + 1  # by symmetry
    if input.shape[-2] != (n_fft if onesided is False else kept) or 0 in input.shape:
        return NotImplemented  # the kernel names the argument
    if not 0 < hop <= width <= n_fft:
        return NotImplemented
    held = _window(window, width, n_fft, input)
    if held is None:
        return NotImplemented
    frames = (input if input.dim() == 3 else input.unsqueeze(0)).transpose(1, 2)
    count = frames.shape[1]
    whole = n_fft + hop * (count - 1)
    norm = "ortho" if normalized else "backward"
    heard = torch.fft.irfft(frames[:, :, :kept], n=n_fft, dim=-1, norm=norm) * held
    weight = (held * held).expand(1, count, n_fft)
    fold = torch.ops.aten.unfold_backward.default
    y = fold(heard, [frames.shape[0], whole], 1, n_fft, hop)
    sums = fold(weight, [1, whole], 1, n_fft, hop)
    start = n_fft // 2 if center else 0
    end = whole - start if length is None else start + length
    y, sums = y[:, start:end], sums[:, start:end]
    torch._assert_async((sums.abs() >= 1e-11).all(), "window overlap add min is 0")
    y = y / sums
    if length is not None and end > whole:
        y = pad(y, (0, end - whole))
    return y if input.dim() == 3 else y.squeeze(0)


SPECTRAL_FORMS: dict[Any, Callable[..., Any]] = {
    torch.stft: stft,
    torch.istft: istft,
    torch.Tensor.istft: istft,
}
