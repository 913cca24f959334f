"""What products, factorisations and norms, writes to a part of a tensor and views by strides insist
on of the sizes of their arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from dovetail_prims.fake_tensor import Sizes
from dovetail_prims.shape_rules.argument_checks.requirement import (
    Arguments,
    Requirement,
    expands,
    has_rank,
    insisted_same,
    raising,
    same,
    without,
)
from dovetail_prims.shape_rules.layout import insisted, wrap_dim

_Row = tuple[Requirement, ...]


def _pivots(given: Arguments) -> Iterator[Any]:
    """One pivot for each column that is eliminated: kernels write by them without a look."""
    if given["unpack_pivots"]:
        *batch, rows, columns = given.sizes("LU_data")
        yield given.rank("LU_pivots") == len(batch) + 1
        yield from same(given.sizes("LU_pivots"), (*batch, torch.sym_min(rows, columns)))


_UNPACKED = Requirement(
    _pivots,
    "lu_unpack: pivots of sizes {LU_pivots.sizes} are not those of a factorisation of sizes "
    "{LU_data.sizes}",
)


def _crossed(given: Arguments) -> Iterator[Any]:
    yield given.rank("self") == given.rank("other")
    for name in ("self", "other"):
        yield given.sizes(name)[given.dim] == 3


_CROSS = Requirement(
    _crossed,
    "linalg.cross: inputs must have the same number of dimensions, and must have length 3 along "
    "dimension {dim}. Got {self.sizes} and {other.sizes}",
)


def _outer(given: Arguments) -> Iterator[Any]:
    yield given.rank("vec1") == given.rank("vec2") == 1
    yield from expands(given.sizes("self"), (*given.sizes("vec1"), *given.sizes("vec2")))


def _times_vector(given: Arguments) -> Iterator[Any]:
    yield given.rank("mat") == 2 and given.rank("vec") == 1 and given.rank("self") <= 1
    rows, columns = given.sizes("mat")
    yield columns == given.sizes("vec")[0]
    yield from expands(given.sizes("self"), (rows,))


def _sum_of_products(given: Arguments) -> Iterator[Any]:
    yield given.rank("batch1") == given.rank("batch2") == 3
    first, second = given.sizes("batch1"), given.sizes("batch2")
    yield first[0] == second[0]
    yield first[2] == second[1]
    yield from expands(given.sizes("self"), (first[1], second[2]))


def _products(relations: Callable[[Arguments], Iterator[Any]], *names: str) -> _Row:
    sizes = (f"{name} {{{name}.sizes}}" for name in names)
    return (Requirement(relations, f"size mismatch, got {', '.join(sizes)}"),)


def _least_squares(given: Arguments) -> Iterator[Any]:
    matrix, other = given.sizes("self"), given.sizes("b")
    yield len(matrix) >= 2 and len(other) >= 1
    vectors = len(other) + 1 == len(matrix)
    yield vectors or len(other) >= 2
    yield matrix[-2] == other[-1 if vectors else -2]


def _some_elements(given: Arguments) -> Iterator[Any]:
    """A norm that is no sum, of nothing, has no value."""
    sizes, dims = given.sizes("self"), given["dim"]
    if given["ord"] < 0 or given["ord"] == math.inf:
        for d in dims if dims else range(len(sizes)):
            if sizes:
                yield sizes[wrap_dim(d, len(sizes))] != 0


_NORM = Requirement(
    _some_elements,
    "linalg.vector_norm cannot compute the {ord} norm on an empty tensor, of sizes {self.sizes}, "
    "because the operation does not have an identity",
)


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

TABLE: Mapping[str, _Row] = {
    "lu_unpack.default": (_UNPACKED,),
    "trace.default": (
        has_rank("self", (2,), "trace: expected a matrix, but got tensor with dim {self.rank}"),
    ),
    "linalg_cross.default": (_CROSS,),
    "linalg_lstsq.default": _products(_least_squares, "self", "b"),
    "addr.default": _products(_outer, "self", "vec1", "vec2"),
    "addmv.default": _products(_times_vector, "self", "mat", "vec"),
    "addbmm.default": _products(_sum_of_products, "self", "batch1", "batch2"),
    "linalg_vector_norm.default": (_NORM,),
    "select_scatter.default": (_fits(lambda given: without(given.sizes("self"), given.dim)),),
    "slice_scatter.default": (_fits(_sliced),),
    "diagonal_scatter.default": (_fits(_diagonal),),
    "as_strided_scatter.default": (_fits(lambda given: tuple(given["size"])), _STRIDED),
    "as_strided.default": (_STRIDED,),
    "as_strided_copy.default": (_STRIDED,),
}  # fmt: skip
"""Requirements by operator, as in `index_requirements`."""
