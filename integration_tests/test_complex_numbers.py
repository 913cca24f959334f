"""Complex numbers and gathered rows in kernels of a GPU, trained as eager trains: on one, and in
Triton's interpreter."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from triton_backend import TritonBackend

import dovetail


class Rotary(nn.Module):
    """Rotary positions as products of complex numbers."""

    rotation: Tensor

    def __init__(self, length: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(64 * heads, 64 * heads)
        angles = torch.randn(length, 1, 32)
        self.register_buffer("rotation", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: Tensor) -> Tensor:
        q = self.project(x).view(*x.shape[:2], self.heads, 64)
        pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.rotation).flatten(2).type_as(x)


class Spectral(nn.Module):
    """Weights for the lowest frequencies of an image, others dropped."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, channels, channels, 4, 4, 2) / channels)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft2(x)
        low, high = torch.view_as_complex(self.weight).unbind()
        out = torch.zeros_like(spectrum)
        out[..., :4, :4] = torch.einsum("bixy,ioxy->boxy", spectrum[..., :4, :4], low)
        out[..., -4:, :4] = torch.einsum("bixy,ioxy->boxy", spectrum[..., -4:, :4], high)
        back: Tensor = torch.fft.irfft2(out, s=x.shape[-2:])
        return back + x


class Messages(nn.Module):
    """Rows of nodes gathered for edges, weighted and added up at their targets."""

    source: Tensor
    target: Tensor

    def __init__(self, nodes: int, edges: int) -> None:
        super().__init__()
        self.project = nn.Linear(32, 64)
        self.score = nn.Parameter(torch.randn(4, 16) / 4)
        for name in ("source", "target"):
            self.register_buffer(name, torch.randint(0, nodes, (edges,)))

    def forward(self, x: Tensor) -> Tensor:
        h = self.project(x).view(-1, 4, 16)
        weights = torch.sigmoid((h * self.score).sum(-1))[self.source]
        messages = h[self.source] * weights[..., None]
        return F.elu(torch.zeros_like(h).index_add(0, self.target, messages)).flatten(1)


Made = tuple[nn.Module, tuple[int, ...]]
"""A module, and the shape of its input."""

CASES: dict[str, tuple[Callable[[], Made], Callable[[], Made]]] = {  # large, small
    "rotary": (
        lambda: (Rotary(128, 4), (8, 128, 256)),
        lambda: (Rotary(8, 1), (2, 8, 64)),
    ),
    "spectral": (
        lambda: (Spectral(8), (4, 8, 64, 64)),
        lambda: (Spectral(2), (2, 2, 12, 12)),
    ),
    "messages": (
        lambda: (Messages(500, 4000), (500, 32)),
        lambda: (Messages(20, 60), (20, 32)),
    ),
}


def check(
    name: str, device: str, steps: int, compile: Callable[[nn.Module], Callable[[Tensor], Tensor]]
) -> None:
    """Losses, gradients and weights of some steps, as near those in float64 as eager's."""
    torch.manual_seed(0)
    module, shape = CASES[name][device == "cpu"]()
    module = module.to(device)
    inputs = [torch.randn(shape, device=device) for _ in range(steps)]

    def trained(module: nn.Module, step: Callable[[Tensor], Tensor], wide: bool) -> list[Tensor]:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        found = []
        for x in inputs:
            optimizer.zero_grad()
            loss = step(x.double() if wide else x).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            gradients = [p.grad for p in module.parameters()]
            assert all(g is not None for g in gradients)
            found += [loss.detach(), *(g.clone() for g in gradients if g is not None)]
            optimizer.step()
        return [*found, *(p.detach().clone() for p in module.parameters())]

    exact, eager = copy.deepcopy(module).double(), copy.deepcopy(module)
    got = trained(module, compile(module), False)
    wanted = trained(eager, eager, False)
    for ours, theirs, wide in zip(got, wanted, trained(exact, exact, True), strict=True):
        assert ours.dtype is theirs.dtype and ours.stride() == theirs.stride()
        scale = float(wide.abs().max())
        error, eagers = (float((t.double() - wide).abs().max()) for t in (ours, theirs))
        assert error <= 2 * eagers + 1e-5 * scale


@pytest.mark.gpu
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("name", CASES)
def test_trained_as_eager_trains(name: str, mode: str | None) -> None:
    check(name, "cuda", 4, lambda module: dovetail.compile(module, mode=mode, fullgraph=True))


@pytest.mark.parametrize("name", CASES)
def test_trained_in_the_interpreter(name: str) -> None:
    backend = TritonBackend()
    check(name, "cpu", 1, lambda module: dovetail.compile(module, backend=backend, fullgraph=True))
    assert len(backend.plans) == 2


def filtered(spectrum: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    out = torch.zeros_like(spectrum)
    out[..., :2, :3] = low
    out[..., -2:, :3] = high * 1j
    return torch.cat([out * spectrum, spectrum.conj()], -1).mT, torch.view_as_real(out)[..., 1]


def test_of_any_size() -> None:
    """One plan serves several sizes."""
    backend = TritonBackend()
    compiled = dovetail.compile(filtered, backend=backend, dynamic=True, fullgraph=True)
    for n in (2, 3, 5):
        inputs = [
            torch.randn(n, 4, *shape, dtype=torch.complex64) for shape in ((6, 5), (2, 3), (2, 3))
        ]
        for ours, eager in zip(compiled(*inputs), filtered(*inputs), strict=True):
            assert ours.stride() == eager.stride()
            torch.testing.assert_close(ours, eager)
    assert len(backend.plans) == 1 and not backend.per_size
