"""Shape rules of matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.shape_rules.layout import broadcast, fresh
from dovetail_prims.shape_rules.promotion import common_device


def _check_dtypes(a: FakeTensor, b: FakeTensor, op: str) -> None:
    if a._dtype is not b._dtype:
        raise RuntimeError(
            f"expected m1 and m2 to have the same dtype, but got: {a._dtype} != {b._dtype} ({op})"
        )


def mm(a: FakeTensor, b: FakeTensor) -> FakeTensor:
    """(n, k) @ (k, m)."""
    if len(a._sizes) != 2 or len(b._sizes) != 2:
        raise RuntimeError("mm expects two matrices")
    if a._sizes[1] != b._sizes[0]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({a._sizes[0]}x{a._sizes[1]} and "
            f"{b._sizes[0]}x{b._sizes[1]})"
        )
    _check_dtypes(a, b, "mm")
    device = a._device if a._device == b._device else common_device((a, b))
    return fresh((a._sizes[0], b._sizes[1]), a._dtype, device)


def addmm(
    bias: FakeTensor, a: FakeTensor, b: FakeTensor, *, beta: Any = 1, alpha: Any = 1, **rest: Any
) -> FakeTensor:
    """bias + a @ b."""
    out = mm(a, b)
    if broadcast((bias._sizes, out._sizes)) != out._sizes:
        raise RuntimeError(
            f"The expanded size of the tensor {list(out._sizes)} must match {list(bias._sizes)}"
        )
    if bias._dtype is not a._dtype:
        raise RuntimeError(
            f"self and mat2 must have the same dtype, but got {bias._dtype} and {a._dtype}"
        )
    return out


def bmm(a: FakeTensor, b: FakeTensor) -> FakeTensor:
    """(n, i, k) @ (n, k, j)."""
    if len(a._sizes) != 3 or len(b._sizes) != 3:
        raise RuntimeError("batch1 and batch2 must be 3D tensors")
    if a._sizes[0] != b._sizes[0] or a._sizes[2] != b._sizes[1]:
        raise RuntimeError(
            f"Expected size for first two dimensions of batch2 tensor to be: [{a._sizes[0]}, "
            f"{a._sizes[2]}] but got: [{b._sizes[0]}, {b._sizes[1]}]."
        )
    _check_dtypes(a, b, "bmm")
    device = a._device if a._device == b._device else common_device((a, b))
    return fresh((a._sizes[0], a._sizes[1], b._sizes[2]), a._dtype, device)


def baddbmm(bias: FakeTensor, a: FakeTensor, b: FakeTensor, **rest: Any) -> FakeTensor:
    """bias + bmm(a, b)."""
    out = bmm(a, b)
    if broadcast((bias._sizes, out._sizes)) != out._sizes:
        raise RuntimeError(
            f"The expanded size of the tensor {list(out._sizes)} must match {list(bias._sizes)}"
        )
    return out


def euclidean_distances(a: FakeTensor, b: FakeTensor) -> FakeTensor:
    """Of rows to rows, by a matrix product: (..., n, k) and (..., m, k), of one batch."""
    if len(a._sizes) < 2 or len(b._sizes) != len(a._sizes) or a._dtype is not b._dtype:
        return NotImplemented  # type: ignore[no-any-return]
    device = a._device if a._device == b._device else common_device((a, b))
    return fresh((*a._sizes[:-1], b._sizes[-2]), a._dtype, device)


def dot(a: FakeTensor, b: FakeTensor) -> FakeTensor:
    """Inner product of two vectors."""
    if len(a._sizes) != 1 or len(b._sizes) != 1 or a._sizes[0] != b._sizes[0]:
        raise RuntimeError(f"inconsistent tensor size, {list(a._sizes)} and {list(b._sizes)}")
    _check_dtypes(a, b, "dot")
    return fresh((), a._dtype, common_device((a, b)))


def mv(a: FakeTensor, b: FakeTensor) -> FakeTensor:
    """Matrix times vector."""
    if len(a._sizes) != 2 or len(b._sizes) != 1 or a._sizes[1] != b._sizes[0]:
        raise RuntimeError(f"size mismatch, got mat {list(a._sizes)}, vec {list(b._sizes)}")
    _check_dtypes(a, b, "mv")
    return fresh((a._sizes[0],), a._dtype, common_device((a, b)))


def linear(x: FakeTensor, weight: FakeTensor, bias: FakeTensor | None = None) -> FakeTensor:
    """x @ weight.T + bias over the last dimension."""
    if len(weight._sizes) != 2 or not x._sizes:
        return NotImplemented  # type: ignore[no-any-return]
    if x._sizes[-1] != weight._sizes[1]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({list(x._sizes)} and "
            f"{weight._sizes[1]}x{weight._sizes[0]})"
        )
    _check_dtypes(x, weight, "linear")
    return fresh((*x._sizes[:-1], weight._sizes[0]), x._dtype, x._device)


def rules() -> dict[str, Callable[..., Any]]:
    """The table of this family."""
    return {
        "mm.default": mm,
        "addmm.default": addmm,
        "bmm.default": bmm,
        "baddbmm.default": baddbmm,
        "_euclidean_dist.default": euclidean_distances,
        "dot.default": dot,
        "mv.default": mv,
        "linear.default": linear,
    }
