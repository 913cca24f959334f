"""CORE_ATEN -> PRIMS: one shape and one dtype an op, no numbers, no op that others can express.

Most ops are in both sets; their entries only put the operands in order, and leave an op whose
operands are in order as it is (NotImplemented).
"""

from __future__ import annotations

from dovetail_prims.decompositions.to_prims import parts
from dovetail_prims.ops.common import Family

TABLE: Family = {
    "cat.default": parts.cat,
    "scatter.value": parts.scatter_number,
    "embedding.default": parts.embedding,
    "select_scatter.default": parts.select_scatter,
    "scalar_tensor.default": parts.scalar_tensor,
    "full.default": parts.full,
    "arange.start_step": parts.arange,
}
