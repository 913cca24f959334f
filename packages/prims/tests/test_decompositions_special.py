"""Special functions against their definitions, in many digits, and against eager."""

import math

import mpmath
import pytest
import torch
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.decompositions.checking import assert_matches_eager, name_of
from dovetail_prims.decompositions.special_functions.chebyshev import coefficients
from dovetail_prims.opsets import CORE_ATEN

aten = torch.ops.aten
m = mpmath

POSITIVE = torch.cat([torch.linspace(0.01, 30, 150), torch.logspace(-8, 2.5, 40)]).double()
BOTH = torch.cat([POSITIVE, -POSITIVE])
TAILS = torch.cat(
    [torch.linspace(0.001, 0.999, 101).double(), torch.logspace(-300, -1, 40, dtype=torch.float64)]
)


def normal_inverse(p):
    low = min(p, 1 - p)
    if low == 0.5:
        return m.mpf(0)
    w = m.sqrt(-2 * m.log(low))
    start = w - (m.log(w) + 1) / w if w > 1.5 else m.mpf(0.5)
    x = m.findroot(lambda x: m.log(m.erfc(x / m.sqrt(2)) / 2) + w * w / 2, start)
    return -x if p < 0.5 else x


# op, arguments, definition, the largest error (relative, or beside 1)
FUNCTIONS = [
    ("i0", BOTH, lambda x: m.besseli(0, x), 2e-15),
    ("special_modified_bessel_i1", BOTH, lambda x: m.besseli(1, x), 2e-15),
    ("special_i0e", BOTH, lambda x: m.besseli(0, x) * m.exp(-abs(x)), 1e-15),
    ("special_i1e", BOTH, lambda x: m.besseli(1, x) * m.exp(-abs(x)), 1e-15),
    ("special_modified_bessel_k0", POSITIVE, lambda x: m.besselk(0, x), 2e-15),
    ("special_modified_bessel_k1", POSITIVE, lambda x: m.besselk(1, x), 2e-15),
    ("special_scaled_modified_bessel_k0", POSITIVE, lambda x: m.besselk(0, x) * m.exp(x), 1e-15),
    ("special_scaled_modified_bessel_k1", POSITIVE, lambda x: m.besselk(1, x) * m.exp(x), 1e-15),
    ("special_bessel_j0", BOTH, lambda x: m.besselj(0, x), 1e-15),
    ("special_bessel_j1", BOTH, lambda x: m.besselj(1, x), 1e-15),
    ("special_bessel_y0", POSITIVE, lambda x: m.bessely(0, x), 1e-15),
    ("special_bessel_y1", POSITIVE, lambda x: m.bessely(1, x), 1e-15),
    ("special_spherical_bessel_j0", BOTH, lambda x: m.sin(x) / x, 1e-15),
    ("special_airy_ai", torch.linspace(-30, 20, 300).double(), m.airyai, 1e-14),
    ("special_erfcx", torch.linspace(-5, 40, 200).double(),
     lambda x: m.exp(x * x) * m.erfc(x), 2e-15),
    ("special_log_ndtr", torch.linspace(-40, 4, 200).double(), lambda x: m.log(m.ncdf(x)), 1e-14),
    ("special_ndtri", TAILS, normal_inverse, 2e-15),
    ("digamma", torch.linspace(-6.33, 40, 150).double(), m.digamma, 4e-14),
]  # fmt: skip
EDGES = torch.tensor(
    [0.0, -0.0, math.inf, -math.inf, math.nan, -1, -2.5, 1, 1e-300, 700, 800, 2.1, 5, 10, 2, 0.5]
)


@pytest.mark.parametrize("name, x, definition, bound", FUNCTIONS, ids=[f[0] for f in FUNCTIONS])
def test_beside_many_digits(name, x, definition, bound):
    op = getattr(aten, name).default
    got = core_aten_table()[op](x).tolist()
    with mpmath.workdps(40):
        for at, value in zip(x.tolist(), got, strict=True):
            wanted = definition(m.mpf(at))
            scale = max(abs(wanted), 1) if name in ("digamma",) or "_j" in name else abs(wanted)
            if "_y" in name or "airy" in name:  # near a zero the error stays, beside the amplitude
                scale = max(abs(wanted), m.mpf(1) / 2)
            # (rounding of an exponential's argument counts as often as the argument is large)
            squared = name == "special_erfcx" and at < 0
            own = bound * (max(1, at * at) if squared else 1)
            assert abs(value - wanted) <= own * scale, f"{name}({at}) = {value}, not {wanted}"


