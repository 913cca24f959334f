"""Decompositions ATEN -> CORE_ATEN -> PRIMS, each written from its op's mathematical definition."""

from dovetail_prims.decompositions.apply import core_aten_table, prims_table

from .apply import DecomposeError, apply_table, decompose

__all__ = ["DecomposeError", "apply_table", "core_aten_table", "decompose", "prims_table"]
