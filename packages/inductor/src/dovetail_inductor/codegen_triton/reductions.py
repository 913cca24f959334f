"""The text of reductions: two partial results made one, a block made one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_inductor.codegen_triton.ops import emit_op

# The scalar op that makes one of two partial results.
_COMBINING = {
    "sum": "add", "prod": "mul", "any": "bitwise_or", "all": "bitwise_and",
    "max": "maximum", "min": "minimum",
}  # fmt: skip


def combined(reduction: str, a: str, b: str, dtype: torch.dtype, use: Callable[[str], None]) -> str:
    """Two partial results as one, element by element. `use` is told what helper the text calls."""
    return emit_op(_COMBINING[reduction], [a, b], dtype, dtype, use)


def reduced(
    reduction: str | None, value: str, dtype: torch.dtype, along: int, use: Callable[[str], None]
) -> str:
    """A block reduced along a dimension, which the result does not have."""
    if reduction == "sum":
        return f"tl.sum({value}, {along})"
    if reduction in ("any", "all") or dtype is torch.bool:
        kind = "max" if reduction in ("any", "max") else "min"
        return f"(tl.{kind}({value}.to(tl.int32), {along}) != 0)"
    if reduction == "prod":
        use("dv_mul")
        return f"tl.reduce({value}, {along}, dv_mul)"
    if not dtype.is_floating_point:
        return f"tl.{reduction}({value}, {along})"
    name = "dv_max" if reduction == "max" else "dv_min"
    use(name)
    return f"tl.reduce({value}, {along}, {name})"


__all__ = ["combined", "reduced"]
