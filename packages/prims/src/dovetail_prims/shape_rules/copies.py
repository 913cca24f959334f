"""Shape rules of the copies that views turn into: `clone`, `contiguous`, `_to_copy`, `*_copy`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor, Size, Sizes, make
from dovetail_prims.shape_rules.layout import (
    channels_last,
    contiguous,
    empty_like_strides,
    fresh,
    is_channels_last,
    is_contiguous,
)
from dovetail_prims.shape_rules.views import (
    resolve_view_size,
)


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
    non_blocking: bool = False,
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
