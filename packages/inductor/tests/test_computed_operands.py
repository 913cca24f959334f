"""Products of few rows by weights kept in 8 or 4 bits: as eager in Triton's interpreter, in one
launch that reads the weights as they are kept; compiled for an H100 and, where there is one, run
there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime import load
from dovetail_runtime.plan import CallAten, LaunchTriton, Plan, TritonKernel
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

Fn = Callable[..., Any]
DRAWN = torch.Generator().manual_seed(0)


def half(*shape: int) -> Tensor:
    # not bfloat16: Triton's interpreter truncates to it, where a GPU rounds
    return torch.randn(*shape, generator=DRAWN).half() / 4


def scale(*shape: int) -> Tensor:
    return (torch.rand(*shape, generator=DRAWN) + 0.5).half() / 16


def kept(kind: torch.dtype, *shape: int) -> Tensor:
    limits = torch.iinfo(kind)
    return torch.randint(limits.min, limits.max + 1, shape, generator=DRAWN, dtype=kind)


def scaled_after(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype)) * s


def scaled_before(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype) * s[:, None])


def with_bias_and_zero(x: Tensor, w: Tensor, s: Tensor, z: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, (w.to(x.dtype) - z[:, None]) * s[:, None], b))


def in_groups(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    whole = w.view(*s.shape, -1).to(x.dtype) * s[..., None]
    return F.linear(x, whole.flatten(1))


def nibbles(w: Tensor) -> Tensor:
    return torch.stack((w & 15, w >> 4), -1).flatten(1)


def four_bits(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return in_groups(x, nibbles(w).to(torch.int8) - 8, s)


def four_bits_by_shifts(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    shifts = torch.tensor([0, 4], dtype=torch.uint8, device=w.device)
    whole = ((w[..., None] >> shifts) & 15).view(*s.shape, -1)
    return F.linear(x, ((whole.to(x.dtype) - 8) * s[..., None]).flatten(1))


def four_bits_in_halves(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return F.linear(x, torch.cat((w >> 4, w & 15)).to(x.dtype) * s[:, None])


def two_bits(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    """Four numbers in a byte, the third of which is masked where it is, and then shifted."""
    parts = (w & 3, w >> 2 & 3, (w & 48) >> 4, w >> 6)
    whole = torch.stack(parts, -1).view(*s.shape, -1).to(x.dtype) - 2
    return F.linear(x, (whole * s[..., None]).flatten(1))


def by_table(x: Tensor, w: Tensor, table: Tensor, s: Tensor) -> Tensor:
    values = table[nibbles(w).int()]
    return F.linear(x, (values.view(*s.shape, -1) * s[..., None]).flatten(1))


def weights_in_rows(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return x @ (w.to(x.dtype) * s)


def side_by_side(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    return tuple(scaled_after(x, w, s) for w, s in zip(weights[::2], weights[1::2], strict=True))


def unlike_side_by_side(x: Tensor, w: Tensor, s: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return scaled_before(x, w, s), x @ v.t()


def gated(x: Tensor, w: Tensor, s: Tensor, v: Tensor, t: Tensor) -> Tensor:
    return F.silu(four_bits(x, w, s)) * four_bits(x, v, t)


def gated_halves(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    gate, value = scaled_after(x, w, s).chunk(2, -1)
    return F.silu(gate) * value


def in_two(x: Tensor, y: Tensor, w: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    first, second = (w.to(x.dtype) * s[:, None]).chunk(2)
    return F.linear(x, first), F.linear(y, second)


def later_columns(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    gate, value = F.linear(x, (w.to(x.dtype) * s[:, None])[32:]).chunk(2, -1)
    return F.silu(gate) * value


def tied(x: Tensor, y: Tensor, w: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    whole = w.to(x.dtype) * s[:, None]
    return F.linear(x, whole), F.linear(y, whole)


EIGHT, FOUR = torch.int8, torch.uint8
# name -> function, inputs, launches
CASES: dict[str, tuple[Fn, tuple[Tensor, ...], int]] = {
    "scaled after": (scaled_after, (half(1, 256), kept(EIGHT, 48, 256), scale(48)), 1),
    "scaled before": (scaled_before, (half(16, 256), kept(EIGHT, 48, 256), scale(48)), 1),
    "odd sizes": (scaled_before, (half(3, 72), kept(EIGHT, 56, 72), scale(56)), 1),
    "bias and zero": (
        with_bias_and_zero,
        (half(2, 64), kept(FOUR, 48, 64), scale(48), half(48), half(48)),
        1,
    ),
    "groups": (in_groups, (half(4, 256), kept(EIGHT, 48, 256), scale(48, 4)), 1),
    "groups of 8": (in_groups, (half(4, 256), kept(EIGHT, 48, 256), scale(48, 32)), 1),
    "groups of 24": (in_groups, (half(4, 240), kept(EIGHT, 48, 240), scale(48, 10)), 1),
    "four bits": (four_bits, (half(1, 256), kept(FOUR, 48, 128), scale(48, 4)), 1),
    "four bits, 32 rows": (four_bits, (half(32, 64), kept(FOUR, 48, 32), scale(48, 2)), 1),
    "four bits, one group": (four_bits, (half(1, 64), kept(FOUR, 48, 32), scale(48, 1)), 1),
    "shifts": (four_bits_by_shifts, (half(1, 256), kept(FOUR, 48, 128), scale(48, 4)), 1),
    "two bits": (two_bits, (half(1, 256), kept(FOUR, 48, 64), scale(48, 4)), 1),
    "two bits, 3 rows": (two_bits, (half(3, 256), kept(FOUR, 48, 64), scale(48, 4)), 1),
    "halves": (four_bits_in_halves, (half(2, 64), kept(FOUR, 24, 64), scale(48)), 1),
    "table": (by_table, (half(2, 64), kept(FOUR, 48, 32), half(16), scale(48, 2)), 1),
    "weights in rows": (weights_in_rows, (half(5, 64), kept(EIGHT, 64, 48), scale(48)), 1),
    "in parts": (scaled_after, (half(5, 1536), kept(EIGHT, 24, 1536), scale(24)), 2),
    "four bits, in parts": (four_bits, (half(20, 1536), kept(FOUR, 24, 768), scale(24, 12)), 2),
    "side by side": (
        side_by_side,
        (half(4, 64), *(t for n in (512, 256, 256) for t in (kept(EIGHT, n, 64), scale(n)))),
        1,
    ),
    "unlike side by side": (
        unlike_side_by_side,
        (half(4, 64), kept(EIGHT, 512, 64), scale(512), half(512, 64)),
        2,
    ),
    "gated": (
        gated,
        (half(4, 64), kept(FOUR, 96, 32), scale(96, 2), kept(FOUR, 96, 32), scale(96, 2)),
        1,
    ),
    "gated halves": (gated_halves, (half(4, 64), kept(EIGHT, 96, 64), scale(96)), 2),
    "gated later columns": (
        later_columns,
        (half(8, 64), kept(EIGHT, 128, 64), scale(128)),
        1,
    ),
    "gated halves, 8 rows": (gated_halves, (half(8, 64), kept(EIGHT, 96, 64), scale(96)), 1),
    "eight-bit floats": (
        scaled_after,
        (half(4, 64), half(48, 64).to(torch.float8_e4m3fn), scale(48)),
        1,
    ),
    "eight-bit floats, odd sizes": (
        in_groups,
        (half(4, 120), half(40, 120).to(torch.float8_e5m2), scale(40, 5)),
        1,
    ),
    "64 rows": (scaled_after, (half(64, 96), kept(EIGHT, 48, 96), scale(48)), 1),
    "100 rows by four bits": (four_bits, (half(100, 128), kept(FOUR, 48, 64), scale(48, 2)), 1),
    "64 rows by two bits": (two_bits, (half(64, 256), kept(FOUR, 48, 64), scale(48, 4)), 1),
    "tied": (tied, (half(4, 64), half(2, 64), kept(EIGHT, 48, 64), scale(48)), 2),
}


NOT_OF_ONE_ROW = ("tied", "weights in rows", "gated halves, 8 rows")


def compiled(fn: Fn, inputs: Sequence[Tensor]) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return compile_graph(gm, list(inputs), options=InductorOptions(triton=True))


def check(got: Sequence[object], wanted: Any, most: float = 4e-3) -> None:
    for mine, eager in zip(got, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert isinstance(mine, Tensor)
        assert mine.dtype == eager.dtype and mine.stride() == eager.stride()
        torch.testing.assert_close(mine.cpu(), eager, rtol=most, atol=most)


@pytest.mark.parametrize("name", CASES)
def test_as_eager_without_whole_weights(name: str) -> None:
    fn, inputs, launches = CASES[name]
    plan = compiled(fn, inputs)
    assert sum(isinstance(s, LaunchTriton) for s in plan.steps) == launches
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    check(ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs), fn(*inputs))


@pytest.mark.parametrize("name", [n for n in CASES if n not in NOT_OF_ONE_ROW])
def test_one_row(name: str) -> None:
    """By threads that multiply and add, in one launch whatever the depth."""
    fn, (x, *weights), launches = CASES[name]
    inputs = (x[:1], *weights)
    plan = compiled(fn, inputs)
    assert not any("tl.dot(" in k.source for k in plan.kernels if isinstance(k, TritonKernel))
    expected = 1 if "in parts" in name else launches
    assert sum(isinstance(s, LaunchTriton) for s in plan.steps) == expected
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    # Eager rounds the weights, we do not.
    check(ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs), fn(*inputs), 1e-2)


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
@pytest.mark.parametrize("name", ["four bits", "two bits", "four bits, in parts"])
def test_few_rows_by_few_bits(name: str, rows: int) -> None:
    """By threads, too."""
    fn, (x, *weights), _ = CASES[name]
    inputs = (half(rows, x.shape[-1]), *weights)
    plan = compiled(fn, inputs)
    (kernel,) = (k for k in plan.kernels if isinstance(k, TritonKernel))
    assert "tl.dot(" not in kernel.source
    check(ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs), fn(*inputs), 1e-2)


def test_a_row_between_words() -> None:
    """That begins at an odd place of a tensor that does so, too."""
    x = half(1, 512)[:, 5:]
    _, (_, *weights), _ = CASES["four bits"]
    plan = compiled(lambda x, w, s: four_bits(x[:, 3:259], w, s), (x, *weights))
    (kernel,) = (k for k in plan.kernels if isinstance(k, TritonKernel))
    assert "tl.dot(" not in kernel.source
    got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x, *weights)
    check(got, four_bits(x[:, 3:259], *weights), 1e-2)


def test_columns_deeper_than_a_program() -> None:
    inputs = (half(1, 40960), kept(EIGHT, 16, 40960), scale(16))
    plan = compiled(scaled_after, inputs)
    assert any("tl.dot(" in k.source for k in plan.kernels if isinstance(k, TritonKernel))
    got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    check([t / 64 for t in got], scaled_after(*inputs) / 64, 1e-2)


def kept_and_multiplied(x: Tensor, w: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    whole = w.to(x.dtype) * s[:, None]
    return F.linear(x, whole), whole


def multiplied_twice(x: Tensor, y: Tensor, w: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    whole = w.to(x.dtype) * s[:, None]
    return F.linear(x, whole), F.linear(y, whole)


@pytest.mark.parametrize(
    "fn, inputs",
    [
        (kept_and_multiplied, (half(4, 64), kept(EIGHT, 48, 64), scale(48))),
        (multiplied_twice, (half(4, 64), half(520, 64), kept(EIGHT, 48, 64), scale(48))),
        (scaled_after, (half(520, 64), kept(EIGHT, 48, 64), scale(48))),
        (in_two, (half(4, 64), half(4, 64), kept(EIGHT, 96, 64), scale(96))),
    ],
    ids=["an output", "of many rows, too", "many rows", "in two parts"],
)
def test_others_read_whole_weights(fn: Fn, inputs: tuple[Tensor, ...]) -> None:
    plan = compiled(fn, inputs)
    assert sum(isinstance(s, LaunchTriton | CallAten) for s in plan.steps) > 1
    check(ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs), fn(*inputs))


@pytest.mark.parametrize("kind, rows", [("int8", 1), ("int4", 1), ("fp8", 1), ("int4", 8)])
def test_compiled_for_an_h100(kind: str, rows: int, build_for_h100: Any) -> None:
    """Weights stay in the registers that they are read to: threads exchange sums alone."""
    x = torch.empty(rows, 2048, dtype=torch.bfloat16, device="meta")
    scales = torch.empty(8192, dtype=torch.bfloat16, device="meta")
    dtype = torch.int8 if kind == "int8" else torch.float8_e4m3fn
    fn, inputs = scaled_after, (x, torch.empty(8192, 2048, dtype=dtype, device="meta"), scales)
    if kind == "int4":
        bytes_ = torch.empty(8192, 1024, dtype=torch.uint8, device="meta")
        groups = torch.empty(8192, 16, dtype=torch.bfloat16, device="meta")
        fn, inputs = four_bits, (x, bytes_, groups)
    kernels = [k for k in compiled(fn, inputs).kernels if isinstance(k, TritonKernel)]
    assert len(kernels) == 1
    (binary,) = build_for_h100(kernels).values()
    assert binary.shared_bytes <= 512 * rows


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 3, 8, 32])
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name: str, rows: int) -> None:
    fn, (x, *weights), _ = CASES[name]
    inputs = (half(rows, x.shape[-1]), *weights)
    made = [i.cuda() for i in inputs]
    check(load(compiled(fn, made)).run(*made), fn(*inputs), 1e-2)
