"""Functions that have vector forms of their own: errors in units of the last place, and what is
exact; the values at the ends are eager's."""

from __future__ import annotations

import math

import pytest
import torch
from dovetail_inductor import compile_graph
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import load

ENDS = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5, -0.5, 2.0, 1e-40, 3.4e38, -3.4e38,
     1e-8, 2.5, -2.5, 1e20, 0.41421356, 2.4142135, 1.17549435e-38]
)  # fmt: skip
PAIRS = torch.cartesian_prod(ENDS, ENDS)


def run(fn, *inputs):
    plan = compile_graph(trace_aten(fn, *inputs, decompositions=core_aten_table()))
    (result,) = load(plan).run(*inputs)
    return result


def many(n=20_000):
    x = torch.exp(torch.randn(n) * 8) * torch.randn(n).sign()
    return torch.cat([torch.randn(n) * 3, x, torch.rand(5) * 100])  # 5 that fill no vector


def ulps(got, exact):
    finite = torch.isfinite(exact.to(got.dtype))
    one = torch.finfo(got.dtype)
    size = exact.abs().clamp(min=one.tiny)
    unit = torch.exp2(torch.floor(torch.log2(size))) * one.eps
    return ((got.double() - exact).abs() / unit)[finite].max().item()


@pytest.mark.parametrize(("name", "most"), [("tan", 0.8), ("atan", 0.55), ("exp", 1.5)])
def test_one_argument(name, most):
    fn = getattr(torch, name)
    for x in (many(), ENDS):
        got = run(fn, x)
        assert ulps(got, fn(x.double())) <= most
        torch.testing.assert_close(got, fn(x), rtol=1e-5, atol=0, equal_nan=True)
        assert torch.equal(got.isnan() | got.signbit(), got.isnan() | fn(x).signbit())


@pytest.mark.parametrize(("name", "most"), [("atan2", 0.55), ("hypot", 0.51), ("pow", 0.51)])
def test_two_arguments(name, most):
    fn = getattr(torch, name)
    for x, y in ((many(), many().flip(0)), PAIRS.unbind(1)):
        got = run(fn, x, y)
        assert ulps(got, fn(x.double(), y.double())) <= most
        torch.testing.assert_close(got, fn(x, y), rtol=1e-5, atol=0, equal_nan=True)
        assert torch.equal(got.isnan() | got.signbit(), got.isnan() | fn(x, y).signbit())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["fmod", "remainder", "floor_divide", "nextafter"])
def test_exact(name, dtype):
    fn = getattr(torch, name)
    ends = PAIRS[(PAIRS.abs() >= 1.2e-38).all(1) | (PAIRS == 0).any(1) | PAIRS.isnan().any(1)]
    for x, y in ((many(), many().flip(0)), ends.unbind(1), (many(), many() * 1e-9)):
        x, y = x.to(dtype), y.to(dtype)
        if name != "nextafter":  # of what eager's own division of subnormals makes
            few = (x / y).abs() < 2**20
            x, y = x[few], y[few]
        torch.testing.assert_close(run(fn, x, y), fn(x, y), rtol=0, atol=0, equal_nan=True)


def test_remainders_of_large_quotients():
    x, y = many() * 1e10, many().flip(0)
    got = run(torch.fmod, x, y)
    assert torch.equal(got, torch.tensor([math.fmod(a, b) for a, b in zip(x, y, strict=True)]))


def test_exponentials_of_double():
    x = torch.cat([torch.linspace(-750, 712, 30_001), torch.randn(9000), ENDS]).double()
    got, exact = run(torch.exp, x), torch.exp(x)
    torch.testing.assert_close(got, exact, rtol=5e-16, atol=1e-320, equal_nan=True)


@pytest.mark.parametrize("count", [1, 3, 5, 8, 13])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int64])
def test_narrow_types_and_rows_of_any_length(check, count, dtype):
    x = torch.randint(-128, 128, (11, count)).to(dtype)
    y = torch.randint(0, 2, (11, count)).to(dtype)

    def fn(x, y):
        return (
            x.float(), x * y, x == y, x & y, x.bool() | y.bool(), x.long(), x.double(),
            (x.float() * 3).to(dtype), x.sum(1), y.sum(0), x.bool().any(1), x.half(),
            torch.where(y.bool(), x, y), x.amax(1), x.int().argmax(1), y.float().argmin(0),
        )  # fmt: skip

    check(fn, x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("count", [2, 3, 4, 7, 9, 70])
def test_positions_of_extremes(check, count, dtype):
    x = torch.randint(-3, 3, (70, count)).to(dtype)
    if dtype.is_floating_point:
        x[torch.rand(x.shape) < 0.05] = torch.nan
    check(
        lambda x: (x.argmax(1), x.argmin(0), x.argmax(), x.argmin(1), x.argmax(0), x.max(1)[0]), x
    )
