"""Numbers in a plan: float inputs, sizes bound in the middle of a call, and assertions."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_runtime import (
    Allocate,
    CallAten,
    Free,
    LoadOptions,
    Plan,
    PlanInput,
    Ref,
    SizeExpr,
    SymbolBinding,
    TensorSpec,
    load,
)
from dovetail_runtime.lower import PlanError
from dovetail_runtime.plan import Assert, Bind, FloatOf, Size, Step
from dovetail_runtime.plan_text import as_python
from dovetail_runtime.serialize import plan_from_bytes, plan_to_bytes
from dovetail_runtime.sizes import FLOAT_OPERATIONS, float_bits, float_from_bits
from reference_executor import ReferenceExecutor

CPU = torch.device("cpu")


def sym(name: str) -> SizeExpr:
    return SizeExpr("sym", (name,))


def vector(length: Size, dtype: torch.dtype = torch.float32) -> TensorSpec:
    return TensorSpec((length,), (1,), dtype, CPU)


def make(
    inputs: list[tuple[str, TensorSpec | None]],
    steps: list[Step],
    outputs: list[Any],
    symbols: list[SymbolBinding],
    definitions: tuple[tuple[str, Size], ...] = (),
    slabs: tuple[tuple[str, Size], ...] = (),
) -> Plan:
    return Plan(
        "numbers", "cpu", tuple(PlanInput(n, s) for n, s in inputs), tuple(symbols), (), (),
        tuple(steps), slabs, tuple(outputs), definitions=definitions,
    )  # fmt: skip


def ways(plan: Plan) -> list[Callable[..., Any]]:
    """The oracle, the executor, the executor with checks, a copy from bytes, the plan's text."""
    names: dict[str, Any] = {"__name__": "text"}
    exec(as_python(plan), names)
    copy = plan_from_bytes(plan_to_bytes(plan))
    assert copy == plan
    return [
        ReferenceExecutor(plan), load(plan), load(plan, options=LoadOptions(check_inputs=True)),
        load(copy), names["run_numbers"],
    ]  # fmt: skip


def test_floats_are_inputs_arguments_and_outputs() -> None:
    doubled = SizeExpr("fmul", (sym("f0"), float_bits(2.0)))
    plan = make(
        [("x", vector(sym("s0"))), ("lr", None)],
        [
            CallAten("aten::mul.Tensor", (Ref("x"), FloatOf(sym("f0"))), outputs=("y",)),
            CallAten("aten::add.Scalar", (Ref("y"), FloatOf(sym("g0"))), outputs=("z",)),
            CallAten("aten::add.Tensor", (Ref("z"), sym("s0")), outputs=("w",)),
        ],
        ["w", FloatOf(sym("g0")), sym("s0")],
        [SymbolBinding("s0", 0, 0), SymbolBinding("f0", 1, None, is_float=True)],
        (("g0", doubled),),
    )
    for run in ways(plan):
        for lr in (0.25, -3.5, math.inf):
            x = torch.randn(5)
            w, twice, n = run(x, lr)
            assert w.dtype is torch.float32 and twice == lr * 2 and n == 5
            torch.testing.assert_close(w, x * lr + lr * 2 + 5, equal_nan=True)
    with pytest.raises(TypeError, match="must be a float"):
        load(plan)(torch.ones(3), 1)


def test_operations_on_floats_are_pythons() -> None:
    rng = random.Random(0)
    unary = {"fneg", "fabs", *(f"f{n}" for n in "sqrt cos cosh sin sinh tan tanh asin acos atan "
                                                "exp log log2".split())}  # fmt: skip
    for name in FLOAT_OPERATIONS:
        if name == "float":
            continue
        operands = (sym("f0"),) if name in unary else (sym("f0"), sym("f1"))
        plan = make(
            [("a", None), ("b", None)], [], [FloatOf(SizeExpr(name, operands))],
            [SymbolBinding("f0", 0, None, True), SymbolBinding("f1", 1, None, True)],
        )  # fmt: skip
        run, oracle = load(plan), ReferenceExecutor(plan)
        for _ in range(300):
            a, b = (rng.choice([rng.uniform(-3, 3), 0.0, -0.0, 0.3, 1e300, 2.0]) for _ in range(2))
            try:
                (wanted,) = oracle(a, b)
            except (ArithmeticError, ValueError):
                with pytest.raises((RuntimeError, ValueError)):
                    run(a, b)
                continue
            (got,) = run(a, b)
            assert float_bits(got) == float_bits(wanted) or math.isclose(
                got, wanted, rel_tol=1e-15
            ), (name, a, b)
    assert float_from_bits(float_bits(-0.0)) == 0.0


