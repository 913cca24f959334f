"""What eager's kernels refuse beyond shapes: dtypes, options, sizes of what is written.

A shape rule that does not look at such an argument would let a program run that eager stops. Each
check takes its op's arguments and raises what eager raises; the op's in-place form has the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.shape_rules.conversions import check_number
from dovetail_prims.shape_rules.layout import broadcast, insisted, wrap_dim

Check = Callable[..., None]

_INDEX = (torch.int64, torch.int32)
_REDUCE = ("sum", "prod", "mean", "amax", "amin")


def _is_whole(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


def _dtype(x: Any) -> torch.dtype | None:
    return x._dtype if isinstance(x, FakeTensor) else None


def _of_bits(name: str) -> Check:
    def check(*operands: Any, **kwargs: Any) -> None:
        if any(d is not None and not _is_whole(d) for d in map(_dtype, operands)):
            raise NotImplementedError(f'"{name}" is not implemented for floating point numbers')
        if any(type(x) in (float, complex) for x in operands):
            raise NotImplementedError(f'"{name}" is not implemented for floating point numbers')

    return check


def _of_floats(name: str) -> Check:
    def check(x: FakeTensor, *rest: Any, **kwargs: Any) -> None:
        if _is_whole(x._dtype):
            raise NotImplementedError(f'"{name}" is not implemented for whole numbers')

    return check


def _not_of_bools(name: str) -> Check:
    def check(x: FakeTensor, *rest: Any, **kwargs: Any) -> None:
        if x._dtype is torch.bool:
            raise NotImplementedError(f"\"{name}\" not implemented for 'Bool'")

    return check


def _alpha(x: FakeTensor, other: Any, alpha: Any = 1, **kwargs: Any) -> None:
    if isinstance(alpha, int):
        return
    dtypes = [d for d in (_dtype(x), _dtype(other)) if d is not None]
    if isinstance(alpha, complex) and not any(d.is_complex for d in dtypes):
        raise RuntimeError(
            "For non-complex input tensors, argument alpha must not be a complex number."
        )
    whole = all(map(_is_whole, dtypes)) and not isinstance(other, float | complex)
    if isinstance(alpha, float) and whole:
        raise RuntimeError(
            "For integral input tensors, argument alpha must not be a floating point number."
        )


def _mask(x: FakeTensor, mask: FakeTensor, *rest: Any) -> None:
    if mask._dtype is not torch.bool:
        raise RuntimeError(
            f"masked_fill only supports boolean masks, but got mask with dtype {mask._dtype}"
        )


def _masked_number(x: FakeTensor, mask: FakeTensor, value: Any) -> None:
    _mask(x, mask)
    check_number(value, x._dtype)


def _condition(condition: FakeTensor, *rest: Any) -> None:
    if condition._dtype not in (torch.bool, torch.uint8):
        raise RuntimeError(
            "where expected condition to be a boolean tensor, but got a tensor with dtype "
            f"{condition._dtype}"
        )


def _positions(x: FakeTensor, dim: int, index: FakeTensor, *rest: Any, **kwargs: Any) -> None:
    if index._dtype not in _INDEX:
        raise RuntimeError("Expected dtype int32 or int64 for index")


def _dims_once(x: FakeTensor, dims: Any) -> None:
    wrapped = [wrap_dim(d, len(x._sizes)) for d in dims]
    for d in wrapped:
        if wrapped.count(d) > 1:
            raise RuntimeError(f"dim {d} appears multiple times in the list of dims")


def _approximation(x: FakeTensor, *, approximate: str = "none") -> None:
    _of_floats("gelu")(x)
    if approximate not in ("none", "tanh"):
        raise RuntimeError("approximate argument must be either none or tanh.")


def _bounds(x: FakeTensor, low: Any = None, high: Any = None, **kwargs: Any) -> None:
    low, high = kwargs.get("min", low), kwargs.get("max", high)
    if low is None and high is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")


def _weight(x: FakeTensor, end: FakeTensor, weight: FakeTensor) -> None:
    for name, t in (("end", end), ("weight", weight)):
        if t._dtype is not x._dtype:
            raise RuntimeError(f"expected dtype {x._dtype} for `{name}` but got dtype {t._dtype}")


def _rounding(x: Any, other: Any, *, rounding_mode: str | None = None) -> None:
    if rounding_mode not in (None, "trunc", "floor"):
        raise RuntimeError(
            "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found "
            f"'{rounding_mode}'"
        )


def _reduce(*args: Any, reduce: str | None = None, **kwargs: Any) -> None:
    found = args[4] if len(args) > 4 else reduce
    if found not in _REDUCE:
        raise RuntimeError(
            f"reduce argument must be either sum, prod, mean, amax or amin, got {found}"
        )


def _reduce_by(*args: Any, reduce: str) -> None:
    if reduce not in ("add", "multiply"):
        raise RuntimeError("reduce argument must be either add or multiply.")


def _beta(x: Any, target: Any, reduction: int = 1, beta: float = 1.0) -> None:
    if beta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")


def _delta(x: Any, target: Any, reduction: int = 1, delta: float = 1.0) -> None:
    if delta <= 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")


def _same_dtype(x: Any, values: Any) -> None:
    if _dtype(x) is not _dtype(values):
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")


def _number(
    size: Any, value: Any, dtype: torch.dtype | None = None, device: Any = None, **kwargs: Any
) -> None:
    if dtype is not None:
        _everywhere(value, dtype, tuple(size), torch.device("cpu" if device is None else device))


def _like(
    x: FakeTensor,
    value: Any,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **kwargs: Any,
) -> None:
    _new(x, x._sizes, value, dtype, device)


def _new(
    x: FakeTensor,
    size: Any,
    value: Any,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **kwargs: Any,
) -> None:
    device = x._device if device is None else torch.device(device)
    _everywhere(value, x._dtype if dtype is None else dtype, tuple(size), device)


def _everywhere(value: Any, dtype: torch.dtype, sizes: Any, device: torch.device) -> None:
    """A fill: on a CPU one number alone of a half type is taken by way of float64."""
    alone = device.type == "cpu" and all(type(n) is int and n == 1 for n in sizes)
    half = dtype in (torch.float16, torch.bfloat16)
    check_number(value, torch.float64 if alone and half else dtype)


def _scalar(value: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> None:
    if dtype is not None:
        check_number(value, dtype)


def _placed(x: FakeTensor, dim: int, index: FakeTensor, value: Any, **kwargs: Any) -> None:
    check_number(value, x._dtype)


def _padding(x: FakeTensor, pad: Any, value: Any = 0) -> None:
    if any(type(n) is not int or n > 0 for n in pad):
        check_number(value, x._dtype)


def _same_types(at: int, text: str) -> Check:
    """The argument number `at` must be of the dtype of what it is written to."""

    def check(x: FakeTensor, *rest: Any, **kwargs: Any) -> None:
        source = rest[at - 1] if len(rest) >= at else kwargs.get("src", kwargs.get("source"))
        dtype = _dtype(source)
        if dtype is not None and dtype is not x._dtype:
            own, given = (str(d).removeprefix("torch.") for d in (x._dtype, dtype))
            raise RuntimeError(text.format(own=own, given=given))

    return check


def _all(*checks: Check) -> Check:
    def check(*args: Any, **kwargs: Any) -> None:
        for each in checks:
            each(*args, **kwargs)

    return check


def _divisor(x: FakeTensor, *rest: Any, **kwargs: Any) -> None:
    divisor = rest[5] if len(rest) > 5 else kwargs.get("divisor_override")
    if divisor == 0:
        raise RuntimeError("divisor must be not zero")


def _out_of(dtype: Callable[..., torch.dtype], text: str) -> Check:
    """The tensor written to must be of the dtype that the other arguments tell."""

    def check(*args: Any, out: FakeTensor, **kwargs: Any) -> None:
        wanted = dtype(*args, **kwargs)
        if out._dtype is not wanted:
            names = (str(d).removeprefix("torch.") for d in (wanted, out._dtype))
            raise RuntimeError(text.format(*names))

    return check


def _out_without(kernel: str, missing: Callable[[torch.dtype], bool]) -> Check:
    """An operator that computes in the dtype of what it writes to, and has no kernel for some."""

    def check(*args: Any, out: FakeTensor, **kwargs: Any) -> None:
        dtype = kwargs.get("dtype")
        dtype = out._dtype if dtype is None else dtype
        if missing(dtype):
            name = str(dtype).removeprefix("torch.")
            raise NotImplementedError(f"\"{kernel}\" not implemented for '{name}'")

    return check


def _is_bool(dtype: torch.dtype) -> bool:
    return dtype is torch.bool


def _angle_into(x: FakeTensor, *, out: FakeTensor) -> None:
    if not x._dtype.is_floating_point and not x._dtype.is_complex:
        return
    if _is_whole(out._dtype):
        raise RuntimeError(
            f"result type Float can't be cast to the desired output type {out._dtype}"
        )


def _of_both(real: FakeTensor, imag: FakeTensor) -> torch.dtype:
    return real._dtype.to_complex()


def _places(*args: Any, out_int32: bool = False, **kwargs: Any) -> torch.dtype:
    return torch.int32 if out_int32 else torch.int64


def _few_dims(x: FakeTensor, *rest: Any, **kwargs: Any) -> None:
    if len(x._sizes) > 64:
        raise RuntimeError("only tensors with up to 64 dims are supported")


def _fits(part: tuple[Any, ...], src: FakeTensor) -> None:
    sizes = src._sizes
    if len(part) != len(sizes) or not all(
        insisted(a == b) for a, b in zip(part, sizes, strict=True)
    ):
        raise RuntimeError(
            "expected src to have a size equal to the slice of self. src size = "
            f"{list(sizes)}, slice size = {list(part)}"
        )


def _as_many(
    x: FakeTensor, dim: int, index: FakeTensor, source: FakeTensor, *rest: Any, **kwargs: Any
) -> None:
    if not source._sizes or not index._sizes:
        return
    length = source._sizes[wrap_dim(dim, len(source._sizes))]
    if not insisted(index._sizes[0] == length):
        raise RuntimeError(
            f"Number of indices ({index._sizes[0]}) should be equal to source.size(dim) ({length})"
        )


def _selected(x: FakeTensor, src: FakeTensor, dim: int, index: Any) -> None:
    at = wrap_dim(dim, len(x._sizes))
    _fits((*x._sizes[:at], *x._sizes[at + 1 :]), src)


def _sliced(
    x: FakeTensor,
    src: FakeTensor,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
) -> None:
    _fits(tuple(torch.ops.aten.slice.Tensor(x, dim, start, end, step).shape), src)


def _diagonal(
    x: FakeTensor, src: FakeTensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> None:
    _fits(tuple(torch.ops.aten.diagonal.default(x, offset, dim1, dim2).shape), src)


def _strided(
    x: FakeTensor, src: FakeTensor, size: Any, stride: Any, storage_offset: Any = None
) -> None:
    _fits(tuple(size), src)
    _within(x, size, stride, storage_offset)


def _bytes(sizes: Any, strides: Any, offset: Any, dtype: torch.dtype) -> Any:
    """How far into its storage a tensor reaches."""
    if any(type(n) is int and n == 0 for n in sizes):
        return 0
    last = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    return (offset + last + 1) * dtype.itemsize


def _within(x: FakeTensor, size: Any, stride: Any, storage_offset: Any = None) -> None:
    """What as_strided views must lie in the storage: kernels would read what lies behind it."""
    for s in stride:
        if type(s) is int and s < 0:
            raise RuntimeError(
                "as_strided: Negative strides are not supported at the moment, got strides: "
                f"{list(stride)}"
            )
    held = x._storage.made_for
    if held is None or len(size) != len(stride):
        return
    offset = x._offset if storage_offset is None else storage_offset
    room = held if isinstance(held, int) else _bytes(*held)
    wanted = _bytes(size, stride, offset, x._dtype)
    if not insisted(wanted <= room):
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, and "
            f"itemsize {x._dtype.itemsize} requiring a storage size of {wanted} are out of bounds "
            f"for storage of size {room}"
        )


def _values(x: FakeTensor, indices: Any, values: FakeTensor, accumulate: bool = False) -> None:
    if values._dtype is not x._dtype:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, got "
            f"{x._dtype} for the destination and {values._dtype} for the source."
        )
    if any(i is not None and i._dtype in (torch.bool, torch.uint8) for i in indices):
        return  # as many places as the data say
    used = [d for d, i in enumerate(indices) if i is not None]
    picked = broadcast([indices[d]._sizes for d in used])
    rest = [n for d, n in enumerate(x._sizes) if d not in used]
    first = used[0] if used == list(range(used[0], used[-1] + 1)) else 0
    places = (*rest[:first], *picked, *rest[first:])
    given = values._sizes
    off = len(given) - len(places)
    # Broadcasting; sizes beyond the places' own must be 1.
    wanted = (1,) * off + places[max(-off, 0) :]
    pairs = zip(given, wanted, strict=True)
    if not all((type(n) is int and n == 1) or insisted(n == m) for n, m in pairs):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(given)} cannot be broadcast to indexing "
            f"result of shape {list(places)}"
        )


def _exponent(x: FakeTensor, exponent: Any) -> None:
    if isinstance(exponent, int) and exponent < 0 and _is_whole(x._dtype):
        raise RuntimeError("Integers to negative integer powers are not allowed.")


def _quotient(x: FakeTensor, dividend: Any, divisor: Any, **kwargs: Any) -> None:
    if _is_whole(dividend._dtype) and _is_whole(divisor._dtype):
        raise RuntimeError("Integer division with addcdiv is no longer supported")


def _one_value(x: FakeTensor, mask: FakeTensor, value: FakeTensor) -> None:
    _mask(x, mask)
    if len(value._sizes) != 0:
        raise RuntimeError(
            "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with "
            f"{len(value._sizes)} dimension(s)."
        )


def _scattered(x: FakeTensor, mask: FakeTensor, source: FakeTensor) -> None:
    if mask._dtype is not torch.bool:
        name = "Byte" if mask._dtype is torch.uint8 else str(mask._dtype)
        raise RuntimeError(
            f"masked_scatter_ only supports boolean masks, but got mask with dtype {name}"
        )


def _threshold(x: FakeTensor, lambd: Any = 0.5) -> None:
    _of_floats("softshrink")(x)
    if lambd < 0:
        raise RuntimeError(f"lambda must not be negative, but found {lambd}")


def _slices(
    x: FakeTensor, dim: int, index: FakeTensor, source: FakeTensor, *rest: Any, **kwargs: Any
) -> None:
    if not x._sizes or not source._sizes:
        return
    at = wrap_dim(dim, len(x._sizes))
    own, given = ((*t._sizes[:at], *t._sizes[at + 1 :]) for t in (x, source))
    if len(own) != len(given) or not all(insisted(a == b) for a, b in zip(own, given, strict=True)):
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. "
            f"Got self.shape = {list(x._sizes)} source.shape = {list(source._sizes)}"
        )


def _normalized(x: FakeTensor, normalized_shape: Any, *rest: Any) -> None:
    if len(normalized_shape) == 0:
        raise RuntimeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one "
            "element, but got normalized_shape = []"
        )


def _unpooled(x: FakeTensor, indices: FakeTensor, *rest: Any) -> None:
    if indices._dtype is not torch.int64:
        name = str(indices._dtype).removeprefix("torch.")
        raise RuntimeError(f"elements in indices should be type int64 but got: {name}")


def _images(x: FakeTensor, *rest: Any) -> None:
    if len(x._sizes) not in (3, 4):
        raise RuntimeError(
            "Input to max_unpooling2d should be a 3d or 4d Tensor, but got a tensor with "
            f"{len(x._sizes)} dimensions."
        )


# Of whole numbers there is no kernel.
_FLOATS_ONLY = (
    "hypot", "_softmax", "_log_softmax", "silu", "elu", "softplus", "hardswish", "hardsigmoid",
    "mish", "log_sigmoid_forward", "leaky_relu", "frac", "nextafter", "mse_loss",
    "_prelu_kernel", "glu", "logcumsumexp",
)  # fmt: skip

# Of truth values there is none.
_NOT_OF_BOOLS = ("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d",
                 "adaptive_max_pool3d", "addcmul")  # fmt: skip

_SCATTERED = "scatter(): Expected self.dtype to be equal to src.dtype"

_OTHER_PARTS = "Expected object of scalar type {0} but got scalar type {1} for argument 'out'"
_NO_PLACES = (
    "torch.searchsorted(): output tensor's dtype is wrong, it can only be Int(int32) or "
    "Long(int64) depending on whether out_int32 flag is True, but we got output tensor's dtype {1}"
)

# They take a set of dimensions as 64 bits.
_OF_SETS = ("amax.default", "amin.default", "sum.dim_IntList", "mean.dim", "var_mean.correction",
            "var.correction", "std.correction", "all.dims", "any.dims")  # fmt: skip

CHECKS: Mapping[str, Check] = {
    **dict.fromkeys(_OF_SETS, _few_dims),
    **{
        f"{name}.{overload}": _of_bits(name)
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor")
        for overload in ("Tensor", "Scalar")
    },
    "bitwise_not.default": _of_bits("bitwise_not"),
    "gcd.default": _of_bits("gcd"),
    "lcm.default": _of_bits("lcm"),
    **{f"{name}.default": _of_floats(name) for name in _FLOATS_ONLY},
    **{f"{name}.default": _not_of_bools(name) for name in _NOT_OF_BOOLS},
    "gelu.default": _approximation,
    "lerp.Scalar": _of_floats("lerp"),
    "round.decimals": _of_floats("round"),
    "pow.Tensor_Scalar": _exponent,
    "addcdiv.default": _quotient,
    "add.Tensor": _alpha,
    "sub.Tensor": _alpha,
    "masked_fill.Scalar": _masked_number,
    "masked_fill.Tensor": _one_value,
    "masked_scatter.default": _scattered,
    "softshrink.default": _threshold,
    "index_add.default": _all(
        _slices,
        _same_types(
            3, "index_add_(): self ({own}) and source ({given}) must have the same scalar type"
        ),
    ),
    "native_layer_norm.default": _normalized,
    "max_unpool2d.default": _all(_images, _unpooled),
    "max_unpool3d.default": _unpooled,
    "avg_pool2d.default": _divisor,
    "avg_pool3d.default": _divisor,
    "where.self": _condition,
    "index_select.default": _positions,
    "flip.default": _dims_once,
    "clamp.default": _bounds,
    "clamp.Tensor": _bounds,
    "lerp.Tensor": _weight,
    "div.Tensor_mode": _rounding,
    "div.Scalar_mode": _rounding,
    "scatter_reduce.two": _all(_reduce, _same_types(3, _SCATTERED)),
    "scatter.src": _same_types(3, _SCATTERED),
    "scatter_add.default": _same_types(3, _SCATTERED),
    "index_copy.default": _same_types(
        3,
        "index_copy_(): self and source expected to have the same dtype, but got (self) {own} and "
        "(source) {given}",
    ),
    "scatter.reduce": _all(_reduce_by, _same_types(3, _SCATTERED)),
    "scatter.value_reduce": _all(_reduce_by, _placed),
    "scatter.value": _placed,
    "index_fill.int_Scalar": _placed,
    "fill.Scalar": _like,
    "full_like.default": _like,
    "new_full.default": _new,
    "scalar_tensor.default": _scalar,
    "constant_pad_nd.default": _padding,
    "smooth_l1_loss.default": _beta,
    "huber_loss.default": _delta,
    "heaviside.default": _same_dtype,
    "full.default": _number,
    "select_scatter.default": _selected,
    "slice_scatter.default": _sliced,
    "diagonal_scatter.default": _diagonal,
    "as_strided_scatter.default": _strided,
    "complex.out": _out_of(_of_both, _OTHER_PARTS),
    "polar.out": _out_of(_of_both, _OTHER_PARTS),
    "multinomial.out": _out_of(
        lambda *args, **kwargs: torch.int64, "multinomial expects Long tensor out, got: {1}"
    ),
    "take.out": _out_of(
        lambda x, index: x._dtype,
        "take(): self and out expected to have the same dtype, but got self.dtype = {0} and "
        "out.dtype = {1}",
    ),
    "cumsum.out": _out_without("cumsum_out_cpu", _is_bool),
    "cumprod.out": _out_without("cumprod_out_cpu", _is_bool),
    "linspace.out": _out_without("linspace_cpu", _is_bool),
    "logspace.out": _out_without("logspace_cpu", _is_bool),
    "nansum.out": _out_without("nansum_cpu", lambda dtype: dtype.is_complex),
    "std.correction_out": _out_without("std_cpu", lambda dtype: dtype.is_complex),
    "var.correction_out": _out_without("std_cpu", lambda dtype: dtype.is_complex),
    "angle.out": _angle_into,
    "searchsorted.Tensor_out": _out_of(_places, _NO_PLACES),
    "bucketize.Tensor_out": _out_of(_places, _NO_PLACES),
    "as_strided.default": _within,
    "as_strided_copy.default": _within,
    "index_put.default": _values,
    "index_reduce.default": _as_many,
}
"""Checks by op name; the op's rule, or its meta kernel, answers after its check."""


def checked(table: dict[str, Callable[..., Any]]) -> None:
    """Put the checks before the rules of `table`, in place."""
    for name, check in CHECKS.items():
        base, _, overload = name.partition(".")
        table.setdefault(f"aten.{name}", _no_rule)
        for form in (f"aten.{name}", f"aten.{base}_.{overload}"):
            if form in table:
                table[form] = _after(check, table[form])


def _no_rule(*args: Any, **kwargs: Any) -> Any:
    return NotImplemented


def _after(check: Check, rule: Callable[..., Any]) -> Callable[..., Any]:
    def both(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return rule(*args, **kwargs)

    return both
