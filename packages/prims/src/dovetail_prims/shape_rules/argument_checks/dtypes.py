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


def _classes(x: FakeTensor, target: FakeTensor, *rest: Any, **kwargs: Any) -> None:
    """Classes are int64 or uint8. (A GPU stops at one out of range: its kernel is not asked.)"""
    if target._dtype not in (torch.int64, torch.uint8):
        error = RuntimeError if target._device.type == "cpu" else NotImplementedError
        raise error(f"expected target dtype to be Long or Byte, but got {target._dtype}")


def _floating(text: str, error: type[Exception]) -> Check:
    """The first operand is of floats. (Lengths, offsets and places that kernels do not look at
    before they read by them keep those kernels from being asked.)"""

    def check(x: FakeTensor, *rest: Any, **kwargs: Any) -> None:
        if not x._dtype.is_floating_point:
            raise error(text.format(dtype=x._dtype))

    return check


def _single_or_double(log_probs: FakeTensor, *rest: Any, **kwargs: Any) -> None:
    if log_probs._dtype not in (torch.float32, torch.float64):
        raise NotImplementedError(f"ctc_loss is not implemented for {log_probs._dtype}")


def _no_bool(x: FakeTensor, padding: Any) -> None:
    if x._dtype is torch.bool:
        raise NotImplementedError("replication_pad is not implemented for 'Bool'")


def _bags(weight: FakeTensor, indices: FakeTensor, *rest: Any, **kwargs: Any) -> None:
    _FLOATING_BAGS(weight)
    if indices._dtype not in (torch.int32, torch.int64):
        raise RuntimeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: "
            f"Long, Int; but got {indices._dtype} instead (while checking arguments for "
            "embedding_bag)"
        )


_FLOATING_BAGS = _floating(
    "Expected the weight to have one of the following scalar types: Half, BFloat16, Float, Double; "
    "but got {dtype} instead (while checking arguments for embedding_bag)",
    RuntimeError,
)

TABLE: Mapping[str, Check] = {
    "nll_loss_forward.default": _classes,
    "nll_loss2d_forward.default": _classes,
    "_embedding_bag.default": _bags,
    "_embedding_bag_forward_only.default": _bags,
    "segment_reduce.default": _floating(
        "segment_reduce is not implemented for {dtype}", NotImplementedError
    ),
    "_scaled_dot_product_flash_attention_for_cpu.default": _floating(
        "scaled_dot_product_attention_flash_attention: Expected data type in FP32, FP64, BF16, "
        "FP16, but got {dtype} instead.",
        RuntimeError,
    ),
    "_ctc_loss.default": _single_or_double,
    "_ctc_loss.Tensor": _single_or_double,
    **dict.fromkeys(("replication_pad1d.default", "replication_pad2d.default",
                     "replication_pad3d.default"), _no_bool),
}  # fmt: skip
