"""What is written to parts of a tensor, and where: masks, indices, slices, strided parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.shape_rules.argument_checks.check import Check, every
from dovetail_prims.shape_rules.argument_checks.dtypes import dtype_of
from dovetail_prims.shape_rules.conversions import check_number
from dovetail_prims.shape_rules.layout import broadcast, insisted, wrap_dim
from dovetail_prims.shape_rules.promotion import name_in_kernels

_INDEX = (torch.int64, torch.int32)
_REDUCE = ("sum", "prod", "mean", "amax", "amin")


def _mask(x: FakeTensor, mask: FakeTensor, *rest: Any) -> None:
    if mask._dtype is not torch.bool:
        raise RuntimeError(
            f"masked_fill only supports boolean masks, but got mask with dtype {mask._dtype}"
        )


def _masked_number(x: FakeTensor, mask: FakeTensor, value: Any) -> None:
    _mask(x, mask)
    check_number(value, x._dtype)


def _condition(condition: FakeTensor, *rest: Any) -> None:
    if condition._dtype not in (torch.bool, torch.uint8):
        raise RuntimeError(
            "where expected condition to be a boolean tensor, but got a tensor with dtype "
            f"{condition._dtype}"
        )


def _positions(x: FakeTensor, dim: int, index: FakeTensor, *rest: Any, **kwargs: Any) -> None:
    if index._dtype not in _INDEX:
        raise RuntimeError("Expected dtype int32 or int64 for index")


def _long_slices(x: FakeTensor, dim: int, index: FakeTensor, *rest: Any, **kwargs: Any) -> None:
    if index._dtype is not torch.int64:
        raise IndexError("index_fill_(): Expected dtype int64 for index.")


def _long_positions(x: FakeTensor, index: FakeTensor, *rest: Any, **kwargs: Any) -> None:
    if index._dtype is not torch.int64:
        name = name_in_kernels(index._dtype)
        raise RuntimeError(f"put_(): Expected a long tensor for index, but got {name}")


def _reduce(*args: Any, reduce: str | None = None, **kwargs: Any) -> None:
    found = args[4] if len(args) > 4 else reduce
    if found not in _REDUCE:
        raise RuntimeError(
            f"reduce argument must be either sum, prod, mean, amax or amin, got {found}"
        )


def _reduce_by(*args: Any, reduce: str) -> None:
    if reduce not in ("add", "multiply"):
        raise RuntimeError("reduce argument must be either add or multiply.")


def _placed(x: FakeTensor, dim: int, index: FakeTensor, value: Any, **kwargs: Any) -> None:
    check_number(value, x._dtype)


def _same_types(text: str) -> Check:
    """The third argument must be of the dtype of what it is written to."""

    def check(x: FakeTensor, *rest: Any, **kwargs: Any) -> None:
        source = rest[2] if len(rest) > 2 else kwargs.get("src", kwargs.get("source"))
        dtype = dtype_of(source)
        if dtype is not None and dtype is not x._dtype:
            own, given = (str(d).removeprefix("torch.") for d in (x._dtype, dtype))
            raise RuntimeError(text.format(own=own, given=given))

    return check


def _fits(part: tuple[Any, ...], src: FakeTensor) -> None:
    sizes = src._sizes
    if len(part) != len(sizes) or not all(
        insisted(a == b) for a, b in zip(part, sizes, strict=True)
    ):
        raise RuntimeError(
            "expected src to have a size equal to the slice of self. src size = "
            f"{list(sizes)}, slice size = {list(part)}"
        )


def _selected(x: FakeTensor, src: FakeTensor, dim: int, index: Any) -> None:
    at = wrap_dim(dim, len(x._sizes))
    _fits((*x._sizes[:at], *x._sizes[at + 1 :]), src)


def _sliced(
    x: FakeTensor,
    src: FakeTensor,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
) -> None:
    _fits(tuple(torch.ops.aten.slice.Tensor(x, dim, start, end, step).shape), src)


def _diagonal(
    x: FakeTensor, src: FakeTensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> None:
    _fits(tuple(torch.ops.aten.diagonal.default(x, offset, dim1, dim2).shape), src)


def _strided(
    x: FakeTensor, src: FakeTensor, size: Any, stride: Any, storage_offset: Any = None
) -> None:
    _fits(tuple(size), src)
    _within(x, size, stride, storage_offset)


def _bytes(sizes: Any, strides: Any, offset: Any, dtype: torch.dtype) -> Any:
    """How far into its storage a tensor reaches."""
    if any(type(n) is int and n == 0 for n in sizes):
        return 0
    last = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    return (offset + last + 1) * dtype.itemsize


def _within(x: FakeTensor, size: Any, stride: Any, storage_offset: Any = None) -> None:
    """What as_strided views must lie in the storage: kernels would read what lies behind it."""
    for s in stride:
        if type(s) is int and s < 0:
            raise RuntimeError(
                "as_strided: Negative strides are not supported at the moment, got strides: "
                f"{list(stride)}"
            )
    held = x._storage.made_for
    if held is None or len(size) != len(stride):
        return
    offset = x._offset if storage_offset is None else storage_offset
    room = held if isinstance(held, int) else _bytes(*held)
    wanted = _bytes(size, stride, offset, x._dtype)
    if not insisted(wanted <= room):
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, and "
            f"itemsize {x._dtype.itemsize} requiring a storage size of {wanted} are out of bounds "
            f"for storage of size {room}"
        )


def _values(x: FakeTensor, indices: Any, values: FakeTensor, accumulate: bool = False) -> None:
    if values._dtype is not x._dtype:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, got "
            f"{x._dtype} for the destination and {values._dtype} for the source."
        )
    if any(i is not None and i._dtype in (torch.bool, torch.uint8) for i in indices):
        return  # as many places as the data say
    used = [d for d, i in enumerate(indices) if i is not None]
    picked = broadcast([indices[d]._sizes for d in used])
    rest = [n for d, n in enumerate(x._sizes) if d not in used]
    first = used[0] if used == list(range(used[0], used[-1] + 1)) else 0
    places = (*rest[:first], *picked, *rest[first:])
    given = values._sizes
    off = len(given) - len(places)
    # Broadcasting; sizes beyond the places' own must be 1.
    wanted = (1,) * off + places[max(-off, 0) :]
    pairs = zip(given, wanted, strict=True)
    if not all((type(n) is int and n == 1) or insisted(n == m) for n, m in pairs):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(given)} cannot be broadcast to indexing "
            f"result of shape {list(places)}"
        )


def _one_value(x: FakeTensor, mask: FakeTensor, value: FakeTensor) -> None:
    _mask(x, mask)
    if len(value._sizes) != 0:
        raise RuntimeError(
            "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with "
            f"{len(value._sizes)} dimension(s)."
        )


def _scattered(x: FakeTensor, mask: FakeTensor, source: FakeTensor) -> None:
    if mask._dtype is not torch.bool:
        name = "Byte" if mask._dtype is torch.uint8 else str(mask._dtype)
        raise RuntimeError(
            f"masked_scatter_ only supports boolean masks, but got mask with dtype {name}"
        )


def _copied(x: FakeTensor, dim: int, index: FakeTensor, source: FakeTensor) -> None:
    """As many slices as indices, each of the shape of what it is copied over."""
    own, given = x._sizes, source._sizes
    if len(index._sizes) >= 2:
        raise IndexError(
            f"index_copy_(): Index should have dimension 1 or 0 (got {len(index._sizes)})"
        )
    count: Any = index._sizes[0] if index._sizes else 1
    if not given and not insisted(count == 1):
        raise IndexError(
            f"index_copy_(): When source is scalar, index should have one element (got {count})"
        )
    if len(own) != len(given) and own and given:
        raise IndexError(
            "index_copy_(): When source and destination are not scalars, their dimensionality must "
            f"match. Source dimensionality ({len(given)}), destination dimensionality ({len(own)})"
        )
    if index._dtype is not torch.int64:
        raise RuntimeError(
            "index_copy_(): Expected a long tensor for index, but got "
            f"{name_in_kernels(index._dtype)}"
        )
    at = wrap_dim(dim, len(own))
    slices = [(*sizes[:at], *sizes[at + 1 :]) for sizes in (own, given)]
    if len(slices[0]) != len(slices[1]) or not all(
        insisted(a == b) for a, b in zip(*slices, strict=True)
    ):
        raise RuntimeError(
            "index_copy_(): Source/destination tensor must have same slice shapes. Destination "
            f"slice shape: {' '.join(map(str, slices[0]))} at dimension {at} and source slice "
            f"shape: {' '.join(map(str, slices[1]))} at dimension 0."
        )
    if given and not insisted(count == given[at]):
        raise IndexError(
            f"index_copy_(): Number of indices ({count}) should be equal to source.size(dim) "
            f"({given[at]})"
        )


_SCATTERED = "scatter(): Expected self.dtype to be equal to src.dtype"

TABLE: Mapping[str, Check] = {
    "masked_fill.Scalar": _masked_number,
    "masked_fill.Tensor": _one_value,
    "masked_scatter.default": every(
        _scattered,
        _same_types(
            "masked_scatter: expected self and source to have same dtypes but got {own} and {given}"
        ),
    ),
    "put.default": _long_positions,
    "index_add.default": every(
        _positions,
        _same_types(
            "index_add_(): self ({own}) and source ({given}) must have the same scalar type"
        ),
    ),
    **{f"where.{name}": _condition for name in ("self", "ScalarSelf", "ScalarOther", "Scalar")},
    "index_select.default": _positions,
    "scatter_reduce.two": every(_reduce, _same_types(_SCATTERED)),
    "scatter.src": _same_types(_SCATTERED),
    "scatter_add.default": _same_types(_SCATTERED),
    "index_copy.default": every(
        _copied,
        _same_types(
            "index_copy_(): self and source expected to have the same dtype, but got (self) {own} "
            "and (source) {given}"
        ),
    ),
    "scatter.reduce": every(_reduce_by, _same_types(_SCATTERED)),
    "scatter.value_reduce": every(_reduce_by, _placed),
    "scatter.value": _placed,
    "index_fill.int_Scalar": every(_long_slices, _placed),
    "index_fill.int_Tensor": _long_slices,
    "select_scatter.default": _selected,
    "slice_scatter.default": _sliced,
    "diagonal_scatter.default": _diagonal,
    "as_strided_scatter.default": _strided,
    "as_strided.default": _within,
    "as_strided_copy.default": _within,
    "index_put.default": _values,
}
