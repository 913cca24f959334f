"""Products of 8-bit floats and integers with scales, quantisation before and epilogues behind them:
as eager in Triton's interpreter, compiled for an H100 and, where there is one, run there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import DeviceTuner, InductorOptions, compile_graph
from dovetail_inductor.options import Gpu
from dovetail_inductor.products import choose_products, few_rows
from dovetail_inductor.products.candidates import candidates
from dovetail_inductor.scheduler.kernels import ProductTiles
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime import load
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.plan import CallAten, LaunchTriton, Plan, TritonKernel
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from test_products import Chosen
from torch import Tensor

E4, E5, BF = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16
DRAWN = torch.Generator().manual_seed(0)
Fn = Callable[..., Any]


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=DRAWN)


def whole(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, generator=DRAWN, dtype=torch.int8)


def quantised(x: Tensor, dim: int | None = -1) -> tuple[Tensor, Tensor]:
    largest = x.abs().amax() if dim is None else x.abs().amax(dim, keepdim=True)
    scale = 448 / largest.float().clamp(min=1e-12)
    return (x.float() * scale).clamp(-448, 448).to(E4), scale.reciprocal()


def scaled(q: Tensor, scale: Tensor, w: Tensor, s: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch._scaled_mm(q, w.t(), scale, s.t(), bias, out_dtype=BF, use_fast_accum=True)


def by_rows(x: Tensor, w: Tensor, s: Tensor, bias: Tensor) -> Tensor:
    return scaled(*quantised(x), w, s, bias)


def by_tensor(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    q, scale = quantised(x, None)
    return F.silu(torch._scaled_mm(q, w.t(), scale, s, out_dtype=BF))


def to_float32(q: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return torch._scaled_mm(q, w.t(), s, s.view(1, 1), out_dtype=torch.float32) + 1


def with_residual_and_next(r: Tensor, *operands: Tensor) -> tuple[Tensor, Tensor]:
    """Values, and the largest of them."""
    y = scaled(*operands) + r
    return y, y.abs().amax()


def gated(x: Tensor, v: Tensor, vs: Tensor, w: Tensor, ws: Tensor) -> Tensor:
    q, scale = quantised(x)
    return F.silu(scaled(q, scale, v, vs)) * scaled(q, scale, w, ws)


def of_integers(x: Tensor, w: Tensor, s: Tensor, bias: Tensor) -> Tensor:
    scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
    q = (x.float() / scale).round().clamp(-128, 127).to(torch.int8)
    return (torch._int_mm(q, w.t()).float() * scale * s + bias).to(BF)


def unscaled(x: Tensor, w: Tensor) -> Tensor:
    return torch._int_mm(x, w.t())


def weights(n: int, k: int, dim: int | None = -1) -> tuple[Tensor, Tensor]:
    return quantised(drawn(n, k), dim)


# Name -> function, inputs, launches with products of ours.
CASES: dict[str, tuple[Fn, tuple[Tensor, ...], int]] = {
    "by rows": (by_rows, (drawn(40, 64).half(), *weights(48, 64), drawn(48).to(BF)), 2),
    "scaled": (scaled, (*weights(33, 80), *weights(48, 80)), 1),
    "by tensor": (by_tensor, (drawn(17, 96).half(), *weights(80, 96, None)), 2),
    "to float32": (to_float32, (drawn(33, 64).to(E5), *weights(32, 64, None)), 1),
    "gated": (gated, (drawn(20, 64).half(), *weights(48, 64), *weights(48, 64)), 3),
    "residual": (
        with_residual_and_next,
        (drawn(40, 48).to(BF), *weights(40, 64), *weights(48, 64), drawn(48).to(BF)),
        3,
    ),
    "integers": (of_integers, (drawn(40, 64).half(), whole(48, 64), drawn(48), drawn(48)), 2),
    "unscaled": (unscaled, (whole(18, 80), whole(40, 80)), 1),
}
# Of what is rounded up to a power of two, Triton's interpreter makes half as much.
QUANTISING = ("by rows", "by tensor", "gated")
SMALL = ProductTiles(16, 32, 32, 4, 2)
PARTS = ProductTiles(16, 32, 32, 4, 2, parts=2)
DESCRIBED = ProductTiles(16, 32, 32, 4, 2, programs=3, descriptors=True)


def compiled(fn: Fn, inputs: Sequence[Tensor], tuner: choose_products.Tuner | None) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return compile_graph(gm, list(inputs), options=InductorOptions(triton=True), tuner=tuner)


def check(got: Sequence[object], wanted: Any, most: float = 0.01) -> None:
    """As eager, but for how sums are rounded to bfloat16: the interpreter truncates them."""
    for mine, eager in zip(got, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert isinstance(mine, Tensor)
        assert mine.dtype == eager.dtype and mine.stride() == eager.stride()
        right = eager.cpu().float()
        difference = (mine.cpu().float() - right).abs()
        assert difference.mean() <= most * right.abs().mean()
        assert difference.max() <= 4 * most * right.abs().max()


@pytest.mark.parametrize("tiles", [SMALL, PARTS, DESCRIBED], ids=ProductTiles.as_text)
@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str, tiles: ProductTiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_products, "candidates", lambda *sizes: [tiles])
    fn, inputs, launches = CASES[name]
    plan = compiled(fn, inputs, Chosen(1))
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    found = sum(isinstance(s, LaunchTriton) for s in plan.steps)
    assert tiles.parts > 1 or found <= launches + (name == "by tensor")
    got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    check(got, fn(*inputs), 0.1 if name in QUANTISING else 0.01)


@pytest.mark.parametrize("name", CASES)
def test_by_the_library(name: str) -> None:
    fn, inputs, _ = CASES[name]
    check(load(compile_graph(trace_aten(fn, *inputs, decompositions=core_aten_table())))(*inputs),
          fn(*inputs))  # fmt: skip


def test_integers_are_ours_without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    fn, inputs, _ = CASES["integers"]
    assert any(isinstance(s, CallAten) for s in compiled(fn, inputs, None).steps), "too few"
    monkeypatch.setattr(few_rows, "BUSY", 0.0)
    plan = compiled(fn, inputs, None)
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    check(ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs), fn(*inputs))


REFUSED: dict[str, tuple[Fn, tuple[Tensor, ...]]] = {
    "a size of 24": (to_float32, (drawn(33, 24).to(E4), *weights(32, 24, None))),
    "both of e5m2": (to_float32, (drawn(33, 32).to(E5), drawn(32, 32).to(E5), drawn(1))),
    "few integers": (unscaled, (whole(16, 72), whole(40, 72))),
    "bytes without sign": (unscaled, (whole(18, 72).view(torch.uint8), whole(40, 72))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_gpu_refuses_the_library_is_to_refuse(name: str) -> None:
    fn, inputs = REFUSED[name]
    tuner = Chosen(1)
    plan = compiled(fn, inputs, tuner)
    assert not tuner.problems and any(isinstance(s, CallAten) for s in plan.steps)


def test_slow_sums_are_kept_apart() -> None:
    fn, inputs, _ = CASES["to float32"]
    (source,) = (k.source for k in ours(fn, inputs, ProductTiles(64, 32, 32, 4, 2)))
    assert "acc += tl.dot(" in source
    fn, inputs, _ = CASES["by rows"]
    assert all("+= tl.dot(" not in k.source for k in ours(fn, inputs, SMALL))


def ours(fn: Fn, inputs: Sequence[Tensor], tiles: ProductTiles) -> list[TritonKernel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose_products, "candidates", lambda *sizes: [tiles])
        kernels = compiled(fn, inputs, Chosen(1)).kernels
    return [k for k in kernels if isinstance(k, TritonKernel) and "tl.dot(" in k.source]


def test_compiled_for_an_h100(build_for_h100: Any) -> None:
    def empty(t: Tensor) -> Tensor:
        return t.new_empty([n if n in (1, 3) else 16 * n for n in t.shape])

    kernels: dict[str, TritonKernel] = {}
    for name in ("by rows", "by tensor", "gated", "integers"):
        fn, inputs, _ = CASES[name]
        for tiles in (
            ProductTiles(128, 128, 128, 8, 3),
            ProductTiles(64, 64, 128, 4, 4, programs=132, descriptors=True),
        ):
            kernels |= {k.symbol: k for k in ours(fn, [empty(t) for t in inputs], tiles)}
    assert len(kernels) == 10  # the last is two products, or one of two right matrices
    assert all(b.shared_bytes <= 227 * 1024 for b in build_for_h100(kernels.values()).values())


def test_candidates_hold_as_many_bytes() -> None:
    for sizes in ((1, 64, 4096, 4096), (1, 512, 4096, 4096), (1, 4096, 4096, 4096)):
        found = candidates(sizes, False, Gpu(), 1)
        assert found and max(t.k for t in found) >= 128
        assert all(t.stages * t.k * (t.m + t.n) <= 227 * 1024 for t in found)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_measured_on_a_gpu(name: str, tmp_path: Any) -> None:
    """Every candidate runs and is right."""
    fn, inputs, _ = CASES[name]
    made = [t.cuda() for t in inputs]
    tuner = DeviceTuner(Knobs.from_environment({"DOVETAIL_CACHE_DIR": str(tmp_path)}))
    gm = trace_aten(fn, *made, decompositions=core_aten_table())
    got = load(compile_graph(gm, made, tuner=tuner)).run(*made)
    assert tuner.choices and not tuner.failures
    check(got, fn(*made))  # (PyTorch 2.11 scales by rows on GPUs only)
