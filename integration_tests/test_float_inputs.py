"""Python floats that change from call to call (a learning rate, a scale, a temperature)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail

VALUES = (0.1, 0.25, 0.7, 0.001, 0.9, -0.4)
Program = Callable[[Tensor, Tensor, float], Any]

# Programs of two tensors and a float, and how many graphs they take for all of VALUES.
PROGRAMS: dict[str, tuple[Program, int]] = {
    "times": (lambda x, y, f: x * f, 2),
    "from the left": (lambda x, y, f: f - x / (f * f + 1), 2),
    "reversed division": (lambda x, y, f: f / (x.abs() + 1), 2),
    "alpha": (lambda x, y, f: torch.add(x.detach(), y.detach(), alpha=f), 2),
    "where": (lambda x, y, f: torch.where(x > f, x, f), 2),
    "clamp": (lambda x, y, f: x.clamp(min=f), 2),
    "masked_fill": (lambda x, y, f: x.masked_fill(x > 0, f), 2),
    "full": (lambda x, y, f: torch.full((3, 4), f) + torch.full_like(y, f).sum(), 2),
    "leaky": (lambda x, y, f: F.leaky_relu(x, f), 2),
    "softmax": (lambda x, y, f: (x @ y.t() * f).softmax(-1), 2),
    "sum": (lambda x, y, f: (x * f).sum(1) / f, 2),
    "in place": (lambda x, y, f: x.clone().mul_(f).add_(f), 2),
    "whole numbers": (lambda x, y, f: torch.ones(3, dtype=torch.long) * f, 2),
    "double": (lambda x, y, f: x.double() * f, 2),
    "with sizes": (lambda x, y, f: x * (f * x.size(0) / x.size(1)), 2),
    "returned": (lambda x, y, f: (x * f, f * 2 + 1, f), 2),
    "arithmetic": (lambda x, y, f: x * (abs(f) ** 2 - 1 / (abs(f) + 1) + f % 0.3), 2),
    "converted": (lambda x, y, f: x * float(f), 2),
    "largest": (lambda x, y, f: max(f, -3.0) * x, 2),
    "adam": (
        lambda x, y, f: x.detach().addcdiv(y, y.abs().sqrt() + 1e-8, value=-f / (1 - 0.9**2)), 2,
    ),
    "library call": (lambda x, y, f: torch.addmm(x[:, :5], x, y.t(), alpha=f, beta=f).sin(), 2),
    "square root": (lambda x, y, f: x * math.sqrt(abs(f)), 2),
    "exponential": (lambda x, y, f: (x * math.exp(f) + math.cos(f), math.tanh(f)), 2),
    "logarithm": (lambda x, y, f: x * (math.log(f) if f > 0 else 1.0), 3),
    "functions": (
        lambda x, y, f: x * math.pow(abs(f), 1.5) + math.degrees(f) * y + math.radians(f), 3,
    ),
    "more functions": (lambda x, y, f: x * math.log(abs(f), 10) + math.fabs(f), 3),
    "a loss's threshold": (
        lambda x, y, f: F.huber_loss(x, y, delta=abs(f)) + F.smooth_l1_loss(x, y, beta=abs(f)), 3,
    ),
    "bounds": (lambda x, y, f: F.hardtanh(x, -abs(f), abs(f)), 3),
    "a tensor of it": (lambda x, y, f: x * torch.tensor(f) + torch.tensor(f, dtype=torch.half), 2),
    "lerp": (lambda x, y, f: torch.lerp(x, y, f) + x.lerp(y, f), 2),
    "branch": (lambda x, y, f: x * f if f > 0.5 else y - f, 3),
    "truth": (lambda x, y, f: x * f if f else y, 3),
    "floor": (lambda x, y, f: x * (f // 0.2), 6),  # tied to its value
    "text": (lambda x, y, f: x + len(str(f)), 6),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    fn, graphs = PROGRAMS[name]
    compiled = dovetail.compile(fn, fullgraph=True)
    for value in VALUES:
        tensors = [torch.randn(5, 7, generator=torch.Generator().manual_seed(i)) for i in (0, 1)]
        theirs, ours = ([t.clone().requires_grad_() for t in tensors] for _ in range(2))
        wanted, got = fn(*theirs, value), compiled(*ours, value)
        if not isinstance(wanted, tuple):
            wanted, got = (wanted,), (got,)
        for expected, found in zip(wanted, got, strict=True):
            if not isinstance(expected, Tensor):
                assert found == expected and type(found) is type(expected)
                continue
            assert found.dtype is expected.dtype
            torch.testing.assert_close(found, expected)
            if expected.requires_grad:
                a = torch.autograd.grad(expected.sin().sum(), theirs, allow_unused=True)
                b = torch.autograd.grad(found.sin().sum(), ours, allow_unused=True)
                for one, two in zip(a, b, strict=True):
                    assert (one is None) == (two is None)
                    if one is not None:
                        torch.testing.assert_close(two, one, atol=1e-5, rtol=1e-5)
    report = dovetail.report(compiled)
    assert report.graphs <= graphs and not report.per_size_compiles, report.as_text()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32])
def test_a_float_decides_a_result_s_dtype_no_more_than_in_eager(dtype: torch.dtype) -> None:
    compiled = dovetail.compile(lambda x, f: (x * f, x + f, x > f), fullgraph=True, dynamic=True)
    x = torch.arange(-8, 8).to(dtype)
    for f in (0.3, 1.5, -2.0, 1e-3):
        for got, wanted in zip(compiled(x, f), (x * f, x + f, x > f), strict=True):
            assert got.dtype is wanted.dtype and torch.equal(got, wanted)
    assert dovetail.report(compiled).graphs == 1


@pytest.mark.parametrize(
    "noise",
    [
        lambda x, f: x + torch.normal(0.0, f, x.shape),
        lambda x, f: x + torch.empty(3).normal_(1.0, f),
        lambda x, f: x + torch.zeros(40).normal_(std=f).sum(),
    ],
)
def test_noise_of_a_changing_deviation(noise: Callable[[Tensor, float], Tensor]) -> None:
    compiled = dovetail.compile(noise, fullgraph=True, backend="aot_eager")
    for value in (0.1, 0.2, 0.5, 2.0):
        found = []
        for run in (noise, compiled):
            torch.manual_seed(0)
            found.append(run(torch.ones(3), value))
        torch.testing.assert_close(found[1], found[0])
    assert dovetail.report(compiled).graphs == 2


def test_what_a_number_has_no_root_of() -> None:
    def fn(x: Tensor, f: float) -> Tensor:
        try:
            return x * math.sqrt(f)
        except ValueError:
            return x - 1

    compiled = dovetail.compile(fn)
    for f in (1.0, 2.0, -1.0, -2.0, 3.0):
        torch.testing.assert_close(compiled(torch.ones(3), f), fn(torch.ones(3), f))


def test_what_is_compiled_for_each_value_says_so() -> None:
    """The probability of a dropout is a C++ number: each is a graph, and the report advises."""
    compiled = dovetail.compile(lambda x, p: F.dropout(x, p))
    for p in (0.1, 0.2, 0.3):
        compiled(torch.ones(3), p)
    report = dovetail.report(compiled)
    assert report.graphs == 3 and len(report.recompiles) == 2
    assert "p is 0.3 instead of 0.2" in report.recompiles[1] and "tensor" in report.recompiles[1]


def test_special_floats() -> None:
    def fn(x: Tensor, f: float) -> Tensor:
        return x * f + (1 if f == 1.0 else 0)

    compiled = dovetail.compile(fn, fullgraph=True, dynamic=True)
    x = torch.tensor([-1.0, 0.0, 2.0])
    for f in (0.5, 1.0, 0.0, -0.0, math.inf, -math.inf, math.nan, 1e300, 5e-324, 0.5):
        got, wanted = compiled(x, f), fn(x, f)
        torch.testing.assert_close(got, wanted, equal_nan=True)
        assert torch.equal(got.signbit(), wanted.signbit())


def test_an_attribute_is_followed() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.temperature = 1.0

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) / self.temperature

    model = Scaled()
    compiled = dovetail.compile(model, fullgraph=True)
    x = torch.randn(3, 4)
    for step in range(12):
        model.temperature = 1.0 / (step + 1)
        torch.testing.assert_close(compiled(x), model(x))
    assert dovetail.report(compiled).graphs == 2


def test_dynamic_true_and_false() -> None:
    x = torch.randn(6)
    at_once = dovetail.compile(lambda x, f: x * f, dynamic=True)
    never = dovetail.compile(lambda x, f: x * f, dynamic=False)
    for f in (0.5, 0.75, 2.5):
        assert torch.equal(at_once(x, f), x * f) and torch.equal(never(x, f), x * f)
    assert dovetail.report(at_once).graphs == 1 and dovetail.report(never).graphs == 3


def test_what_takes_no_symbol_gets_numbers() -> None:
    """PyTorch's own formula for this gradient asks whether the base is zero, of numbers alone."""

    def fn(x: Tensor, f: float) -> Tensor:
        return f**x

    compiled = dovetail.compile(fn, fullgraph=True)
    for f in (0.5, 0.75, 2.5):
        ours, theirs = (torch.ones(3).requires_grad_() for _ in range(2))
        compiled(ours, f).sum().backward()
        fn(theirs, f).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_shape_guards_show_the_floats() -> None:
    compiled = dovetail.compile(lambda x, lr: x * lr if lr > 0.05 else x, dynamic=True)
    compiled(torch.ones(3), 0.5)
    assert "lr > 0.05" in dovetail.report(compiled).as_text()


