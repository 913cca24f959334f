"""Numbers that the dtype of an operand rules out. (What dtypes a kernel takes, `dtype_checks` finds
out.)"""

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


TABLE: Mapping[str, Check] = {"pow.Tensor_Scalar": _exponent}
