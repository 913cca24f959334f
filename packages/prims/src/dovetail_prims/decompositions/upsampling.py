"""Resizing: nearest, linear and cubic, over one to three dimensions, with their gradients.

Each output position along a dimension reads a few input positions ("taps") with weights that sum
to 1; dimensions are independent. Forward: for each dimension, gather each tap, weigh, add.
Backward: weigh the gradient by each tap and add it where the tap lay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._common import Family, along, aten, cast, constant, iota, wide, zeros

Tap = tuple[Tensor, Tensor | None]  # positions read, and weights (None: all 1)
Taps = Callable[[Tensor, int, int, float | None], list[Tap]]
CUBIC = -0.75  # the free coefficient of ATen's cubic kernel


def _ratio(size: int, wanted: int, scale: float | None) -> float:
    """Input positions for each output position"""
    return 1.0 / scale if scale is not None and scale > 0 else size / wanted


def _clamped(place: Tensor, size: int) -> Tensor:
    """A position held inside the input"""
    return aten.minimum.default(aten.relu.default(place), constant(size - 1, place))


def _nearest(like: Tensor, size: int, wanted: int, scale: float | None) -> list[Tap]:
    """floor(i ratio), in float32 as eager computes it; on a CPU, as many and twice as many places
    are taken exactly, whatever the scale"""
    if scale is not None and like.device.type == "cpu" and wanted in (size, 2 * size):
        scale = None
    i = iota(wanted, like, torch.float32)
    place = aten.mul.Tensor(i, _ratio(size, wanted, scale))
    return [(_clamped(cast(aten.floor.default(place), torch.int64), size), None)]


def _nearest_exact(like: Tensor, size: int, wanted: int, scale: float | None) -> list[Tap]:
    """floor((i + 1/2) ratio): the pixel whose area holds the centre"""
    i = aten.add.Tensor(iota(wanted, like, torch.float32), 0.5)
    place = aten.mul.Tensor(i, _ratio(size, wanted, scale))
    return [(_clamped(cast(aten.floor.default(place), torch.int64), size), None)]


def _position(
    like: Tensor, size: int, wanted: int, scale: float | None, align_corners: bool
) -> Tensor:
    """Where each output position falls in the input, fractional, in the compute dtype"""
    i = iota(wanted, like, like.dtype)
    if align_corners:
        return aten.mul.Tensor(i, (size - 1) / (wanted - 1) if wanted > 1 else 0.0)
    ratio = _ratio(size, wanted, scale)
    return aten.sub.Tensor(aten.mul.Tensor(aten.add.Tensor(i, 0.5), ratio), 0.5)


def _linear(align_corners: bool) -> Taps:
    """The two neighbours, by distance"""

    def taps(like: Tensor, size: int, wanted: int, scale: float | None) -> list[Tap]:
        place = aten.relu.default(_position(like, size, wanted, scale, align_corners))
        low = _clamped(cast(place, torch.int64), size)
        high = _clamped(aten.add.Tensor(low, 1), size)
        far = aten.sub.Tensor(place, cast(low, place.dtype))
        far = aten.minimum.default(far, constant(1.0, far))
        return [(low, aten.sub.Tensor(1.0, far)), (high, far)]

    return taps


def _cubic_near(x: Tensor) -> Tensor:
    """The kernel within one position: ((A + 2) x - (A + 3)) x² + 1"""
    inner = aten.sub.Tensor(aten.mul.Tensor(x, CUBIC + 2), CUBIC + 3)
    return aten.add.Tensor(aten.mul.Tensor(aten.mul.Tensor(inner, x), x), 1.0)


def _cubic_far(x: Tensor) -> Tensor:
    """The kernel between one and two positions: ((A x - 5 A) x + 8 A) x - 4 A"""
    inner = aten.sub.Tensor(aten.mul.Tensor(x, CUBIC), 5 * CUBIC)
    inner = aten.add.Tensor(aten.mul.Tensor(inner, x), 8 * CUBIC)
    return aten.sub.Tensor(aten.mul.Tensor(inner, x), 4 * CUBIC)


def _cubic(align_corners: bool) -> Taps:
    """The four neighbours, by the cubic kernel of their distances"""

    def taps(like: Tensor, size: int, wanted: int, scale: float | None) -> list[Tap]:
        place = _position(like, size, wanted, scale, align_corners)
        whole = aten.floor.default(place)
        t = aten.sub.Tensor(place, whole)
        rest = aten.sub.Tensor(1.0, t)
        weights = [
            _cubic_far(aten.add.Tensor(t, 1.0)),
            _cubic_near(t),
            _cubic_near(rest),
            _cubic_far(aten.add.Tensor(rest, 1.0)),
        ]
        start = cast(whole, torch.int64)
        places = [_clamped(aten.add.Tensor(start, k), size) for k in (-1, 0, 1, 2)]
        return list(zip(places, weights, strict=True))

    return taps


def _suggested_format(x: Tensor) -> torch.memory_format:
    """channels_last where x has that layout, as eager's kernels keep it"""
    wanted = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if wanted is not None and not x.is_contiguous() and x.is_contiguous(memory_format=wanted):
        return wanted
    return torch.contiguous_format


