"""The text of reductions and scans: two partial results made one, a block made one, or a block of
the results up to each element."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_inductor.loop_ir.reduction import PROD, SUM, Reduction
from dovetail_inductor.targets.cuda.triton_ops import TRITON_TYPES, emit_op

# Triton's own reductions, by the op that combines two partial results, and the helpers for floats
# where those lose a NaN or there are none.
_OWN = {"add": "tl.sum", "maximum": "tl.max", "minimum": "tl.min", "bitwise_xor": "tl.xor_sum"}
_SCAN_HELPERS = {
    "add": "dv_add", "mul": "dv_mul", "maximum": "dv_max", "minimum": "dv_min",
    "logaddexp": "dv_logaddexp",
}  # fmt: skip
_FLOAT_HELPERS = {"mul": "dv_mul", "maximum": "dv_max", "minimum": "dv_min"}


def combined(
    reduction: Reduction, a: str, b: str, dtype: torch.dtype, use: Callable[[str], None]
) -> str:
    """Two partial results as one, element by element. `use` is told what helper the text calls."""
    return emit_op(reduction.combine, [a, b], dtype, dtype, use)


def reduced(
    reduction: Reduction, value: str, dtype: torch.dtype, along: int, use: Callable[[str], None]
) -> str:
    """A block reduced along a dimension, which the result does not have."""
    if dtype is torch.bool and not reduction.is_sum:
        kind = "max" if reduction.is_true_if_any else "min"
        return f"(tl.{kind}({value}.to(tl.int32), {along}) != 0)"
    own = _OWN.get(reduction.combine)
    if own is not None and not (dtype.is_floating_point and reduction.combine in _FLOAT_HELPERS):
        return _own_type(f"{own}({value}, {along})", dtype)
    name = _FLOAT_HELPERS[reduction.combine]
    use(name)
    return f"tl.reduce({value}, {along}, {name})"


def _own_type(text: str, dtype: torch.dtype) -> str:
    """A result of Triton's own reductions in the type of its operand: of integers of 1 or 2 bytes
    they make one of 4, in which arithmetic does not wrap around where it should."""
    if dtype.is_floating_point or dtype.itemsize >= 4:
        return text
    return f"{text}.to({TRITON_TYPES[dtype]})"


def rounded_product(a: str, b: str) -> str:
    """A product of floats whose elements are added up across threads.

    The threads that share a row each compute its sum, and may all store it to the same place, which
    is a race unless they agree. They do if every sum of two is the same whichever of the two comes
    first: it must not be fused with a product into one rounding (that of the thread's own element).
    Nothing can be fused with this, nor made of it the product alone: of -0.0 it makes 0.0.
    """
    return f"tl.fma({a}, {b}, 0.0)"


def scanned(reduction: Reduction, value: str, along: int, use: Callable[[str], None]) -> str:
    """A block of the totals up to each element along a dimension."""
    if reduction in (SUM, PROD):
        return f"tl.cum{reduction}({value}, {along})"
    return f"tl.associative_scan({value}, {along}, {_helper(reduction, use)})"


def joined(reduction: Reduction, a: str, b: str, use: Callable[[str], None]) -> str:
    """Two totals as one, element by element."""
    return f"{_helper(reduction, use)}({a}, {b})"


def block_total(reduction: Reduction, value: str, along: int, use: Callable[[str], None]) -> str:
    """The total of a block along a dimension, which the result does not have."""
    if reduction.is_sum:
        return f"tl.sum({value}, {along})"
    return f"tl.reduce({value}, {along}, {_helper(reduction, use)})"


def _helper(reduction: Reduction, use: Callable[[str], None]) -> str:
    name = _SCAN_HELPERS[reduction.combine]
    use(name)
    return name


__all__ = ["block_total", "combined", "joined", "reduced", "rounded_product", "scanned"]
