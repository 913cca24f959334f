"""Bessel, Airy, error and gamma functions as polynomials in float64, rounded once.

A function is cut into pieces, scaled on each (by its leading behaviour) to something smooth that
varies little, and this is a polynomial: the interpolation at Chebyshev points, whose coefficients
are computed from the function itself when it is first needed (`chebyshev`). So there are no tables.
Numbers like (10.8.2) are equations of the NIST Digital Library of Mathematical Functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dovetail_prims.decompositions.special_functions.airy import airy
from dovetail_prims.decompositions.special_functions.bessel import (
    i0,
    i0e,
    i1,
    i1e,
    j0,
    j1,
    k0e,
    k1e,
    shrunk,
    spherical_j0,
    y0,
    y1,
)
from dovetail_prims.decompositions.special_functions.chebyshev import DOUBLE
from dovetail_prims.decompositions.special_functions.gamma import digamma, mvlgamma, polygamma
from dovetail_prims.decompositions.special_functions.normal import erfcx, log_ndtr, ndtri
from dovetail_prims.ops.common import Family, cast, floating, made_for


def _special(name: str, function: Callable[[Tensor], Tensor], says: str) -> Family:
    """An entry that computes in float64 and rounds once"""

    def entry(x: Tensor) -> Any:
        if x.dtype.itemsize == 2 and x.is_floating_point() and name in _CANCELLING:
            return NotImplemented
        given = floating(x)
        return cast(function(cast(given, DOUBLE)), given.dtype)

    entry.__doc__ = says
    return made_for(f"{name}.default", entry)


# Their derivatives are differences of them, of which half types leave little but the roundings:
# those of eager's kernels, then.
_CANCELLING = ("special_i0e", "special_i1e")
_UNARY: tuple[tuple[str, Callable[[Tensor], Tensor], str], ...] = (
    ("i0", i0, "Bessel's I_0"), ("special_modified_bessel_i0", i0, "Bessel's I_0"),
    ("special_i1", i1, "Bessel's I_1"), ("special_modified_bessel_i1", i1, "Bessel's I_1"),
    ("special_i0e", i0e, "exp(-\\|x\\|) I_0(x)"), ("special_i1e", i1e, "exp(-\\|x\\|) I_1(x)"),
    ("special_modified_bessel_k0", shrunk(k0e), "Bessel's K_0"),
    ("special_modified_bessel_k1", shrunk(k1e), "Bessel's K_1"),
    ("special_scaled_modified_bessel_k0", k0e, "exp(x) K_0(x)"),
    ("special_scaled_modified_bessel_k1", k1e, "exp(x) K_1(x)"),
    ("special_bessel_j0", j0, "Bessel's J_0"), ("special_bessel_j1", j1, "Bessel's J_1"),
    ("special_bessel_y0", y0, "Bessel's Y_0"), ("special_bessel_y1", y1, "Bessel's Y_1"),
    ("special_spherical_bessel_j0", spherical_j0, "sin x / x"),
    ("special_airy_ai", airy, "Airy's Ai"),
    ("digamma", digamma, "Γ'(x) / Γ(x)"),
    ("special_erfcx", erfcx, "exp(x²) erfc(x)"),
    ("special_log_ndtr", log_ndtr, "the logarithm of the normal distribution"),
    ("special_ndtri", ndtri, "the inverse of the normal distribution"),
)  # fmt: skip

TABLE: Family = {
    **{op: entry for row in _UNARY for op, entry in _special(*row).items()},
    "polygamma.default": polygamma,
    "mvlgamma.default": mvlgamma,
}
