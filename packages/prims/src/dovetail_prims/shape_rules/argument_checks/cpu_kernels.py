"""Dtypes that the CPU has no kernel for. (What computes them elsewhere may take them.)"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.shape_rules.argument_checks.check import Check
from dovetail_prims.shape_rules.argument_checks.dtypes import is_whole
from dovetail_prims.shape_rules.promotion import name_in_kernels


def _no_kernel(name: str, missing: Callable[[torch.dtype], bool]) -> Check:
    """The first tensor, if it is on a CPU, may not be of such a dtype."""

    def check(*args: Any, **kwargs: Any) -> None:
        x = next((a for a in (*args, *kwargs.values()) if isinstance(a, FakeTensor)), None)
        if x is not None and x._device.type == "cpu" and missing(x._dtype):
            own = name_in_kernels(x._dtype)
            raise NotImplementedError(f"\"{name}\" not implemented for '{own}'")

    return check


def _is_bool(dtype: torch.dtype) -> bool:
    return dtype is torch.bool


def _is_half(dtype: torch.dtype) -> bool:
    return dtype in (torch.float16, torch.bfloat16)


def _but_bytes(dtype: torch.dtype) -> bool:
    return is_whole(dtype) and dtype is not torch.uint8


def _but_bools(dtype: torch.dtype) -> bool:
    return is_whole(dtype) and dtype is not torch.bool


_WHOLE = (
    "_softmax_backward_data.default", "binary_cross_entropy.default", "celu.default",
    "hardshrink.default", "nll_loss_forward.default", "nll_loss2d_forward.default",
    "multi_margin_loss.default", "multilabel_margin_loss_forward.default",
    "smooth_l1_loss.default", "_safe_softmax.default", "max_unpool2d.default",
    "max_unpool3d.default", "renorm.default",
)  # fmt: skip
_BOOLS = (
    "isin.Tensor_Tensor", "isin.Tensor_Scalar", "bucketize.Tensor", "searchsorted.Tensor",
    "hardtanh.default", "relu6.default", "threshold.default", "trace.default",
    "reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default",
    "replication_pad1d.default", "replication_pad2d.default", "replication_pad3d.default",
    "_trilinear.default", "cumsum_.default", "cumprod_.default",
)  # fmt: skip
_HALVES = (
    "special_airy_ai.default", "special_bessel_j0.default", "special_bessel_j1.default",
    "special_bessel_y0.default", "special_bessel_y1.default", "special_erfcx.default",
    "special_log_ndtr.default", "special_modified_bessel_i0.default",
    "special_modified_bessel_i1.default", "special_modified_bessel_k0.default",
    "special_modified_bessel_k1.default", "special_ndtri.default",
    "special_scaled_modified_bessel_k0.default", "special_scaled_modified_bessel_k1.default",
    "special_spherical_bessel_j0.default", "_upsample_bilinear2d_aa.default",
    "_upsample_bicubic2d_aa.default", "multi_margin_loss.default",
    "multilabel_margin_loss_forward.default",
)  # fmt: skip
_UPSAMPLES = (
    *(
        f"{kind}{rank}d.default"
        for kind in ("upsample_nearest", "_upsample_nearest_exact")
        for rank in (1, 2, 3)
    ),
    "_upsample_bilinear2d_aa.default",
    "_upsample_bicubic2d_aa.default",
)


def _every(*tests: Callable[[torch.dtype], bool]) -> Callable[[torch.dtype], bool]:
    return lambda dtype: any(test(dtype) for test in tests)


_MISSING: dict[str, list[Callable[[torch.dtype], bool]]] = {}
for names, missing in (
    (_WHOLE, is_whole),
    (_BOOLS, _is_bool),
    (_HALVES, _is_half),
    (_UPSAMPLES, _but_bytes),
    (("im2col.default",), _but_bools),
):
    for name in names:
        _MISSING.setdefault(name, []).append(missing)


def _between(x: FakeTensor, low: Any = None, high: Any = None, **named: Any) -> None:
    """Bounds on both sides; one alone is a maximum or a minimum."""
    bounds = (named.get("min", low), named.get("max", high))
    on_cpu = x._device.type == "cpu" and all(b is not None for b in bounds)
    if on_cpu and all(b._dtype is torch.bool for b in (x, *bounds)):
        raise NotImplementedError("\"clamp_cpu\" not implemented for 'Bool'")


_HASHED = frozenset(
    {
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.float16, torch.bfloat16, torch.float32, torch.float64,
    }
)  # fmt: skip


TABLE: Mapping[str, Check] = {
    "hash_tensor.default": _no_kernel("xor_sum_cpu", lambda dtype: dtype not in _HASHED),
    "clamp.Tensor": _between,
    **{
        name: _no_kernel(name.partition(".")[0], _every(*tests)) for name, tests in _MISSING.items()
    },
}
