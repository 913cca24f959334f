"""What layers and losses insist on of their arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor, Size
from dovetail_prims.shape_rules.argument_checks.requirement import (
    Arguments,
    Requirement,
    at_least_1d,
    expands,
    has_dtype,
    has_rank,
    is_of_sizes,
    same,
)

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
        f"{{{name}.sizes}} and normalized_shape = {{wanted}}",
    )


_STATISTICS = tuple(
    has_rank(name, (1,), f"TensorAccessor expected 1 dims but tensor has {{{name}.rank}}")
    for name in ("running_mean", "running_var")
)


def _out_channels(given: Arguments) -> tuple[Size, ...]:
    weight = given.sizes("weight")
    return (weight[1] * given["groups"] if given["transposed"] else weight[0],)


_CONVOLUTION = is_of_sizes(
    "bias",
    _out_channels,
    "expected bias to be 1-dimensional with {wanted} elements, but got bias of size "
    "{bias.sizes} instead",
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
    _labels, "inconsistent target size: {target.sizes} for input of size: {self.sizes}"
)


def _counts_classes(given: Arguments, on_cpu: bool) -> bool:
    """Classes are int64 or uint8. (A GPU stops at one out of range: its kernel is not asked.)"""
    target = given["target"]
    is_on_cpu = target._device.type == "cpu"
    return is_on_cpu is not on_cpu or target._dtype in (torch.int64, torch.uint8)


def _pixels(given: Arguments) -> Iterator[Any]:
    own, target = given.sizes("self"), given.sizes("target")
    yield from same(target, (own[0], *own[2:]))


_OF_IMAGES: _Row = (
    has_rank(
        "target",
        (3,),
        "only batches of spatial targets supported (3D tensors) but got targets of dimension: "
        "{target.rank}",
    ),
    has_rank(
        "self",
        (4,),
        "only batches of spatial inputs supported (4D tensors), but got input of dimension: "
        "{self.rank}",
    ),
    Requirement(_pixels, "size mismatch (got input: {self.sizes} , target: {target.sizes}"),
)

# --- images ---------------------------------------------------------------------------------------


def _unpooled(rank: int) -> _Row:
    return (
        has_rank(
            "self",
            (rank + 1, rank + 2),
            f"Input to max_unpooling{rank}d should be a {rank + 1}d or {rank + 2}d Tensor, but got "
            "a tensor with {self.rank} dimensions.",
        ),
        _as_large(
            "indices",
            "self",
            "Expected shape of indices to be same as that of the input tensor ({wanted}) but got "
            "indices tensor with shape: {indices.sizes}",
        ),
    )


def _sampled(rank: int) -> _Row:
    """Of images of `rank` dimensions that a grid of places samples."""

    def ranks(given: Arguments) -> Iterator[Any]:
        yield given.rank("input") == given.rank("grid") == rank + 2

    def fits(given: Arguments) -> Iterator[Any]:
        yield given.sizes("input")[0] == given.sizes("grid")[0]
        yield given.sizes("grid")[-1] == rank

    both = "input with sizes {input.sizes} and grid with sizes {grid.sizes}"
    return (
        Requirement(
            ranks,
            f"grid_sampler(): expected {rank + 2}D input and grid with same number of dimensions, "
            f"but got {both}",
        ),
        Requirement(
            fits,
            "grid_sampler(): expected grid and input to have same batch size, and grid to have "
            f"size {rank} in last dimension, but got {both}",
        ),
    )


def _image(rank: int) -> Requirement:
    """What is resized is a batch of images of `rank` dimensions."""
    text = f"It is expected input_size equals to {rank + 2}, but got size {{self.rank}}"
    return has_rank("self", (rank + 2,), text)


_SEGMENTS = Requirement(
    lambda given: (
        given.rank("data") >= given.rank(name)
        for name in ("lengths", "offsets")
        if isinstance(given[name], FakeTensor)
    ),
    "segment_reduce(): data has fewer dimensions than the segments",
)


# --- counts ---------------------------------------------------------------------------------------


def _groups(given: Arguments) -> Iterator[Any]:
    channels, count = given["C"], given["group"]
    yield count > 0
    yield channels % count == 0
    yield math.prod(given.sizes("input")) == given["N"] * channels * given["HxW"]
    yield given["HxW"] > 0


_GROUPS = Requirement(
    _groups,
    "Expected number of channels in input to be divisible by num_groups, and its elements to be "
    "N * C * HxW, but got input of shape {input.sizes}, num_groups={group} and {N} * {C} * {HxW}",
)


def _per_channel(name: str) -> Requirement:
    return is_of_sizes(
        name,
        lambda given: (given["C"],),
        f"Expected {name} to be a vector of size equal to the number of channels in input, but got "
        f"{name} of shape {{{name}.sizes}} and {{wanted}} channels",
    )


_MULTIVARIATE = Requirement(
    lambda given: given["p"] >= 1, "p has to be greater than or equal to 1, but got {p}"
)

_SOFT_MARGIN = Requirement(
    lambda given: expands(given.sizes("target"), given.sizes("self")),
    "output with shape {self.sizes} doesn't match the broadcast shape of target {target.sizes}",
)

_SOFTMAX_BACKWARD = _as_large(
    "grad_output",
    "output",
    "Expected tensor for argument #1 'grad' to have same size as tensor for argument #2 'output'; "
    "but {grad_output.sizes} does not equal {output.sizes}",
)
_HISTOGRAM = _as_large(
    "weight", "self", "weight should have the sizes {self.sizes} of input, not {weight.sizes}"
)
_NORMALIZED = Requirement(
    lambda given: len(given["normalized_shape"]) > 0,
    "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one "
    "element, but got normalized_shape = []",
)

# --- dtypes whose kernels must not be asked -------------------------------------------------------
#
# What dtypes others take, `dtype_checks` finds out. Lengths, offsets and classes that kernels do
# not look at before they read by them keep those kernels from being asked.

_CLASSES: _Row = tuple(
    Requirement(
        partial(_counts_classes, on_cpu=on_cpu),
        "expected target dtype to be Long or Byte, but got {target.dtype}",
        error,
    )
    for on_cpu, error in ((True, RuntimeError), (False, NotImplementedError))
)
_FLOATS = frozenset(
    d for d in vars(torch).values() if isinstance(d, torch.dtype) and d.is_floating_point
)
_BAGS: _Row = (
    has_dtype(
        "weight",
        _FLOATS,
        "Expected the weight to have one of the following scalar types: Half, BFloat16, Float, "
        "Double; but got {weight.dtype} instead (while checking arguments for embedding_bag)",
    ),
    has_dtype(
        "indices",
        (torch.int32, torch.int64),
        "Expected tensor for argument #1 'indices' to have one of the following scalar types: "
        "Long, Int; but got {indices.dtype} instead (while checking arguments for embedding_bag)",
    ),
)
_CTC = has_dtype(
    "log_probs",
    (torch.float32, torch.float64),
    "ctc_loss is not implemented for {log_probs.dtype}",
    NotImplementedError,
)
_REPLICATED = Requirement(
    lambda given: given["self"]._dtype is not torch.bool,
    "replication_pad is not implemented for 'Bool'",
    NotImplementedError,
)

TABLE: Mapping[str, _Row] = {
    "native_layer_norm.default": (
        _of_normalized_shape("weight"), _of_normalized_shape("bias"), _NORMALIZED,
    ),
    "_fused_rms_norm.default": (_of_normalized_shape("weight"),),
    "convolution.default": (_CONVOLUTION,),
    "native_batch_norm.default": _STATISTICS,
    "_native_batch_norm_legit.default": _STATISTICS,
    "_batch_norm_with_update.default": _STATISTICS,
    "nll_loss_forward.default": _CLASSES,
    "nll_loss2d_forward.default": (*_OF_IMAGES, *_CLASSES),
    "native_group_norm.default": (_GROUPS, _per_channel("weight"), _per_channel("bias")),
    "mvlgamma.default": (_MULTIVARIATE,),
    "soft_margin_loss.default": (_SOFT_MARGIN,),
    "multi_margin_loss.default": (
        _per("target", "target", lambda given: _rows(given)[0]),
        _per("weight", "weight", lambda given: _rows(given)[1]),
    ),
    "multilabel_margin_loss_forward.default": (_MULTILABEL,),
    "_softmax_backward_data.default": (_SOFTMAX_BACKWARD,),
    "_log_softmax_backward_data.default": (_SOFTMAX_BACKWARD,),
    "max_unpool2d.default": _unpooled(2),
    "max_unpool3d.default": _unpooled(3),
    "grid_sampler_2d.default": _sampled(2),
    "grid_sampler_3d.default": _sampled(3),
    "_upsample_bilinear2d_aa.default": (_image(2),),
    "_upsample_bicubic2d_aa.default": (_image(2),),
    "histogram.bin_ct": (_HISTOGRAM,),
    "histogram.bins_tensor": (_HISTOGRAM,),
    "bucketize.Tensor": (
        has_rank(
            "boundaries", (1,),
            "boundaries tensor must be 1 dimension, but got dim({boundaries.rank})",
        ),
    ),
    "segment_reduce.default": (
        _SEGMENTS,
        has_dtype(
            "data", _FLOATS, "segment_reduce is not implemented for {data.dtype}",
            NotImplementedError,
        ),
    ),
    "_embedding_bag.default": _BAGS,
    "_embedding_bag_forward_only.default": _BAGS,
    "_scaled_dot_product_flash_attention_for_cpu.default": (
        has_dtype(
            "query", _FLOATS,
            "scaled_dot_product_attention_flash_attention: Expected data type in FP32, FP64, BF16, "
            "FP16, but got {query.dtype} instead.",
        ),
    ),
    "_ctc_loss.default": (_CTC,),
    "_ctc_loss.Tensor": (_CTC,),
    **{f"replication_pad{rank}d.default": (_REPLICATED,) for rank in (1, 2, 3)},
}  # fmt: skip
"""Requirements by operator, as in `index_requirements`."""
