"""Products of matrices in kernels of ours: every form, run by Triton's interpreter and compiled for
an H100; and the choice between forms by measured times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.autotune import choose
from dovetail_inductor.autotune.choose import Choice, Problem
from dovetail_inductor.scheduler.kernels import ProductTiles
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.record import trace_aten
from dovetail_runtime.plan import CallAten, LaunchTriton, Plan, TritonKernel
from dovetail_runtime.reference import ReferenceExecutor
from dovetail_runtime.triton_build import run_in_interpreter
from torch import Tensor

GPU = InductorOptions(triton=True)
SMALL = ProductTiles(16, 32, 16, 4, 2)
PARTS = ProductTiles(16, 32, 16, 4, 2, parts=3)


class Chosen:
    """A tuner for which the plan numbered `wins` is the fastest."""

    def __init__(self, wins: int) -> None:
        self.wins = wins
        self.problems: list[Problem] = []
        self.choices: list[Choice] = []

    def measure(self, problems: Sequence[Problem]) -> list[tuple[float | None, ...]]:
        self.problems += problems
        return [
            tuple(1.0 if i == self.wins else 2.0 for i in range(len(p.names))) for p in problems
        ]

    def note(self, choice: Choice) -> None:
        self.choices.append(choice)


def half(*shape: int) -> Tensor:
    # not bfloat16: Triton's interpreter truncates to it, where a GPU rounds
    return torch.randn(*shape).half() / 4


def gelu_mlp(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def gated(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.silu(x @ w.t()) * (x @ v.t())


def heads(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The result goes to other strides, with its loops cut in pieces."""
    y = F.linear(x, w, b).view(x.shape[0], x.shape[1], 4, -1).transpose(1, 2)
    return (y * 0.5).contiguous()


def kept(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.addmm(b, x, w)
    return y, torch.relu(y)


def columns(x: Tensor, w: Tensor) -> Tensor:
    return torch.sigmoid(x.t() @ w.t())


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "gelu_mlp": (gelu_mlp, (half(2, 24, 48), half(64, 48), half(64))),
    "gated": (gated, (half(20, 36), half(40, 36), half(40, 36))),
    "residual": (lambda x, w, r: x @ w + r, (half(33, 50), half(50, 70), half(33, 70))),
    "heads": (heads, (half(2, 10, 32), half(48, 32), half(48))),
    "kept": (kept, (half(40, 32), half(32, 48), half(48))),
    "columns": (columns, (half(21, 19), half(45, 21))),
    "bare": (lambda x, w: x @ w, (half(16, 96), half(96, 35))),
    "added_matrix": (
        lambda c, x, w: torch.addmm(c, x, w),
        (half(18, 1), half(18, 16), half(16, 9)),
    ),
    "batches": (lambda x, w: torch.tanh(torch.bmm(x, w)) * 2, (half(3, 17, 24), half(3, 24, 20))),
    "batches_turned": (
        lambda x, w: torch.bmm(x.mT, w.mT).float(),
        (half(3, 24, 17), half(3, 20, 24)),
    ),
    "baddbmm": (
        lambda c, x, w: F.relu(torch.baddbmm(c, x, w)),
        (half(2, 1, 20), half(2, 17, 24), half(2, 24, 20)),
    ),
    "repeated_weight": (
        lambda x, w: torch.bmm(x, w.expand(3, 24, 20)) + 1,
        (half(3, 17, 24), half(24, 20)),
    ),
    "part_of_wider": (lambda x, w: F.gelu(x[:, 3:43] @ w[:, 2:34]), (half(17, 50), half(40, 40))),
}


def compiled(fn: Callable[..., Any], inputs: Sequence[Tensor], tuner: choose.Tuner | None) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return compile_graph(gm, list(inputs), options=GPU, tuner=tuner)


def products(plan: Plan) -> list[TritonKernel]:
    kernels = [k for k in plan.kernels if isinstance(k, TritonKernel)]
    return [k for k in kernels if k.symbol.startswith("product_")]


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> Callable[[ProductTiles], None]:
    """Makes these tiles the only candidate."""

    def set_to(only: ProductTiles) -> None:
        monkeypatch.setattr(choose, "candidates", lambda sizes, followed: [only])

    return set_to


def check(fn: Callable[..., Any], inputs: Sequence[Tensor], plan: Plan) -> None:
    got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    wanted = fn(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for mine, eager in zip(got, wanted, strict=True):
        assert isinstance(mine, Tensor)
        assert mine.dtype == eager.dtype and mine.stride() == eager.stride()
        torch.testing.assert_close(mine, eager, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("name", CASES)
def test_in_one_kernel(name: str, tiles: Callable[[ProductTiles], None]) -> None:
    fn, inputs = CASES[name]
    tiles(SMALL)
    plan = compiled(fn, inputs, Chosen(1))
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    launches = [s for s in plan.steps if isinstance(s, LaunchTriton)]
    assert len(launches) == (2 if name == "gated" else 1), "what follows is in the product's kernel"
    check(fn, inputs, plan)


@pytest.mark.parametrize(
    "name", [n for n in CASES if "batch" not in n and n not in ("baddbmm", "repeated_weight")]
)
def test_in_parts(name: str, tiles: Callable[[ProductTiles], None]) -> None:
    fn, inputs = CASES[name]
    tiles(PARTS)
    plan = compiled(fn, inputs, Chosen(1))
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    launches = [s for s in plan.steps if isinstance(s, LaunchTriton)]
    assert len(launches) == (4 if name == "gated" else 2)
    check(fn, inputs, plan)
