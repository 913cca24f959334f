"""Numbers on the CPU beside tensors on a GPU, against eager: step counters of optimizers, learned
factors, masks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_optimizers import OPTIMIZERS, assert_same
from torch import Tensor, nn

import dovetail

pytestmark = pytest.mark.gpu


def trained(
    name: str, options: dict[str, Any], compiled: Any, dtype: torch.dtype = torch.float32
) -> tuple[list[Tensor], dict[str, Any]]:
    """The parameters and the state after some steps, with a rate that falls after each."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 300), nn.Linear(300, 3)).cuda().to(dtype)
    params = [p for p in net.parameters() if p.dim() == 2 or name != "Muon"]
    optimizer = getattr(torch.optim, name)(params, lr=0.05, **options)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    step = compiled(type(optimizer).step)
    for _ in range(6):
        for p in net.parameters():
            p.grad = torch.randn_like(p)
        step(optimizer)
        schedule.step()
    return [p.detach() for p in net.parameters()], optimizer.state_dict()


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step(name: str, foreach: bool) -> None:
    options = OPTIMIZERS[name] | ({} if name == "Muon" else {"foreach": foreach})
    # Muon's products are of bfloat16.
    floor = 5e-3 if name == "Muon" else 1e-6
    ours, theirs = trained(name, options, dovetail.compile), trained(name, options, lambda s: s)
    assert_same(ours, theirs, floor)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam", "RAdam", "Adamax"])
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_counters_on_the_gpu(name: str, mode: str | None) -> None:
    options = OPTIMIZERS[name] | {"capturable": True}
    ours = trained(name, options, lambda s: dovetail.compile(s, mode=mode))
    # The rounding of 1 - 0.999 ** step in float32 is ten thousand times that of the power.
    assert_same(ours, trained(name, options, lambda s: s), 2e-5)


def test_adamw_is_kernels_of_ours_alone() -> None:
    """In few launches, with no call of the library and nothing copied back."""
    params = [nn.Parameter(torch.randn(64, 64, device="cuda")) for _ in range(8)]
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW(params)
    optimizer.step()
    step = dovetail.compile(optimizer.step, fullgraph=True)
    step()
    report = dovetail.report(step)
    assert report.extern_calls == 0
    (launches,) = [n for kernel, n in report.forward_launches if kernel.startswith("combined")]
    assert launches == 1


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_numbers_that_change(dtype: torch.dtype, mode: str | None) -> None:
    """What a launch is given by value is what the tensor holds then, also where graphs are
    recorded; it is not rounded to the other operand's type."""

    def function(x: Tensor, a: Tensor, n: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return x * a, x / (1 + n), torch.where(c, x, -x), x > a, x - n, a.double() * x

    compiled = dovetail.compile(function, fullgraph=True, mode=mode)
    x = torch.randn(50, 60, device="cuda", dtype=dtype)
    for number in range(8):
        given = torch.tensor(1.001 * number), torch.tensor(number), torch.tensor(number % 2 == 0)
        for got, wanted in zip(compiled(x, *given), function(x, *given), strict=True):
            torch.testing.assert_close(got, wanted)


def test_a_number_drawn_by_the_cpu_is_drawn_in_each_call() -> None:
    def function(x: Tensor) -> Tensor:
        return x * torch.rand(())

    compiled = dovetail.compile(function, options={"cudagraphs": True, "fallback_random": True})
    x = torch.ones(100, device="cuda")
    torch.manual_seed(3)
    got = [compiled(x).clone() for _ in range(6)]
    torch.manual_seed(3)
    for mine, wanted in zip(got, [function(x) for _ in range(6)], strict=True):
        torch.testing.assert_close(mine, wanted)


def test_gradients_of_numbers_on_the_cpu() -> None:
    """A learned factor that was left on the CPU: its gradient is there, too."""

    def function(x: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
        return ((x * factor).tanh() + shift.exp() * x).sum()

    def made() -> list[Tensor]:
        torch.manual_seed(0)
        x = torch.randn(40, 30, device="cuda", requires_grad=True)
        return [x, *(torch.tensor(v, requires_grad=True) for v in (0.7, -0.2))]

    mine, theirs = made(), made()
    compiled = dovetail.compile(function, fullgraph=True)
    torch.testing.assert_close(compiled(*mine), function(*theirs))
    compiled(*mine).backward()
    function(*theirs).backward()
    for a, b in zip(mine, theirs, strict=True):
        assert a.grad is not None and b.grad is not None and a.grad.device == b.grad.device
        torch.testing.assert_close(a.grad, b.grad)


def test_a_mask_made_on_the_cpu() -> None:
    def function(x: Tensor) -> Tensor:
        n = x.shape[-1]
        mask = torch.ones(n, n).tril().bool().to(x.device)
        scores = torch.where(mask, x, float("-inf")).softmax(-1)
        return scores + torch.arange(n).to(x.device) * torch.tensor(3).sqrt()

    compiled = dovetail.compile(function, fullgraph=True)
    for n in (5, 7, 11):
        x = torch.randn(n, n, device="cuda")
        for _ in range(4):
            torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_is_asked_of_half_types_is_answered_as_eager_does(dtype: torch.dtype) -> None:
    """Of squares that overflow in float16, vanish in it, and are rounded."""

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        y = x * x
        near = x + 4096
        return (
            y, y.isinf(), y.isfinite().all(), torch.nan_to_num(y, posinf=1.0), y - y,
            (y * 0).isnan(), y == float("inf"), y > 65504, y > 0, y.sign(), y.bool(),
            y.isinf().any(), near.argmax(), near.cummax(0).indices, (x * 3).floor(),
            (x * 7).clamp(-9, 9).int(),
            torch.where(y.isinf(), torch.zeros_like(x), x), (x * 0.1 + x) == (x * 0.1 + x).amax(),
            y.sum().isinf(), y.mean().isinf(), torch.cat([y, x]).isinf(), y.topk(2).values,
        )  # fmt: skip

    x = torch.tensor([300.0, 2.0, -1.14453125, 200.25, 1e-4, -1e-4, 0.1, -0.3, 255.9, 3e-5])
    for n in (1, 100):
        inputs = x.repeat(n).cuda().to(dtype)
        got = dovetail.compile(fn, fullgraph=True)(inputs)
        torch.testing.assert_close(got, fn(inputs), rtol=0, atol=0, equal_nan=True)
