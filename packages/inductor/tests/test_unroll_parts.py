"""Kernels whose bodies change along a loop: rotations of halves, concatenations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_inductor.lowering import indexing
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.pipeline import compile_graph
from dovetail_inductor.scheduler import unroll_parts
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime.plan import CallAten, LaunchTriton, Plan
from reference_executor import ReferenceExecutor, TritonLauncher
from torch import Tensor


@pytest.fixture(autouse=True)
def small_kernels_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter is slow: what is computed in parts from 2**16 points on is so from 2**9."""
    monkeypatch.setattr(unroll_parts, "LEAST_POINTS", 1 << 9)


def turned(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + turned(x) * sin


def norm_rotary(x: Tensor, w: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = x.float()
    normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w
    return rotary(normed, cos, sin)


def rotary_gradient(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """With the sum over the rows' elements, which is no function of the halves."""
    half = x.shape[-1] // 2
    down = x * sin
    padded = torch.nn.functional.pad(down[..., :half], (half, 0)) * -1
    other = torch.nn.functional.pad(down[..., half:], (0, half))
    return x * cos + padded + other, (x * cos).sum(-1)


def largest(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two outputs of one kernel, the second a row's maximum of what is turned."""
    y = turned(x) * 2
    return y.softmax(-1), x.amax(-1)


def three(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.cat([x.sin(), y * 2, z + 1], -1).exp()


def read_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    y = turned(x)
    return y, y.flip(0) + y


def plan_of(fn: Callable[..., Any], *inputs: Tensor) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return compile_graph(gm, options=InductorOptions(triton=True))


def text_of(plan: Plan) -> str:
    return "\n".join(k.source for k in plan.kernels)


def check(interpreter: TritonLauncher, fn: Callable[..., Any], *inputs: Tensor) -> Plan:
    plan = plan_of(fn, *inputs)
    got = ReferenceExecutor(plan, launch_triton=interpreter)(*inputs)
    wanted = fn(*inputs)
    exact = fn(*(t.double() for t in inputs))
    pairs = zip(got, wanted if isinstance(wanted, tuple) else (wanted,), strict=True)
    references = exact if isinstance(exact, tuple) else (exact,)
    for (mine, eager), reference in zip(pairs, references, strict=True):
        assert mine.dtype == eager.dtype and mine.stride() == eager.stride()
        scale = reference.abs().clamp(min=1e-2)
        error = float(((eager.double() - reference) / scale).abs().max())
        # Twice: Triton's interpreter cuts off what does not fit bfloat16.
        assert float(((mine.double() - reference) / scale).abs().max()) <= 2.2 * error + 1e-6
    return plan


CASES: dict[str, Callable[[torch.dtype], tuple[Callable[..., Any], tuple[Tensor, ...]]]] = {
    "rotary": lambda d: (rotary, rotary_inputs(d)),
    "norm": lambda d: (norm_rotary, norm_inputs(d)),
    "gradient": lambda d: (rotary_gradient, rotary_inputs(d)),
    "largest": lambda d: (largest, (torch.randn(5, 128, dtype=d),)),
    "three": lambda d: (three, tuple(torch.randn(6, 32, dtype=d) for _ in range(3))),
    "twice": lambda d: (read_twice, (torch.randn(5, 128, dtype=d),)),
}


def rotary_inputs(dtype: torch.dtype) -> tuple[Tensor, ...]:
    angles = torch.randn(5, 1, 64, dtype=dtype)
    return torch.randn(5, 3, 64, dtype=dtype), angles.cos(), angles.sin()


def norm_inputs(dtype: torch.dtype) -> tuple[Tensor, ...]:
    x, cos, sin = rotary_inputs(dtype)
    return x, torch.randn(64, dtype=dtype), cos, sin


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_parts_equal_eager(name: str, dtype: torch.dtype, interpreter: TritonLauncher) -> None:
    torch.manual_seed(0)
    fn, inputs = CASES[name](dtype)
    plan = check(interpreter, fn, *inputs)
    assert sum(isinstance(s, LaunchTriton) for s in plan.steps) <= 2


def test_halves_of_a_rotation_are_computed_together() -> None:
    text = text_of(plan_of(norm_rotary, *norm_inputs(torch.bfloat16)))
    assert "tl.where" not in text
    assert text.count("tl.load(p0") == 2 and text.count("tl.store(") == 2
    assert ".to(tl.bfloat16).to(tl.float32)" not in text  # rounded where it is stored alone


def test_short_parts_and_small_kernels_stay_whole() -> None:
    short = plan_of(rotary, *(torch.randn(200, n, 4) for n in (3, 1, 1)))
    small = plan_of(rotary, *(t[:1] for t in rotary_inputs(torch.float32)))
    assert text_of(short).count("tl.store(") == text_of(small).count("tl.store(") == 1


def joined(dim: int) -> Callable[..., Tensor]:
    return lambda *tensors: torch.cat(tensors, dim)


WIDE = [40 + 7 * k for k in range(8)]  # of tensors of unequal width
MANY: dict[str, tuple[Callable[..., Tensor], list[Tensor]]] = {
    "side by side": (joined(1), [torch.randn(8, n) for n in WIDE]),
    "computed": (lambda *t: joined(0)(*t).sin(), [torch.randn(n, 8) for n in WIDE]),
    "equal": (joined(1), [torch.randn(8, 32) for _ in range(9)]),
    "stacked": (lambda *t: torch.stack(t, 1), [torch.randn(8, 40) for _ in range(10)]),
    "two": (joined(1), [torch.randn(30, n) for n in (12, 15)]),
}


@pytest.mark.parametrize("name", MANY)
def test_programs_of_their_own_copy_many_tensors(name: str, interpreter: TritonLauncher) -> None:
    fn, inputs = MANY[name]
    plan = check(interpreter, fn, *inputs)
    text = text_of(plan)
    assert len(plan.kernels) == 1 and "tl.where" not in text
    assert (
        text.count("tl.load(") == text.count("tl.store(") == text.count("def part") == len(inputs)
    )


def test_what_many_parts_share_is_read_once(
    interpreter: TritonLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unroll_parts, "LEAST_POINTS", 1 << 7)
    plan = check(interpreter, lambda x: torch.cat([x, x * 2] * 8, 1), torch.randn(8, 32))
    assert text_of(plan).count("tl.load(") == 1 and text_of(plan).count("tl.store(") == 16
    # Nothing is shared where tensors are but multiples of one width.
    odd = [torch.randn(8, 32 * n) for n in (3, 4, 5)]
    assert text_of(plan_of(joined(1), *odd)).count("def part") == 3
    # Short pieces of one line of memory are written together.
    narrow = [torch.randn(128, 4) for _ in range(10)]
    plan = check(interpreter, joined(1), *narrow)
    assert "def part" not in text_of(plan) and text_of(plan).count("tl.store(") == 10


def test_the_library_copies_more_tensors_than_a_launch_has_parts() -> None:
    inputs = [torch.randn(8, 128) for _ in range(indexing.MOST_PARTS + 1)]
    assert any(isinstance(step, CallAten) for step in plan_of(joined(1), *inputs).steps)
    narrow = [x[:, 0] for x in inputs]  # as a norm of each parameter
    assert not any(isinstance(step, CallAten) for step in plan_of(joined(0), *narrow).steps)
