"""Running totals: what holds them between the points of a row, and how an element joins them.

Where lanes are neighbouring rows, each takes its own row's next element (`across`); where they are
neighbours in one row, a vector's elements are added up among themselves first (`along`).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from dovetail_inductor.loop_ir.loops import LoopNest, Scan
from dovetail_inductor.targets.cpu.syntax import ARITHMETIC, literal

_TYPES = {
    "add": "Running<Sum, {}>", "mul": "Running<Prod, {}>", "maximum": "Running<Max, {}>",
    "minimum": "Running<Min, {}>", "logaddexp": "RunningLogarithm<{}>",
}  # fmt: skip


@cache
def source() -> str:
    """The C++ of running totals."""
    return (Path(__file__).parent / "scan.h").read_text()


def _start(scan: Scan) -> str:
    return literal(scan.neutral, scan.dtype)


def declaration(scan: Scan, name: str, lanes: int | None, count: int | None) -> list[str]:
    """Statements that declare the totals of a row: of one, of as many as there are lanes, or an
    array of `count` such vectors."""
    element = ARITHMETIC[scan.dtype]
    kind = _TYPES[scan.reduction.combine].format(
        element if lanes is None else f"V<{element}, {lanes}>"
    )
    first = _start(scan) if lanes is None else f"bc<{lanes}>({_start(scan)})"
    if count is None:
        return [f"{kind} {name}{{{first}}};"]
    return [f"{kind} {name}[{count}];", f"for (auto& total : {name}) total = {{{first}}};"]


def total(nest: LoopNest, name: str, element: str, lanes: int | None, first: str | None) -> str:
    """The total up to an element (or a vector of them), which joins it. `lanes` tells that they are
    of one row, `first` which of them count (None: all)."""
    scan = nest.scan
    assert scan is not None
    x = f"cast<{ARITHMETIC[scan.dtype]}>({element})"
    call = f"{name}.across({x})"
    if lanes is not None:
        none = f"bc<{lanes}>({_start(scan)})"
        x = x if first is None else f"sel({first}, {x}, {none})"
        call = f"{name}.along({x}, {none})"
    return f"cast<{ARITHMETIC[nest.body.dtype]}>({call})"
