"""Shape rules of pointwise ops, forward and backward."""

from __future__ import annotations

from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor, make
from dovetail_prims.shape_rules.layout import (
    broadcast,
    empty_like_strides,
    equal_sizes,
    fresh,
    has_zero,
    is_canonical,
    pointwise_layout,
    pointwise_out,
)
from dovetail_prims.shape_rules.promotion import COMPLEX, FLOATING, as_float, common_device, promote


def same_dtype(x: FakeTensor, *rest: Any, **options: Any) -> FakeTensor:
    """A unary op that keeps the dtype."""
    if is_canonical(x):
        out = make(x._sizes, x._strides, x._dtype, x._device)
        out._canonical = True
        return out
    return pointwise_out((x,), x._dtype)


def float_result(x: FakeTensor, *rest: Any, **options: Any) -> FakeTensor:
    """A unary op whose result is floating point: integers are promoted first."""
    return pointwise_out((x,), as_float(x._dtype))


def like_operand(x: FakeTensor, *rest: Any, **options: Any) -> FakeTensor:
    """A unary op that writes to an `empty_like`: one without elements keeps its strides, too."""
    return make(x._sizes, empty_like_strides(x), x._dtype, x._device)


def bool_result(x: FakeTensor) -> FakeTensor:
    """A unary predicate."""
    return pointwise_out((x,), torch.bool)


def real_result(x: FakeTensor) -> FakeTensor:
    """`abs`: complex goes to its real dtype."""
    return pointwise_out((x,), x._dtype.to_real()) if x._dtype in COMPLEX else same_dtype(x)


def _split(a: Any, b: Any) -> tuple[tuple[FakeTensor, ...], bool]:
    """The tensors among two operands, and whether the other is a number."""
    if type(a) is FakeTensor:
        return ((a, b), False) if type(b) is FakeTensor else ((a,), True)
    return (b,), True


def binary(a: Any, b: Any, alpha: Any = 1) -> FakeTensor:
    """Arithmetic on two operands with type promotion."""
    if type(a) is FakeTensor and type(b) is FakeTensor and a._dtype is b._dtype:
        if equal_sizes(a._sizes, b._sizes) and a._device == b._device:
            if is_canonical(a) and is_canonical(b):
                out = make(a._sizes, a._strides, a._dtype, a._device)
                out._canonical = True
                return out
        return pointwise_out((a, b), a._dtype)
    tensors, number = _split(a, b)
    return pointwise_out(tensors, promote((a, b)), number)


def times_power_of_two(x: FakeTensor, exponent: FakeTensor) -> FakeTensor:
    """`ldexp`: of the dtype of floating numbers by whole exponents; of others the product with a
    power, which is row-major for tensors of one dtype by one of float32, else lies as the
    exponents do."""
    whole = exponent._dtype not in FLOATING and exponent._dtype not in COMPLEX
    if x._dtype in FLOATING and whole:
        return pointwise_out((x, exponent), x._dtype)
    power = power_of_number(2.0, exponent)
    if x._dtype is exponent._dtype and power._dtype is torch.float32:
        return binary(x, power)
    return binary(x, make(power._sizes, empty_like_strides(exponent), power._dtype, power._device))


def subtract_from(a: Any, b: Any, alpha: Any = 1) -> FakeTensor:
    """`rsub`: the second operand comes first."""
    return binary(b, a)


def itself_if_real(x: FakeTensor) -> FakeTensor:
    """`conj_physical`: a real tensor is returned as it is."""
    return same_dtype(x) if x._dtype.is_complex else x


def itself(x: FakeTensor) -> FakeTensor:
    """`positive`: not for bool."""
    if x._dtype is torch.bool:
        raise NotImplementedError("The `+` operator, on a bool tensor is not supported.")
    return x


def divide(a: Any, b: Any, *, rounding_mode: str | None = None) -> FakeTensor:
    """True division promotes integers; a rounded one does not."""
    tensors, number = _split(a, b)
    dtype = promote((a, b))
    return pointwise_out(tensors, dtype if rounding_mode is not None else as_float(dtype), number)


def binary_float(a: Any, b: Any) -> FakeTensor:
    """A binary op whose result is floating point (`atan2` ...)."""
    tensors, number = _split(a, b)
    return pointwise_out(tensors, as_float(promote((a, b))), number)


def complex_of(a: FakeTensor, b: FakeTensor) -> FakeTensor:
    """Complex numbers by their parts, or by size and angle."""
    if a._dtype is not b._dtype or a._dtype not in (torch.float32, torch.float64):
        return NotImplemented  # type: ignore[no-any-return]
    return pointwise_out((a, b), a._dtype.to_complex(), computed_in=a._dtype)


