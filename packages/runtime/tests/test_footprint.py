"""What a plan is said to take of memory."""

from __future__ import annotations

import torch
from dovetail_runtime import (
    Allocate,
    CallAten,
    Free,
    FreeSlab,
    Plan,
    PlanInput,
    Ref,
    SizeExpr,
    SymbolBinding,
    TensorSpec,
    View,
)
from dovetail_runtime.lifetimes import Footprint, footprint

CPU = torch.device("cpu")
N = SizeExpr("sym", ("n",))
ROW = TensorSpec((N,), (1,), torch.float32, CPU)
FOUR = TensorSpec((4, N), (N, 1), torch.float32, CPU)


def plan(*steps: object, outputs: tuple[str, ...]) -> Plan:
    return Plan(
        "p", "cpu", (PlanInput("x", ROW),), (SymbolBinding("n", 0, 0),), (), (), steps,  # type: ignore[arg-type]
        (("cpu", SizeExpr("mul", (N, 8))),), outputs,
    )  # fmt: skip


def test_results_intermediate_values_and_slabs() -> None:
    # In rows of x: 2 of the slab and 4 of `a`; then 4 of `a`, 1 of `o`; 1 of `o`, 4 of `b`.
    made = plan(
        Allocate("s", ROW, 0),
        Allocate("t", ROW, SizeExpr("mul", (N, 4))),
        Allocate("a", FOUR, None),
        FreeSlab("cpu", 0),
        CallAten("aten::neg", (Ref("x"),), (), ("o", None), (ROW,)),
        Free(("a",)),
        Allocate("b", FOUR, None),
        View("v", "b", ROW),
        CallAten("aten::neg", (Ref("v"),), (), ("unknown",)),
        outputs=("o", "v", "x"),
    )
    for n in (3, 100):
        row, symbols = 4 * n, {"n": n}
        assert footprint(made, symbols, (0,)) == Footprint(6 * row, 6 * row, row)
        assert footprint(made, symbols, (0, 1)) == Footprint(6 * row, 6 * row, 5 * row)
        assert footprint(made, symbols, (1, 2)) == Footprint(6 * row, 6 * row, 4 * row)
    assert footprint(made, {}, (0, 1)) == Footprint(0, 0, 0)


def test_results_that_lie_where_intermediate_values_were() -> None:
    made = plan(Allocate("a", FOUR, None), Free(("a",)), Allocate("o", FOUR, None), outputs=("o",))
    assert footprint(made, {"n": 5}, (0,)) == Footprint(80, 80, 80)
    assert footprint(made, {"n": 5}, ()) == Footprint(80, 80, 0)
