"""Scalar functions that loop: against many digits, against eager at the ends, and as Triton."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mpmath
import pytest
import torch
from dovetail_inductor.loop_ir.functions import FUNCTIONS, LOOPING
from dovetail_inductor.loop_ir.functions.function import Function
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.pipeline import compile_graph
from dovetail_inductor.targets.cpu.cpp_functions import source_of
from dovetail_inductor.targets.cuda.triton_functions import helpers
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.record import trace_aten
from dovetail_runtime import load
from dovetail_runtime.plan import CallAten, TritonKernel
from dovetail_runtime.reference import ReferenceExecutor
from dovetail_runtime.triton_build import run_in_interpreter
from torch import Tensor, special

INF, NAN = math.inf, math.nan
m = mpmath
ENDS = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.5, INF, -INF, NAN, 1e20, -3.0, 3.0]


def pairs(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """All pairs of two lists of numbers, in float64."""
    found = torch.tensor(list(itertools.product(a, b)), dtype=torch.float64)
    return found[:, 0].contiguous(), found[:, 1].contiguous()


def compiled(fn: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    plan = compile_graph(trace_aten(fn, *inputs, decompositions=core_aten_table()))
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    (got,) = load(plan)(*inputs)
    assert isinstance(got, Tensor)
    return got


def beside(
    fn: Callable[..., Tensor], a: Tensor, b: Tensor, exact: Any, slope: Any = lambda x, y: 0
) -> None:
    """Of no larger an error than eager, on the whole; in float32 of a rounding at most. In float64
    an error counts beside the result and what `slope` says that it changes by."""
    for dtype in (torch.float32, torch.float64):
        x, y = a.float().to(dtype), b.float().to(dtype)
        got, eager, info = compiled(fn, x, y), fn(x, y), torch.finfo(dtype)
        ours, theirs = [0.0], [0.0]
        with mpmath.workdps(40):
            for i in range(len(x)):
                wanted = exact(m.mpf(x[i].item()), m.mpf(y[i].item()))
                if not info.tiny < abs(wanted) < info.max:
                    continue
                size = abs(wanted) * info.eps
                if dtype is torch.float64:
                    size += abs(slope(m.mpf(x[i].item()), m.mpf(y[i].item()))) * info.eps
                ours.append(float(abs(got[i].item() - wanted) / size))
                theirs.append(float(abs(eager[i].item() - wanted) / size))
        means = [sum(errors) / len(errors) for errors in (ours, theirs)]
        assert means[0] <= 1.3 * means[1] + 0.1, (dtype, means)
        if dtype is torch.float32:
            assert max(ours) <= 0.51, max(ours)


def hurwitz(x: Any, q: Any) -> Any:
    total = m.mpf(0)
    while q < 60:
        total, q = total + q**-x, q + 1
    rest = q ** (1 - x) / (x - 1) + q**-x / 2
    for j in range(1, 20):
        rest += m.bernoulli(2 * j) / m.factorial(2 * j) * m.rf(x, 2 * j - 1) * q ** (1 - x - 2 * j)
    return total + rest


def test_zeta() -> None:
    x, q = pairs((1.01, 1.5, 2, 3, 7.5, 20), (1e-3, 0.3, 1, 2.5, 9, 11.7, 28, 1000))
    beside(special.zeta, x, q, hurwitz)
    x, q = pairs((2, 3, 8), (-0.3, -0.49, -5.3, -15.7, -47.2, -50.6, -80.45))
    beside(special.zeta, x, q, hurwitz)


@pytest.mark.parametrize("upper", [False, True], ids=["lower", "upper"])
def test_incomplete_gamma(upper: bool) -> None:
    near = (1e-3, 0.3, 0.69, 0.71, 0.99, 1.0, 1.02, 1.29, 1.31, 3)
    points = [(a, a * t) for a in (0.01, 0.7, 5, 29.9, 30.1, 400) for t in near]
    points += [(a, x) for a in (1e-6, 0.02, 0.5, 1.2, 9) for x in (1e-9, 0.1, 0.9, 1.1, 4)]
    a, x = torch.tensor(points, dtype=torch.float64).unbind(1)

    def exact(a: Any, x: Any) -> Any:
        ends = (x, m.inf) if upper else (0, x)
        return m.gammainc(a, *ends, regularized=True)

    beside(torch.igammac if upper else torch.igamma, a, x, exact)


DEGREES = (0, 1, 2, 5, 9, 30, 70)
POLYNOMIALS: dict[str, Any] = {
    "chebyshev_polynomial_t": m.chebyt,
    "chebyshev_polynomial_u": m.chebyu,
    "shifted_chebyshev_polynomial_t": lambda n, x: m.chebyt(n, 2 * x - 1),
    "shifted_chebyshev_polynomial_u": lambda n, x: m.chebyu(n, 2 * x - 1),
    "chebyshev_polynomial_v": lambda n, x: m.chebyu(n, x) - (m.chebyu(n - 1, x) if n else 0),
    "chebyshev_polynomial_w": lambda n, x: m.chebyu(n, x) + (m.chebyu(n - 1, x) if n else 0),
    "hermite_polynomial_h": m.hermite,
    "hermite_polynomial_he": lambda n, x: m.hermite(n, x / m.sqrt(2)) / m.sqrt(2) ** n,
    "laguerre_polynomial_l": lambda n, x: m.laguerre(n, 0, x),
    "legendre_polynomial_p": m.legendre,
}


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials(name: str) -> None:
    definition = POLYNOMIALS[name]
    x, n = pairs(torch.linspace(-1.7, 1.2, 31).tolist(), DEGREES)

    def exact(x: Any, n: Any) -> Any:
        return definition(int(n), x)

    def slope(x: Any, n: Any) -> Any:
        return (exact(x + m.mpf(1e-12), n) - exact(x, n)) / m.mpf(1e-12) / (n + 1)

    beside(getattr(special, name), x, n, exact, slope)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ends_are_as_eagers(check: Any, dtype: torch.dtype) -> None:
    x, n = (t.to(dtype) for t in pairs(ENDS, (-1, 0, 0.9, 1, 2.9, 3, 8, 12, NAN, INF)))
    polynomials = [getattr(special, name) for name in POLYNOMIALS]
    check(lambda x, n: tuple(f(x, n) for f in polynomials), x, n, rtol=2e-5, atol=1e-5)
    a, b = (t.to(dtype) for t in pairs(ENDS, ENDS))
    check(lambda a, b: (torch.igamma(a, b), torch.igammac(a, b)), a, b)
    x, q = (t.to(dtype) for t in pairs((-1, 0.5, 1, 1.5, 2, 3, INF, NAN), ENDS))
    check(lambda x, q: special.zeta(x, q), x, q)


def test_beyond_the_range_comes_infinity_then_no_number() -> None:
    """As eager's, which may be beyond it a degree before."""
    n = torch.arange(60.0)
    for fn, x in ((special.hermite_polynomial_h, 9.5), (special.legendre_polynomial_p, -300.0)):
        got, eager = compiled(fn, torch.full_like(n, x), n), fn(torch.full_like(n, x), n)
        kept = eager.isfinite()
        torch.testing.assert_close(got[kept], eager[kept], rtol=2e-5, atol=0)
        first = int(got.isfinite().sum())
        assert got[first].isinf() and got[first + 1].isinf() and got[first + 2 :].isnan().all()
        assert abs(first - int(kept.sum())) <= 1