def _formatted(x: Tensor, wanted: torch.memory_format) -> Tensor:
    """x in a memory format; no op where it has it"""
    if x.is_contiguous(memory_format=wanted):
        return x
    return aten.clone.default(x, memory_format=wanted)


def _resize(
    self: Tensor, size: Sequence[int], taps: Taps, scales: Sequence[float | None]
) -> Tensor:
    """Each spatial dimension in turn: gather each tap, weigh, add"""
    rank = self.dim()
    out = wide(self)
    for k, (wanted, scale) in enumerate(zip(size, scales, strict=True)):
        dim = rank - len(size) + k
        parts = []
        for place, weight in taps(out, self.shape[dim], wanted, scale):
            part = aten.index.Tensor(out, [*[None] * dim, place])
            if weight is not None:
                part = aten.mul.Tensor(part, along(weight, dim, rank))
            parts.append(part)
        out = parts[0]
        for part in parts[1:]:
            out = aten.add.Tensor(out, part)
    return _formatted(cast(out, self.dtype), _suggested_format(self))


def _resize_backward(
    grad: Tensor, input_size: Sequence[int], taps: Taps, scales: Sequence[float | None]
) -> Tensor:
    """Each spatial dimension in turn: weigh by each tap, add where the tap lay"""
    rank = grad.dim()
    out = wide(grad)
    first = rank - len(scales)
    for k, scale in enumerate(scales):
        dim = first + k
        size = list(out.shape)
        wanted, size[dim] = size[dim], input_size[dim]
        total = zeros(size, out)
        for place, weight in taps(out, input_size[dim], wanted, scale):
            part = out if weight is None else aten.mul.Tensor(out, along(weight, dim, rank))
            total = aten.index_put.default(total, [*[None] * dim, place], part, True)
        out = total
    return _formatted(cast(out, grad.dtype), _suggested_format(grad))


def _plain(taps: Taps, rank: int) -> Any:
    """Forward and backward, in the signature of `rank` dimensions, without align_corners"""

    def forward1(self: Tensor, output_size: Sequence[int], scales: float | None = None) -> Tensor:
        """A weighted gather along each dimension"""
        return _resize(self, output_size, taps, [scales])

    def backward1(
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        scales: float | None = None,
    ) -> Tensor:
        """A weighted add along each dimension"""
        return _resize_backward(grad_output, input_size, taps, [scales])

    def forward2(
        self: Tensor,
        output_size: Sequence[int],
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        """A weighted gather along each dimension"""
        return _resize(self, output_size, taps, [scales_h, scales_w])

    def backward2(
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        """A weighted add along each dimension"""
        return _resize_backward(grad_output, input_size, taps, [scales_h, scales_w])

    def forward3(
        self: Tensor,
        output_size: Sequence[int],
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        """A weighted gather along each dimension"""
        return _resize(self, output_size, taps, [scales_d, scales_h, scales_w])

    def backward3(
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        """A weighted add along each dimension"""
        return _resize_backward(grad_output, input_size, taps, [scales_d, scales_h, scales_w])

    return ((forward1, backward1), (forward2, backward2), (forward3, backward3))[rank - 1]


def _aligned(taps: Callable[[bool], Taps], rank: int) -> Any:
    """The same with align_corners"""

    def forward1(
        self: Tensor,
        output_size: Sequence[int],
        align_corners: bool,
        scales: float | None = None,
    ) -> Tensor:
        """A weighted gather along each dimension"""
        return _resize(self, output_size, taps(align_corners), [scales])

    def backward1(
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales: float | None = None,
    ) -> Tensor:
        """A weighted add along each dimension"""
        return _resize_backward(grad_output, input_size, taps(align_corners), [scales])

    def forward2(
        self: Tensor,
        output_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        """A weighted gather along each dimension"""
        return _resize(self, output_size, taps(align_corners), [scales_h, scales_w])

    def backward2(
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        """A weighted add along each dimension"""
        scales = [scales_h, scales_w]
        return _resize_backward(grad_output, input_size, taps(align_corners), scales)

    def forward3(
        self: Tensor,
        output_size: Sequence[int],
        align_corners: bool,
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        """A weighted gather along each dimension"""
        scales = [scales_d, scales_h, scales_w]
        return _resize(self, output_size, taps(align_corners), scales)

    def backward3(
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        """A weighted add along each dimension"""
        scales = [scales_d, scales_h, scales_w]
        return _resize_backward(grad_output, input_size, taps(align_corners), scales)

    return ((forward1, backward1), (forward2, backward2), (forward3, backward3))[rank - 1]


def _family() -> Family:
    pairs = {
        **{f"upsample_nearest{n}d": _plain(_nearest, n) for n in (1, 2, 3)},
        **{f"_upsample_nearest_exact{n}d": _plain(_nearest_exact, n) for n in (1, 2, 3)},
        "upsample_linear1d": _aligned(_linear, 1),
        "upsample_bilinear2d": _aligned(_linear, 2),
        "upsample_trilinear3d": _aligned(_linear, 3),
        "upsample_bicubic2d": _aligned(_cubic, 2),
    }
    table = {}
    for name, (forward, backward) in pairs.items():
        table[f"{name}.default"] = forward
        table[f"{name}_backward.default"] = backward
    return table


TABLE: Family = _family()
