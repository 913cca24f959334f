"""Steps that run a plan while another says so: natively, by the oracle, as text, read back."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from dovetail_runtime import CallAten, Plan, Ref
from dovetail_runtime.artifact import KernelBuild, load
from dovetail_runtime.plan import Allocate, FloatOf, LaunchCpp, While
from dovetail_runtime.plan_text import as_python
from dovetail_runtime.serialize import plan_from_bytes, plan_to_bytes
from reference_executor import ReferenceExecutor
from row_plans import ADD, F, K, N, row, row_plan


def looping() -> Plan:
    """(x, z, int k, float f): while sum(x) < f, (x, y) = (x + k, x), with y = z before."""
    condition = row_plan(
        "low", "xyz", ("low",),
        CallAten("aten::sum", (Ref("x"),), (), ("sum",)),
        CallAten("aten::lt.Scalar", (Ref("sum"), FloatOf(F)), (), ("low",)),
    )  # fmt: skip
    body = row_plan(
        "add", "xyz", ("out", "x"),
        Allocate("out", row(N), None),
        LaunchCpp("add_size", ("x", "out"), (K,), N, 4),
    )  # fmt: skip
    args = ("x", "z", "z", K, FloatOf(F))
    steps = (
        While(condition, body, args, ("last", "before")),
        CallAten("aten::add.Tensor", (Ref("last"), Ref("last")), (), ("twice",)),
    )
    outputs = ("last", "before", "twice")
    return row_plan("looping", "xz", outputs, *steps, kernels=(ADD,))


def expected(x: torch.Tensor, z: torch.Tensor, k: int, f: float) -> tuple[torch.Tensor, ...]:
    y = z
    while x.sum() < f:
        x, y = x + k, x
    return x, y, x * 2


@pytest.mark.parametrize("executor", ["native", "oracle", "program", "read back"])
def test_the_body_as_often_as_the_condition_tells(executor: str) -> None:
    plan = looping()
    run: Any = load(plan).run
    if executor == "oracle":
        run = ReferenceExecutor(plan, KernelBuild(plan.kernels).result()[0])
    elif executor == "program":
        scope: dict[str, Any] = {"__name__": "program"}
        exec(compile(as_python(plan), "program", "exec"), scope)
        run = scope["run_looping"]
    elif executor == "read back":
        read = plan_from_bytes(plan_to_bytes(plan))
        assert read == plan
        run = load(read).run
    for size in (3, 9):
        for limit in (-1.0, 10.0, 1000.0):
            x, z = torch.arange(float(size)), torch.full((size,), -1.0)
            found = run(x, z, 3, limit)
            for one, wanted in zip(found, expected(x, z, 3, limit), strict=True):
                assert torch.equal(one, wanted)
            found[0].zero_()  # results are tensors of their own
            found[1].zero_()
            assert torch.equal(x, torch.arange(float(size)))
            assert torch.equal(z, torch.full((size,), -1.0))


def test_an_error_inside_leaves_the_plan_usable() -> None:
    plan = looping()
    failing = row_plan(
        "failing", "xyz", ("x", "x"), CallAten("aten::mm", (Ref("x"), Ref("x")), (), ("o",))
    )
    bad = dataclasses.replace(plan.steps[0], body=failing)  # type: ignore[call-overload]
    run = load(dataclasses.replace(plan, steps=(bad, *plan.steps[1:]))).run
    x = torch.ones(4)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"in step 0 of looping: a torch\.while_loop"):
            run(x, x, 1, 9.0)
        assert torch.equal(run(x, x, 1, 0.0)[2], x * 2)


@pytest.mark.parametrize(
    "change",
    [{"body": looping()}, {"args": ("x",)}, {"outputs": ("last",)}, {"outputs": ("a", "b", "c")}],
)
def test_plans_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    plan = looping()
    bad = dataclasses.replace(plan.steps[0], **change)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"(low|add|looping): "):
        load(dataclasses.replace(plan, steps=(bad, *plan.steps[1:])))
