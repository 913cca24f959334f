"""Operands of dtypes that eager's kernel, or the operator's law, does not take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.shape_rules.argument_checks.check import Check, every


def is_whole(dtype: torch.dtype) -> bool:
    """Integers and truth values."""
    return not dtype.is_floating_point and not dtype.is_complex


def dtype_of(x: Any) -> torch.dtype | None:
    """The dtype of a tensor; None for a number."""
    return x._dtype if isinstance(x, FakeTensor) else None


def _of_bits(name: str) -> Check:
    """All operands must be of whole numbers."""

    def check(*operands: Any, **kwargs: Any) -> None:
        if any(d is not None and not is_whole(d) for d in map(dtype_of, operands)):
            raise NotImplementedError(f'"{name}" is not implemented for floating point numbers')
        if any(type(x) in (float, complex) for x in operands):
            raise NotImplementedError(f'"{name}" is not implemented for floating point numbers')

    return check


def of_floats(name: str) -> Check:
    """The first operand may not be of whole numbers."""

    def check(x: FakeTensor, *rest: Any, **kwargs: Any) -> None:
        if is_whole(x._dtype):
            raise NotImplementedError(f'"{name}" is not implemented for whole numbers')

    return check


def _not_of_bools(name: str) -> Check:
    """The first operand may not be of truth values."""

    def check(x: FakeTensor, *rest: Any, **kwargs: Any) -> None:
        if x._dtype is torch.bool:
            raise NotImplementedError(f"\"{name}\" not implemented for 'Bool'")

    return check


def _not_of_complex(name: str) -> Check:
    """The operand may not be complex."""

    def check(x: FakeTensor, *rest: Any, **kwargs: Any) -> None:
        if x._dtype.is_complex:
            raise NotImplementedError(f"{name} is not supported for complex inputs")

    return check


def _rounded(name: str) -> Check:
    """The operand may be neither complex nor of truth values."""
    return every(_not_of_bools(name), _not_of_complex(name))


def _in_place(name: str) -> Check:
    """What is written to may not be of whole numbers."""

    def check(x: FakeTensor, *rest: Any, **kwargs: Any) -> None:
        if is_whole(x._dtype):
            own = SCALAR_TYPES.get(x._dtype, str(x._dtype))
            floats = str(torch.get_default_dtype()).removeprefix("torch.")
            given = {"float32": "Float", "float64": "Double"}.get(floats, floats)
            raise RuntimeError(
                f"result type {given} can't be cast to the desired output type {own}"
            )

    return check


SCALAR_TYPES = {
    torch.bool: "Bool", torch.uint8: "Byte", torch.int8: "Char", torch.int16: "Short",
    torch.int32: "Int", torch.int64: "Long", torch.float16: "Half", torch.bfloat16: "BFloat16",
}  # fmt: skip


def _alpha(x: FakeTensor, other: Any, alpha: Any = 1, **kwargs: Any) -> None:
    if isinstance(alpha, int):
        return
    dtypes = [d for d in (dtype_of(x), dtype_of(other)) if d is not None]
    if isinstance(alpha, complex) and not any(d.is_complex for d in dtypes):
        raise RuntimeError(
            "For non-complex input tensors, argument alpha must not be a complex number."
        )
    whole = all(map(is_whole, dtypes)) and not isinstance(other, float | complex)
    if isinstance(alpha, float) and whole:
        raise RuntimeError(
            "For integral input tensors, argument alpha must not be a floating point number."
        )


def _weight(x: FakeTensor, end: FakeTensor, weight: FakeTensor) -> None:
    for name, t in (("end", end), ("weight", weight)):
        if t._dtype is not x._dtype:
            raise RuntimeError(f"expected dtype {x._dtype} for `{name}` but got dtype {t._dtype}")


def _same_dtype(x: Any, values: Any) -> None:
    if dtype_of(x) is not dtype_of(values):
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")


def _one_dtype(x: FakeTensor, other: FakeTensor, *rest: Any, **kwargs: Any) -> None:
    if other._dtype is not x._dtype:
        raise RuntimeError(f"expected operands of one dtype but got {x._dtype} and {other._dtype}")


def _one_float_dtype(name: str) -> Check:
    """The first two operands are of one dtype, which is not one of whole numbers."""

    def check(x: FakeTensor, other: FakeTensor, *rest: Any, **kwargs: Any) -> None:
        _one_dtype(x, other)
        of_floats(name)(x)

    return check


def _distances(x: FakeTensor, other: FakeTensor, *rest: Any, **kwargs: Any) -> None:
    if not {x._dtype, other._dtype} <= {torch.float32, torch.float64}:
        raise NotImplementedError(f"\"cdist\" not implemented for '{x._dtype}'")
    _one_dtype(x, other)


def _exponent(x: FakeTensor, exponent: Any) -> None:
    if isinstance(exponent, int) and exponent < 0 and is_whole(x._dtype):
        raise RuntimeError("Integers to negative integer powers are not allowed.")


def _quotient(x: FakeTensor, dividend: Any, divisor: Any, **kwargs: Any) -> None:
    if is_whole(dividend._dtype) and is_whole(divisor._dtype):
        raise RuntimeError("Integer division with addcdiv is no longer supported")


# Of whole numbers there is no kernel.
_FLOATS_ONLY = (
    "hypot", "_softmax", "_log_softmax", "silu", "elu", "softplus", "hardswish", "hardsigmoid",
    "mish", "log_sigmoid_forward", "soft_margin_loss",
    "binary_cross_entropy_with_logits", "leaky_relu", "frac", "nextafter", "mse_loss",
    "_prelu_kernel", "glu", "logcumsumexp",
)  # fmt: skip

# Of truth values there is none.
_NOT_OF_BOOLS = ("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d",
                 "adaptive_max_pool3d", "addcmul")  # fmt: skip

# In place they would write floats to what holds none.
_OF_FLOATS_IN_PLACE = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "digamma", "erf", "erfc",
    "erfinv", "exp", "exp2", "expm1", "lgamma", "log", "log10", "log1p", "log2", "logit",
    "reciprocal", "rsqrt", "sigmoid", "sin", "sinc", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip

_NOT_OF_COMPLEX = ("erf", "erfc", "lgamma", "sign")  # and what rounds


def _no_truths(x: FakeTensor, *rest: Any) -> None:
    if x._dtype is torch.bool:
        raise RuntimeError("The input tensor may not be a boolean tensor.")


def _real(x: FakeTensor) -> None:
    if x._dtype.is_complex:
        raise RuntimeError("In-place abs is not supported for complex tensors.")


TABLE: Mapping[str, Check] = {
    "abs_.default": _real,
    **{f"{name}.default": _not_of_complex(name) for name in _NOT_OF_COMPLEX},
    **{f"{name}_.default": _in_place(name) for name in _OF_FLOATS_IN_PLACE},
    **{f"{name}.default": _rounded(name) for name in ("ceil", "floor", "round", "trunc")},
    **{
        f"{name}.{overload}": _of_bits(name)
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor")
        for overload in ("Tensor", "Scalar")
    },
    "bitwise_not.default": _of_bits("bitwise_not"),
    "gcd.default": _of_bits("gcd"),
    "lcm.default": _of_bits("lcm"),
    **{f"{name}.default": of_floats(name) for name in _FLOATS_ONLY},
    "frac.default": every(of_floats("frac"), _not_of_complex("frac")),
    **{f"{name}.default": _not_of_bools(name) for name in _NOT_OF_BOOLS},
    **{
        f"{name}.{overload}": _one_float_dtype(name)
        for name, overload in (
            ("lerp", "Scalar"),
            ("grid_sampler_2d", "default"),
            ("grid_sampler_3d", "default"),
        )
    },
    "linalg_cross.default": _one_dtype,
    "_cdist_forward.default": _distances,
    "round.decimals": of_floats("round"),
    "pow.Tensor_Scalar": _exponent,
    "addcdiv.default": _quotient,
    "add.Tensor": _alpha,
    "sub.Tensor": _alpha,
    "lerp.Tensor": every(_weight, of_floats("lerp_kernel_tensor")),
    "mvlgamma.default": _no_truths,
    "heaviside.default": _same_dtype,
    "binary_cross_entropy.default": _one_dtype,
}
