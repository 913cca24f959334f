"""Numbers that the dtype of an operand rules out, and dtypes of operands whose kernels must not be
asked. (What dtypes others take, `dtype_checks` finds out.)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.shape_rules.argument_checks.check import Check


def dtype_of(x: Any) -> torch.dtype | None:
    """The dtype of a tensor; None for a number."""
    return x._dtype if isinstance(x, FakeTensor) else None


def _exponent(x: FakeTensor, exponent: Any) -> None:
    whole = not x._dtype.is_floating_point and not x._dtype.is_complex
    if isinstance(exponent, int) and exponent < 0 and whole:
        raise RuntimeError("Integers to negative integer powers are not allowed.")


def _classes(x: FakeTensor, target: FakeTensor, *rest: Any, **kwargs: Any) -> None:
    """Classes are int64 or uint8. (A GPU stops at one out of range: its kernel is not asked.)"""
    if target._dtype not in (torch.int64, torch.uint8):
        error = RuntimeError if target._device.type == "cpu" else NotImplementedError
        raise error(f"expected target dtype to be Long or Byte, but got {target._dtype}")


TABLE: Mapping[str, Check] = {
    "pow.Tensor_Scalar": _exponent,
    "nll_loss_forward.default": _classes,
    "nll_loss2d_forward.default": _classes,
}
