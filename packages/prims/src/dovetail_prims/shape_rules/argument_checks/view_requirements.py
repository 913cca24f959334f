"""What writes to a part of a tensor, and views by strides, insist on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dovetail_prims.fake_tensor import Sizes
from dovetail_prims.shape_rules.argument_checks.requirement import (
    Arguments,
    Requirement,
    insisted_same,
    raising,
    without,
)
from dovetail_prims.shape_rules.layout import insisted


def _fits(part: Callable[[Arguments], Sizes]) -> Requirement:
    """`src` has the sizes of the part of `self` that it is written to."""
    return Requirement(
        lambda given: insisted_same(part(given), given.sizes("src")),
        lambda given: given.says(
            "expected src to have a size equal to the slice of self. src size = {src.sizes}, slice "
            "size = {part}",
            part=list(part(given)),
        ),
    )


def _sliced(given: Arguments) -> Sizes:
    bounds = (given[name] for name in ("dim", "start", "end", "step"))
    return tuple(torch.ops.aten.slice.Tensor(given["self"], *bounds).shape)


def _diagonal(given: Arguments) -> Sizes:
    dims = (given[name] for name in ("offset", "dim1", "dim2"))
    return tuple(torch.ops.aten.diagonal.default(given["self"], *dims).shape)


def _bytes(sizes: Any, strides: Any, offset: Any, dtype: torch.dtype) -> Any:
    """How far into its storage a tensor reaches."""
    if any(type(n) is int and n == 0 for n in sizes):
        return 0
    last = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    return (offset + last + 1) * dtype.itemsize


def _within(given: Arguments) -> None:
    """What as_strided views must lie in the storage: kernels would read what lies behind it."""
    x, size, stride = given["self"], given["size"], given["stride"]
    for s in stride:
        if type(s) is int and s < 0:
            raise RuntimeError(
                "as_strided: Negative strides are not supported at the moment, got strides: "
                f"{list(stride)}"
            )
    held = x._storage.made_for
    if held is None or len(size) != len(stride):
        return
    offset = x._offset if given["storage_offset"] is None else given["storage_offset"]
    room = held if isinstance(held, int) else _bytes(*held)
    wanted = _bytes(size, stride, offset, x._dtype)
    if not insisted(wanted <= room):
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, and "
            f"itemsize {x._dtype.itemsize} requiring a storage size of {wanted} are out of bounds "
            f"for storage of size {room}"
        )


_STRIDED = raising(_within)

TABLE: Mapping[str, tuple[Requirement, ...]] = {
    "select_scatter.default": (_fits(lambda given: without(given.sizes("self"), given.dim)),),
    "slice_scatter.default": (_fits(_sliced),),
    "diagonal_scatter.default": (_fits(_diagonal),),
    "as_strided_scatter.default": (_fits(lambda given: tuple(given["size"])), _STRIDED),
    "as_strided.default": (_STRIDED,),
    "as_strided_copy.default": (_STRIDED,),
}
"""Requirements by operator, as in `index_requirements`."""
