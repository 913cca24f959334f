"""Decompositions ATEN -> CORE_ATEN -> PRIMS, each written from its op's mathematical definition."""

from .apply import DecomposeError, apply_table, decompose
from .tables import core_aten_table, prims_table

__all__ = ["DecomposeError", "apply_table", "core_aten_table", "decompose", "prims_table"]
