"""The scalar operations of loop bodies, as a table: name -> arity and meaning.

Operands of an op share one dtype (the promotion is explicit, by `cast`); comparisons and tests
give bool; everything else gives the operands' dtype. Arithmetic dtypes are bool, the integers,
float32 and float64: values stored as float16 and bfloat16 are float32 inside a body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from dovetail_prims.ops import catalog
from dovetail_prims.ops.card import Dialect, Result

ResultKind = Literal["same", "bool", "attr"]


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """One op. `cost` is in units of one addition, for the fusion heuristics."""

    arity: int
    result: ResultKind = "same"
    cost: int = 1


HALVES = (torch.float16, torch.bfloat16)
EIGHT_BIT_FLOATS = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
# The op that rounds a float32 to the numbers of a narrow type.
ROUNDING = {
    torch.float16: "round_f16", torch.bfloat16: "round_bf16",
    torch.float8_e4m3fn: "round_e4m3", torch.float8_e5m2: "round_e5m2",
}  # fmt: skip
# What is too large for e4m3 becomes the largest number, or NaN: PyTorch's versions differ. (What is
# too large for e5m2 is infinite.)
E4M3_SATURATES = (
    not torch.full((), 1e6, device="cpu").to(torch.float8_e4m3fn).float().isnan().item()
)

# Scalar ops that have other names than the operators of tensors.
_NAMES = {"bitwise_left_shift": "shift_left", "bitwise_right_shift": "shift_right"}


def scalar_name(operator: str) -> str:
    """The scalar op of an operator of tensors (`shift_left` of `bitwise_left_shift`)."""
    return _NAMES.get(operator, operator)


# The pointwise operators that CORE_ATEN keeps. Integer overflow wraps; NaN wins in `maximum` and
# `minimum`; `div` is float, `remainder` has the divisor's sign, `fmod` the dividend's; an integer
# division by zero raises; on bool the bitwise ones are the logical connectives.
OF_OPERATORS: dict[str, ScalarOp] = {
    scalar_name(card.name): ScalarOp(
        card.arity, "bool" if card.result is Result.BOOL else "same", card.cost
    )
    for card in catalog.POINTWISE
    if any(form.dialect is not Dialect.ATEN for form in card.forms)
    and not card.name.startswith("logical_")
}

SCALAR_OPS: dict[str, ScalarOp] = {
    **OF_OPERATORS,
    # division with a rounded quotient
    "truncdiv": ScalarOp(2, cost=6),
    "floordiv": ScalarOp(2, cost=8),
    # conversion: to the expression's dtype, as ATen converts (float to int truncates, to bool is
    # `!= 0`); a rounding gives the nearest float32 that a narrower type has
    "cast": ScalarOp(1, "attr"),
    **{rounding: ScalarOp(1, cost=2) for rounding in ROUNDING.values()},
    # the float64 that an int64 holds the bits of; of values that no loop variable changes
    "from_bits": ScalarOp(1, "attr"),
    "to_bits": ScalarOp(1, "attr"),  # the int64 that has the bits of a float64
    # the argument, if its `IndexCheck` holds, else the kernel raises
    "check_index": ScalarOp(1),
}


# What loops read and write. Values of other dtypes (complex numbers, the wide unsigned integers,
# ...) are touched by library calls alone.
STORED_DTYPES = frozenset(
    {
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.float16, torch.bfloat16, torch.float32, torch.float64,
    }
)  # fmt: skip


BYTES = frozenset({torch.int8, torch.uint8, torch.bool})


def arithmetic_dtype(storage: torch.dtype) -> torch.dtype:
    """The dtype a stored value has inside a loop body."""
    return torch.float32 if storage in ROUNDING else storage
