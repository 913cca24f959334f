"""CORE_ATEN -> PRIMS: one shape and one dtype an op, no numbers, no op that others can express.

Most ops are in both sets; their entries only put the operands in order, and leave an op whose
operands are in order as it is (NotImplemented).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail_prims.decompositions._common import Family
from dovetail_prims.decompositions.to_prims import parts, pointwise, reductions
from dovetail_prims.opsets import LOOPING_FUNCTIONS, POINTWISE_UNARY, SCALAR_FORMS


def _family() -> Family:
    table: dict[str, Callable[..., Any]] = {
        "relu.default": pointwise.relu,
        "sigmoid.default": pointwise.sigmoid,
        "rsqrt.default": pointwise.rsqrt,
        "reciprocal.default": pointwise.reciprocal,
        "logical_not.default": pointwise.logical_not,
        "logical_and.default": pointwise.logical("bitwise_and.Tensor"),
        "logical_or.default": pointwise.logical("bitwise_or.Tensor"),
        "logical_xor.default": pointwise.logical("bitwise_xor.Tensor"),
        "isnan.default": pointwise.isnan,
        "isinf.default": pointwise.isinf,
        "where.self": pointwise.where,
        "div.Tensor_mode": pointwise.div_mode,
        "sum.dim_IntList": reductions.sum,
        "prod.dim_int": reductions.along_one("prod.dim_int"),
        "cumsum.default": reductions.along_one("cumsum.default"),
        "cumprod.default": reductions.along_one("cumprod.default"),
        "amax.default": reductions.extreme("amax.default"),
        "amin.default": reductions.extreme("amin.default"),
        "argmax.default": reductions.place("argmax.default"),
        "argmin.default": reductions.place("argmin.default"),
        "any.dims": reductions.truths("any.dims"),
        "all.dims": reductions.truths("all.dims"),
        "var_mean.correction": reductions.var_mean,
        "select.int": parts.select,
        "unsqueeze.default": parts.unsqueeze,
        "squeeze.dims": parts.squeeze,
        "alias.default": parts.alias,
        "cat.default": parts.cat,
        "scatter.value": parts.scatter_number,
        "embedding.default": parts.embedding,
        "select_scatter.default": parts.select_scatter,
        "scalar_tensor.default": parts.scalar_tensor,
        "full.default": parts.full,
        "arange.start_step": parts.arange,
    }
    for name in POINTWISE_UNARY:
        op = name.split(".")[0]
        if name not in table and op not in pointwise.INTEGER_UNARY:
            table[name] = pointwise.unary(op)
    for name in ("add", "sub", "mul", "remainder", "fmod"):
        table[f"{name}.Tensor"] = pointwise.binary(f"{name}.Tensor")
    looping = (f"{name}.default" for name in LOOPING_FUNCTIONS)
    for name in ("div.Tensor", "atan2.default", "hypot.default", "copysign.Tensor", *looping):
        table[name] = pointwise.binary(name, to_float=True)
    for name in ("pow.Tensor_Tensor", "maximum.default", "minimum.default", "nextafter.default"):
        table[name] = pointwise.binary(name)
    table["gcd.default"] = pointwise.binary("gcd.default")
    for name in ("and", "or", "xor", "left_shift", "right_shift"):
        table[f"bitwise_{name}.Tensor"] = pointwise.binary(f"bitwise_{name}.Tensor")
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        table[f"{name}.Tensor"] = pointwise.binary(f"{name}.Tensor", compares=True)
    for number_form, tensor_form in SCALAR_FORMS.items():
        table[number_form] = table[tensor_form]
    return table


TABLE: Family = _family()
