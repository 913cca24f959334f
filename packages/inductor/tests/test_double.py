"""Functions of float64 in vectors, and those of float32 that are computed in double: their errors
against a wider type in units of the last place, and eager's values where there is no number."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from dovetail_inductor import compile_graph
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import load

ENDS = [
    0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5, -0.5, 2.0, -2.0, -3.0, 1e-310,
    -1e-310, 2.2250738585072014e-308, 1e-8, -1e-8, 709.5, 710.6, -708.1, -745.1, -746.0,
    1023.9, 1024.0, -1074.0, -1076.0, 1e300, -1e300, 1e22, 40.0, -40.0, 0.9999999999999999, 5.9,
]  # fmt: skip

# The least and the largest argument, and the error allowed.
DOUBLE = {
    "exp": (-708, 709, 0.58), "exp2": (-1021, 1023, 0.65), "expm1": (-5, 5, 0.85),
    "log": (0.01, 3, 0.58), "log2": (0.01, 3, 0.62), "log10": (0.01, 3, 0.6),
    "log1p": (-0.99, 3, 0.65), "sin": (-50, 50, 0.6), "cos": (-50, 50, 0.6), "tan": (-50, 50, 0.62),
    "tanh": (-3, 3, 0.68), "erf": (-3, 3, 0.74), "erfinv": (-1, 1, 1.1), "asin": (-1, 1, 0.62),
    "acos": (-1, 1, 0.6), "atan": (-9, 9, 0.66), "sinh": (-3, 3, 0.68), "cosh": (-3, 3, 0.7),
    "asinh": (-9, 9, 0.6), "acosh": (1, 9, 0.6), "atanh": (-1, 1, 0.6),
}  # fmt: skip
FLOAT = ("log10", "erfc", "erfinv", "asin", "acos", "sinh", "cosh", "asinh", "acosh", "atanh")


def run(fn, *inputs):
    plan = compile_graph(trace_aten(fn, *inputs, decompositions=core_aten_table()))
    (result,) = load(plan).run(*inputs)
    return result


def exact(name, x):
    """Each value, as a double and what is left of it."""
    named = {"log2": lambda v: mpmath.log(v, 2), "exp2": lambda v: mpmath.mpf(2) ** v}
    fn = named.get(name) or getattr(mpmath, name)
    with mpmath.workprec(120):
        values = [mpmath.re(fn(mpmath.mpf(v))) for v in x.tolist()]
        near = [float(v) for v in values]
        rest = [float(v - mpmath.mpf(n)) for v, n in zip(values, near, strict=True)]
    return torch.tensor(near, dtype=x.dtype), torch.tensor(rest, dtype=x.dtype)


def ulps(got, near, rest):
    one = torch.finfo(got.dtype)
    unit = torch.exp2(torch.floor(torch.log2(near.abs().clamp(min=one.tiny)))) * one.eps
    return (((got.double() - near) - rest).abs() / unit).max().item()


@pytest.mark.parametrize("name", DOUBLE)
def test_last_places_of_double(name):
    low, high, most = DOUBLE[name]
    x = torch.linspace(low, high, 1203, dtype=torch.float64)[1:-1]
    if low < 0 < high:
        x = torch.cat([x, torch.logspace(-12, math.log10(min(1, high) * 0.99), 200, dtype=x.dtype)])
    got = run(getattr(torch, name), x)
    assert ulps(got, *exact(name, x)) <= most
    alone = torch.cat([run(getattr(torch, name), v) for v in x[:3, None]])
    assert torch.equal(alone, got[:3])  # a scalar has the bits of a vector's lane


@pytest.mark.parametrize("name", [*DOUBLE, "erfc", "lgamma", "sigmoid"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_ends(name, dtype):
    fn = getattr(torch, name)
    x = torch.tensor(ENDS, dtype=torch.float64).to(dtype)
    expected = fn(x.double()).to(dtype) if dtype is torch.float32 else fn(x)
    got = run(fn, x)
    tiny = torch.finfo(dtype).tiny
    if name in ("sin", "cos", "tan"):
        assert torch.equal(got.isnan(), x.isinf() | x.isnan())
    torch.testing.assert_close(got, expected, rtol=3e-7, atol=tiny, equal_nan=True)
    zero = (got == 0) & (expected == 0)
    assert torch.equal(got.signbit()[zero], expected.signbit()[zero])
    single = torch.cat([run(fn, v) for v in x[:, None]])
    if name in ("sin", "cos", "tan"):  # a large angle takes its vector to the C library
        torch.testing.assert_close(single, got, equal_nan=True)
    else:
        torch.testing.assert_close(single, got, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["sinh", "cosh"])
def test_up_to_the_largest_number(name):
    x = torch.linspace(709, 710.47, 64, dtype=torch.float64)
    near, rest = exact(name, x)
    got = run(getattr(torch, name), torch.cat([x, -x]))
    assert ulps(got[:64], near, rest) <= 0.7
    assert torch.equal(got[64:], got[:64] if name == "cosh" else -got[:64])


@pytest.mark.parametrize("name", FLOAT)
def test_floats_are_rounded_once(name):
    low, high, _ = DOUBLE.get(name, (-4, 10, 0))
    x = torch.cat([torch.linspace(low, high, 40_001)[1:-1], torch.logspace(-30, -1, 3001)])
    x = x[(x >= low) & (x <= high)]
    got, wide = run(getattr(torch, name), x), getattr(torch, name)(x.double())
    assert ulps(got, wide, torch.zeros_like(wide)) <= 0.515


def test_gamma_function_of_floats():
    x = torch.cat([torch.linspace(-30, 30, 20_001), torch.logspace(-30, 36, 4001)])
    got, wide = run(torch.lgamma, x), torch.lgamma(x.double())
    assert torch.equal(got.isinf(), wide.isinf())
    got, wide = got[wide.isfinite()], wide[wide.isfinite()]
    near = wide.abs() > 1e-4  # (eager's own double is not exact at the zeros)
    assert ulps(got[near], wide[near], torch.zeros_like(wide[near])) <= 0.515
    assert (got.double() - wide).abs()[~near].max() < 1e-11
    x = torch.tensor([1.0, 2.0, 1 + 2**-23, 2 - 2**-23, 2 + 2**-22, -2.4570248, 4.2e36])
    near, rest = exact("loggamma", x.double())
    assert ulps(run(torch.lgamma, x)[:-1], near[:-1], rest[:-1]) <= 0.515
    assert run(torch.lgamma, x)[-1] == math.inf
