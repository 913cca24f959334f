"""What operators that take indices, masks or values insist on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor, Sizes
from dovetail_prims.shape_rules.argument_checks.requirement import (
    Arguments,
    Requirement,
    at_least_1d,
    fit_dtype_of_self,
    has_dtype,
    has_dtype_of,
    has_rank,
    insisted_same,
    is_empty,
    is_one_of,
    raising,
    same,
    without,
)
from dovetail_prims.shape_rules.layout import broadcast, insisted

_Row = tuple[Requirement, ...]
_INDEX = (torch.int64, torch.int32)


def _with_dim(text: str) -> Callable[[Arguments], str]:
    """A message in which `{dim}` is the dimension counted from the first."""
    return lambda given: given.says(text, dim=given.dim)


# --- an index of as many dimensions as what it points into ----------------------------------------


def _same_rank(name: str, called: str) -> Requirement:
    """`index`, if it has an element, has as many dimensions as the tensor `name`."""

    def holds(given: Arguments) -> bool:
        index, other = given.sizes("index"), given[name]
        if not isinstance(other, FakeTensor) or is_empty(index):
            return True
        return len(at_least_1d(index)) == len(at_least_1d(other._sizes))

    text = f"Index tensor must have the same number of dimensions as {called} tensor"
    return Requirement(holds, text)


def _no_larger(index: Sizes, other: Sizes, but: int | None) -> Iterator[Any]:
    """`index` fits into `other` in each dimension, `but` one."""
    if not is_empty(index):
        pairs = zip(at_least_1d(index), at_least_1d(other), strict=True)
        for d, (wanted, had) in enumerate(pairs):
            yield d == but or wanted is had or wanted <= had


def _scattered(source: str | None) -> _Row:
    """Of what is written to where an index says: the index lies within what it is written to, but
    along the dimension that it counts, and within the source."""

    def holds(given: Arguments) -> Iterator[Any]:
        index = given.sizes("index")
        yield from _no_larger(index, given.sizes("self"), given.dim)
        if source is not None and isinstance(given[source], FakeTensor):
            yield from _no_larger(index, given.sizes(source), None)

    text = (
        "Expected index {index.sizes} to be no larger than self {self.sizes} apart from dimension "
        "{dim}"
    )
    if source is None:
        return (_same_rank("self", "self"), Requirement(holds, _with_dim(text)))
    return (
        _same_rank("self", "self"),
        _same_rank(source, "src"),
        Requirement(
            holds, _with_dim(f"{text} and to be no larger size than src {{{source}.sizes}}")
        ),
    )


def _larger_dimension(given: Arguments) -> int:
    """The first dimension in which `index` is larger than `self` (0 if only the data tells)."""
    pairs = zip(given.sizes("index"), given.sizes("self"), strict=True)
    beyond = (d for d, (a, b) in enumerate(pairs) if type(a) is type(b) is int and a > b)
    return next((d for d in beyond if d != given.dim), 0)


_GATHERED: _Row = (
    _same_rank("self", "input"),
    Requirement(
        lambda given: _no_larger(given.sizes("index"), given.sizes("self"), given.dim),
        lambda given: given.says(
            "Size does not match at dimension {larger} expected index {index.sizes} to be no "
            "larger than self {self.sizes} apart from dimension {dim}",
            dim=given.dim,
            larger=_larger_dimension(given),
        ),
    ),
)
_SOURCE_DTYPE = has_dtype_of(
    "src", "self", "scatter(): Expected self.dtype to be equal to src.dtype"
)
_REDUCE_BY_NAME = is_one_of(
    "reduce", ("add", "multiply"), "reduce argument must be either add or multiply."
)

# --- an index of slices ---------------------------------------------------------------------------


def _count(given: Arguments) -> Any:
    return at_least_1d(given.sizes("index"))[0]


def _slices(name: str) -> _Row:
    """Of a vector `index` and a `source` that has for each index a slice of `self`."""

    def alike(given: Arguments) -> Iterator[Any]:
        own, source = given.sizes("self"), given.sizes("source")
        if own and source:
            own, source = without(own, given.dim), without(source, given.dim)
        yield from same(own, source)

    def length(given: Arguments) -> Any:
        return at_least_1d(given.sizes("source"))[given.dim]

    return (
        has_rank("index", (0, 1), f"{name}_(): Index is supposed to be a vector", IndexError),
        Requirement(
            lambda given: given.dim == 0 or given.dim < given.rank("source"),
            _with_dim(
                f"{name}_(): Indexing dim {{dim}} is out of bounds of the source tensor with dim "
                "{source.rank}"
            ),
        ),
        Requirement(
            lambda given: _count(given) == length(given),
            lambda given: (
                f"{name}_(): Number of indices ({_count(given)}) should be equal to "
                f"source.size(dim): ({length(given)}), for dim: {given.dim}"
            ),
        ),
        Requirement(
            alike,
            "source tensor shape must match self tensor shape, excluding the specified dimension. "
            "Got self.shape = {self.sizes} source.shape = {source.sizes}",
        ),
    )


def _copied(given: Arguments) -> None:
    """As many slices as indices, each of the shape of what it is copied over."""
    own, source, index = (given.sizes(name) for name in ("self", "source", "index"))
    if len(index) >= 2:
        raise IndexError(f"index_copy_(): Index should have dimension 1 or 0 (got {len(index)})")
    count: Any = index[0] if index else 1
    if not source and not insisted(count == 1):
        raise IndexError(
            f"index_copy_(): When source is scalar, index should have one element (got {count})"
        )
    if len(own) != len(source) and own and source:
        raise IndexError(
            "index_copy_(): When source and destination are not scalars, their dimensionality must "
            f"match. Source dimensionality ({len(source)}), destination dimensionality ({len(own)})"
        )
    if given["index"]._dtype is not torch.int64:
        raise RuntimeError(
            given.says(
                "index_copy_(): Expected a long tensor for index, but got {index.scalar_type}"
            )
        )
    at = given.dim
    slices = [without(sizes, at) for sizes in (own, source)]
    if not insisted_same(*slices):
        raise RuntimeError(
            "index_copy_(): Source/destination tensor must have same slice shapes. Destination "
            f"slice shape: {' '.join(map(str, slices[0]))} at dimension {at} and source slice "
            f"shape: {' '.join(map(str, slices[1]))} at dimension 0."
        )
    if source and not insisted(count == source[at]):
        raise IndexError(
            f"index_copy_(): Number of indices ({count}) should be equal to source.size(dim) "
            f"({source[at]})"
        )


# --- values at lists of indices -------------------------------------------------------------------


def _values(given: Arguments) -> None:
    x, indices, values = given["self"], given["indices"], given["values"]
    if any(i is not None and i._dtype in (torch.bool, torch.uint8) for i in indices):
        return  # as many elements as the data say
    used = [d for d, i in enumerate(indices) if i is not None]
    picked = broadcast([indices[d]._sizes for d in used])
    rest = [n for d, n in enumerate(x._sizes) if d not in used]
    first = used[0] if used == list(range(used[0], used[-1] + 1)) else 0
    written = (*rest[:first], *picked, *rest[first:])
    sizes = values._sizes
    off = len(sizes) - len(written)
    # Broadcasting; sizes beyond those that are written must be 1.
    wanted = (1,) * off + written[max(-off, 0) :]
    pairs = zip(sizes, wanted, strict=True)
    if not all((type(n) is int and n == 1) or insisted(n == m) for n, m in pairs):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(sizes)} cannot be broadcast to indexing "
            f"result of shape {list(written)}"
        )


# --- masks, and what is written under them --------------------------------------------------------


def _mask_expands(given: Arguments) -> Iterator[Any]:
    own, mask = given.sizes("self"), given.sizes("mask")
    yield len(mask) <= len(own)
    for had, wanted in zip(reversed(mask), reversed(own), strict=False):
        yield (type(had) is int and had == 1) or had is wanted or had == wanted


def _number(op: str) -> Requirement:
    return has_rank(
        "value",
        (0,),
        f"{op} only supports 0-dimension value tensor but got tensor with {{value.rank}} "
        "dimensions.",
    )


_TRUTHS = (torch.bool, torch.uint8)
_MASK = has_dtype(
    "mask",
    _TRUTHS[:1],
    "masked_fill only supports boolean masks, but got mask with dtype {mask.dtype}",
)
_CONDITION = has_dtype(
    "condition",
    _TRUTHS,
    "where expected condition to be a boolean tensor, but got a tensor with dtype "
    "{condition.dtype}",
)
_MASKED_SCATTER: _Row = (
    Requirement(
        lambda given: given["mask"]._dtype is not torch.uint8,
        "masked_scatter_ only supports boolean masks, but got mask with dtype Byte",
    ),
    has_dtype(
        "mask",
        _TRUTHS,
        "masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}",
    ),
    has_dtype_of(
        "source",
        "self",
        "masked_scatter: expected self and source to have same dtypes but got {self.short} and "
        "{source.short}",
    ),
)
_POSITIONS = has_dtype("index", _INDEX, "Expected dtype int32 or int64 for index")
_SLICES_FILLED: _Row = (
    Requirement(lambda given: given.dim >= 0, ""),  # (raises IndexError)
    has_rank("index", (0, 1), "Index has to be a vector/scalar, but has {index.rank} dimensions"),
)
_LONG_SLICES = has_dtype(
    "index", (torch.int64,), "index_fill_(): Expected dtype int64 for index.", IndexError
)
_VALUE = fit_dtype_of_self("value")

TABLE: Mapping[str, _Row] = {
    "scatter.src": (*_scattered("src"), _SOURCE_DTYPE),
    "scatter.reduce": (*_scattered("src"), _REDUCE_BY_NAME, _SOURCE_DTYPE),
    "scatter.value": (*_scattered(None), _VALUE),
    "scatter.value_reduce": (*_scattered(None), _REDUCE_BY_NAME, _VALUE),
    "scatter_add.default": (*_scattered("src"), _SOURCE_DTYPE),
    "scatter_reduce.two": (
        *_scattered("src"),
        is_one_of(
            "reduce",
            ("sum", "prod", "mean", "amax", "amin"),
            "reduce argument must be either sum, prod, mean, amax or amin, got {reduce}",
        ),
        _SOURCE_DTYPE,
    ),
    "gather.default": _GATHERED,
    "index_add.default": (
        *_slices("index_add"),
        _POSITIONS,
        has_dtype_of(
            "source",
            "self",
            "index_add_(): self ({self.short}) and source ({source.short}) must have the same "
            "scalar type",
        ),
    ),
    "index_reduce.default": _slices("index_reduce"),
    "index_select.default": (_POSITIONS,),
    "index_copy.default": (
        raising(_copied),
        has_dtype_of(
            "source",
            "self",
            "index_copy_(): self and source expected to have the same dtype, but got (self) "
            "{self.short} and (source) {source.short}",
        ),
    ),
    "index_fill.int_Scalar": (*_SLICES_FILLED, _LONG_SLICES, _VALUE),
    "index_fill.int_Tensor": (*_SLICES_FILLED, _number("index_fill_"), _LONG_SLICES),
    "index_put.default": (
        has_dtype_of(
            "values",
            "self",
            "Index put requires the source and destination dtypes match, got {self.dtype} for the "
            "destination and {values.dtype} for the source.",
        ),
        raising(_values),
    ),
    "fill.Tensor": (_number("fill_"),),
    "put.default": (
        Requirement(
            lambda given: math.prod(given.sizes("source")) == math.prod(given.sizes("index")),
            "put_(): Expected source and index to have the same number of elements, but got "
            "source.numel() = {source.numel}, index.numel() = {index.numel}",
            IndexError,
        ),
        has_dtype(
            "index",
            (torch.int64,),
            "put_(): Expected a long tensor for index, but got {index.scalar_type}",
        ),
    ),
    **{f"where.{name}": (_CONDITION,) for name in ("self", "ScalarSelf", "ScalarOther", "Scalar")},
    "masked_fill.Scalar": (_MASK, _VALUE),
    "masked_fill.Tensor": (
        _MASK,
        has_rank(
            "value",
            (0,),
            "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with "
            "{value.rank} dimension(s).",
        ),
    ),
    "masked_scatter.default": _MASKED_SCATTER,
    "masked_scatter_.default": (
        Requirement(
            _mask_expands,
            "The mask of sizes {mask.sizes} must expand to the sizes {self.sizes} of the tensor "
            "that is written to",
        ),
        *_MASKED_SCATTER,
    ),
}
"""Requirements by operator (its functional form), in the order in which eager checks them."""
