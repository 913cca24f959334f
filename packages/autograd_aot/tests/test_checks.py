"""Assertions in graphs, what C++ checks of data, and lazy conjugates."""

from __future__ import annotations

import pytest
import torch
from aot_testing import TABLES, as_graph, run_fx
from dovetail_autograd_aot import TraceError, aot_compile


def test_assertions_stay_in_the_graph():
    def fn(x):
        torch._assert_async((x > 0).all(), "not all positive")
        return (x * 2,)

    run = aot_compile(as_graph(fn, 1), [torch.ones(3)], forward_compiler=run_fx)
    assert torch.equal(run(torch.ones(3))[0], torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="not all positive"):
        run(-torch.ones(3))


def test_what_a_backward_checks_of_data_is_checked():
    """Singular vectors have a phase: a loss that depends on it has no gradient."""

    def fn(x):
        u, _, vh = torch.linalg.svd(x, full_matrices=False)
        return (u, vh)

    x = torch.randn(3, 3, dtype=torch.complex128, requires_grad=True)
    run = aot_compile(as_graph(fn, 1), [x], forward_compiler=run_fx, decompositions=TABLES["core"])
    u, vh = run(x)
    (u.abs().sum() + vh.abs().sum()).backward()
    expected = torch.autograd.grad(sum(p.abs().sum() for p in fn(x)), x)[0]
    torch.testing.assert_close(x.grad, expected)
    u, vh = run(x)
    with pytest.raises(RuntimeError, match="is false of the data"):
        u.imag.sum().backward()


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("make", [torch.clone, torch.conj, lambda x: x.conj()[1:]])
def test_lazy_conjugates_are_as_eager_has_them(make, graded, written):
    def fn(x):
        y = x.conj()
        z = y.resolve_conj()
        z = z.mul_(2) if written else z * 2
        assert y.is_conj() != x.is_conj() and not z.is_conj()
        return y, z, torch.view_as_real(z), x.mul_(3j) if written else x * 3j, (x.imag * 2).sum()

    results = []
    for compiled in (False, True):
        leaf = (torch.arange(4) + 1j).requires_grad_(graded)
        x = make(leaf * 1)
        run = fn
        if compiled and graded and written and x._is_view():
            with pytest.raises(TraceError, match="anew of its base"):
                aot_compile(as_graph(fn, 1), [x], forward_compiler=run_fx)
            return
        if compiled:
            run = aot_compile(as_graph(fn, 1), [x], forward_compiler=run_fx)
        y, z, parts, product, loss = run(x)
        if graded:
            (loss + parts.sum() + product.abs().sum()).backward()
        results.append([y, z, parts, product, x, leaf.grad if graded else leaf])
    for ours, eager in zip(*reversed(results), strict=True):
        torch.testing.assert_close(ours, eager)
        assert ours.is_conj() == eager.is_conj()


LAZY = {
    "conjugate": lambda x: x.conj(),
    "negative": lambda x: x.conj().imag,
    "both": lambda x: torch._neg_view(x.conj()),
}
PLACES = {
    "expanded": lambda x: x[:1].expand(6, 2),
    "windows": lambda x: x.flatten().unfold(0, 4, 1),
    "gaps": lambda x: x[1:, ::2],
}


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("lazy", LAZY)
def test_the_gradient_of_a_lazy_input_is_that_of_each_element(lazy, place, leaf):
    """Wherever in memory those lie."""

    def fn(x):
        weights = torch.arange(1.0, x.numel() + 1).view(x.shape)
        return (x * x * weights,)

    torch.manual_seed(0)
    start = torch.randn(6, 2, dtype=torch.complex64, requires_grad=True)
    results = []
    for compiled in (False, True):
        x = LAZY[lazy](PLACES[place](start))
        if leaf:
            x = x.detach().requires_grad_()
        assert x.is_conj() or x.is_neg()
        run = aot_compile(as_graph(fn, 1), [x], forward_compiler=run_fx) if compiled else fn
        tangent = torch.linspace(-1, 1, x.numel()).view(x.shape) * (1 + 1j if x.is_complex() else 1)
        to = x if leaf else start
        (first,) = torch.autograd.grad(run(x)[0], to, tangent)
        (again,) = torch.autograd.grad(run(x)[0], to, tangent, create_graph=True)
        (second,) = torch.autograd.grad(again.abs().square().sum(), to)
        results.append((first, again, second))
    for ours, eager in zip(*reversed(results), strict=True):
        torch.testing.assert_close(ours, eager)
        assert ours.stride() == eager.stride()
