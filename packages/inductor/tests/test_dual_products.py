"""Two products that one kernel reads, computed with what it makes of them: as eager in Triton's
interpreter in every form of kernel, chosen by measurements, compiled for an H100, run on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor.products import choose_products
from dovetail_inductor.scheduler.kernels import ProductTiles
from dovetail_runtime.plan import CallAten, LaunchTriton, Plan, TritonKernel
from test_products import Chosen, check, check_on_gpu, compiled, gated, half, on_gpu
from torch import Tensor

PLAIN = ProductTiles(16, 32, 16, 4, 2)
PERSISTENT = ProductTiles(16, 32, 16, 4, 2, programs=3)
DESCRIBED = ProductTiles(16, 32, 16, 4, 2, programs=3, descriptors=True)


def with_biases(x: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b), approximate="tanh") * F.linear(x, v, c)


def both_kept(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    gate, value = x @ w.t(), x @ v.t()
    return gate, value, F.silu(gate) * value


def halves(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    gate, value = F.linear(x, w, b).chunk(2, -1)
    return F.silu(gate) * value


def halves_of_rows(x: Tensor, w: Tensor) -> Tensor:
    value, gate = (x.flatten(0, 1) @ w).unflatten(0, (2, -1)).chunk(2, -1)
    return value * torch.sigmoid(gate)


def halves_in_other_strides(x: Tensor, w: Tensor) -> Tensor:
    gate, value = (x @ w).chunk(2, -1)
    return (F.silu(gate) * value).view(4, -1, 40).transpose(0, 1).contiguous()


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "pair": (gated, (half(20, 40), half(40, 40), half(40, 40))),
    "edges": (gated, (half(37, 56), half(72, 56), half(72, 56))),
    "biases": (with_biases, (half(2, 20, 24), half(48, 24), half(48), half(48, 24), half(48))),
    "both kept": (both_kept, (half(24, 32), half(48, 32), half(48, 32))),
    "halves": (halves, (half(20, 40), half(80, 40), half(80))),
    "halves of rows": (halves_of_rows, (half(2, 13, 40), half(40, 96))),
    "halves, other strides": (halves_in_other_strides, (half(12, 24), half(24, 80))),
}


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> Callable[[ProductTiles], None]:
    """Makes these tiles the only candidate."""

    def set_to(only: ProductTiles) -> None:
        monkeypatch.setattr(choose_products, "candidates", lambda *sizes: [only])

    return set_to


def launches(plan: Plan) -> int:
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    return sum(isinstance(s, LaunchTriton) for s in plan.steps)


@pytest.mark.parametrize("only", [PLAIN, PERSISTENT, DESCRIBED], ids=ProductTiles.as_text)
@pytest.mark.parametrize("name", CASES)
def test_one_kernel(name: str, only: ProductTiles, tiles: Callable[[ProductTiles], None]) -> None:
    fn, inputs = CASES[name]
    tiles(only)
    plan = compiled(fn, inputs, Chosen(1, both=1.0))
    assert launches(plan) == 1
    (kernel,) = plan.kernels
    assert isinstance(kernel, TritonKernel) and kernel.source.count("tl.dot(") == 2
    check(fn, inputs, plan)


def test_only_if_it_is_faster_than_each_alone(tiles: Callable[[ProductTiles], None]) -> None:
    fn, inputs = CASES["pair"]
    tiles(PLAIN)
    apart = compiled(fn, inputs, Chosen(1, both=2.0))  # a kernel of ours for each takes 1.0
    assert launches(apart) == 2
    check(fn, inputs, apart)
    # nor than both side by side
    assert launches(compiled(fn, inputs, Chosen(1, group=1.0, both=1.0))) == 2
    assert launches(compiled(fn, inputs, Chosen(1, group=1.0, both=0.9))) == 1


def by_three(x: Tensor, w: Tensor, v: Tensor, u: Tensor) -> Tensor:
    return F.silu(x @ w.t()) * (x @ v.t()) + x @ u.t()


def other_places(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.silu(x @ w.t()) * (x @ v.t()).flip(-1)


def reduced(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return ((x @ w.t()) * (x @ v.t())).float().sum(-1)


def waited_for(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The gate's maximum is needed before both are read."""
    gate, value = x @ w.t(), x @ v.t()
    return gate * value * gate.float().amax().half(), gate.float().amax(0)


