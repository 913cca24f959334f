"""Scalar ops as Triton text, which may call `called_functions`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch

from dovetail_inductor.loop_ir.ops import (
    E4M3_SATURATES,
    EIGHT_BIT_FLOATS,
    OF_OPERATORS,
    ROUNDING,
    STORED_DTYPES,
)

_OWN_NAMES = {
    torch.bool: "int1", torch.float8_e4m3fn: "float8e4nv", torch.float8_e5m2: "float8e5",
}  # fmt: skip
_TYPES = {
    dtype: _OWN_NAMES.get(dtype, str(dtype).removeprefix("torch."))
    for dtype in STORED_DTYPES | EIGHT_BIT_FLOATS
}
TRITON_TYPES: Mapping[torch.dtype, str] = {dtype: f"tl.{name}" for dtype, name in _TYPES.items()}
POINTER_TYPES: Mapping[torch.dtype, str] = {
    dtype: "*"
    + re.sub("(?<=bf)loat|(?<=u)int", "", name).replace("float", "fp").replace("int", "i")
    for dtype, name in _TYPES.items()
}

# What is stored of a float32 where that is more than a conversion.
NARROWED = {torch.float8_e5m2: "dv_e5m2({0})"}
NARROWED |= {} if E4M3_SATURATES else {torch.float8_e4m3fn: "dv_e4m3({0})"}

# The forms of ops, by the kind of their operands.
_OF_BOOLEANS = {
    "add": "({0} | {1})", "mul": "({0} & {1})", "maximum": "({0} | {1})", "minimum": "({0} & {1})",
    "abs": "{0}", "bitwise_not": "({0} == 0)",
}  # fmt: skip

_OF_FLOAT32 = {"sqrt": "tl.sqrt_rn({0})", "reciprocal": "tl.div_rn(1.0, {0})"}

_OF_FLOAT64 = {"tanh": "dv_tanh64({0})"}

_OF_FLOATS = {
    "maximum": "dv_max({0}, {1})", "minimum": "dv_min({0}, {1})",
    "truncdiv": "dv_trunc(dv_div({0}, {1}))", "floordiv": "dv_floordiv({0}, {1})",
    "remainder": "dv_remainder({0}, {1})", "fmod": "dv_fmod({0}, {1})",
}  # fmt: skip

_OF_ALL = {
    **{
        name: f"({{0}} {sign} {{1}})"
        for name, sign in {
            "add": "+", "sub": "-", "mul": "*", "bitwise_and": "&", "bitwise_or": "|",
            "bitwise_xor": "^", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
            "ge": ">=",
        }.items()
    },
    "cast": "{0}.to({result})", "from_bits": "{0}.to(tl.float64, bitcast=True)",
    "to_bits": "{0}.to(tl.int64, bitcast=True)",
    **{
        rounding: f"{NARROWED.get(dtype, f'{{0}}.to({TRITON_TYPES[dtype]})')}.to(tl.float32)"
        for dtype, rounding in ROUNDING.items()
    },
    "where": "tl.where({0}, {1}, {2})", "neg": "(-{0})", "abs": "tl.abs({0})",
    "sign": "(({0} > 0).to({result}) - ({0} < 0).to({result}))",
    "maximum": "tl.maximum({0}, {1})", "minimum": "tl.minimum({0}, {1})",
    "relu": "tl.where({0} < 0, 0, {0}).to({result})", "bitwise_not": "(~{0})",
    "shift_left": "dv_shift_left({0}, {1})", "shift_right": "dv_shift_right({0}, {1})",
    "div": "dv_div({0}, {1})", "truncdiv": "({0} // {1})", "floordiv": "floor_div({0}, {1})",
    "remainder": "floor_mod({0}, {1})", "fmod": "({0} - ({0} // {1}) * {1})",
    "isnan": "({0} != {0})", "isinf": "(tl.abs({0}) == float('inf'))",
    "sqrt": "tl.sqrt({0})", "reciprocal": "(1.0 / {0})", "log10": "libdevice.log10({0})",
    "floor": "tl.floor({0})", "ceil": "tl.ceil({0})", "rsqrt": "tl.rsqrt({0})",
    "exp": "tl.exp({0})", "exp2": "tl.exp2({0})", "log": "tl.log({0})", "log2": "tl.log2({0})",
    "sin": "tl.sin({0})", "cos": "tl.cos({0})", "erf": "tl.erf({0})",
    "expm1": "dv_expm1({0})", "log1p": "dv_log1p({0})", "tanh": "dv_tanh({0})",
    "round": "dv_round({0})", "trunc": "dv_trunc({0})", "sigmoid": "tl.sigmoid({0})",
}  # fmt: skip

# Forms on float32 whose error is below what 2 bytes tell apart.
NARROW = {"erf": "dv_erf_narrow({0})", "tanh": "dv_tanh_narrow({0})"}


def has_triton_form(aten_op: str, dtype: torch.dtype) -> bool:
    """False for the ATen ops (`name.overload`) of CORE_ATEN that stay library calls on a GPU. (The
    lanes of a block wait for the one whose Euclid takes longest: the library is three times as
    fast.)"""
    names = {"gcd.default": "gcd", "pow.Tensor_Tensor": "pow"}
    return has_scalar_form(names.get(aten_op, ""), dtype)


def has_scalar_form(op: str, dtype: torch.dtype) -> bool:
    """False for the scalar ops that kernels for a GPU do not have."""
    return op != "gcd" and (op != "pow" or dtype.is_floating_point)


class UnsupportedOp(NotImplementedError):
    """A scalar op that has no Triton form; the graph's op stays a library call."""


def emit_op(
    op: str, args: Sequence[str], operand: torch.dtype, result: torch.dtype, narrow: bool = False
) -> str:
    """Triton text of one op on operands of dtype `operand`. With `narrow` all that is made of the
    result is stored in 2 bytes.

    Raises UnsupportedOp for an op without a Triton form.
    """
    form = "({0} != 0)" if op == "cast" and result is torch.bool else _form(op, operand, narrow)
    if form is not None:
        return form.format(*args, result=TRITON_TYPES[result])
    # Rare functions come from CUDA's device library; Triton's interpreter does not have them.
    if op in OF_OPERATORS and operand.is_floating_point and has_scalar_form(op, operand):
        return f"libdevice.{op}({', '.join(args)})"
    raise UnsupportedOp(f"{op} on {operand} has no Triton form")


def _form(op: str, operand: torch.dtype, narrow: bool) -> str | None:
    """The form of an op that has one of its own for operands of this dtype, or for any."""
    tables = [_OF_ALL]
    if operand is torch.bool:
        tables.insert(0, _OF_BOOLEANS)
    if operand.is_floating_point:
        tables.insert(0, _OF_FLOATS)
    if operand is torch.float64:
        tables.insert(0, _OF_FLOAT64)
    if operand is torch.float32:
        tables.insert(0, _OF_FLOAT32)
        if narrow:
            tables.insert(0, NARROW)
    return next((table[op] for table in tables if op in table), None)
