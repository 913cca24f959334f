"""CORE_ATEN -> PRIMS: one shape and one dtype an op, no numbers, no op that others can express.

Most ops are in both sets; their entries only put the operands in order, and leave an op whose
operands are in order as it is (NotImplemented).
"""

from __future__ import annotations

from dovetail_prims.decompositions.to_prims import parts, reductions
from dovetail_prims.ops.common import Family

TABLE: Family = {
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
