"""What a fake of symbolic sizes answers when C++ asks about its sizes and layout.

Such a fake is made with `dispatch_sizes_strides_policy="sizes"`: its C++ object holds only the
sizes of the example, and each question comes here as an operator. Code that takes symbolic sizes
asks `sym_size` and its kin; code that does not asks `size`, which ties the sizes to numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor, Size
from dovetail_prims.shape_rules import layout


def _numbers(values: tuple[Size, ...]) -> tuple[int, ...]:
    return tuple(int(v) for v in values)


def _size_at(x: FakeTensor, dim: int) -> Size:
    return x._sizes[layout.wrap_dim(dim, len(x._sizes))]


def _stride_at(x: FakeTensor, dim: int) -> Size:
    return x._strides[layout.wrap_dim(dim, len(x._strides))]


def _contiguous_as(x: FakeTensor, memory_format: Any = torch.contiguous_format) -> bool:
    rank = {torch.channels_last: 4, torch.channels_last_3d: 5}.get(memory_format)
    if rank is None:
        return layout.is_contiguous(x._sizes, x._strides)
    return len(x._sizes) == rank and layout.is_channels_last(x._sizes, x._strides)


def _strides_like(x: FakeTensor, memory_format: Any) -> bool:
    rank = {torch.channels_last: 4, torch.channels_last_3d: 5}.get(memory_format)
    return len(x._sizes) == rank and layout.suggests_channels_last(x)


def rules() -> dict[str, Callable[..., Any]]:
    """The table of this family."""
    return {
        "dim.default": lambda x: len(x._sizes),
        "sym_size.default": lambda x: x._sizes,
        "sym_size.int": _size_at,
        "sym_stride.default": lambda x: x._strides,
        "sym_stride.int": _stride_at,
        "sym_numel.default": lambda x: layout.numel(x._sizes),
        "sym_storage_offset.default": lambda x: x._offset,
        "size.default": lambda x: _numbers(x._sizes),
        "size.int": lambda x, dim: int(_size_at(x, dim)),
        "stride.default": lambda x: _numbers(x._strides),
        "stride.int": lambda x, dim: int(_stride_at(x, dim)),
        "numel.default": lambda x: int(layout.numel(x._sizes)),
        "storage_offset.default": lambda x: int(x._offset),
        "is_contiguous.default": _contiguous_as,
        "is_contiguous.memory_format": _contiguous_as,
        "sym_is_contiguous.default": _contiguous_as,
        "is_strides_like_format.default": _strides_like,
        "is_non_overlapping_and_dense.default": lambda x: (
            layout.dense_order(x._sizes, x._strides) is not None
        ),
    }