@pytest.mark.parametrize("name", [f[0] for f in FUNCTIONS])
@pytest.mark.parametrize("dtype", (torch.float64, torch.float32), ids=str)
def test_edges_and_types(name, dtype):
    """Zeros, infinities, NaN and integers give what eager's give; eager is coarser than we are."""
    op = getattr(aten, name).default
    entry = core_aten_table()[op]
    x = EDGES.to(dtype)
    got, wanted = entry(x), op(x)
    assert got.dtype is dtype
    if name == "special_airy_ai":  # eager's is NaN at infinity
        got, wanted = (v.nan_to_num(0.0) for v in (got, wanted))
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)
    half = entry(x.bfloat16())
    assert (half is NotImplemented) == (name in ("special_i0e", "special_i1e"))
    seen = assert_matches_eager({op: entry}, op, [torch.tensor([1, 3])], {}, tolerance=1e-5)
    assert {name_of(o) for o in seen} <= {*CORE_ATEN, *map(name_of, core_aten_table())}


@pytest.mark.parametrize("n", (1, 2, 3, 6))
def test_polygamma(n):
    x = torch.cat([torch.linspace(0.05, 9, 70), torch.linspace(-6.33, -0.1, 50)]).double()
    got = core_aten_table()[aten.polygamma.default](n, x).tolist()
    with mpmath.workdps(40):
        for at, value in zip(x.tolist(), got, strict=True):
            wanted, pole = m.polygamma(n, m.mpf(at)), round(at)
            size = abs(wanted) + (m.factorial(n) / abs(at - pole) ** (n + 1) if at < 0.5 else 0)
            assert abs(value - wanted) <= 4e-15 * size, (at, value, wanted)
    edges = torch.tensor([0.0, math.inf, -math.inf, math.nan, 0.25])
    check = core_aten_table()[aten.polygamma.default](n, edges)
    torch.testing.assert_close(check, torch.polygamma(n, edges), equal_nan=True)
    far = core_aten_table()[aten.polygamma.default](30, x[:60])  # (and 30! times zeta)
    torch.testing.assert_close(far, torch.polygamma(30, x[:60]), rtol=1e-12, atol=0)


def test_functions_that_loop():
    """What is left of them to decompose: a number for a tensor, and the least common multiple."""
    x, n = torch.rand(7) + 1.5, torch.arange(7)
    table = core_aten_table()
    for op, args in (
        (aten.special_zeta.self_scalar, [2.5, x]),
        (aten.special_zeta.other_scalar, [n, 3]),
        (aten.special_hermite_polynomial_h.x_scalar, [0.5, n]),
        (aten.special_legendre_polynomial_p.n_scalar, [x.double(), 3]),
        (aten.lcm.default, [n - 3, 2 * n]),
        (aten.lcm.default, [(n - 3).int(), torch.tensor(6)]),
        (aten.lcm.default, [(n + 93).to(torch.int8), (n + 16).to(torch.int8)]),
        (aten.lcm.default, [(n + 9300).short(), (n + 170).to(torch.int8)]),
    ):
        seen = assert_matches_eager(table, op, args, {})
        assert {name_of(o) for o in seen} <= set(CORE_ATEN)


def test_mvlgamma():
    x = torch.rand(20, dtype=torch.float64) * 5 + 2.5
    for own in (x, x.float()):
        for p in (1, 3, 5):
            assert_matches_eager(core_aten_table(), aten.mvlgamma.default, [own, p], {})


def test_a_function_that_no_polynomial_follows_is_refused():
    with pytest.raises(ValueError, match="no polynomial"):
        coefficients(lambda m, u: abs(u), -1, 1)
    assert coefficients(lambda m, u: 1 + 2 * u, 0, 2) == (3.0, 2.0)
