"""What operators that take indices, masks or values insist on of the sizes of their arguments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail_prims.fake_tensor import FakeTensor, Sizes
from dovetail_prims.shape_rules.argument_checks.requirement import (
    Arguments,
    Requirement,
    at_least_1d,
    has_rank,
    is_empty,
    same,
    without,
)
from dovetail_prims.shape_rules.layout import wrap_dim

_Row = tuple[Requirement, ...]


def _dim(given: Arguments) -> int:
    return wrap_dim(given["dim"], given.rank("self"))


# --- an index of as many dimensions as what it points into ----------------------------------------


def _same_rank(name: str, called: str) -> Requirement:
    """`index`, if it has an element, has as many dimensions as the tensor `name`."""

    def relations(given: Arguments) -> Iterator[Any]:
        index, other = given.sizes("index"), given[name]
        if isinstance(other, FakeTensor) and not is_empty(index):
            yield len(at_least_1d(index)) == len(at_least_1d(other._sizes))

    text = f"Index tensor must have the same number of dimensions as {called} tensor"
    return Requirement(relations, lambda given: text)


def _no_larger(index: Sizes, other: Sizes, but: int | None) -> Iterator[Any]:
    """`index` fits into `other` in each dimension, `but` one."""
    if not is_empty(index):
        pairs = zip(at_least_1d(index), at_least_1d(other), strict=True)
        for d, (wanted, had) in enumerate(pairs):
            yield d == but or wanted is had or wanted <= had


def _scattered(source: str | None) -> _Row:
    """Of what is written to where an index says: the index lies within what it is written to, but
    along the dimension that it counts, and within the source."""

    def relations(given: Arguments) -> Iterator[Any]:
        index = given.sizes("index")
        yield from _no_larger(index, given.sizes("self"), _dim(given))
        if source is not None and isinstance(given[source], FakeTensor):
            yield from _no_larger(index, given.sizes(source), None)

    def message(given: Arguments) -> str:
        text = (
            f"Expected index {list(given.sizes('index'))} to be no larger than self "
            f"{list(given.sizes('self'))} apart from dimension {_dim(given)}"
        )
        if source is None or not isinstance(given[source], FakeTensor):
            return text
        return f"{text} and to be no larger size than src {list(given.sizes(source))}"

    ranks: _Row = (_same_rank("self", "self"),)
    if source is not None:
        ranks = (*ranks, _same_rank(source, "src"))
    return (*ranks, Requirement(relations, message))


def _larger_dimension(given: Arguments) -> int:
    """The first dimension in which `index` is larger than `self` (0 if only the data tells)."""
    pairs = zip(given.sizes("index"), given.sizes("self"), strict=True)
    beyond = (d for d, (a, b) in enumerate(pairs) if type(a) is type(b) is int and a > b)
    return next((d for d in beyond if d != _dim(given)), 0)


_GATHERED: _Row = (
    _same_rank("self", "input"),
    Requirement(
        lambda given: _no_larger(given.sizes("index"), given.sizes("self"), _dim(given)),
        lambda given: (
            f"Size does not match at dimension {_larger_dimension(given)} expected index "
            f"{list(given.sizes('index'))} to be no larger than self {list(given.sizes('self'))} "
            f"apart from dimension {_dim(given)}"
        ),
    ),
)


# --- an index of slices ---------------------------------------------------------------------------


def _count(given: Arguments) -> Any:
    return at_least_1d(given.sizes("index"))[0]


def _slices(name: str) -> _Row:
    """Of a vector `index` and a `source` that has for each index a slice of `self`."""

    def has_dimension(given: Arguments) -> Iterator[Any]:
        yield _dim(given) == 0 or _dim(given) < given.rank("source")

    def as_many(given: Arguments) -> Iterator[Any]:
        yield _count(given) == at_least_1d(given.sizes("source"))[_dim(given)]

    def alike(given: Arguments) -> Iterator[Any]:
        own, source = given.sizes("self"), given.sizes("source")
        if own and source:
            own, source = without(own, _dim(given)), without(source, _dim(given))
        yield from same(own, source)

    return (
        has_rank("index", (0, 1), f"{name}_(): Index is supposed to be a vector", IndexError),
        Requirement(
            has_dimension,
            lambda given: (
                f"{name}_(): Indexing dim {_dim(given)} is out of bounds of the source tensor with "
                f"dim {given.rank('source')}"
            ),
        ),
        Requirement(
            as_many,
            lambda given: (
                f"{name}_(): Number of indices ({_count(given)}) should be equal to "
                f"source.size(dim): ({at_least_1d(given.sizes('source'))[_dim(given)]}), for dim: "
                f"{_dim(given)}"
            ),
        ),
        Requirement(
            alike,
            lambda given: (
                "source tensor shape must match self tensor shape, excluding the specified "
                f"dimension. Got self.shape = {list(given.sizes('self'))} source.shape = "
                f"{list(given.sizes('source'))}"
            ),
        ),
    )


# --- values ---------------------------------------------------------------------------------------


def _number(op: str) -> Requirement:
    return has_rank(
        "value",
        (0,),
        f"{op} only supports 0-dimension value tensor but got tensor with {{rank}} dimensions.",
    )


_PUT = Requirement(
    lambda given: iter((_numel(given.sizes("source")) == _numel(given.sizes("index")),)),
    lambda given: (
        "put_(): Expected source and index to have the same number of elements, but got "
        f"source.numel() = {_numel(given.sizes('source'))}, index.numel() = "
        f"{_numel(given.sizes('index'))}"
    ),
    IndexError,
)


def _numel(sizes: Sizes) -> Any:
    return math.prod(sizes)


def _along_a_dimension(given: Arguments) -> Iterator[Any]:
    _dim(given)  # (raises IndexError)
    yield True


_DIMENSION = Requirement(_along_a_dimension, lambda given: "")
_VECTOR = has_rank("index", (0, 1), "Index has to be a vector/scalar, but has {rank} dimensions")


def _mask_expands(given: Arguments) -> Iterator[Any]:
    own, mask = given.sizes("self"), given.sizes("mask")
    yield len(mask) <= len(own)
    for had, wanted in zip(reversed(mask), reversed(own), strict=False):
        yield (type(had) is int and had == 1) or had is wanted or had == wanted


TABLE: Mapping[str, _Row] = {
    "scatter.src": _scattered("src"),
    "scatter.reduce": _scattered("src"),
    "scatter.value": _scattered(None),
    "scatter.value_reduce": _scattered(None),
    "scatter_add.default": _scattered("src"),
    "scatter_reduce.two": _scattered("src"),
    "gather.default": _GATHERED,
    "index_add.default": _slices("index_add"),
    "index_reduce.default": _slices("index_reduce"),
    "index_fill.int_Scalar": (_DIMENSION, _VECTOR),
    "index_fill.int_Tensor": (_DIMENSION, _VECTOR, _number("index_fill_")),
    "fill.Tensor": (_number("fill_"),),
    "put.default": (_PUT,),
    "masked_scatter_.default": (
        Requirement(
            _mask_expands,
            lambda given: (
                f"The mask of sizes {list(given.sizes('mask'))} must expand to the sizes "
                f"{list(given.sizes('self'))} of the tensor that is written to"
            ),
        ),
    ),
}
"""Requirements by operator (its functional form), in the order in which eager checks them."""
