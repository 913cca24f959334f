"""Steps that run one of two plans: natively, by the oracle, as a program, read back."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from dovetail_runtime import CallAten, Plan, PlanInput, Ref, SizeExpr, TensorSpec
from dovetail_runtime.artifact import KernelBuild, load
from dovetail_runtime.plan import Allocate, Choose, FloatOf, Free, LaunchCpp
from dovetail_runtime.plan_text import as_python
from dovetail_runtime.serialize import plan_from_bytes, plan_to_bytes
from reference_executor import ReferenceExecutor
from row_plans import ADD, CPU, F, K, N, row, row_plan


def choosing(dtype: torch.dtype = torch.bool) -> Plan:
    """(predicate, x, int k, float f) -> x + k, or x * f; and that times 2."""
    one = row_plan(
        "add", "x", ("out",),
        Allocate("out", row(N), None),
        LaunchCpp("add_size", ("x", "out"), (K,), N, 4),
    )  # fmt: skip
    other = row_plan(
        "scale", "x", ("out",), CallAten("aten::mul.Tensor", (Ref("x"), FloatOf(F)), (), ("out",))
    )
    steps = (
        Allocate("inner", row(N), 0),
        CallAten("aten::copy_", (Ref("inner"), Ref("x"))),
        Choose("predicate", (one, other), ("inner", K, FloatOf(F)), ("chosen",)),
        Free(("inner",)),
        CallAten("aten::add.Tensor", (Ref("chosen"), Ref("chosen")), (), ("twice",)),
    )
    bytes_ = SizeExpr("mul", (SizeExpr("ceildiv", (SizeExpr("mul", (N, 4)), 64)), 64))
    predicate = PlanInput("predicate", TensorSpec((), (), dtype, CPU))
    return row_plan(
        "choosing", "x", ("chosen", "twice"), *steps,
        before=(predicate,), kernels=(ADD,), slabs=(("cpu", bytes_),),
    )  # fmt: skip


def expected(which: Any, x: torch.Tensor, k: int, f: float) -> torch.Tensor:
    return x + k if which else x * f


@pytest.mark.parametrize("executor", ["native", "oracle", "program", "read back"])
def test_the_branch_that_the_predicate_tells(executor: str) -> None:
    plan = choosing()
    run: Any = load(plan).run
    if executor == "oracle":
        run = ReferenceExecutor(plan, KernelBuild(plan.kernels).result()[0])
    elif executor == "program":
        scope: dict[str, Any] = {"__name__": "program"}
        exec(compile(as_python(plan), "program", "exec"), scope)
        run = scope["run_choosing"]
    elif executor == "read back":
        read = plan_from_bytes(plan_to_bytes(plan))
        assert read == plan
        run = load(read).run
    for size in (3, 9):
        for which in (True, False, True):
            x = torch.arange(float(size))
            chosen, twice = run(torch.tensor(which), x, 3, 0.5)
            assert torch.equal(chosen, expected(which, x, 3, 0.5))
            assert torch.equal(twice, chosen * 2)


@pytest.mark.parametrize("value", [0.0, -0.0, 0.5, float("nan")])
def test_a_predicate_that_is_a_float(value: float) -> None:
    run = load(choosing(torch.float32)).run
    x = torch.ones(4)
    assert torch.equal(run(torch.tensor(value), x, 3, 0.5)[0], expected(value, x, 3, 0.5))


def test_a_result_that_is_the_operand_is_a_copy() -> None:
    plan = choosing()
    same = row_plan("same", "x", ("x",))
    steps = list(plan.steps)
    steps[2] = dataclasses.replace(steps[2], branches=(same, same))
    run = load(dataclasses.replace(plan, steps=tuple(steps))).run
    x = torch.ones(4)
    assert torch.equal(run(torch.tensor(True), x, 1, 1.0)[0], x)


def test_an_error_inside_leaves_the_plan_usable() -> None:
    plan = choosing()
    failing = row_plan(
        "failing", "x", ("out",), CallAten("aten::mm", (Ref("x"), Ref("x")), (), ("out",))
    )
    steps = list(plan.steps)
    steps[2] = dataclasses.replace(steps[2], branches=(failing, steps[2].branches[1]))
    run = load(dataclasses.replace(plan, steps=tuple(steps))).run
    x = torch.ones(4)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"in step 2 of choosing: a branch of torch\.cond"):
            run(torch.tensor(True), x, 1, 2.0)
        assert torch.equal(run(torch.tensor(False), x, 1, 2.0)[0], x * 2)


def test_branches_that_do_not_fit_are_refused() -> None:
    plan = choosing()
    for change in ({"kernels": (ADD,)}, {"outputs": ("out", "out")}, {"inputs": ()}):
        steps = list(plan.steps)
        bad = dataclasses.replace(steps[2].branches[0], **change)
        steps[2] = dataclasses.replace(steps[2], branches=(bad, steps[2].branches[1]))
        with pytest.raises(ValueError, match="add: "):
            load(dataclasses.replace(plan, steps=tuple(steps)))
