"""Reads of concatenations in C++: one load through a pointer chosen for all elements of a part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from checked_plan import Checked
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import load
from dovetail_runtime.plan import CppKernel
from test_symbolic import traced
from torch import Tensor

WIDE = torch.randn(2, 6, 40)


def source(fn: Callable[..., Tensor], *inputs: Tensor) -> str:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    kernels = compile_graph(gm, options=InductorOptions(simd_bytes=64)).kernels
    return "\n".join(k.source for k in kernels if isinstance(k, CppKernel))


def joined(*parts: Tensor) -> Tensor:
    return torch.cat(parts, 1) * 2


def test_the_pointer_is_chosen_before_the_loop() -> None:
    text = source(joined, WIDE, WIDE[:, :3], WIDE[:, :1].contiguous())
    assert text.count("ld<16>(") == 1 and "sel(" not in text
    head, _, loop = text.partition("for (int64_t i2 = 0")
    assert head.count("t1 ? p0 + ") == 1 and " ? " not in loop


CHOICES: dict[str, tuple[Callable[..., Tensor | tuple[Tensor, ...]], Sequence[Tensor]]] = {
    "parts": (joined, [WIDE, WIDE[:, :3], WIDE[:, 2:3]]),
    "rows": (lambda *t: torch.cat(t, 0) + 1, [WIDE, WIDE * 2, WIDE[:1]]),
    "empty parts": (joined, [WIDE, WIDE[:, :0], WIDE[:, 1:2]]),
    "one of them twice": (joined, [WIDE, WIDE]),
    "transposed": (joined, [WIDE, torch.randn(40, 6, 2).permute(2, 1, 0)]),
    "all transposed": (lambda a, b: torch.cat([a.mT, b.mT], 1) + 1, [WIDE.mT.clone().mT, -WIDE]),
    "read through a tile": (
        lambda a, b: torch.cat([a.t(), b.t()], 0) + 1, [torch.randn(40, 36), torch.randn(40, 5)],
    ),
    "a row of another in a tile": (
        lambda x: torch.tile(x.diagonal_scatter(x.diagonal()).abs(), (2,)),
        [torch.randn(3, 19, 17).movedim(-1, 1)],
    ),
    "expanded": (joined, [WIDE, torch.randn(2, 1, 1).expand(2, 5, 40), WIDE]),
    "backwards": (lambda a, b: torch.cat([a.flip(2), b.flip(2)], 1) + a.sum(), [WIDE, WIDE[:, :2]]),
    "every second": (lambda a, b: torch.cat([a, b], 1)[:, ::2, ::2] + 1, [WIDE, WIDE]),
    "a part of them": (lambda a, b: torch.cat([a, b], 1)[:, 4:9] + 1, [WIDE, WIDE]),
    "computed": (lambda a, b: torch.cat([a.exp(), b], 1) + 1, [WIDE, WIDE]),
    "other types": (joined, [WIDE, WIDE.bfloat16(), WIDE.double()]),
    "halves": (joined, [WIDE.half(), WIDE[:, :2].half()]),
    "bools": (lambda a, b: torch.cat([a, b], 1).logical_not(), [WIDE > 0, WIDE > 1]),
    "integers": (joined, [(WIDE * 9).long(), (WIDE * 5).long()]),
    "padded": (lambda a, b: F.pad(torch.cat([a, b], 1), (3, 2, 1, 1)) * 2, [WIDE, WIDE]),
    "of two": (
        lambda a, b: torch.cat([torch.cat([a, b], 1), torch.cat([b, a], 1)], 0) * 2, [WIDE, WIDE],
    ),
    "normed": (
        lambda a, b: F.batch_norm(torch.cat([a, b], 1), None, None, training=True),
        [torch.randn(4, 3, 65), torch.randn(4, 2, 65)],
    ),
    "softmax": (lambda a, b: torch.cat([a, b], 1).softmax(1), [WIDE, WIDE[:, :4]]),
    "rows' sums": (lambda a, b: torch.cat([a, b], 1).sum((0, 1)), [WIDE, WIDE[:, :4]]),
    "running": (lambda a, b: torch.cat([a, b], 1).cumsum(2), [WIDE, WIDE[:, :4]]),
    "by data": (lambda c, a, b: torch.where(c, a, b) + 1, [torch.randn(2, 6, 1) > 0, WIDE, -WIDE]),
    "by a number": (
        lambda c, a, b: torch.where(c[:, None] < 1, a, torch.where(c[:, None] >= 1, b, a * 0 + 7)),
        [torch.tensor([float("nan"), 1, 0, 2]), torch.randn(4, 40), torch.randn(4, 40)],
    ),
    "several": (
        lambda a, b: (torch.cat([a, b], 1) + 1, torch.cat([b, a], 1) * 2, torch.cat([a, b], 1)),
        [WIDE, WIDE[:, :4]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("simd", [16, 64])
def test_as_eager(check: Callable[..., Checked], name: str, simd: int) -> None:
    fn, inputs = CHOICES[name]
    check(fn, *inputs, options=InductorOptions(simd_bytes=simd))


def test_sizes_known_at_run_time() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.cat([x, x[:1], x[1:]], 0) * 2

    plan = compile_graph(traced(fn, [torch.zeros(4, 6)]))
    (kernel,) = plan.kernels
    assert isinstance(kernel, CppKernel) and "sel(" not in kernel.source
    artifact = load(plan)
    for shape in [(4, 6), (2, 2), (3, 17), (33, 5), (7, 130)]:
        x = torch.randn(shape)
        assert torch.equal(artifact.run(x)[0], fn(x))