def test_second_gradients_by_zeros_of_either_sign() -> None:
    """The compiled backward of a backward is for one number: 0.0 and -0.0 are two."""

    def fn(x: Tensor, number: float) -> Tensor:
        return torch.copysign(x**3, torch.full_like(x, number)).sum()

    compiled = dovetail.compile(fn, dynamic=True)
    for number in (2.0, 0.0, -0.0, -1.0, 0.0):
        found = []
        for call in (compiled, fn):
            x = torch.tensor([1.0, 2.0, -3.0], requires_grad=True)
            (first,) = torch.autograd.grad(call(x, number), x, create_graph=True)
            found.append((first, *torch.autograd.grad(first.sum(), x)))
        torch.testing.assert_close(found[0], found[1])


def test_zeros_of_either_sign_beside_one_another() -> None:
    """They are equal, so that expressions with them could be taken for one."""

    def fn(x: Tensor, s: float) -> tuple[Tensor, ...]:
        return x / (s * 0.0), x / (s * -0.0), x * (s + -0.0), x / (0.0 - s * 0.0), x / (-0.0 * s)

    compiled = dovetail.compile(fn, dynamic=True)
    x = torch.tensor([1.0, -2.0])
    for s in (2.0, 3.5, -3.0):
        for found, wanted in zip(compiled(x, s), fn(x, s), strict=True):
            assert torch.equal(found, wanted)
    assert dovetail.report(compiled).graphs == 1
