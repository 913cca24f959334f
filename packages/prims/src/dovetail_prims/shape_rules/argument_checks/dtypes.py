"""Operands of dtypes that eager's kernel, or the operator's law, does not take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.shape_rules.argument_checks.check import Check, every
from dovetail_prims.shape_rules.promotion import check_cast, name_in_kernels, promote


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
    """The first operand may not be complex."""

    def check(x: FakeTensor, *rest: Any, **kwargs: Any) -> None:
        if x._dtype.is_complex:
            raise NotImplementedError(f"{name} is not supported for complex inputs")

    return check


def _rounded(name: str) -> Check:
    """The operand may be neither complex nor of truth values."""
    return every(_not_of_bools(name), _not_of_complex(name))


def _in_place(x: FakeTensor, *rest: Any, **kwargs: Any) -> None:
    """What is written to may not be of whole numbers."""
    if is_whole(x._dtype):
        check_cast(torch.get_default_dtype(), x._dtype)


def _no_kernel(error: type[Exception], text: str) -> Check:
    """No operand may be complex: eager raises this, which may name the dtype."""

    def check(*operands: Any, **kwargs: Any) -> None:
        for x in (*operands, *kwargs.values()):
            dtype = torch.complex64 if isinstance(x, complex) else dtype_of(x)
            if dtype is not None and dtype.is_complex:
                raise error(text.format(dtype=name_in_kernels(dtype)))

    return check


def _each_in_place(operands: int) -> Check:
    """Of a list: the result for each tensor, with so many operands more, may be written to it."""

    def check(tensors: Sequence[FakeTensor], *rest: Any, **kwargs: Any) -> None:
        for number, x in enumerate(tensors):
            others = [o[number] if isinstance(o, (list, tuple)) else o for o in rest[:operands]]
            check_cast(promote((x, *others)), x._dtype)

    return check


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


# What has an order, of which complex numbers have none, with what eager raises.
_ORDERED: Mapping[str, Check] = {
    **{
        f"{name}{form}.{overload}": _no_kernel(
            NotImplementedError, f"\"{name}_cpu\" not implemented for '{{dtype}}'"
        )
        for name in ("lt", "le", "gt", "ge")
        for form in ("", "_")
        for overload in ("Tensor", "Scalar")
    },
    **{
        f"{name}.default": _no_kernel(TypeError, f"{name} not implemented for complex tensors.")
        for name in ("maximum", "minimum", "fmax", "fmin")
    },
    **{
        f"{name}.default": _no_kernel(
            NotImplementedError, "clamp is not supported for complex types"
        )
        for name in ("relu", "hardtanh", "clamp", "clamp_min", "clamp_max")
    },
    "clamp.Tensor": _no_kernel(NotImplementedError, "clamp is not supported for complex types"),
    **{
        f"{name}.{overload}": _no_kernel(
            TypeError, f" {name.capitalize()} does not support complex dtypes on CPU"
        )
        for name, overload in (("sort", "default"), ("sort", "stable"))
    },
    "topk.default": _no_kernel(TypeError, " topk does not support complex dtypes on CPU"),
    **{
        f"{name}.default": _no_kernel(TypeError, f"{name}(): does not support complex input")
        for name in ("argmax", "argmin")
    },
    **{
        f"{name}.default": _no_kernel(
            NotImplementedError, f"\"{kernel}\" not implemented for '{{dtype}}'"
        )
        for name, kernel in (
            ("max", "max_all"),
            ("min", "min_all"),
            ("amax", "max_values_cpu"),
            ("amin", "min_values_cpu"),
            ("median", "median_cpu"),
            ("mode", "mode_cpu"),
            ("kthvalue", "kthvalue_cpu"),
            ("cummax", "cummax_cpu"),
            ("cummin", "cummin_cpu"),
        )
    },
    **{
        f"{name}.{overload}": _no_kernel(
            NotImplementedError, f"\"{name}_cpu\" not implemented for '{{dtype}}'"
        )
        for name in ("remainder", "fmod")
        for overload in ("Tensor", "Scalar")
    },
}

# In place the sum of truth values has nowhere to be written.
_RUNNING = {"cumsum": "cumsum_out_cpu", "cumprod": "cumprod_out_cpu"}


def _absolute(x: FakeTensor) -> None:
    if x._dtype.is_complex:
        raise RuntimeError("In-place abs is not supported for complex tensors.")


TABLE: Mapping[str, Check] = {
    **_ORDERED,
    **{f"{name}_.default": _not_of_bools(kernel) for name, kernel in _RUNNING.items()},
    "abs_.default": _absolute,
    **{
        f"_foreach_{name}_.{overload}": _each_in_place(1)
        for name in ("add", "sub", "mul", "clamp_min", "clamp_max", "maximum", "minimum", "pow")
        for overload in ("Scalar", "ScalarList", "List", "Tensor")
        if (name, overload) not in (("sub", "Tensor"), ("pow", "Tensor"))
    },
    **{
        f"_foreach_{name}_.{overload}": _each_in_place(2)
        for name in ("addcmul", "addcdiv")
        for overload in ("Scalar", "ScalarList", "Tensor")
    },
    **{f"{name}.default": _not_of_complex(name) for name in _NOT_OF_COMPLEX},
    **{f"{name}_.default": _in_place for name in _OF_FLOATS_IN_PLACE},
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
