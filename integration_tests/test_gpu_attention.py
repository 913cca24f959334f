"""Attention that a program writes out, on a GPU in narrow types: computed as attention, as exact as
eager's formula, forward and backward and once more."""

from __future__ import annotations

import math

import pytest
import torch
from dovetail_autograd_aot.patterns import attention_pattern
from torch import Tensor, nn

import dovetail

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_pattern, "WORTH_A_MASK", 0)


def least_where(hidden: Tensor) -> Tensor:
    """A mask as models make it that add it to their scores."""
    dtype = torch.get_default_dtype()
    return hidden.to(dtype) * torch.finfo(dtype).min


class Written(nn.Module):
    """Four heads; `kind` says what scores are filled."""

    def __init__(self, kind: str, length: int) -> None:
        super().__init__()
        self.kind = kind
        self.project = nn.Linear(128, 3 * 128)
        self.register_buffer("seen", torch.tril(torch.ones(length, length)))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (p.view(b, t, 4, c // 4).transpose(1, 2) for p in self.project(x).split(c, dim=2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(c // 4))
        seen = self.seen[:t, :t]
        if self.kind in ("infinity", "least"):  # which are added
            scores = scores + (seen.log() if self.kind == "infinity" else least_where(seen == 0))
        elif self.kind != "all":
            fill = -math.inf if self.kind == "infinite" else -3e4
            scores = scores.masked_fill(seen == 0, fill)
        y = scores.softmax(dim=-1) @ v
        return y.transpose(1, 2).reshape(b, t, c)


def made(kind: str, dtype: torch.dtype, length: int = 80) -> tuple[Written, Tensor]:
    torch.manual_seed(0)
    model = Written(kind, length).to("cuda", dtype)
    return model, torch.randn(2, length, 128, device="cuda", dtype=dtype)


def gradients(model: nn.Module, x: Tensor, run: nn.Module) -> list[Tensor]:
    out = run(x)
    grads = torch.autograd.grad(out.float().square().mean(), list(model.parameters()))
    return [out.detach(), *grads]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["all", "infinite", "finite"])
def test_as_exact_as_the_formula(kind: str, dtype: torch.dtype) -> None:
    model, x = made(kind, dtype)
    compiled = dovetail.compile(model)
    got, want = gradients(model, x, compiled), gradients(model, x, model)
    wide = Written(kind, 80).to("cuda", torch.float64)
    wide.load_state_dict(model.state_dict())
    exact = gradients(wide, x.double(), wide)
    for g, w, e in zip(got, want, exact, strict=True):
        mine, eager = ((t.double() - e).norm() / e.norm() for t in (g, w))
        assert mine <= 1.5 * eager + 1e-4
    text = dovetail.report(compiled).as_text()
    assert "scaled_dot_product" in text and "bmm" not in text


def test_a_row_of_which_nothing_is_left() -> None:
    for kind in ("infinite", "finite"):
        model, x = made(kind, torch.bfloat16)
        assert isinstance(model.seen, Tensor)
        model.seen[7] = 0
        got, want = gradients(model, x, dovetail.compile(model)), gradients(model, x, model)
        assert bool(got[0].isnan().any()) == (kind == "infinite")
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, rtol=5e-2, atol=2e-2, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["infinity", "least"])
def test_masks_that_are_added(kind: str, dtype: torch.dtype) -> None:
    """Attention without gradients, the formula with them; also a row that sees nothing. (The least
    float16 is not so little that scores vanish beside it in float32: such a row is more exact.)"""
    torch.set_default_dtype(dtype)
    try:
        model, x = made(kind, dtype)
        assert isinstance(model.seen, Tensor)
        model.seen[7] = 1.0 if (kind, dtype) == ("least", torch.float16) else 0.0
        compiled = dovetail.compile(model)
        with torch.no_grad():
            got, want = compiled(x), model(x)
        assert bool(want.isnan().any()) == (kind == "infinity")
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2, equal_nan=True)
        text = dovetail.report(compiled).as_text()
        assert "scaled_dot_product" in text and "bmm" not in text
        model.seen[7] = 1
        for g, w in zip(gradients(model, x, compiled), gradients(model, x, model), strict=True):
            torch.testing.assert_close(g, w, rtol=5e-2, atol=5e-2 * float(w.abs().max()))
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_gradient_of_a_gradient() -> None:
    """Which the kernels of attention do not have: it is made of the formula."""
    model, x = made("infinite", torch.bfloat16)
    found = []
    for run in (dovetail.compile(model), model):
        own = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(run(own).float().square().sum(), own, create_graph=True)
        found.append(torch.autograd.grad(g.float().square().sum(), model.project.weight)[0])
    torch.testing.assert_close(*found, rtol=5e-2, atol=5e-2 * float(found[1].abs().max()))


def test_lengths_that_change() -> None:
    model, _ = made("finite", torch.bfloat16, 96)
    compiled = dovetail.compile(model, dynamic=True)
    for length in (96, 64, 33):
        x = torch.randn(2, length, 128, device="cuda", dtype=torch.bfloat16)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=2e-2)
        got, want = gradients(model, x, compiled), gradients(model, x, model)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, rtol=5e-2, atol=5e-2 * float(w.abs().max()))
