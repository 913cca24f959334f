"""What products, factorisations and norms insist on of the sizes of their arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from dovetail_prims.shape_rules.argument_checks.requirement import (
    Arguments,
    Requirement,
    expands,
    has_rank,
    same,
)
from dovetail_prims.shape_rules.layout import wrap_dim

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
}  # fmt: skip
"""Requirements by operator, as in `index_requirements`."""
