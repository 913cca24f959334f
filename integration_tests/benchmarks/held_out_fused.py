"""Short sequences around one convolution for `gpu_suite.py --model held_out_fused:NAME`: what
follows it (norms over few long rows, reads across the layout, numbers made on the CPU) takes longer
than the convolution.

Each function takes `small` (a size fit for a test) and gives a `Case`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.bench.models import Case


class Sequence(nn.Module):
    """A first layer, and a function of what it gives and of a norm."""

    def __init__(
        self, first: nn.Module, norm: nn.Module, then: Callable[[Tensor, nn.Module], Tensor]
    ) -> None:
        super().__init__()
        self.first, self.norm, self.then = first, norm, then

    def forward(self, x: Tensor) -> Tensor:
        """x: what the first layer takes."""
        return self.then(self.first(x), self.norm)


def _case(
    first: nn.Module,
    norm: nn.Module,
    then: Callable[[Tensor, nn.Module], Tensor],
    shape: tuple[int, ...],
) -> Case:
    inputs = {"x": torch.randn(*shape)}
    return Case(Sequence(first, norm, then), inputs, lambda y: y.float().pow(2).mean())


def up_gelu_group_norm(small: bool) -> Case:
    """A transposed convolution, GELU, and a norm of 8 groups of 2**19 elements."""
    up = nn.ConvTranspose2d(64, 64, 3, stride=2, padding=1, output_padding=1)
    batch, side = (2, 12) if small else (32, 128)
    norm = nn.GroupNorm(8, 64)
    return _case(up, norm, lambda y, n: n(F.gelu(y)), (batch, 64, side, side))


def gate_group_norm(small: bool) -> Case:
    """A convolution, a scaled sigmoid, and a norm of 8 groups."""
    batch, side = (2, 12) if small else (64, 128)
    norm = nn.GroupNorm(8, 128)
    return _case(
        nn.Conv2d(64, 128, 3), norm, lambda y, n: n(torch.sigmoid(y * 1.5 + 0.5)),
        (batch, 64, side, side),
    )  # fmt: skip


def cut_off(small: bool) -> Case:
    """A convolution, and a number that is a tensor of the CPU."""
    batch, side = (2, 12) if small else (64, 128)
    return _case(
        nn.Conv2d(64, 128, 3), nn.Identity(),
        lambda y, n: (torch.minimum(y, torch.tensor(0.5, dtype=y.dtype)) + 1) * 2,
        (batch, 64, side, side),
    )  # fmt: skip


def softplus_batch_norm(small: bool) -> Case:
    """A convolution, functions that take long to compute, and batch norm by the batch's own."""
    batch, side = (2, 12) if small else (64, 128)
    norm = nn.BatchNorm2d(128)
    return _case(
        nn.Conv2d(64, 128, 3), norm, lambda y, n: n(torch.tanh(F.softplus(y)) * y),
        (batch, 64, side, side),
    )  # fmt: skip


def group_norm_max_pool(small: bool) -> Case:
    """Few channels in, a norm of groups of 4 channels, and maxima of windows."""
    batch, side = (2, 20) if small else (64, 256)
    norm = nn.GroupNorm(16, 64)
    return _case(
        nn.Conv2d(8, 64, 3), norm, lambda y, n: F.max_pool2d(n(y) * 1.5, 4).clamp(0, 1),
        (batch, 8, side, side),
    )  # fmt: skip


def volume_layer_norm(small: bool) -> Case:
    """A transposed convolution over three dimensions, a norm along the last, and averages."""
    up = nn.ConvTranspose3d(32, 64, 3, stride=2, padding=1, output_padding=1)
    batch, depth, side = (2, 4, 8) if small else (16, 16, 32)
    norm = nn.LayerNorm(2 * side)
    return _case(
        up, norm, lambda y, n: F.gelu(F.avg_pool3d(n(y + 0.5), 2)), (batch, 32, depth, side, side)
    )


