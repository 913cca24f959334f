"""The option `constant_weights`: what depends on weights alone is computed once, never stale."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.weights import SeenWeights

CONSTANT = {"constant_weights": True}


def norm(norm: nn.Module) -> nn.Module:
    """A batch norm whose statistics and weights are not those of a new one."""
    for tensor in (*norm.parameters(), *norm.buffers()):
        if tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.5, 1.5)
    return norm


class Scaled(nn.Module):
    """Numbers and weights, on either side, in several types, after a product without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.rand(6, 5))
        self.scale = nn.Parameter(torch.rand(5))
        self.one = nn.Parameter(torch.rand(1))

    def forward(self, x: Tensor) -> Tensor:
        return 2 + self.scale * ((x @ self.first) / 3 - self.one) - self.scale


def networks() -> dict[str, tuple[nn.Module, Tensor]]:
    image, row = torch.randn(2, 6, 9, 9), torch.randn(3, 6)
    return {
        "convolution": (
            nn.Sequential(nn.Conv2d(6, 4, 3), norm(nn.BatchNorm2d(4)), nn.ReLU()),
            image,
        ),
        "grouped, without a bias, and again": (
            nn.Sequential(
                nn.Conv2d(6, 12, 3, groups=3, bias=False),
                norm(nn.BatchNorm2d(12)),
                nn.Conv2d(12, 5, 1),
                norm(nn.BatchNorm2d(5)),
            ),
            image,
        ),
        "one dimension": (
            nn.Sequential(nn.Conv1d(6, 4, 3), norm(nn.BatchNorm1d(4))),
            torch.randn(2, 6, 9),
        ),
        "transposed": (
            nn.Sequential(nn.ConvTranspose2d(6, 4, 3), norm(nn.BatchNorm2d(4))),
            image,
        ),
        "linear": (nn.Sequential(nn.Linear(6, 5), norm(nn.BatchNorm1d(5)), nn.GELU()), row),
        "no affine": (
            nn.Sequential(nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4, affine=False)),
            image,
        ),
        "numbers and weights": (Scaled(), row),
    }


@pytest.mark.parametrize("name", networks())
def test_equal_to_eager(name: str) -> None:
    model, x = networks()[name]
    model.eval()
    compiled = dovetail.compile(model, fullgraph=True, options=CONSTANT)
    with torch.no_grad():
        expected, got = model(x), compiled(x)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert got.stride() == expected.stride()
    (text,) = dovetail.report(compiled).constant_weights
    assert "1 times so far" in text


def test_a_norm_between_convolutions_is_a_shift() -> None:
    model, x = networks()["grouped, without a bias, and again"]
    model.eval()
    plain, folded = dovetail.compile(model), dovetail.compile(model, options=CONSTANT)
    with torch.no_grad():
        plain(x), folded(x)
    assert dovetail.report(plain).kernels == 4
    assert dovetail.report(folded).kernels == 2  # the shifts


@pytest.mark.parametrize(
    "write",
    [
        lambda m: m[0].weight.mul_(2),
        lambda m: m[1].running_mean.add_(1),
        lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
        lambda m: setattr(m[0], "weight", nn.Parameter(torch.rand_like(m[0].weight))),
        lambda m: m[1].register_buffer("running_var", torch.rand(4) + 1),
    ],
)
def test_what_is_written_between_calls_is_seen(write: Callable[[nn.Module], object]) -> None:
    model, x = networks()["convolution"]
    model.eval()
    compiled = dovetail.compile(model, options=CONSTANT)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
            write(model)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_training_and_inference_in_turns() -> None:
    model, x = networks()["convolution"]
    compiled = dovetail.compile(model, options=CONSTANT)
    for _ in range(2):
        model.train()
        compiled(x).sum().backward()
        assert model[0].weight.grad is not None
        model.eval()
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_what_the_program_writes_or_returns_stays_its_own() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(3))
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            self.count += 1
            doubled = self.weight * 2
            return x * self.weight.exp() + self.count, doubled, doubled[1:]

    model = Counts()
    eager = Counts()
    eager.load_state_dict(model.state_dict())
    compiled = dovetail.compile(model, options=CONSTANT)
    x = torch.rand(3)
    with torch.no_grad():
        for _ in range(3):
            got, expected = compiled(x), eager(x)
            torch.testing.assert_close(got, expected)
            assert got[1].data_ptr() + 4 == got[2].data_ptr()
            got[1].zero_()  # the next call must not see this
    torch.testing.assert_close(model.count, eager.count)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision(dtype: torch.dtype) -> None:
    model, x = networks()["convolution"]
    model.eval()
    reference = model.double()(x.double()).detach()
    model.to(dtype)
    x = x.to(dtype)
    compiled = dovetail.compile(model, options=CONSTANT)
    with torch.no_grad():
        got, eager = compiled(x), model(x)
    assert got.dtype == dtype
    size = reference.abs().max()
    error, eagers = ((t - reference).abs().max() / size for t in (got.double(), eager.double()))
    assert error <= 2 * eagers


def test_casts_of_autocast_are_made_once() -> None:
    model, x = nn.Linear(6, 5), torch.randn(3, 6)
    compiled = dovetail.compile(model, options=CONSTANT)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(compiled(x), model(x))
    assert "2 tensors" in dovetail.report(compiled).constant_weights[0]


def test_sizes_that_change() -> None:
    model, _ = networks()["convolution"]
    model.eval()
    compiled = dovetail.compile(model, options=CONSTANT)
    with torch.no_grad():
        for n in (9, 11, 13):
            x = torch.randn(2, 6, n, n)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(dovetail.report(compiled).recompiles) == 1


def test_weights_in_the_same_memory_are_others() -> None:
    """A new parameter may lie where one that was let go lay, and be written to as often."""
    weight = torch.rand(3)
    seen = SeenWeights.of([weight])
    other = weight.detach()
    assert (other.data_ptr(), other._version) == (weight.data_ptr(), weight._version)
    assert seen.are([weight]) and not seen.are([other]) and not seen.are([])
    weight.add_(1)
    assert not seen.are([weight])
