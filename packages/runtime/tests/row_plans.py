"""Plans over rows of n elements, an int k and a float f, for steps that run plans of their own."""

from __future__ import annotations

from typing import Any

import torch
from dovetail_runtime import Plan, PlanInput, SizeExpr, SymbolBinding, TensorSpec
from dovetail_runtime.plan import CppKernel

CPU = torch.device("cpu")
N, K, F = (SizeExpr("sym", (name,)) for name in "nkf")

ADD = CppKernel(
    "add_size",
    """
extern "C" void add_size(void* const* p, const int64_t* s, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i)
    static_cast<float*>(p[1])[i] = static_cast<const float*>(p[0])[i] + s[0];
}
""",
)


def row(size: Any) -> TensorSpec:
    """A float32 row on a CPU."""
    return TensorSpec((size,), (1,), torch.float32, CPU)


def row_plan(
    name: str,
    rows: str,
    outputs: tuple[str, ...],
    *steps: Any,
    before: tuple[PlanInput, ...] = (),
    kernels: tuple[CppKernel, ...] = (),
    slabs: tuple[Any, ...] = (),
) -> Plan:
    """(the inputs `before`, a row for each letter of `rows`, k, f) -> `outputs`."""
    first, numbers = len(before), len(before) + len(rows)
    inputs = (
        *before, *(PlanInput(letter, row(N)) for letter in rows),
        PlanInput("k", None), PlanInput("f", None),
    )  # fmt: skip
    symbols = (
        SymbolBinding("n", first, 0),
        SymbolBinding("k", numbers, None),
        SymbolBinding("f", numbers + 1, None, is_float=True),
    )
    return Plan(name, "cpu", inputs, symbols, (), kernels, steps, slabs, outputs)
