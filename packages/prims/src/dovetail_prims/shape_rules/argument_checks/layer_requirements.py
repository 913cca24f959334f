"""What layers, losses and products insist on of the sizes of their arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor, Size
from dovetail_prims.shape_rules.argument_checks.requirement import (
    Arguments,
    Requirement,
    at_least_1d,
    has_rank,
    is_of_sizes,
    same,
)
from dovetail_prims.shape_rules.data_bounds import known_truth
from dovetail_prims.shape_rules.layout import wrap_dim

_Row = tuple[Requirement, ...]


def _as_large(name: str, other: str, text: str) -> Requirement:
    """One tensor is of the sizes of another."""
    return is_of_sizes(name, lambda given: given.sizes(other), text)


# --- parameters -----------------------------------------------------------------------------------


def _of_normalized_shape(name: str) -> Requirement:
    return is_of_sizes(
        name,
        lambda given: given["normalized_shape"],
        f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape "
        "{sizes} and normalized_shape = {wanted}",
    )


_STATISTICS = tuple(
    has_rank(name, (1,), "TensorAccessor expected 1 dims but tensor has {rank}")
    for name in ("running_mean", "running_var")
)


def _out_channels(given: Arguments) -> tuple[Size, ...]:
    weight = given.sizes("weight")
    return (weight[1] * given["groups"] if given["transposed"] else weight[0],)


_CONVOLUTION = is_of_sizes(
    "bias",
    _out_channels,
    "expected bias to be 1-dimensional with {wanted} elements, but got bias of size {sizes} "
    "instead",
)


# --- losses ---------------------------------------------------------------------------------------


def _rows(given: Arguments) -> tuple[Size, Size]:
    """How many rows the scores of a margin loss have, and how many classes."""
    sizes = given.sizes("self")
    return (sizes[0], sizes[1]) if len(sizes) > 1 else (1, at_least_1d(sizes)[0])


def _per(name: str, called: str, wanted: Callable[[Arguments], Size]) -> Requirement:
    """The tensor `name`, if it is given, is a vector (or a number) of so many elements."""

    def relations(given: Arguments) -> Iterator[Any]:
        if isinstance(given[name], FakeTensor):
            yield given.rank(name) <= 1
            yield at_least_1d(given.sizes(name))[0] == wanted(given)

    return Requirement(
        relations,
        lambda given: (
            f"inconsistent {called} size, expected {wanted(given)} but got "
            f"{list(given.sizes(name))}"
        ),
    )


def _labels(given: Arguments) -> Iterator[Any]:
    rows, classes = _rows(given)
    target = given.sizes("target")
    if given.rank("self") <= 1:
        yield len(target) <= 1
        yield at_least_1d(target)[0] == classes
    else:
        yield from same(target, (rows, classes))


_MULTILABEL = Requirement(
    _labels,
    lambda given: (
        f"inconsistent target size: {list(given.sizes('target'))} for input of size: "
        f"{list(given.sizes('self'))}"
    ),
)


def _pixels(given: Arguments) -> Iterator[Any]:
    own, target = given.sizes("self"), given.sizes("target")
    yield from same(target, (own[0], *own[2:]))


_OF_IMAGES: _Row = (
    has_rank(
        "target",
        (3,),
        "only batches of spatial targets supported (3D tensors) but got targets of dimension: "
        "{rank}",
    ),
    has_rank(
        "self",
        (4,),
        "only batches of spatial inputs supported (4D tensors), but got input of dimension: {rank}",
    ),
    Requirement(
        _pixels,
        lambda given: (
            f"size mismatch (got input: {list(given.sizes('self'))} , target: "
            f"{list(given.sizes('target'))}"
        ),
    ),
)

# --- images ---------------------------------------------------------------------------------------


def _unpooled(rank: int) -> _Row:
    return (
        has_rank(
            "self",
            (rank + 1, rank + 2),
            f"Input to max_unpooling{rank}d should be a {rank + 1}d or {rank + 2}d Tensor, but got "
            "a tensor with {rank} dimensions.",
        ),
        _as_large(
            "indices",
            "self",
            "Expected shape of indices to be same as that of the input tensor ({wanted}) but got "
            "indices tensor with shape: {sizes}",
        ),
    )


def _sampled(rank: int) -> _Row:
    """Of images of `rank` dimensions that a grid of places samples."""

    def ranks(given: Arguments) -> Iterator[Any]:
        yield given.rank("input") == given.rank("grid") == rank + 2

    def fits(given: Arguments) -> Iterator[Any]:
        yield given.sizes("input")[0] == given.sizes("grid")[0]
        yield given.sizes("grid")[-1] == rank

    def both(given: Arguments) -> str:
        return (
            f"input with sizes {list(given.sizes('input'))} and grid with sizes "
            f"{list(given.sizes('grid'))}"
        )

    return (
        Requirement(
            ranks,
            lambda given: (
                f"grid_sampler(): expected {rank + 2}D input and grid with same number of "
                f"dimensions, but got {both(given)}"
            ),
        ),
        Requirement(
            fits,
            lambda given: (
                "grid_sampler(): expected grid and input to have same batch size, and grid to have "
                f"size {rank} in last dimension, but got {both(given)}"
            ),
        ),
    )


def _image(rank: int) -> Requirement:
    """What is resized is a batch of images of `rank` dimensions."""
    text = f"It is expected input_size equals to {rank + 2}, but got size {{rank}}"
    return has_rank("self", (rank + 2,), text)


_SEGMENTS = Requirement(
    lambda given: (
        given.rank("data") >= given.rank(name)
        for name in ("lengths", "offsets")
        if isinstance(given[name], FakeTensor)
    ),
    lambda given: "segment_reduce(): data has fewer dimensions than the segments",
)


def _pivots(given: Arguments) -> Iterator[Any]:
    """One pivot for each column that is eliminated: kernels write by them without a look."""
    if given["unpack_pivots"]:
        *batch, rows, columns = given.sizes("LU_data")
        yield given.rank("LU_pivots") == len(batch) + 1
        yield from same(given.sizes("LU_pivots"), (*batch, torch.sym_min(rows, columns)))


_UNPACKED = Requirement(
    _pivots,
    lambda given: (
        f"lu_unpack: pivots of sizes {list(given.sizes('LU_pivots'))} are not those of a "
        f"factorisation of sizes {list(given.sizes('LU_data'))}"
    ),
)


# --- products -------------------------------------------------------------------------------------


def _crossed(given: Arguments) -> Iterator[Any]:
    yield given.rank("self") == given.rank("other")
    dim = wrap_dim(given["dim"], given.rank("self"))
    for name in ("self", "other"):
        yield given.sizes(name)[dim] == 3


_CROSS = Requirement(
    _crossed,
    lambda given: (
        "linalg.cross: inputs must have the same number of dimensions, and must have length 3 "
        f"along dimension {given['dim']}. Got {list(given.sizes('self'))} and "
        f"{list(given.sizes('other'))}"
    ),
)


def _expands(sizes: Any, wanted: Any) -> Iterator[Any]:
    """A tensor can be expanded to these sizes."""
    yield len(sizes) <= len(wanted)
    for had, size in zip(reversed(sizes), reversed(wanted), strict=False):
        yield known_truth(had == 1) or had is size or had == size


def _outer(given: Arguments) -> Iterator[Any]:
    yield given.rank("vec1") == given.rank("vec2") == 1
    yield from _expands(given.sizes("self"), (*given.sizes("vec1"), *given.sizes("vec2")))


def _times_vector(given: Arguments) -> Iterator[Any]:
    yield given.rank("mat") == 2 and given.rank("vec") == 1 and given.rank("self") <= 1
    rows, columns = given.sizes("mat")
    yield columns == given.sizes("vec")[0]
    yield from _expands(given.sizes("self"), (rows,))


def _sum_of_products(given: Arguments) -> Iterator[Any]:
    yield given.rank("batch1") == given.rank("batch2") == 3
    first, second = given.sizes("batch1"), given.sizes("batch2")
    yield first[0] == second[0]
    yield first[2] == second[1]
    yield from _expands(given.sizes("self"), (first[1], second[2]))


def _products(relations: Callable[[Arguments], Iterator[Any]], *names: str) -> _Row:
    def message(given: Arguments) -> str:
        sizes = (f"{name} {list(given.sizes(name))}" for name in names)
        return f"size mismatch, got {', '.join(sizes)}"

    return (Requirement(relations, message),)


def _least_squares(given: Arguments) -> Iterator[Any]:
    matrix, other = given.sizes("self"), given.sizes("b")
    yield len(matrix) >= 2 and len(other) >= 1
    vectors = len(other) + 1 == len(matrix)
    yield vectors or len(other) >= 2
    yield matrix[-2] == other[-1 if vectors else -2]


# --- counts ---------------------------------------------------------------------------------------


def _groups(given: Arguments) -> Iterator[Any]:
    channels, count = given["C"], given["group"]
    yield count > 0
    yield channels % count == 0
    yield math.prod(given.sizes("input")) == given["N"] * channels * given["HxW"]
    yield given["HxW"] > 0


_GROUPS = Requirement(
    _groups,
    lambda given: (
        "Expected number of channels in input to be divisible by num_groups, and its elements to "
        f"be N * C * HxW, but got input of shape {list(given.sizes('input'))}, num_groups="
        f"{given['group']} and {given['N']} * {given['C']} * {given['HxW']}"
    ),
)


def _per_channel(name: str) -> Requirement:
    return is_of_sizes(
        name,
        lambda given: (given["C"],),
        f"Expected {name} to be a vector of size equal to the number of channels in input, but got "
        f"{name} of shape {{sizes}} and {{wanted}} channels",
    )


def _some_elements(given: Arguments) -> Iterator[Any]:
    """A norm that is no sum, of nothing, has no value."""
    sizes, dims = given.sizes("self"), given["dim"]
    if given["ord"] < 0 or given["ord"] == math.inf:
        for d in dims if dims else range(len(sizes)):
            if sizes:
                yield sizes[wrap_dim(d, len(sizes))] != 0


_NORM = Requirement(
    _some_elements,
    lambda given: (
        f"linalg.vector_norm cannot compute the {given['ord']} norm on an empty tensor, of sizes "
        f"{list(given.sizes('self'))}, because the operation does not have an identity"
    ),
)

_MULTIVARIATE = Requirement(
    lambda given: iter((given["p"] >= 1,)),
    lambda given: f"p has to be greater than or equal to 1, but got {given['p']}",
)

_SOFT_MARGIN = Requirement(
    lambda given: _expands(given.sizes("target"), given.sizes("self")),
    lambda given: (
        f"output with shape {list(given.sizes('self'))} doesn't match the broadcast shape of "
        f"target {list(given.sizes('target'))}"
    ),
)

TABLE: Mapping[str, _Row] = {
    "native_layer_norm.default": (_of_normalized_shape("weight"), _of_normalized_shape("bias")),
    "_fused_rms_norm.default": (_of_normalized_shape("weight"),),
    "convolution.default": (_CONVOLUTION,),
    "native_batch_norm.default": _STATISTICS,
    "_native_batch_norm_legit.default": _STATISTICS,
    "_batch_norm_with_update.default": _STATISTICS,
    "nll_loss2d_forward.default": _OF_IMAGES,
    "native_group_norm.default": (_GROUPS, _per_channel("weight"), _per_channel("bias")),
    "linalg_vector_norm.default": (_NORM,),
    "mvlgamma.default": (_MULTIVARIATE,),
    "soft_margin_loss.default": (_SOFT_MARGIN,),
    "multi_margin_loss.default": (
        _per("target", "target", lambda given: _rows(given)[0]),
        _per("weight", "weight", lambda given: _rows(given)[1]),
    ),
    "multilabel_margin_loss_forward.default": (_MULTILABEL,),
    "_softmax_backward_data.default": (
        _as_large(
            "grad_output", "output",
            "Expected tensor for argument #1 'grad' to have same size as tensor for argument #2 "
            "'output'; but {sizes} does not equal {wanted}",
        ),
    ),
    "_log_softmax_backward_data.default": (
        _as_large(
            "grad_output", "output",
            "Expected tensor for argument #1 'grad' to have same size as tensor for argument #2 "
            "'output'; but {sizes} does not equal {wanted}",
        ),
    ),
    "max_unpool2d.default": _unpooled(2),
    "max_unpool3d.default": _unpooled(3),
    "grid_sampler_2d.default": _sampled(2),
    "grid_sampler_3d.default": _sampled(3),
    "_upsample_bilinear2d_aa.default": (_image(2),),
    "_upsample_bicubic2d_aa.default": (_image(2),),
    "histogram.bin_ct": (
        _as_large("weight", "self", "weight should have the sizes {wanted} of input, not {sizes}"),
    ),
    "histogram.bins_tensor": (
        _as_large("weight", "self", "weight should have the sizes {wanted} of input, not {sizes}"),
    ),
    "bucketize.Tensor": (
        has_rank("boundaries", (1,), "boundaries tensor must be 1 dimension, but got dim({rank})"),
    ),
    "segment_reduce.default": (_SEGMENTS,),
    "lu_unpack.default": (_UNPACKED,),
    "trace.default": (
        has_rank("self", (2,), "trace: expected a matrix, but got tensor with dim {rank}"),
    ),
    "linalg_cross.default": (_CROSS,),
    "linalg_lstsq.default": _products(_least_squares, "self", "b"),
    "addr.default": _products(_outer, "self", "vec1", "vec2"),
    "addmv.default": _products(_times_vector, "self", "mat", "vec"),
    "addbmm.default": _products(_sum_of_products, "self", "batch1", "batch2"),
}  # fmt: skip
"""Requirements by operator, as in `index_requirements`."""