def compare(a: Any, b: Any) -> FakeTensor:
    """A comparison or logical op."""
    tensors, number = _split(a, b)
    return pointwise_out(tensors, torch.bool, number, promote((a, b)))


def power_scalar(x: FakeTensor, exponent: Any) -> FakeTensor:
    """`pow(tensor, number)`: the number is no operand of the iterator."""
    return pointwise_out((x,), promote((x, exponent)))


def power_of_number(base: Any, exponent: FakeTensor) -> FakeTensor:
    """`pow(number, tensor)`: row-major."""
    return fresh(exponent._sizes, promote((base, exponent)), exponent._device)


def where(condition: FakeTensor, a: Any, b: Any) -> FakeTensor:
    """`where`, its branches tensors or numbers."""
    same = type(a) is FakeTensor and type(b) is FakeTensor and a._dtype is b._dtype
    dtype = a._dtype if same else promote((a, b))
    branches = [t for t in (a, b) if type(t) is FakeTensor]
    if not same:
        branches = [_converted(t, dtype) for t in branches]
    sizes, strides = pointwise_layout((condition, *branches), len(branches) < 2)
    return make(sizes, strides, dtype, common_device((condition, *branches)))


def _converted(x: FakeTensor, dtype: torch.dtype) -> FakeTensor:
    return x if x._dtype is dtype else make(x._sizes, empty_like_strides(x), dtype, x._device)


def clamp(x: FakeTensor, low: Any = None, high: Any = None, **named: Any) -> FakeTensor:
    """`clamp` and its one-sided forms, with number bounds."""
    bounds = [v for v in (low, high, named.get("min"), named.get("max")) if v is not None]
    numbers = [v for v in bounds if type(v) is not FakeTensor]
    if len(numbers) == len(bounds):
        return pointwise_out((x,), promote((x, *numbers)))
    tensors = (x, *(v for v in bounds if type(v) is FakeTensor))
    return pointwise_out(tensors, promote(tensors))


def ternary(a: FakeTensor, b: FakeTensor, c: FakeTensor, **options: Any) -> FakeTensor:
    """Three tensors joined (`addcmul`, `addcdiv`, `lerp.Tensor`)."""
    return pointwise_out((a, b, c), promote((a, b, c)))


def lerp_scalar(a: FakeTensor, b: FakeTensor, weight: Any) -> FakeTensor:
    """`lerp` with a number as weight."""
    return pointwise_out((a, b), a._dtype)


def threshold_backward(grad: FakeTensor, x: FakeTensor, threshold: Any) -> FakeTensor:
    """Backward of `relu` and `threshold`; its iterator takes the saved value first."""
    return backward_two(x, grad)


def backward_two(a: FakeTensor, b: FakeTensor, *rest: Any, **options: Any) -> FakeTensor:
    """A pointwise backward op: gradient and saved value, then numbers."""
    if a._dtype is b._dtype:
        return binary(a, b)
    return pointwise_out((a, b), promote((a, b)))


def elu_backward(
    grad: FakeTensor, alpha: Any, scale: Any, input_scale: Any, is_result: bool, saved: FakeTensor
) -> FakeTensor:
    """Its numbers stand between the gradient and the saved value."""
    return backward_two(grad, saved)


def in_place(x: FakeTensor, *args: Any, **kwargs: Any) -> Any:
    """A pointwise op that writes to its first argument; the operands must broadcast to it."""
    if x._canonical is not True:
        _check_no_overlap(x)
    for a in args:
        if type(a) is FakeTensor and not equal_sizes(a._sizes, x._sizes):
            if broadcast((x._sizes, a._sizes)) != x._sizes:
                raise RuntimeError(
                    f"output with shape {list(x._sizes)} doesn't match the broadcast shape "
                    f"{list(broadcast((x._sizes, a._sizes)))}"
                )
    return x


def _check_no_overlap(x: FakeTensor) -> None:
    for size, stride in zip(x._sizes, x._strides, strict=True):
        if type(stride) is int and stride == 0 and size > 1 and not has_zero(x._sizes):
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to a "
                "single memory location. Please clone() the tensor before performing the operation."
            )


def float_function(x: FakeTensor) -> FakeTensor:
    """A function of real numbers; whole numbers are promoted."""
    if x._dtype.is_complex:
        return NotImplemented  # type: ignore[no-any-return]
    return pointwise_out((x,), as_float(x._dtype))
