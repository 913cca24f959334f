"""Images read at fractional places: grid_sampler, with its gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.ops import common
from dovetail_prims.ops.card import composed
from dovetail_prims.ops.common import aten
from dovetail_prims.ops.taps import clamped, cubic_slopes, cubic_weights
from dovetail_prims.shape_rules.layout import equal_sizes, fresh, insisted

# --- shapes ---------------------------------------------------------------------------------------


_CUBIC = 2


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


# --- decompositions -------------------------------------------------------------------------------


LINEAR, NEAREST, CUBIC = 0, 1, 2

ZEROS, BORDER, REFLECTION = 0, 1, 2


def _placed(x: Tensor, size: int, align_corners: bool) -> Tensor:
    """-1 to 1 as positions: the middles of the first and last pixel, or their outer edges"""
    shifted = aten.add.Tensor(x, 1.0)
    if align_corners:
        return aten.mul.Tensor(shifted, (size - 1) / 2)
    return aten.div.Tensor(aten.sub.Tensor(aten.mul.Tensor(shifted, size), 1.0), 2.0)


def _held(x: Tensor, size: int, padding: int, align_corners: bool) -> tuple[Tensor, Tensor | None]:
    """A position brought into the image, as the padding says, and how fast it moves there (None:
    as fast as outside)"""
    if padding == ZEROS:
        return x, None
    turns: Tensor | None = None
    if padding == REFLECTION:
        low, span = (0.0, size - 1) if align_corners else (-0.5, size)
        if span == 0:
            x = aten.mul.Tensor(x, 0.0)
        else:
            shifted = aten.sub.Tensor(x, low)
            distance = aten.abs.default(shifted)
            flips = aten.floor.default(aten.div.Tensor(distance, span))
            rest = aten.fmod.Scalar(distance, float(span))
            odd = aten.ne.Scalar(aten.fmod.Scalar(flips, 2.0), 0)
            x = aten.add.Tensor(common.where(odd, aten.sub.Tensor(float(span), rest), rest), low)
            turns = aten.logical_xor.default(odd, aten.lt.Scalar(shifted, 0))
    within = aten.logical_and.default(aten.gt.Scalar(x, 0), aten.lt.Scalar(x, size - 1))
    speed = common.cast(within, x.dtype)
    if turns is not None:
        speed = common.where(turns, aten.neg.default(speed), speed)
    return clamped(x, size), speed


@dataclass(frozen=True)
class _Tap:
    """A place along one dimension, whether it is inside, its weight (None: 1) and how this grows
    with the grid's number (None: not at all)."""

    place: Tensor
    inside: Tensor
    weight: Tensor | None
    slope: Tensor | None


def _taps(x: Tensor, size: int, mode: int, padding: int, align_corners: bool) -> list[_Tap]:
    """The positions read along one dimension"""
    x = _placed(x, size, align_corners)
    rate = (size - 1) / 2 if align_corners else size / 2
    weights: Sequence[Tensor | None] = [None]
    slopes: Sequence[Tensor | None] = [None]
    speed: Tensor | None = None
    if mode != CUBIC:
        x, speed = _held(x, size, padding, align_corners)
    start = aten.round.default(x) if mode == NEAREST else aten.floor.default(x)
    offsets: tuple[int, ...] = (0,)
    if mode == LINEAR:
        far = aten.sub.Tensor(x, start)
        weights, offsets = [aten.sub.Tensor(1.0, far), far], (0, 1)
        up = aten.full_like.default(x, rate) if speed is None else aten.mul.Tensor(speed, rate)
        slopes = [aten.neg.default(up), up]
    elif mode == CUBIC:
        far = aten.sub.Tensor(x, start)
        weights, offsets = cubic_weights(far), (-1, 0, 1, 2)
        slopes = [aten.mul.Tensor(slope, rate) for slope in cubic_slopes(far)]
    taps: list[_Tap] = []
    for offset, weight, slope in zip(offsets, weights, slopes, strict=True):
        place = aten.add.Tensor(start, offset) if offset else start
        if mode == CUBIC:
            place, _ = _held(place, size, padding, align_corners)
        inside = aten.logical_and.default(aten.ge.Scalar(place, 0), aten.lt.Scalar(place, size))
        place = clamped(common.cast(place, torch.int64), size)  # (that of NaN, too, is some place)
        taps.append(_Tap(place, inside, weight, slope))
    return taps


