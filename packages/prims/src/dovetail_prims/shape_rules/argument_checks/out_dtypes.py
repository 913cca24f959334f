"""Dtypes of tensors that are written to with `out=`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.shape_rules.argument_checks.check import Check
from dovetail_prims.shape_rules.argument_checks.dtypes import is_whole


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
    if is_whole(out._dtype):
        raise RuntimeError(
            f"result type Float can't be cast to the desired output type {out._dtype}"
        )


def _of_both(real: FakeTensor, imag: FakeTensor) -> torch.dtype:
    return real._dtype.to_complex()


def _places(*args: Any, out_int32: bool = False, **kwargs: Any) -> torch.dtype:
    return torch.int32 if out_int32 else torch.int64


_OTHER_PARTS = "Expected object of scalar type {0} but got scalar type {1} for argument 'out'"
_NO_PLACES = (
    "torch.searchsorted(): output tensor's dtype is wrong, it can only be Int(int32) or "
    "Long(int64) depending on whether out_int32 flag is True, but we got output tensor's dtype {1}"
)

TABLE: Mapping[str, Check] = {
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
}
