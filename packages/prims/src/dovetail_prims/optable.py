"""`python -m dovetail_prims.optable`: every op of CORE_ATEN and PRIMS, and what the rest becomes.

The table is made from the op sets and the decomposition tables; nothing in it is kept by hand.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch._ops import OpOverload

from dovetail_prims import opsets
from dovetail_prims.decompositions import core_aten_table, prims_table

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("pointwise, one operand", opsets.POINTWISE_UNARY),
    ("pointwise, two operands", opsets.POINTWISE_BINARY),
    ("pointwise with a number", tuple(opsets.SCALAR_FORMS)),
    ("pointwise, other", opsets.POINTWISE_OTHER),
    ("reduction", opsets.REDUCTION),
    ("scan", opsets.SCAN),
    ("view", opsets.VIEW),
    ("indexing", opsets.INDEXING),
    ("creation", opsets.CREATION),
    ("kept whole", opsets.EXTERN),
)


def _by_name(table: Mapping[OpOverload, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    return {str(op).removeprefix("aten."): function for op, function in table.items()}


def _says(function: Callable[..., Any]) -> str:
    """What an entry computes: the first line of its docstring"""
    text = inspect.getdoc(function) or ""
    return text.split("\n")[0].replace("|", "\\|")


def rows() -> list[tuple[str, str, str, str]]:
    """(op, group, in PRIMS or how it gets there, family file) for CORE_ATEN, then all else."""
    to_prims = _by_name(prims_table())
    table = []
    for group, names in GROUPS:
        for name in names:
            if name in opsets.PRIMS:
                fate = "in PRIMS"
            else:
                fate = _says(to_prims[name]) or f"as {opsets.SCALAR_FORMS.get(name, '')}"
            table.append((name, group, fate, ""))
    for name, function in sorted(_by_name(core_aten_table()).items()):
        family = function.__module__.rsplit(".", 1)[-1]
        table.append((name, "decomposed", _says(function), family))
    return table


def as_markdown() -> str:
    """The table as Markdown."""
    head = "| op | group | becomes | family |\n| --- | --- | --- | --- |\n"
    return head + "\n".join(f"| `{r[0]}` | {r[1]} | {r[2]} | {r[3]} |" for r in rows())


if __name__ == "__main__":
    print(as_markdown())
