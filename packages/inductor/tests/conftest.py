"""Shared by the suite: record a function as a CORE_ATEN graph, compile it, compare with eager."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import load
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.triton_build import TritonBuilder

# Tests import what is beside them, and the runtime's reference executor.
sys.path.insert(0, str(Path(__file__).parents[2] / "runtime" / "tests"))
sys.path.insert(0, str(Path(__file__).parent))

from checked_plan import Checked
from kernel_interpreter import run_in_interpreter
from reference_executor import TritonLauncher


def tolerance(dtype: torch.dtype) -> float:
    return {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 2e-5}.get(dtype, 1e-9)


def run_check(
    fn: Callable[..., Any],
    *inputs: torch.Tensor,
    options: InductorOptions | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> Checked:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    plan = compile_graph(gm, options=options)
    got = load(plan)(*inputs)
    want = fn(*inputs)
    flat = want if isinstance(want, tuple | list) else (want,)
    assert len(got) == len(flat)
    for g, w in zip(got, flat, strict=True):
        assert isinstance(g, torch.Tensor)
        assert g.dtype == w.dtype and g.shape == w.shape
        t = tolerance(w.dtype)
        torch.testing.assert_close(
            g,
            w,
            rtol=rtol if rtol is not None else t,
            atol=atol if atol is not None else t,
            equal_nan=True,
        )
        for n, a, b in zip(w.shape, g.stride(), w.stride(), strict=True):
            assert n <= 1 or w.numel() == 0 or a == b, f"strides {g.stride()}, eager {w.stride()}"
    return Checked(plan, got)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def interpreter() -> TritonLauncher:
    """Runs Triton kernels on CPU tensors."""
    return run_in_interpreter


@pytest.fixture(scope="session")
def h100_builder() -> Iterator[TritonBuilder]:
    """One for all tests, as each starts workers that import Triton; its kernels are kept where the
    C++ ones are."""
    builder = TritonBuilder(Knobs.from_environment(), 90)
    yield builder
    builder.close()


@pytest.fixture
def build_for_h100(h100_builder: TritonBuilder) -> Callable[[Iterable[Any]], dict[str, Any]]:
    """Compiles Triton kernels ahead of time for `sm_90`: binaries by symbol."""

    def build(kernels: Iterable[Any]) -> dict[str, Any]:
        made = list(kernels)
        binaries = dict(h100_builder.build(made))
        assert set(binaries) == {k.symbol for k in made}
        assert all(binary.cubin[:4] == b"\x7fELF" for binary in binaries.values())
        return binaries

    return build


@pytest.fixture
def check() -> Callable[..., Checked]:
    torch.manual_seed(0)
    return run_check