def _all_taps(
    x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool
) -> tuple[list[Tensor], list[list[_Tap]]]:
    """Batch and channel of each element of the result, and the taps along each dimension"""
    rank = x.dim() - 2
    shape = grid.shape[1:-1]
    taps = []
    for d, size in enumerate(x.shape[2:]):  # (the grid names the last dimension first)
        own = aten.select.int(common.wide(grid), -1, rank - 1 - d)
        own = common.reshape(own, [x.shape[0], 1, *shape])
        taps.append(_taps(own, size, mode, padding, align_corners))
    return [common.along(common.iota(n, x), d, rank + 2) for d, n in enumerate(x.shape[:2])], taps


def _product(*factors: Tensor | None) -> Tensor | None:
    """Of those that are there"""
    found: Tensor | None = None
    for factor in factors:
        if factor is not None:
            found = factor if found is None else aten.mul.Tensor(found, factor)
    return found


def _sum(parts: Iterable[Tensor]) -> Tensor:
    total: Tensor | None = None
    for part in parts:
        total = part if total is None else aten.add.Tensor(total, part)
    assert total is not None
    return total


def _inside_only(value: Tensor, taps: Iterable[_Tap]) -> Tensor:
    """0 outside of the image"""
    for tap in taps:
        value = common.where(tap.inside, value, 0.0)
    return value


def _weighed(value: Tensor, *factors: Tensor | None) -> Tensor:
    factor = _product(*factors)
    return value if factor is None else aten.mul.Tensor(value, factor)


def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """Each place's neighbours, by distance (all dimensions independent), 0 outside"""
    x = common.wide(input)
    lead, by_dim = _all_taps(x, grid, interpolation_mode, padding_mode, align_corners)
    parts = []
    for taps in product(*by_dim):
        read = _inside_only(aten.index.Tensor(x, [*lead, *(t.place for t in taps)]), taps)
        parts.append(_weighed(read, *(t.weight for t in taps)))
    return common.cast(_sum(parts), input.dtype)


def grid_sampler_backward(
    grad_output: Tensor,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """What each place read, weighed and added there; and how the sum grows with the place"""
    x, grad = common.wide(input), common.wide(grad_output)
    lead, by_dim = _all_taps(x, grid, interpolation_mode, padding_mode, align_corners)
    to_input: Tensor | None = None
    if output_mask[0]:
        to_input = common.zeros(x.shape, x)
        for taps in product(*by_dim):
            part = _inside_only(_weighed(grad, *(t.weight for t in taps)), taps)
            places = [*lead, *(t.place for t in taps)]
            to_input = aten.index_put.default(to_input, places, part, True)
        to_input = common.cast(to_input, input.dtype)
    if not output_mask[1]:
        return to_input, None
    if interpolation_mode == NEAREST:
        return to_input, common.zeros(grid.shape, grid)
    reads = [
        (taps, _inside_only(aten.index.Tensor(x, [*lead, *(t.place for t in taps)]), taps))
        for taps in product(*by_dim)
    ]
    numbers = []
    for d in reversed(range(len(by_dim))):
        grown = _sum(
            _weighed(read, *(t.slope if k == d else t.weight for k, t in enumerate(taps)))
            for taps, read in reads
        )
        number = aten.sum.dim_IntList(aten.mul.Tensor(grad, grown), [1])
        numbers.append(aten.unsqueeze.default(number, -1))
    return to_input, common.cast(aten.cat.default(numbers, -1), grid.dtype)


def cudnn_grid_sampler(self: Tensor, grid: Tensor) -> Tensor:
    """The one kind that cuDNN has: linear, 0 outside, corners aligned"""
    return grid_sampler(self, grid, LINEAR, ZEROS, True)


def cudnn_grid_sampler_backward(
    self: Tensor, grid: Tensor, grad_output: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of the one kind that cuDNN has"""
    return grid_sampler_backward(grad_output, self, grid, LINEAR, ZEROS, True, [True, True])


# --- cards --------------------------------------------------------------------------------------

CARDS = (
    composed("grid_sampler_2d", grid_sample, common.of_known_sizes(grid_sampler)),
    composed("grid_sampler_3d", grid_sample, common.of_known_sizes(grid_sampler)),
    composed("cudnn_grid_sampler", cudnn_grid_sample, common.of_known_sizes(cudnn_grid_sampler)),
    composed("grid_sampler_2d_backward", None, common.of_known_sizes(grid_sampler_backward)),
    composed("grid_sampler_3d_backward", None, common.of_known_sizes(grid_sampler_backward)),
    composed(
        "cudnn_grid_sampler_backward", None, common.of_known_sizes(cudnn_grid_sampler_backward)
    ),
)