def test_a_size_is_bound_in_the_middle_of_a_call() -> None:
    """nonzero's length gives memory and a later operator's argument its size."""
    twice = SizeExpr("mul", (sym("u0"), 2))
    plan = make(
        [("x", vector(sym("s0")))],
        [
            CallAten("aten::nonzero", (Ref("x"),), outputs=("at",)),
            Bind("u0", "at", 0),
            Allocate("y", vector(twice), None),
            CallAten("aten::fill_.Scalar", (Ref("y"), sym("u0"))),
            CallAten("aten::sum", (Ref("at"),), outputs=("total",)),
            Bind("u1", "total", None),
            CallAten("aten::full", ((SizeExpr("add", (sym("u0"), sym("u1"))),), 1.0),
                     outputs=("z",)),
            Free(("at", "total")),
        ],
        ["y", "z", sym("u1")],
        [SymbolBinding("s0", 0, 0)],
    )  # fmt: skip
    for run in ways(plan):
        for x in (torch.tensor([0.0, 1, 0, 2]), torch.zeros(3), torch.ones(6)):
            y, z, total = run(x)
            at = x.nonzero()
            assert y.shape == (2 * len(at),) and (y == len(at)).all()
            assert total == int(at.sum()) and z.shape == (len(at) + total,)


def test_elements_of_every_kind_are_bound() -> None:
    for value in (torch.tensor(2.5), torch.tensor(-7, dtype=torch.int32), torch.tensor([[True]])):
        is_float = value.dtype.is_floating_point
        spec = TensorSpec(tuple(value.shape), (1,) * value.dim(), value.dtype, CPU)
        plan = make(
            [("x", spec)], [Bind("u0", "x", None)],
            [FloatOf(sym("u0")) if is_float else sym("u0")], [],
        )  # fmt: skip
        for run in ways(plan):
            assert run(value) == (value.item(),)


def test_assertions_stop_the_call() -> None:
    few = SizeExpr("and", (SizeExpr("le", (sym("u0"), 3)),
                           SizeExpr("not", (SizeExpr("eq", (sym("u0"), 2)),))))  # fmt: skip
    plan = make(
        [("x", vector(sym("s0")))],
        [
            CallAten("aten::nonzero", (Ref("x"),), outputs=("at",)),
            Bind("u0", "at", 0),
            Assert(few, "at most three"),
        ],
        ["at"],
        [SymbolBinding("s0", 0, 0)],
    )
    for run in ways(plan)[:4]:
        assert run(torch.ones(3))[0].shape == (3, 1)
        for n in (2, 4):
            with pytest.raises(RuntimeError, match="at most three"):
                run(torch.ones(n))


@pytest.mark.parametrize("error", [RuntimeError, IndexError])
def test_an_assertion_says_the_numbers_of_its_call(error: type[Exception]) -> None:
    name: Any = error.__name__
    said = "{} of {}, not {{"
    plan = make(
        [("x", vector(sym("s0")))],
        [
            CallAten("aten::nonzero", (Ref("x"),), outputs=("at",)),
            Bind("u0", "at", 0),
            Assert(SizeExpr("le", (sym("u0"), 3)), said[:-8], name, (sym("u0"), sym("s0"))),
            Assert(SizeExpr("le", (sym("u0"), 2)), said, name),
        ],
        ["at"],
        [SymbolBinding("s0", 0, 0)],
    )
    for run in ways(plan)[: 4 if error is RuntimeError else 5]:  # (a text has `assert`)
        assert run(torch.ones(2))[0].shape == (2, 1)
        with pytest.raises(error, match="4 of 4"):
            run(torch.ones(4))
        with pytest.raises(error, match=r"\{\} of \{\}, not \{\{"):
            run(torch.ones(3))
    with pytest.raises(PlanError, match="number"):
        load(make([], [Assert(0, "{}", name, (1, 2))], [], []))


def test_what_is_bound_late_is_refused_early() -> None:
    early: list[Step] = [Allocate("y", vector(sym("u0")), None), Bind("u0", "x", 0)]
    with pytest.raises(ValueError, match="u0"):
        load(make([("x", vector(4))], early, ["y"], []))
    late: list[Step] = [Bind("u0", "x", 0)]
    with pytest.raises((PlanError, ValueError)):
        load(make([("x", vector(4))], late, [], [], slabs=(("cpu", sym("u0")),)))
