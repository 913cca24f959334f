"""Where the largest element of a few long rows is: found in pieces, the first of equal ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_inductor import InductorOptions, compile_graph, compile_to_callable
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime.plan import CppKernel, LaunchTriton
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor
from torch.fx import GraphModule

FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "argmax": lambda x: x.argmax(-1),
    "argmin kept": lambda x: x.argmin(-1, keepdim=True),
    "max": lambda x: x.max(-1),
    "of all": lambda x: x.argmax(),
    "of a half": lambda x: (x * 2).to(torch.bfloat16).argmax(-1),
}
SHAPES = {"even": (2, 40_000), "uneven": (2, 40_009), "rows and columns": (3, 17, 5_003)}


def data(kind: str, shape: tuple[int, ...]) -> Tensor:
    x = torch.randn(shape)
    if kind == "equal":
        return torch.zeros(shape)
    if kind == "ties":
        return x.round()
    if kind == "nan":
        x.view(-1)[:: x.numel() // 3] = float("nan")
    if kind == "infinite":
        return torch.full(shape, -float("inf"))
    return x


def traced(function: Callable[[Tensor], Any], x: Tensor) -> GraphModule:
    return trace_aten(function, x, decompositions=core_aten_table())


def leaves(values: Any) -> list[Tensor]:
    return list(torch.utils._pytree.tree_leaves(values))


@pytest.mark.parametrize("kind", ["random", "equal", "ties", "nan", "infinite"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_cpu(function: Callable[[Tensor], Any], shape: tuple[int, ...], kind: str) -> None:
    x = data(kind, tuple(8 * n if n == max(shape) else n for n in shape))
    run = compile_to_callable(traced(function, x))
    torch.testing.assert_close(leaves(run(x)), leaves(function(x)), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", ["random", "equal", "nan", "infinite"])
@pytest.mark.parametrize("shape", [SHAPES["even"], SHAPES["uneven"]], ids=["even", "uneven"])
def test_triton(shape: tuple[int, ...], kind: str) -> None:
    x = data(kind, shape)
    plan = compile_graph(traced(FUNCTIONS["max"], x), options=InductorOptions(triton=True))
    launches = [step for step in plan.steps if isinstance(step, LaunchTriton)]
    assert len(launches) == 2  # the pieces, and of these the first largest
    got = list(ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x))
    torch.testing.assert_close(got, list(x.max(-1)), rtol=0, atol=0, equal_nan=True)


def test_one_row_is_found_by_several_threads() -> None:
    plan = compile_graph(traced(FUNCTIONS["argmax"], torch.randn(1 << 20)))
    assert len([k for k in plan.kernels if isinstance(k, CppKernel)]) == 2


def test_short_rows_are_not_cut() -> None:
    plan = compile_graph(traced(FUNCTIONS["argmax"], torch.randn(4096, 64)))
    assert len(plan.kernels) == 1


def test_kernels_build(build_for_h100: Callable[..., Any]) -> None:
    options = InductorOptions(triton=True)
    given = [torch.empty(SHAPES["even"]), torch.empty(SHAPES["uneven"], dtype=torch.bfloat16)]
    plans = [compile_graph(traced(FUNCTIONS["max"], x), options=options) for x in given]
    assert build_for_h100([kernel for plan in plans for kernel in plan.kernels])
