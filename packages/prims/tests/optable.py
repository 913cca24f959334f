"""The page of operators: every op of CORE_ATEN and PRIMS, and what the rest becomes.

    python packages/prims/tests/optable.py > packages/prims/OPS.md

The table is made from the op sets, PyTorch's schemas and the decompositions themselves: what an op
decomposes to is read off the code of its entry. Only `MEANINGS` is kept by hand.
"""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from dovetail_prims.decompositions import core_aten_table, prims_table
from dovetail_prims.dialects import opsets
from dovetail_prims.ops import catalog, values
from torch._ops import OpOverload

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Pointwise, one operand", opsets.POINTWISE_UNARY),
    ("Pointwise, two operands", opsets.POINTWISE_BINARY),
    ("Pointwise with a number", tuple(opsets.SCALAR_FORMS)),
    ("Pointwise, other", opsets.POINTWISE_OTHER),
    ("Reductions", opsets.REDUCTION),
    ("Scans", opsets.SCAN),
    ("Views", opsets.VIEW),
    ("Indexing", opsets.INDEXING),
    ("Creation", opsets.CREATION),
    ("Kept whole: library kernels and samplers", opsets.EXTERN),
)


def _by_name(table: Mapping[OpOverload, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    return {str(op).removeprefix("aten."): function for op, function in table.items()}


def overload(name: str) -> OpOverload | None:
    """`aten.<op>.<overload>`, if this torch has it."""
    packet = getattr(torch.ops.aten, name.split(".")[0], None)
    return getattr(packet, name.split(".")[1], None)


def _says(function: Callable[..., Any]) -> str:
    """What an entry computes: the first line of its docstring"""
    text = inspect.getdoc(function) or ""
    return text.split("\n")[0].replace("|", "\\|")


def meaning(name: str) -> str:
    """What an op of CORE_ATEN computes."""
    on_card = {own: form.says or card.says for own, card, form in catalog.forms()}
    if on_card.get(name):
        return on_card[name]
    entry = _by_name(prims_table()).get(name)
    if entry is not None and _says(entry):
        return _says(entry)
    return "PyTorch's own kernel"


# --- what an entry calls --------------------------------------------------------------------------


# What the operators of formulas call (see `ops.values`).
_OPERATORS = {
    "+": "add.Tensor", "-": "sub.Tensor", "*": "mul.Tensor", "/": "div.Tensor",
    "|": "logical_or.default", "&": "logical_and.default",
    "<": "lt.Scalar", "<=": "le.Scalar", ">": "gt.Scalar", ">=": "ge.Scalar", "==": "eq.Scalar",
}  # fmt: skip


def calls(function: Callable[..., Any]) -> list[str]:
    """The ATen ops that a decomposition may call, itself or through its helpers."""
    return sorted(set(_calls(function, set())))


def _calls(function: Any, seen: set[int]) -> Iterator[str]:
    if isinstance(function, OpOverload):
        yield str(function).removeprefix("aten.")
        return
    code = getattr(function, "__code__", None)
    ours = str(getattr(function, "__module__", "")).startswith("dovetail_prims")
    if code is None or not ours or id(function) in seen:
        return
    seen.add(id(function))
    inner = getattr(function, "__wrapped__", None)
    if inner is not None:
        yield from _calls(inner, seen)
        if function.__globals__ is not vars(values):
            return  # (a guard, or what lays results out in memory)
    for cell in function.__closure__ or ():
        yield from _calls(cell.cell_contents, seen)
    if "Value" in function.__annotations__.values() and function.__globals__ is not vars(values):
        yield from _operators(function)
    yield from _calls_of_code(code, function.__globals__, seen)


def _operators(function: types.FunctionType) -> Iterator[str]:
    """What the operators of a function of Values call, but those on strings and the minus of a
    parameter that is a number."""
    kinds = function.__annotations__
    before = ""
    for i in dis.get_instructions(function.__code__):
        if i.opname == "UNARY_NEGATIVE" and kinds.get(before, "Value") == "Value":
            yield "neg.default"
        elif i.opname in ("BINARY_OP", "COMPARE_OP") and before != "a string":
            sign = i.argrepr.removeprefix("bool(").removesuffix(")")
            if sign in _OPERATORS:
                yield _OPERATORS[sign]
        elif i.opname == "LOAD_GLOBAL" and i.argval == "abs":
            yield "abs.default"
        before = (
            "a string" if i.opname == "LOAD_CONST" and isinstance(i.argval, str) else str(i.argval)
        )


def _calls_of_code(code: types.CodeType, names: Mapping[str, Any], seen: set[int]) -> Iterator[str]:
    loads = [i for i in dis.get_instructions(code) if i.opname.startswith("LOAD_")]
    for at, load in enumerate(loads):
        if load.opname != "LOAD_GLOBAL":
            continue
        name, found = load.argval, names.get(load.argval, len)
        if isinstance(found, types.ModuleType) and name != "aten":
            at += 1  # (a helper that is named by its module)
            name, found = loads[at].argval, getattr(found, str(loads[at].argval), len)
        if name == "aten":
            op, variant = (str(i.argval) for i in loads[at + 1 : at + 3])
            yield f"{op}.{variant}" if overload(f"{op}.{variant}") else f"{op}.default"
        else:
            yield from _calls(found, seen)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _calls_of_code(constant, names, seen)


# --- the page -------------------------------------------------------------------------------------


def rows() -> list[tuple[str, str, str, str, str]]:
    """(op, group, schema, meaning, decomposes to) for CORE_ATEN, then for all that becomes it."""
    to_prims = _by_name(prims_table())
    table = []
    for group, names in GROUPS:
        for name in names:
            entry = to_prims.get(name)
            if name in opsets.PRIMS:
                fate = "in PRIMS"
            else:
                fate = _list(calls(entry) if entry else [opsets.SCALAR_FORMS[name]])
            table.append((name, group, _schema(name), meaning(name), fate))
    for name, function in sorted(_by_name(core_aten_table()).items()):
        if name in opsets.CORE_ATEN:
            continue  # taken apart in some cases alone
        family = (
            "Decomposed: " + function.__module__.split(".")[2]
        )  # dovetail_prims.decompositions.*
        table.append((name, family, _schema(name), _says(function), _list(calls(function))))
    return table


def _schema(name: str) -> str:
    op = overload(name)
    return "" if op is None else str(op._schema).partition("(")[2].join(("(", "")).replace("|", "/")


def _list(names: list[str]) -> str:
    return ", ".join(name.removesuffix(".default") for name in names)


def _decomposed(row: tuple[str, ...]) -> str:
    """Sorts the decomposed ops last, by family (the others stay as they are)"""
    return row[1] if row[1].startswith("Decomposed") else ""


def as_markdown() -> str:
    """The page."""
    found = rows()
    prims = len(opsets.PRIMS)
    whole = len([n for n in opsets.EXTERN if n in opsets.PRIMS])
    lines = [
        "# The op sets", "",
        "Made by `python packages/prims/tests/optable.py` "
        f"with torch {torch.__version__.split('+')[0]}.",
        "", f"CORE_ATEN has {len(opsets.CORE_ATEN)} ops, PRIMS {prims} of them ({whole} kept whole,"
        f" {prims - whole} computed); {len(core_aten_table())} more decompose to CORE_ATEN.",
        "`decompose(gm, to=...)` gets there, `verify` proves it, "
        "`tests/prims_interpreter.py` runs PRIMS in plain Python.",
    ]  # fmt: skip
    group = ""
    for name, own, schema, text, fate in sorted(found, key=_decomposed):
        if own != group:
            group = own
            lines += ["", f"## {group}", "", "| op | schema | meaning | decomposes to |",
                      "| --- | --- | --- | --- |"]  # fmt: skip
        lines.append(f"| `{name}` | `{schema}` | {text} | {fate} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_markdown(), end="")
