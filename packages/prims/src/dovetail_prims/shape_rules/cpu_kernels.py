"""Results that lie where the CPU's own kernels put them, of which PyTorch's meta kernels know
nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dovetail_prims.fake_tensor import FakeTensor, Size, Sizes, make
from dovetail_prims.shape_rules.copies import clone
from dovetail_prims.shape_rules.data_bounds import known_truth
from dovetail_prims.shape_rules.indexing import cat
from dovetail_prims.shape_rules.layout import (
    channels_last,
    fresh,
    has_zero,
    is_channels_last,
    is_contiguous,
    settled,
    wrap_dim,
)
from dovetail_prims.shape_rules.parts import slice_
from dovetail_prims.shape_rules.pointwise import binary, same_dtype


def of_cpu(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule for CPU tensors only; of others the meta kernel tells."""

    def on_cpu(x: FakeTensor, *args: Any, **kwargs: Any) -> Any:
        return rule(x, *args, **kwargs) if x._device.type == "cpu" else NotImplemented

    return on_cpu


def log_sigmoid(x: FakeTensor) -> tuple[FakeTensor, FakeTensor]:
    """`log_sigmoid_forward` and its buffer: row-major."""
    return fresh(x._sizes, x._dtype, x._device), fresh(x._sizes, x._dtype, x._device)


def rrelu(x: FakeTensor, noise: FakeTensor, *rest: Any, **options: Any) -> FakeTensor:
    """`rrelu_with_noise`: row-major."""
    return fresh(x._sizes, x._dtype, x._device)


def rrelu_and_noise(
    x: FakeTensor, noise: FakeTensor, *rest: Any, **options: Any
) -> tuple[FakeTensor, FakeTensor]:
    """Its functional form, which gives the noise, too: laid as what it is of."""
    return same_dtype(x), clone(noise)


def angle(x: FakeTensor) -> FakeTensor:
    """`angle`: of complex numbers row-major, as it is copied from complex numbers."""
    dtype = x._dtype
    if dtype.is_complex:
        return fresh(x._sizes, dtype.to_real(), x._device)
    return NotImplemented  # type: ignore[no-any-return]


def roll(x: FakeTensor, shifts: Sequence[Size], dims: Sequence[int] = ()) -> Any:
    """`roll`, which cuts and joins along one dimension after the other."""
    if not dims and len(shifts) == 1:
        return fresh(x._sizes, x._dtype, x._device)
    if len(shifts) != len(dims) or not dims:
        return NotImplemented  # an error of eager's
    if any(known_truth(x._sizes[wrap_dim(dim, len(x._sizes))] == 0) is None for dim in dims):
        return NotImplemented  # only the data tells how far it goes round
    for shift, dim in zip(shifts, dims, strict=True):
        if has_zero(x._sizes):
            x = clone(x)
            continue
        size = x._sizes[wrap_dim(dim, len(x._sizes))]
        start = (size - shift) % size
        # (Where only the data tells the shift, both parts count as having several elements.)
        start = start if type(start) is int else (1 if settled(start != 0) else 0)
        x = _laid(cat((slice_(x, dim, start, size), slice_(x, dim, 0, start)), dim), x._sizes)
    return x


def _laid(joined: FakeTensor, sizes: Sizes) -> FakeTensor:
    """What two parts make, in the very sizes of the whole."""
    if all(a is b for a, b in zip(joined._sizes, sizes, strict=True)):
        return joined
    last = is_channels_last(joined._sizes, joined._strides) and not is_contiguous(
        joined._sizes, joined._strides
    )
    if last:
        return make(sizes, channels_last(sizes), joined._dtype, joined._device)
    return fresh(sizes, joined._dtype, joined._device)


def dropout_backward(grad: FakeTensor, mask: FakeTensor, scale: Any) -> FakeTensor:
    """`native_dropout_backward`: a product."""
    return binary(binary(grad, mask), scale)


def rules() -> dict[str, Callable[..., Any]]:
    """The table of this family."""
    return {
        "rrelu_with_noise.default": of_cpu(rrelu),
        "rrelu_with_noise_functional.default": of_cpu(rrelu_and_noise),
    }
