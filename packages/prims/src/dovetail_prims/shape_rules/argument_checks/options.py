"""Options: rounding and reduction modes, bounds, divisors, dimensions named once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.shape_rules.argument_checks.check import Check
from dovetail_prims.shape_rules.layout import wrap_dim


def _dims_once(x: FakeTensor, dims: Any) -> None:
    wrapped = [wrap_dim(d, len(x._sizes)) for d in dims]
    for d in wrapped:
        if wrapped.count(d) > 1:
            raise RuntimeError(f"dim {d} appears multiple times in the list of dims")


def _beta(x: Any, target: Any, reduction: int = 1, beta: float = 1.0) -> None:
    if beta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")


def _delta(x: Any, target: Any, reduction: int = 1, delta: float = 1.0) -> None:
    if delta <= 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")


def _divisor(x: FakeTensor, *rest: Any, **kwargs: Any) -> None:
    divisor = rest[5] if len(rest) > 5 else kwargs.get("divisor_override")
    if divisor == 0:
        raise RuntimeError("divisor must be not zero")


def _normalized(x: FakeTensor, normalized_shape: Any, *rest: Any) -> None:
    if len(normalized_shape) == 0:
        raise RuntimeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one "
            "element, but got normalized_shape = []"
        )


TABLE: Mapping[str, Check] = {
    "native_layer_norm.default": _normalized,
    "avg_pool2d.default": _divisor,
    "avg_pool3d.default": _divisor,
    "flip.default": _dims_once,
    "smooth_l1_loss.default": _beta,
    "huber_loss.default": _delta,
}
