"""How reads lie along the vectorised variable: which of them vectors serve well."""

from __future__ import annotations

from dovetail_inductor.loop_ir.expr import Load
from dovetail_inductor.loop_ir.index import Var
from dovetail_inductor.loop_ir.sizes import hint_of


def is_deinterleaved(load: Load, stride: int, simd_bytes: int) -> bool:
    """True for a load that `lds` of `simd.h` makes of whole vectors and shuffles, given AVX2. (Each
    reads its own: a sum of two neighbours costs 5 to 8% more than as the compiler shares them.)"""
    wide = simd_bytes >= 32 and load.dtype.itemsize >= 4
    return wide and load.mask is None and hint_of(stride) in (2, 3, 4)


def is_transposed(load: Load, vector: Var) -> bool:
    """True for a plain load that strides along the vectorised variable."""
    if load.mask is not None or load.index.indirects():
        return False
    return hint_of(load.index.coefficient(vector) or 0) > 1
