"""Short-time Fourier transforms, in terms of what takes symbolic sizes and asks for no data.

PyTorch's `stft` takes the length of a signal as a number, and its `istft` asks whether the windows
leave a gap. See `symbolic_forms`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


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
