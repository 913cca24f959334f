"""Kernels that differ only in where they begin to read are one, and read what they should."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.pipeline import compile_graph
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from reference_executor import ReferenceExecutor, TritonLauncher
from torch import Tensor


def recurrence(decay: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A delta rule: a product of matrices stands between the kernels of any two steps."""
    state = torch.zeros(k.shape[0], k.shape[2], v.shape[2], dtype=k.dtype)
    out = []
    for t in range(k.shape[1]):
        state = state * decay[:, t, :, None].sigmoid()
        update = v[:, t] - torch.bmm(k[:, t, None], state)[:, 0]
        state = state + k[:, t, :, None] * update[:, None]
        out.append(state.sum(1))
    return torch.stack(out, 1)


def arguments(steps: int, width: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    torch.manual_seed(steps)
    return tuple(torch.randn(2, steps, width, dtype=dtype) / 4 for _ in range(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_steps_of_a_loop_share_kernels(dtype: torch.dtype, check: Callable[..., Any]) -> None:
    """Of float64 (8 bytes) and of float32 whose rows are 16 elements, all steps begin at multiples
    of 16 bytes."""
    counts = []
    for steps in (6, 12):
        with torch.no_grad():
            done = check(recurrence, *arguments(steps, 16, dtype), rtol=0.05, atol=0.05)
        counts.append(len(done.plan.kernels))
        assert done.launches > steps
    assert counts[1] <= counts[0]


def test_steps_at_any_place_share_kernels_by_their_remainder(check: Callable[..., Any]) -> None:
    kernels = [
        len(check(recurrence, *arguments(steps, 7, torch.float32)).plan.kernels)
        for steps in (9, 18)
    ]
    assert kernels[1] <= kernels[0] + 1


PARTS: dict[str, Callable[[Tensor], Tensor | tuple[Tensor, ...]]] = {
    "split": lambda x: tuple(p.sigmoid().sum(-1) for p in x.split([5, 16, 11], -1)),
    "shifted": lambda x: torch.nn.functional.pad(x, (-9, 9)) * 2,
    "next rows": lambda x: x[:, 2:] - x[:, 1:-1] * x[:, :-2],
    "guarded": lambda x: torch.cat([x[:, 3:].relu(), x[:, :3] + 1], 1),
    "gathered": lambda x: x[:, torch.tensor([3, 4, 4, 3])][..., 20:] * 3,
    "last": lambda x: x[-1, -1, -4:] + 1,
    "from the end": lambda x: x.flip(2)[..., :4] * 2,
    "as bytes": lambda x: (x.to(torch.int8)[:, 3:] * 2).clone(),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("offset", [0, 3])
def test_parts_of_a_tensor(
    name: str, offset: int, interpreter: TritonLauncher, check: Callable[..., Any]
) -> None:
    """In C++ and in Triton; the input itself may begin anywhere in its storage."""
    torch.manual_seed(0)
    x = torch.randn(offset + 3 * 6 * 32)[offset:].view(3, 6, 32)
    with torch.no_grad():
        check(PARTS[name], x)
        want = PARTS[name](x)
    gm = trace_aten(PARTS[name], x, decompositions=core_aten_table())
    plan = compile_graph(gm, options=InductorOptions(triton=True))
    got = ReferenceExecutor(plan, launch_triton=interpreter)(x)
    for g, w in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(g, w)
