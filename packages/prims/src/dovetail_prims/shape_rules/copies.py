"""Shape rules of the copies that views turn into: `clone`, `contiguous`, `_to_copy`, `*_copy`; and
results that lie where the CPU's own kernels put them, of which PyTorch's meta kernels know nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dovetail_prims.fake.fake_fallback import run_on_meta
from dovetail_prims.fake_tensor import FakeTensor, Size, Sizes, make
from dovetail_prims.shape_rules.indexing import cat
from dovetail_prims.shape_rules.layout import (
    channels_last,
    contiguous,
    empty_like_strides,
    fresh,
    has_zero,
    is_channels_last,
    is_contiguous,
    settled,
    suggests_channels_last,
    wrap_dim,
)
from dovetail_prims.shape_rules.parts import slice_
from dovetail_prims.shape_rules.views import known_truth, resolve_view_size


def view_copy(x: FakeTensor, size: Sequence[Size]) -> FakeTensor:
    """A row-major copy in another shape, whether or not there is such a view."""
    return fresh(resolve_view_size(x, size), x._dtype, x._device)


# --- copies ---------------------------------------------------------------------------------------


def _formatted(sizes: Sizes, x: FakeTensor, memory_format: Any) -> Sizes:
    """Strides of a copy of `x` in a memory format."""
    if memory_format is None or memory_format is torch.preserve_format:
        return empty_like_strides(x)
    if memory_format is torch.contiguous_format:
        return contiguous(sizes)
    rank = 4 if memory_format is torch.channels_last else 5
    if len(sizes) != rank:
        raise RuntimeError(f"required rank {rank} tensor to use {memory_format} format")
    return channels_last(sizes)


def clone(x: FakeTensor, *, memory_format: Any = None) -> FakeTensor:
    """A copy in its own memory."""
    return make(x._sizes, _formatted(x._sizes, x, memory_format), x._dtype, x._device)


def contiguous_op(x: FakeTensor, *, memory_format: Any = torch.contiguous_format) -> FakeTensor:
    """`contiguous`: the tensor itself if it is already laid out so."""
    plain = memory_format in (torch.contiguous_format, torch.preserve_format)
    if plain and is_contiguous(x._sizes, x._strides):
        return x
    if memory_format is torch.preserve_format:
        raise RuntimeError("preserve memory format is unsupported by the contiguous operator")
    rank = {torch.channels_last: 4, torch.channels_last_3d: 5}.get(memory_format)
    if rank == len(x._sizes) and is_channels_last(x._sizes, x._strides):
        return x
    return clone(x, memory_format=memory_format)


def to_copy(
    x: FakeTensor,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    memory_format: Any = None,
    **options: Any,
) -> Any:
    """`_to_copy`: a copy with another dtype, device or memory format."""
    if layout is not None and layout is not torch.strided:
        return NotImplemented
    if not isinstance(x, torch.Tensor):  # a number that functorch had made a tensor of
        like = torch.tensor(x, device="meta").dtype if dtype is None else dtype
        return make((), (), like, torch.device(device or "cpu"))
    return make(
        x._sizes,
        _formatted(x._sizes, x, memory_format),
        x._dtype if dtype is None else dtype,
        x._device if device is None else torch.device(device),
    )


def copying(view_rule: Callable[..., FakeTensor]) -> Callable[..., FakeTensor]:
    """The `_copy` form of a view: the same sizes in memory of its own."""

    def rule(*args: Any, **kwargs: Any) -> FakeTensor:
        seen = view_rule(*args, **kwargs)
        return fresh(seen._sizes, seen._dtype, seen._device)

    return rule


def of_cpu(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule for CPU tensors only; of others the meta kernel tells."""

    def on_cpu(x: FakeTensor, *args: Any, **kwargs: Any) -> Any:
        return rule(x, *args, **kwargs) if x._device.type == "cpu" else NotImplemented

    return on_cpu


def in_format(name: str) -> Callable[..., Any]:
    """The rule of an op whose kernel for the CPU keeps channels-last, of which its meta kernel does
    not know."""

    def rule(x: FakeTensor, *args: Any) -> Any:
        found = run_on_meta(getattr(torch.ops.aten, name).default, (x, *args), {})
        if x._device.type != "cpu" or len(x._sizes) < 4 or not suggests_channels_last(x):
            return found
        return make(found._sizes, channels_last(found._sizes), x._dtype, x._device)

    return rule


def angle(x: FakeTensor) -> FakeTensor:
    """`angle`: of complex numbers row-major, as it is copied from complex numbers."""
    dtype = x._dtype
    if dtype.is_complex:
        return fresh(x._sizes, dtype.to_real(), x._device)
    return NotImplemented  # type: ignore[no-any-return]


def roll(x: FakeTensor, shifts: Sequence[Size], dims: Sequence[int] = ()) -> Any:
    """`roll`, which cuts and joins along one dimension after the other."""
    if not dims and len(shifts) == 1:
        return fresh(x._sizes, x._dtype, x._device)
    if len(shifts) != len(dims) or not dims:
        return NotImplemented  # an error of eager's
    if any(known_truth(x._sizes[wrap_dim(dim, len(x._sizes))] == 0) is None for dim in dims):
        return NotImplemented  # only the data tells how far it goes round
    for shift, dim in zip(shifts, dims, strict=True):
        if has_zero(x._sizes):
            x = clone(x)
            continue
        size = x._sizes[wrap_dim(dim, len(x._sizes))]
        start = (size - shift) % size
        # (Where only the data tells the shift, both parts count as having several elements.)
        start = start if type(start) is int else (1 if settled(start != 0) else 0)
        x = _laid(cat((slice_(x, dim, start, size), slice_(x, dim, 0, start)), dim), x._sizes)
    return x


def _laid(joined: FakeTensor, sizes: Sizes) -> FakeTensor:
    """What two parts make, in the very sizes of the whole."""
    if all(a is b for a, b in zip(joined._sizes, sizes, strict=True)):
        return joined
    last = is_channels_last(joined._sizes, joined._strides) and not is_contiguous(
        joined._sizes, joined._strides
    )
    if last:
        return make(sizes, channels_last(sizes), joined._dtype, joined._device)
    return fresh(sizes, joined._dtype, joined._device)


def pixel_unshuffle(x: FakeTensor, factor: int) -> FakeTensor:
    """Squares of pixels as channels; the kernel for the CPU keeps channels-last."""
    if len(x._sizes) < 3 or factor < 1:
        return NotImplemented  # type: ignore[no-any-return]
    *batch, channels, height, width = x._sizes
    if height % factor != 0 or width % factor != 0:
        if not has_zero(x._sizes):
            return NotImplemented  # type: ignore[no-any-return]
        raise RuntimeError(  # (PyTorch's own rule lets tensors without elements pass)
            f"pixel_unshuffle expects height and width to be divisible by downscale_factor, but "
            f"{height} and {width} are not divisible by {factor}"
        )
    if x._device.type == "cpu" and has_zero(x._sizes):
        return clone(x)
    sizes = (*batch, channels * factor**2, height // factor, width // factor)
    if x._device.type == "cpu" and len(sizes) == 4 and suggests_channels_last(x):
        return make(sizes, channels_last(sizes), x._dtype, x._device)
    return fresh(sizes, x._dtype, x._device)
