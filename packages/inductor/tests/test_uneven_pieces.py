"""Reductions to few results whose number of elements has no divisor that pieces could have."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.loop_ir.expr import Builder, assume, mask_loads
from dovetail_inductor.loop_ir.index import Var, variable
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import load
from dovetail_runtime.plan import LaunchCpp

PRIME, PRIMES = 100_003, (499, 523)


def plan_of(fn, *inputs, **options):
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return compile_graph(gm, options=InductorOptions(**options))


def _layouts():
    whole = torch.randn(PRIMES[0], PRIMES[1] + 3)
    return {
        "row": torch.randn(PRIME),
        "matrix": torch.randn(PRIMES),
        "transposed": torch.randn(PRIMES).t(),
        "part": whole[:, 2:-1],
        "every other": torch.randn(2 * PRIME)[::2],
        "columns": torch.randn(10_007, 37),
    }


@pytest.mark.parametrize("layout", _layouts())
def test_every_kind(check, layout):
    torch.manual_seed(0)
    x = _layouts()[layout]

    def fn(x):
        dims = (0,) if layout == "columns" else tuple(range(x.dim()))
        near = 1 + x * 1e-3
        return (
            x.sum(dims), x.amax(dims), x.amin(dims), near.prod(0), x.var(dims), (x > 4).any(0),
            (x < 9).all(0), (x * 100).to(torch.int64).sum(dims), x.half().sum(dims),
        )  # fmt: skip

    check(fn, x, rtol=3e-3, atol=3e-2)


@pytest.mark.parametrize("simd_bytes", [16, 64])
def test_vectors_of_other_widths(check, simd_bytes):
    options = InductorOptions(simd_bytes=simd_bytes)
    for x in (_layouts()["row"], _layouts()["part"]):
        check(lambda x: (x.sum(), x.amax()), x, options=options, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("layout", _layouts())
def test_nothing_is_asked_inside_the_loops(layout):
    x = _layouts()[layout]
    plan = plan_of(lambda x: x.sum(0) if layout == "columns" else x.sum(), x)
    assert len([s for s in plan.steps if isinstance(s, LaunchCpp)]) == 2
    source = plan.kernels[0].source
    assert "int64_t end" in source and "ldm<" not in source and "ldim<" not in source
    assert "mask(" not in source and source.count("sel(") <= 1  # for what fills no vector


@pytest.mark.parametrize("layout", _layouts())
def test_sums_are_as_exact_as_eagers(layout):
    torch.manual_seed(0)
    x = _layouts()[layout] + 1

    def fn(x):
        return x.sum(0 if layout == "columns" else None), (x * x).sum()

    for got, eager, exact in zip(load(plan_of(fn, x)).run(x), fn(x), fn(x.double()), strict=True):
        error, eagers = ((t.double() - exact).norm() / exact.norm() for t in (got, eager))
        assert error <= 2 * eagers + 1.5e-7


def test_losses(check):
    x, y = torch.randn(PRIME), torch.rand(PRIME)

    def fn(x, y):
        return (
            torch.dot(x, y), F.mse_loss(x, y), F.l1_loss(x, y), x.norm(),
            F.binary_cross_entropy_with_logits(x, y), x.std(), torch.logsumexp(x, 0),
        )  # fmt: skip

    check(fn, x, y, rtol=1e-4)


def test_a_value_that_overflows_beyond_the_end_is_not_looked_at(check):
    """The elements of the last piece that are none."""
    memory = torch.full((PRIME + 9000,), float("nan"))
    memory[:PRIME] = torch.rand(PRIME)
    check(lambda x: (x.sum(), x.amax(), (x / (x + 1)).sum()), memory[:PRIME], rtol=1e-5)


def test_what_a_condition_leaves():
    builder = Builder()
    i, j = Var(0, 8), Var(1, 100)
    place = variable(i) * 100 + variable(j)
    inside = builder.apply("lt", [builder.index_value(place), builder.constant(750, torch.int64)])
    own = builder.apply("lt", [builder.index_value(variable(j)), builder.constant(50, torch.int64)])
    read = builder.load("a", place, torch.float32, own)
    chosen = builder.apply("where", [inside, read, builder.load("b", place, torch.float32)])
    masked = mask_loads(builder, chosen, inside)
    assert assume(builder, masked, inside) is read
