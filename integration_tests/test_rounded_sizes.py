"""Whole numbers that a program rounds from floats of sizes and arguments: one graph for all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dovetail

SIZES = ((13, 20), (17, 26), (14, 31), (25, 22), (40, 19))


def _resized(x: Tensor, f: float) -> Tensor:
    """As detection models do it: the shorter side to one length, the longer to at most another."""
    h, w = x.shape
    scale = min(24 / min(h, w), 36 / max(h, w))
    return F.interpolate(
        x[None, None], scale_factor=scale, mode="bilinear", recompute_scale_factor=True
    )[0, 0]


PROGRAMS: dict[str, Callable[[Tensor, float], Any]] = {
    "a share": lambda x, f: x[: int(x.shape[0] * 0.3)] * 2,
    "rounded": lambda x, f: x.new_ones(round(x.shape[1] * 0.3)) * x.sum(),
    "up": lambda x, f: x[-math.ceil(x.shape[0] / 2.7) :].sum(1),
    "by an argument": lambda x, f: x[:, int(x.shape[1] * f) :] + 1,
    "returned": lambda x, f: (x.sum(), int(x.shape[0] * 0.7) + 1),
    "of a rounded one": lambda x, f: x[: int(int(x.shape[0] * 0.9) * 0.7)].cos(),
    "the best": lambda x, f: x.topk(max(2, int(x.shape[1] * 0.21)), dim=1)[0],
    "a root": lambda x, f: x.sum() * x.new_ones(int(math.sqrt(x.shape[0] * x.shape[1]))),
    "half as large": lambda x, f: F.interpolate(x[None, None], scale_factor=0.5, mode="bilinear"),
    "larger": lambda x, f: F.interpolate(x[None, None], scale_factor=(2, 1.3)),
    "areas": lambda x, f: F.interpolate(x[None, None], scale_factor=0.4, mode="area"),
    "as given": lambda x, f: F.interpolate(x[None], scale_factor=1.7, mode="linear"),
    "to a length": _resized,
    "compared": lambda x, f: x * f if x.shape[0] / x.shape[1] < 5.5 * f else x,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_for_all_sizes(name: str) -> None:
    fn = PROGRAMS[name]
    backend = "dovetail" if name in ("a share", "rounded", "larger") else "aot_eager"
    compiled = dovetail.compile(fn, fullgraph=True, backend=backend)
    for place, sizes in enumerate(SIZES):
        theirs = torch.randn(sizes, generator=torch.Generator().manual_seed(0)).requires_grad_()
        ours = theirs.detach().clone().requires_grad_()
        f = 0.3 + place / 20
        wanted, got = fn(theirs, f), compiled(ours, f)
        if isinstance(wanted, tuple):
            assert got[1] == wanted[1] and type(got[1]) is int
            wanted, got = wanted[0], got[0]
        torch.testing.assert_close(got, wanted)
        assert got.stride() == wanted.stride()
        (expected,) = torch.autograd.grad(wanted.square().sum(), theirs)
        torch.testing.assert_close(torch.autograd.grad(got.square().sum(), ours)[0], expected)
    report = dovetail.report(compiled)
    graphs = 4 if name == "to a length" else 2  # there, one for each side that decides
    assert report.graphs == graphs and not report.per_size_compiles, report.as_text()


def test_a_branch_on_a_rounded_number_is_guarded() -> None:
    def fn(x: Tensor, f: float) -> Tensor:
        return x * 2 if int(x.shape[0] * f) > 6 else x + int(x.shape[0] * f)

    compiled = dovetail.compile(fn, fullgraph=True, backend="aot_eager")
    for rows, f in ((9, 0.4), (10, 0.5), (12, 0.7), (8, 0.6), (20, 0.3), (30, 0.31), (6, 0.9)):
        torch.testing.assert_close(compiled(torch.ones(rows), f), fn(torch.ones(rows), f))
    assert dovetail.report(compiled).graphs <= 4
    assert "int((x.size(0) * f)) <= 6" in dovetail.report(compiled).as_text()


def test_behind_a_graph_break() -> None:
    def fn(x: Tensor) -> Tensor:
        count = int(x.shape[0] * 0.3)
        if x.sum() > 1e9:
            return x
        return x[:count] * count

    compiled = dovetail.compile(fn, backend="aot_eager")
    for rows, _ in SIZES:
        torch.testing.assert_close(compiled(torch.ones(rows)), fn(torch.ones(rows)))
    assert len(dovetail.report(compiled).recompiles) <= 3
