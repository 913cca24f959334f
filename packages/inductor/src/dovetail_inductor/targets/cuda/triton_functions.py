"""Scalar functions that loop, as Triton over a block."""

from __future__ import annotations

import ast
import math
import struct
from collections.abc import Mapping, Sequence
from functools import cache

from dovetail_inductor.loop_ir.function_text import Expressions, turns
from dovetail_inductor.loop_ir.functions import FUNCTIONS, LOOPING
from dovetail_inductor.loop_ir.functions.function import Function

_CALLS = {
    "abs": "tl.abs", "floor": "tl.floor", "trunc": "dv_trunc", "round": "dv_round",
    "sqrt": "tl.sqrt", "exp": "tl.exp", "expm1": "libdevice.expm1", "log": "tl.log",
    "sin": "tl.sin", "cos": "tl.cos", "acos": "libdevice.acos", "erfc": "libdevice.erfc",
    "lgamma": "libdevice.lgamma", "pow": "libdevice.pow",
}  # fmt: skip


def _narrow(value: float) -> bool:
    """Whether float32 has this number: Triton makes a number on its own one of float32"""
    try:
        return math.isnan(value) or struct.unpack("f", struct.pack("f", value))[0] == value
    except OverflowError:
        return False


class _Triton:
    def number(self, value: float) -> str:
        return repr(value) if math.isfinite(value) else f"float('{value}')"

    def compare(self, left: str, operator: str, right: str) -> str:
        return f"({left} {operator} {right})"

    def invert(self, operand: str) -> str:
        return f"({operand} == 0)"

    def call(self, name: str, arguments: Sequence[str], numbers: Sequence[float | None]) -> str:
        if name == "like":
            return f"tl.full({arguments[0]}.shape, {arguments[1]}, {arguments[0]}.dtype)"
        if name == "some":
            return f"tl.max({arguments[0]}.to(tl.int32), axis=None) != 0"
        if name == "where":
            if any(n is not None and not _narrow(n) for n in numbers):
                raise NotImplementedError(f"a number that float32 has not, of {arguments}")
            return f"tl.where({', '.join(arguments)})"
        if name in FUNCTIONS:
            return f"dv_{name}({', '.join(arguments)})"
        return f"{_CALLS[name]}({', '.join(arguments)})"


def _definition(function: Function) -> str:
    tree = function.tree()
    names = [a.arg for a in tree.args.args]
    lines = [f"def dv_{function.name}({', '.join(names)}):"]
    if function.name in LOOPING:  # what a loop carries has one shape
        blocks = ", ".join(names[:2])
        lines.append(f"    {blocks} = tl.broadcast({blocks})")
    lines += _block(Expressions(function, _Triton()), tree.body, 1)
    return "\n".join(lines)


def _block(expressions: Expressions, body: Sequence[ast.stmt], depth: int) -> list[str]:
    lines: list[str] = []
    indent = "    " * depth
    for statement in body:
        if isinstance(statement, ast.Assign):
            (target,) = statement.targets
            lines.append(f"{indent}{ast.unparse(target)} = {expressions.text(statement.value)}")
        elif isinstance(statement, ast.Return):
            assert statement.value is not None
            lines.append(f"{indent}return {expressions.text(statement.value)}")
        elif isinstance(statement, ast.If):
            lines.append(f"{indent}if {expressions.text(statement.test)}:")
            lines += _block(expressions, statement.body, depth + 1)
        elif isinstance(statement, ast.For):
            lines.append(f"{indent}for _ in tl.static_range({turns(statement)}):")
            lines += _block(expressions, statement.body, depth + 1)
        elif isinstance(statement, ast.While):
            # (a reduction in the loop's head is more than some Tritons can lay out)
            test = f"more = {expressions.text(statement.test)}"
            lines += [f"{indent}{test}", f"{indent}while more:"]
            lines += [*_block(expressions, statement.body, depth + 1), f"{indent}    {test}"]
        elif not isinstance(statement, ast.Expr):  # (a docstring)
            raise NotImplementedError(
                f"a function of loop bodies cannot say {ast.unparse(statement)}"
            )
    return lines


@cache
def helpers() -> Mapping[str, tuple[tuple[str, ...], str]]:
    """Every function as a helper: the names of those that it calls, and its text."""
    found = {}
    for function in FUNCTIONS.values():
        text = _definition(function)
        own = [h for h in ("dv_trunc", "dv_round") if f"{h}(" in text]
        callees = tuple(f"dv_{name}" for name in function.callees)
        found[f"dv_{function.name}"] = ((*own, *callees), text)
    return found
