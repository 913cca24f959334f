"""Shape rules of solvers of linear equations, under symbolic sizes."""

import pytest
import torch
from dovetail_guards.shape_env import Dim, ShapeEnv
from dovetail_guards.source import LocalSource, SizeSource
from dovetail_prims import from_real
from dovetail_prims.fake.fake_mode import FakeMode

SHAPES = [((4, 4), (4, 2)), ((4, 4), (4, 1)), ((3, 4, 4), (5, 1, 4, 2)), ((3, 4, 4), (4, 2))]


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_cholesky_solve(a, b):
    env = ShapeEnv()
    factor = torch.linalg.cholesky(torch.eye(4) + torch.ones(a))
    real = torch.randn(b)
    wanted = torch.cholesky_solve(real, factor)
    named = {
        n: env.symint(env.create_size(n, SizeSource(LocalSource("x"), i), Dim.DYNAMIC))
        for i, n in enumerate(sorted({*a, *b} - {1}))
    }
    fakes = [from_real(t, sizes=[named.get(n, n) for n in t.shape]) for t in (real, factor)]
    with FakeMode():
        found = torch.cholesky_solve(*fakes)
    assert not list(env.specialized())
    assert tuple(int(n) for n in found._sizes) == wanted.shape
    assert tuple(int(n) for n in found._strides) == wanted.stride()


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (2, 3, 5), (0, 3)])
@pytest.mark.parametrize("limits", [{}, {"rtol": 1e-3}, {"atol": torch.tensor([[0.1], [0.2]])}])
def test_pinv(shape, limits):
    env = ShapeEnv()
    real = torch.randn(shape)
    wanted = torch.linalg.pinv(real, **limits)
    named = {
        n: env.symint(env.create_size(n, SizeSource(LocalSource("x"), i), Dim.DYNAMIC))
        for i, n in enumerate(sorted({*shape} - {0, 1}))
    }
    fake = from_real(real, sizes=[named.get(n, n) for n in shape])
    with FakeMode():
        found = torch.linalg.pinv(fake, **limits)
    assert not list(env.specialized())
    assert tuple(int(n) for n in found._sizes) == wanted.shape
    assert tuple(int(n) for n in found._strides) == wanted.stride()
