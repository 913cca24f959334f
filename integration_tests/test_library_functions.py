"""Rare functions, which compiled graphs call of PyTorch: values, gradients, any sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, special

import dovetail

# Of a matrix of positive numbers.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **{
        name: getattr(special, name)
        for name in ("i0", "i0e", "i1", "i1e", "digamma", "erfcx", "log_ndtr", "ndtri")
    },
    "polygamma": lambda x: torch.polygamma(1, x) + torch.polygamma(25, x + 1),
    "mvlgamma": lambda x: torch.mvlgamma(x + 2, 3),
    "upper incomplete gamma": lambda x: torch.igammac(x.detach(), x * 2),
    "lower incomplete gamma": lambda x: torch.igamma(x.detach(), x[:1]),
    "zeta": lambda x: special.zeta(x.detach() + 2, 1.5) + special.zeta(3, x) + x,
    "segments": lambda x: torch.segment_reduce(
        x, "max", lengths=torch.tensor([2, x.shape[0] - 2]), unsafe=True
    ),
    "fractional pooling": lambda x: F.fractional_max_pool2d(
        x.expand(2, 3, *x.shape), 2, output_size=2, _random_samples=torch.full((2, 3, 2), 0.4)
    ),
}
WITHOUT_GRADIENT: dict[str, Callable[[Tensor], object]] = {
    **{
        name: getattr(special, name)
        for name in (
            "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0",
            "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1",
            "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "spherical_bessel_j0", "airy_ai",
        )
    },
    **{
        f"{name} polynomial": lambda x, f=f"{name}_polynomial_{kind}": getattr(special, f)(x, 3)
        + getattr(special, f)(0.5, x.round()) + getattr(special, f)(x, x.long())
        for name, kinds in (
            ("chebyshev", "tuvw"), ("shifted_chebyshev", "tuvw"), ("laguerre", "l"),
            ("legendre", "p"),
        )
        for kind in kinds
    },
    "hermite": lambda x: special.hermite_polynomial_h(x, 3) + special.hermite_polynomial_he(x, 4),
    "frexp": torch.frexp,
    "histc": lambda x: torch.histc(x, 7, 0.0, 2.0) + torch.histc(x, 7),
    "histogram": lambda x: torch.histogram(x, 5, range=(0.0, 2.0), weight=x, density=True),
    "histogram of edges": lambda x: torch.histogram(x, torch.tensor([0.0, 0.5, 2.0])),
    "histogram of rows": lambda x: torch.histogramdd(x[:, :2], [2, 3], range=[0.0, 2, 0, 2]),
}  # fmt: skip
SIZES = [(4, 6), (5, 7), (3, 8)]


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(size, generator=generator) * 0.8 + 0.1 for size in SIZES]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name: str, dynamic: bool) -> None:
    function = FUNCTIONS[name]
    compiled = dovetail.compile(lambda x: function(x * 2) / 2, fullgraph=True, dynamic=dynamic)
    for x in inputs() if dynamic else inputs()[:1]:
        found = []
        for f in (compiled, lambda x: function(x * 2) / 2):
            leaf = x.clone().requires_grad_()
            out = f(leaf)
            out.square().sum().backward()
            found.append((out, leaf.grad))
        torch.testing.assert_close(*found, equal_nan=True)
    assert dovetail.report(compiled).graphs == 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_values(name: str, dynamic: bool) -> None:
    function = WITHOUT_GRADIENT[name]
    compiled = dovetail.compile(lambda x: function(x * 2), fullgraph=True, dynamic=dynamic)
    for x in inputs() if dynamic else inputs()[:1]:
        torch.testing.assert_close(compiled(x), function(x * 2), equal_nan=True)


def test_what_the_library_refuses() -> None:
    x = torch.randn(6)
    lengths = torch.tensor([2, 3])
    compiled = dovetail.compile(lambda x: torch.segment_reduce(x * 2, "sum", lengths=lengths))
    with pytest.raises(RuntimeError, match="Expected all rows of lengths along axis to sum to"):
        compiled(x)
    counted = dovetail.compile(lambda x: torch.histc(x * 2, 7))
    with pytest.raises(RuntimeError, match="not finite"):
        counted(torch.tensor([1.0, torch.inf]))
