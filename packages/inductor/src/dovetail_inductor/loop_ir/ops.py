"""The scalar operations of loop bodies, as a table: name -> arity and meaning.

Operands of an op share one dtype (the promotion is explicit, by `cast`); comparisons and tests
give bool; everything else gives the operands' dtype. Arithmetic dtypes are bool, the integers,
float32 and float64: values stored as float16 and bfloat16 are float32 inside a body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from dovetail_inductor.loop_ir.functions import LOOPING

ResultKind = Literal["same", "bool", "attr"]


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """One op. `cost` is in units of one addition, for the fusion heuristics."""

    arity: int
    result: ResultKind = "same"
    cost: int = 1


# The op that makes one of two partial results of a reduction or a scan.
COMBINING = {
    "sum": "add", "prod": "mul", "any": "bitwise_or", "all": "bitwise_and", "xor": "bitwise_xor",
    "max": "maximum", "min": "minimum",
}  # fmt: skip

# The op that rounds a float32 to the numbers of a half type.
ROUNDING = {torch.float16: "round_f16", torch.bfloat16: "round_bf16"}

SCALAR_OPS: dict[str, ScalarOp] = {
    # arithmetic, all dtypes; integer overflow wraps
    "add": ScalarOp(2),
    "sub": ScalarOp(2),
    "mul": ScalarOp(2),
    "neg": ScalarOp(1),
    "abs": ScalarOp(1),
    "sign": ScalarOp(1, cost=2),
    "maximum": ScalarOp(2, cost=2),  # NaN wins
    "minimum": ScalarOp(2, cost=2),  # NaN wins
    "relu": ScalarOp(1),  # NaN stays NaN
    "where": ScalarOp(3),  # (bool, T, T)
    # division: `div` is float; `truncdiv`, `floordiv` round the quotient; `remainder` has the
    # divisor's sign, `fmod` the dividend's. An integer division by zero raises.
    "div": ScalarOp(2, cost=4),
    "truncdiv": ScalarOp(2, cost=6),
    "floordiv": ScalarOp(2, cost=8),
    "remainder": ScalarOp(2, cost=8),
    "fmod": ScalarOp(2, cost=8),
    # bits; on bool they are the logical connectives
    "bitwise_and": ScalarOp(2),
    "bitwise_or": ScalarOp(2),
    "bitwise_xor": ScalarOp(2),
    "bitwise_not": ScalarOp(1),
    "shift_left": ScalarOp(2),
    "shift_right": ScalarOp(2),
    # comparisons and tests
    "eq": ScalarOp(2, "bool"),
    "ne": ScalarOp(2, "bool"),
    "lt": ScalarOp(2, "bool"),
    "le": ScalarOp(2, "bool"),
    "gt": ScalarOp(2, "bool"),
    "ge": ScalarOp(2, "bool"),
    "isnan": ScalarOp(1, "bool"),
    "isinf": ScalarOp(1, "bool"),
    # conversion: to the expression's dtype, as ATen converts (float to int truncates, to bool is
    # `!= 0`); `round_f16`, `round_bf16` round a float32 to the narrower type's nearest value
    "cast": ScalarOp(1, "attr"),
    "round_f16": ScalarOp(1, cost=2),
    "round_bf16": ScalarOp(1, cost=2),
    # the float64 that an int64 holds the bits of; of values that no loop variable changes
    "from_bits": ScalarOp(1, "attr"),
    "to_bits": ScalarOp(1, "attr"),  # the int64 that has the bits of a float64
    # the argument, if its `IndexCheck` holds, else the kernel raises
    "check_index": ScalarOp(1),
    # floating point only
    "floor": ScalarOp(1),
    "ceil": ScalarOp(1),
    "round": ScalarOp(1),  # half to even
    "trunc": ScalarOp(1),
    "sqrt": ScalarOp(1, cost=5),
    "rsqrt": ScalarOp(1, cost=8),
    "reciprocal": ScalarOp(1, cost=4),
    "exp": ScalarOp(1, cost=12),
    "exp2": ScalarOp(1, cost=12),
    "expm1": ScalarOp(1, cost=20),
    "log": ScalarOp(1, cost=15),
    "log2": ScalarOp(1, cost=15),
    "log10": ScalarOp(1, cost=15),
    "log1p": ScalarOp(1, cost=20),
    "sigmoid": ScalarOp(1, cost=16),
    "tanh": ScalarOp(1, cost=20),
    "erf": ScalarOp(1, cost=25),
    "erfc": ScalarOp(1, cost=40),
    "erfinv": ScalarOp(1, cost=60),
    "sin": ScalarOp(1, cost=20),
    "cos": ScalarOp(1, cost=20),
    "tan": ScalarOp(1, cost=40),
    "asin": ScalarOp(1, cost=40),
    "acos": ScalarOp(1, cost=40),
    "atan": ScalarOp(1, cost=40),
    "sinh": ScalarOp(1, cost=40),
    "cosh": ScalarOp(1, cost=40),
    "asinh": ScalarOp(1, cost=40),
    "acosh": ScalarOp(1, cost=40),
    "atanh": ScalarOp(1, cost=40),
    "lgamma": ScalarOp(1, cost=100),
    "pow": ScalarOp(2, cost=40),  # integers: exponent >= 0
    "atan2": ScalarOp(2, cost=50),
    "hypot": ScalarOp(2, cost=10),
    "copysign": ScalarOp(2),
    "nextafter": ScalarOp(2, cost=6),
    **{name: ScalarOp(2, cost=200) for name in LOOPING},  # of float64, whatever their operands
    "gcd": ScalarOp(2, cost=100),  # integers, on a CPU
}


def neutral_element(reduction: str, dtype: torch.dtype) -> float | int | bool:
    """The element of a type that leaves a reduction as it is.

    A reduction is a sum, prod, max, min, any, all, xor, or argmax or argmin: these two give the
    int64 position of the first extreme element along the flattened reduction variables (NaN is
    extreme in both).
    """
    if reduction in ("sum", "any", "xor"):
        return False if dtype is torch.bool else 0
    if reduction in ("prod", "all"):
        return True if dtype is torch.bool else 1
    lowest = reduction in ("max", "argmax")
    if dtype is torch.bool:
        return not lowest
    if dtype.is_floating_point:
        return float("-inf") if lowest else float("inf")
    limits = torch.iinfo(dtype)
    return int(limits.min if lowest else limits.max)


# What loops read and write. Values of other dtypes (complex numbers, 8-bit floats, the wide
# unsigned integers, ...) are touched by library calls alone.
STORED_DTYPES = frozenset(
    {
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.float16, torch.bfloat16, torch.float32, torch.float64,
    }
)  # fmt: skip


def arithmetic_dtype(storage: torch.dtype) -> torch.dtype:
    """The dtype a stored value has inside a loop body."""
    if storage in (torch.float16, torch.bfloat16):
        return torch.float32
    return storage