def test_numbers_whole_numbers_and_narrow_types(check: Any) -> None:
    x, n = torch.rand(33), torch.randint(0, 9, (33,))

    def fn(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        return (
            special.zeta(x + 2, 1.5), special.zeta(3, x), special.legendre_polynomial_p(x, 4),
            special.laguerre_polynomial_l(0.5, n), special.chebyshev_polynomial_u(x, n),
            torch.gcd(n, n.flip(0) - 4), torch.lcm(n - 4, n.flip(0)),
            torch.polygamma(25, x + 1), torch.igamma(x.bfloat16(), x.bfloat16() * 2),
        )  # fmt: skip

    check(fn, x, n, rtol=1e-5)


# What Triton's interpreter lacks: CUDA's library of functions.
LIBDEVICE = """
import math
import numpy as np
from triton.runtime.interpreter import TensorHandle


class libdevice:
    pass


def _known(name, function):
    def call(*args):
        with np.errstate(all="ignore"):
            data = function(*(a.handle.data for a in args)).astype(args[0].handle.data.dtype)
        return tl.core.tensor(TensorHandle(data, args[0].dtype.scalar), args[0].type)

    setattr(libdevice, name, staticmethod(call))


_known("pow", np.power)
_known("expm1", np.expm1)
_known("acos", np.arccos)
_known("erfc", np.vectorize(math.erfc))
_known("lgamma", np.vectorize(lambda x: math.lgamma(x) if x > 0 else math.inf))
"""


def interpreted(kernel: TritonKernel, arguments: Any, grid: Any) -> None:
    imported = "from triton.language.extra import libdevice\n"
    source = kernel.source.replace(imported, LIBDEVICE)
    run_in_interpreter(replace(kernel, source=source), arguments, grid)


def test_triton(build_for_h100: Any) -> None:
    """In the interpreter as on a CPU, and compiled for an H100."""

    def fn(x: Tensor, n: Tensor, a: Tensor) -> tuple[Tensor, ...]:
        polynomials = [getattr(special, name)(x, n) for name in POLYNOMIALS]
        return (
            *polynomials, torch.igamma(a, n.abs() + x), torch.igammac(a, n.abs() + x),
            special.zeta(a + 1, n.abs() + 0.5), special.zeta(n.abs() + 2, -a),
        )  # fmt: skip

    x, n = pairs((-1.5, -0.9, -0.1, 0.4, 0.8, 1.0), (-1, 0, 1, 2, 5, 12, 80))
    generator = torch.Generator().manual_seed(0)
    a = torch.rand(6, 7, generator=generator, dtype=torch.float64) * 40 + 0.1
    x, n = x.reshape(6, 7)[:, :1].contiguous(), n.reshape(6, 7)
    inputs = (x.float(), n.float(), a.float())
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    plan = compile_graph(gm, inputs, options=InductorOptions(triton=True))
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    got = ReferenceExecutor(plan, launch_triton=interpreted)(*inputs)
    for mine, wanted in zip(got, fn(*(t.double() for t in inputs)), strict=True):
        kept = wanted.to(mine.dtype).isfinite()
        assert kept.sum() > 30
        mine, wanted = mine[kept].double(), wanted[kept].double()
        torch.testing.assert_close(mine, wanted, rtol=3e-6, atol=1e-8)
    build_for_h100([k for k in plan.kernels if isinstance(k, TritonKernel)])


def test_every_function_is_printed() -> None:
    assert set(LOOPING) <= set(FUNCTIONS)
    assert {f"dv_{name}" for name in FUNCTIONS} == set(helpers())
    assert all(f"X dv_{name}(" in source_of(frozenset(FUNCTIONS)) for name in FUNCTIONS)


def test_what_the_language_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = Function("odd", "def odd(x):\n    return x ** 2\n")
    longer = Function("longer", "def longer(x):\n    return where(x > 0.0, x, 0.1)\n")
    loop = Function("loop", "def loop(x):\n    for y in x:\n        pass\n    return x\n")
    for function in (odd, loop):
        monkeypatch.setitem(FUNCTIONS, function.name, function)
        with pytest.raises((NotImplementedError, KeyError)):
            source_of(frozenset({function.name}))
        with pytest.raises((NotImplementedError, KeyError)):
            helpers.__wrapped__()
        monkeypatch.delitem(FUNCTIONS, function.name)
    monkeypatch.setitem(FUNCTIONS, "longer", longer)
    with pytest.raises(NotImplementedError, match="float32 has not"):
        helpers.__wrapped__()