def quarters(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    a, b, c, _ = (x @ torch.cat([w, v]).t()).chunk(4, -1)
    return a * b + c


ALIKE = (half(24, 32), half(48, 32), half(48, 32))


@pytest.mark.parametrize("fn", [other_places, reduced, waited_for, quarters])
def test_what_one_kernel_cannot_compute(
    fn: Callable[..., Any], tiles: Callable[[ProductTiles], None]
) -> None:
    tiles(PLAIN)
    tuner = Chosen(1, both=0.1)
    plan = compiled(fn, ALIKE, tuner)
    assert not any("both of" in choice.what for choice in tuner.choices)
    check(fn, ALIKE, plan)


def test_a_third_that_the_reader_follows(tiles: Callable[[ProductTiles], None]) -> None:
    tiles(PLAIN)
    inputs = (*ALIKE, half(48, 32))
    check(by_three, inputs, compiled(by_three, inputs, Chosen(1, both=0.1)))


def test_equal_ones_are_measured_once_and_unlike_ones_apart() -> None:
    def layers(x: Tensor, *weights: Tensor) -> Tensor:
        for w, v in zip(weights[::2], weights[1::2], strict=True):
            x = gated(x, w, v)
        return x

    inputs = (half(32, 128), *(half(128, 128) for _ in range(4)))
    tuner, other = Chosen(0), Chosen(0)
    compiled(layers, inputs, tuner)
    both = [c for c in tuner.choices if "both of" in c.what]
    assert len(both) == 1 and both[0].count == 2
    compiled(lambda x, w, v: F.gelu(x @ w.t()) * (x @ v.t()), inputs[:3], other)
    keys = [{p.key for p in t.problems if ("products", "2") in p.key} for t in (tuner, other)]
    assert not keys[0] & keys[1]


def test_compiles_for_an_h100(build_for_h100: Any) -> None:
    def bf(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=torch.bfloat16)

    tuner = Chosen(0)
    compiled(gated, (bf(4096, 256), bf(4096, 256), bf(4096, 256)), tuner)
    (problem,) = (p for p in tuner.problems if "both" in dict(p.key))
    plans = problem.plans()
    described = next(i for i, name in enumerate(problem.names) if "TMA" in name)
    plain = next(i for i, name in enumerate(problem.names) if i and "programs" not in name)
    chosen = [plans[described], plans[plain]]
    kernels = {k.symbol: k for p in chosen for k in p.kernels if isinstance(k, TritonKernel)}
    assert len(kernels) == 2
    binaries = build_for_h100(kernels.values())
    assert all(binary.shared_bytes <= 227 * 1024 for binary in binaries.values())


# --- on a GPU -------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize(
    "only",
    [
        ProductTiles(64, 64, 32, 4, 4),
        ProductTiles(64, 64, 64, 4, 3, programs=9),
        ProductTiles(128, 64, 64, 8, 3, programs=9, descriptors=True),
    ],
    ids=ProductTiles.as_text,
)
@pytest.mark.parametrize("name", CASES)
def test_one_kernel_on_a_gpu(
    name: str, only: ProductTiles, tiles: Callable[[ProductTiles], None]
) -> None:
    fn, inputs = CASES[name]
    tiles(only)
    tuner = Chosen(1, both=1.0)
    check_on_gpu(fn, on_gpu(inputs, torch.bfloat16), tuner)
    assert any("both of" in choice.what and choice.chosen for choice in tuner.choices)
