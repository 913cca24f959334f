"""Elements side by side in memory, read and written by one access."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.pipeline import compile_graph
from dovetail_inductor.scheduler import unroll_parts
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime.plan import Plan, TritonKernel
from dovetail_runtime.triton_build import TritonBuilder
from reference_executor import ReferenceExecutor, TritonLauncher
from torch import Tensor
from typed_kernels import typed_kernels

r = torch.randn


@pytest.fixture(autouse=True)
def small_kernels_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unroll_parts, "LEAST_POINTS", 1 << 7)


def planned(fn: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    with typed_kernels():
        return compile_graph(gm, options=InductorOptions(triton=True))


def source_of(plan: Plan) -> str:
    return "\n".join(k.source for k in plan.kernels if isinstance(k, TritonKernel))


def rotary(x: Tensor, rotation: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotation).flatten(-2).type_as(x)


def stacked(x: Tensor, y: Tensor) -> Tensor:
    """Two tensors by turns."""
    return torch.stack([x * 2 + y, x - y], -1)


def beside_a_row(x: Tensor, rotation: Tensor, w: Tensor) -> Tensor:
    """One of the operands is the same for all rows, one is no pair."""
    return rotary(x, rotation) * w


def transposed(x: Tensor, rotation: Tensor) -> Tensor:
    return rotary(x.transpose(0, 1).contiguous().transpose(0, 1), rotation)


def by_turns(x: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs are read alone, and written alone."""
    return x[..., 0::2] * x[..., 1::2], torch.stack([x[..., 1], x[..., 0]], -1) + 1


def angles(*shape: int) -> Tensor:
    return torch.polar(torch.ones(shape), r(shape))


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], int, int]] = {
    # and how many pairs are read and written
    "halves": (rotary, (r(6, 4, 32).bfloat16(), angles(6, 1, 16)), 2, 1),
    "floats": (rotary, (r(5, 3, 32), angles(5, 1, 16)), 2, 1),
    "rows that end within a block": (rotary, (r(7, 3, 26).half(), angles(7, 1, 13)), 2, 1),
    "stacked": (stacked, (r(37, 50), r(37, 50)), 0, 1),
    "doubles": (stacked, (r(8, 50).double(), r(8, 50).double()), 0, 1),
    "integers": (stacked, (torch.randint(9, (33, 40)), torch.randint(9, (33, 40))), 0, 1),
    "a row": (beside_a_row, (r(6, 4, 32), angles(6, 1, 16), r(32)), 3, 1),
    "transposed": (transposed, (r(24, 40, 32), angles(40, 16)), 2, 1),
    "odd begin": (
        lambda x, y: rotary(x[..., 1:33], y),
        (r(4, 8, 34).half(), angles(8, 16)),
        1,
        1,
    ),
    "by turns": (by_turns, (r(64, 40, 2),), 2, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_pairs_equal_eager(name: str, interpreter: TritonLauncher) -> None:
    fn, inputs, read, written = CASES[name]
    plan = planned(fn, inputs)
    text = source_of(plan)
    assert (text.count("tl.split"), text.count("tl.interleave")) == (read, written), text
    got = ReferenceExecutor(plan, launch_triton=interpreter)(*inputs)
    want = fn(*inputs)
    for g, w in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        t = {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(w.dtype, 1e-5)
        torch.testing.assert_close(g, w, rtol=t, atol=t)


def test_pairs_compile_for_an_h100(build_for_h100: Any) -> None:
    plans = [planned(fn, inputs) for fn, inputs, _, _ in CASES.values()]
    build_for_h100({k for p in plans for k in p.kernels if isinstance(k, TritonKernel)})


def test_accesses_are_16_bytes_wide(h100_builder: TritonBuilder) -> None:
    plan = planned(rotary, (r(4096, 32, 128).bfloat16(), angles(4096, 1, 64)))
    h100_builder.build(plan.kernels)
    (text,) = map(h100_builder.assembler_text, plan.kernels)
    accesses = re.findall(r"((?:ld|st)\.(?:global|shared)\S*) ", text)
    assert set(accesses) == {"ld.global.v4.b32", "st.global.v4.b32"}, accesses