def volume_group_norm(small: bool) -> Case:
    """A convolution over three dimensions, SiLU, a norm of 4 groups."""
    batch, depth, side = (2, 4, 8) if small else (16, 16, 64)
    norm = nn.GroupNorm(4, 32)
    return _case(
        nn.Conv3d(32, 32, 3, padding=1), norm, lambda y, n: F.hardswish(n(F.silu(y))),
        (batch, 32, depth, side, side),
    )  # fmt: skip


class ShiftedRows(nn.Module):
    """Each token mixed with the one before it, a causal convolution by channels, a gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.rand(width))
        self.rows = nn.Conv1d(width, width, 4, padding=3, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        """x: batch, tokens, width."""
        before = F.pad(x, (0, 0, 1, 0))[:, :-1]
        mixed = x + (before - x) * self.mix
        y = self.rows(mixed.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        return F.silu(y) * x


def shifted_rows(small: bool) -> Case:
    """What stands before the recurrence of many linear-attention models."""
    tokens, width = (32, 32) if small else (2048, 2048)
    inputs = {"x": torch.randn(2 if small else 8, tokens, width)}
    return Case(ShiftedRows(width), inputs, lambda y: y.float().pow(2).mean())


class Scale(nn.Module):
    """A factor for each channel."""

    def __init__(self, channels: int, dims: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.rand(channels, *(1,) * dims) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """x: batch, channels, positions."""
        return x * self.factor


def scaled_gelu(small: bool) -> Case:
    """A convolution and a scaled leaky GELU: its gradient comes in rows, its input in pixels."""
    batch, side = (2, 12) if small else (64, 128)
    return _case(
        nn.Conv2d(64, 128, 3), Scale(128, 2), lambda y, s: F.gelu(F.leaky_relu(s(y))),
        (batch, 64, side, side),
    )  # fmt: skip


def tanh_average(small: bool) -> Case:
    """A convolution, a tanh, and means of windows."""
    batch, side = (2, 12) if small else (64, 128)
    return _case(
        nn.Conv2d(64, 128, 3), nn.Identity(), lambda y, _: F.avg_pool2d(torch.tanh(y - 0.5), 2),
        (batch, 64, side, side),
    )  # fmt: skip


def residual_norm_logsumexp(small: bool) -> Case:
    """A convolution with few channels in, a norm of groups of 4 with a residual, and a sum of
    exponentials over the channels."""
    batch, side = (2, 12) if small else (64, 256)
    norm = nn.GroupNorm(16, 64)
    return _case(
        nn.Conv2d(8, 64, 3), norm,
        lambda y, n: torch.logsumexp(y + F.hardswish(torch.tanh(n(y))), 1, keepdim=True),
        (batch, 8, side, side),
    )  # fmt: skip


def _up_volume() -> nn.Module:
    return nn.ConvTranspose3d(32, 64, 3, stride=2, padding=1, output_padding=1)


def volume_average(small: bool) -> Case:
    """A transposed convolution over three dimensions, a factor for each channel, and averages."""
    batch, depth, side = (2, 4, 8) if small else (16, 16, 32)
    return _case(
        _up_volume(), Scale(64, 3), lambda y, s: F.avg_pool3d(s(y), 2),
        (batch, 32, depth, side, side),
    )  # fmt: skip


def depth_mean_softmax(small: bool) -> Case:
    """A transposed convolution over three dimensions, the mean over the depth, a softmax over the
    channels."""
    batch, depth, side = (2, 4, 8) if small else (16, 16, 32)
    return _case(
        _up_volume(), nn.Identity(),
        lambda y, _: torch.tanh(torch.softmax(y.mean(2, keepdim=True), 1)) * 2,
        (batch, 32, depth, side, side),
    )  # fmt: skip


def pooled_rows_layer_norm(small: bool) -> Case:
    """A convolution over rows, maxima of windows, a norm over the channels."""
    batch, length = (2, 32) if small else (32, 65536)
    return _case(
        nn.Conv1d(64, 128, 3, padding=1), nn.LayerNorm(128),
        lambda y, n: n(F.max_pool1d(F.relu(y), 2).transpose(1, 2)), (batch, 64, length),
    )  # fmt: skip
