"""Random numbers: of a shape, like a tensor, by parameters, written to a tensor; dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake_tensor import FakeTensor, Size, make
from dovetail_prims.ops.card import also, composed, kept, library
from dovetail_prims.ops.common import aten
from dovetail_prims.shape_rules import layout
from dovetail_prims.shape_rules.factories import empty, like
from dovetail_prims.shape_rules.promotion import FLOATING


def with_generator(size: Sequence[Size], generator: Any = None, **options: Any) -> Any:
    """The `.generator` overloads."""
    return empty(size, **options)


def randint_shape(*args: Any, **options: Any) -> Any:
    """`randint`: [low,] high, size."""
    size = next(a for a in args if isinstance(a, (list, tuple)))
    return empty(size, **{**options, "dtype": options.get("dtype") or torch.int64})


def randperm(n: Size, **options: Any) -> Any:
    """A random permutation."""
    return empty((n,), **{**options, "dtype": options.get("dtype") or torch.int64})


def bernoulli(x: FakeTensor, *rest: Any, **options: Any) -> FakeTensor:
    """`bernoulli`: a sample for each element, contiguous."""
    return layout.fresh(x._sizes, x._dtype, x._device)


def sample_like(x: FakeTensor, *rest: Any, **options: Any) -> FakeTensor:
    """`normal_functional` ...: a clone that is overwritten."""
    return make(x._sizes, layout.empty_like_strides(x), x._dtype, x._device)


def normal(mean: Any, std: Any = 1.0, *rest: Any, **options: Any) -> FakeTensor:
    """`normal` of tensors: a sample for each pair, contiguous."""
    tensors = [x for x in (mean, std) if isinstance(x, FakeTensor)]
    sizes = layout.broadcast([x._sizes for x in tensors])
    return layout.fresh(sizes, tensors[0]._dtype, tensors[0]._device)


def normal_of_numbers(
    mean: float, std: float, size: Sequence[Size], *, generator: Any = None, **options: Any
) -> Any:
    """`normal` of two numbers."""
    return empty(size, **options) if std >= 0 else NotImplemented


def in_place(x: FakeTensor, *rest: Any, **options: Any) -> FakeTensor:
    """A sampler that overwrites its argument."""
    return x


def drawn(*parameters: Any, **options: Any) -> FakeTensor:
    """Random numbers for a distribution's parameters, or their derivatives: contiguous ones."""
    tensors = [p for p in parameters if isinstance(p, FakeTensor)]
    sizes = layout.broadcast([t._sizes for t in tensors])
    return layout.fresh(sizes, tensors[0]._dtype, tensors[0]._device)


def drawn_in_place(x: FakeTensor, *parameters: Any, **options: Any) -> FakeTensor:
    """A sampler that writes to what it is given."""
    return x if x._dtype in FLOATING and layout.is_canonical(x) else NotImplemented


def native_dropout(x: FakeTensor, p: float, train: bool | None) -> tuple[FakeTensor, FakeTensor]:
    """Output and mask, laid out as the input."""
    mask = make(x._sizes, layout.empty_like_strides(x), torch.bool, x._device)
    if x._device.type == "cpu" and train is not False:
        return layout.pointwise_out(
            (x, mask), x._dtype
        ), mask  # a product there, one kernel on CUDA
    return make(x._sizes, mask._strides, x._dtype, x._device), mask


def randint(
    high: int,
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = torch.int64,
    device: torch.device | None = None,
    **options: Any,
) -> Tensor:
    """From 0"""
    return aten.randint.low(0, high, size, dtype=dtype, device=device)


# --- cards ----------------------------------------------------------------------------------------

CARDS = (
    *(library(name, empty, None, also("generator", with_generator)) for name in ("rand", "randn")),
    library(
        "randint", randint_shape, None, also("default", randint_shape, randint), overload="low"
    ),
    library("randperm", randperm),
    library("bernoulli", bernoulli, None, kept("p", bernoulli), kept("Tensor")),
    library("normal_functional", sample_like),
    library(
        "normal",
        normal,
        None,
        kept("Tensor_float", normal),
        kept("float_Tensor", normal),
        kept("float_float", normal_of_numbers),
        overload="Tensor_Tensor",
    ),
    library("uniform", sample_like),
    library("exponential", sample_like),
    composed("bernoulli_", in_place, None, also("Tensor", in_place), overload="float"),
    composed("uniform_", in_place),
    composed("normal_", in_place),
    composed("random_", in_place, None, also("from", in_place), also("to", in_place)),
    composed("exponential_", in_place),
    library("native_dropout", native_dropout),
    library("rand_like", like),
    library("randn_like", like),
    library("randint_like", like, None, kept("low_dtype", like)),
    library("poisson", drawn),
    *(
        composed(name, drawn)
        for name in (
            "_sample_dirichlet",
            "_dirichlet_grad",
            "_standard_gamma",
            "_standard_gamma_grad",
            "binomial",
        )
    ),
    *(composed(name, drawn_in_place) for name in ("cauchy_", "geometric_", "log_normal_")),
    *(library(name) for name in ("log_normal", "geometric", "cauchy", "multinomial")),
)
