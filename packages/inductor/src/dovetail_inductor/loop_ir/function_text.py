"""What the printers of scalar functions share: a walk over a function's statements."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, Protocol

from dovetail_inductor.loop_ir.functions.function import Function

OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.BitAnd: "&", ast.BitOr: "|",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.USub: "-", ast.Invert: "~",
}  # fmt: skip
NUMBERS = {"INFINITY": float("inf"), "NAN": float("nan")}


class Spelling(Protocol):
    """How a target writes the parts of an expression."""

    def number(self, value: float) -> str:
        """A number in arithmetic."""
        ...

    def compare(self, left: str, operator: str, right: str) -> str:
        """A truth."""
        ...

    def invert(self, operand: str) -> str:
        """The opposite of a truth."""
        ...

    def call(self, name: str, arguments: Sequence[str], numbers: Sequence[float | None]) -> str:
        """A call; `numbers` has the values of arguments that are numbers."""
        ...


class Expressions:
    """The expressions of one function, written as a target spells them."""

    def __init__(self, function: Function, spelling: Spelling) -> None:
        self.spelling = spelling
        self.tables = {**NUMBERS, **function.tables()}

    def text(self, node: ast.expr) -> str:
        """One expression. Raises NotImplementedError for what is not of the language."""
        number = self.value(node)
        if number is not None:
            return self.spelling.number(number)
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.BinOp):
            operator = OPERATORS[type(node.op)]
            return f"({self.text(node.left)} {operator} {self.text(node.right)})"
        if isinstance(node, ast.UnaryOp):
            operand = self.text(node.operand)
            if isinstance(node.op, ast.Invert):
                return self.spelling.invert(operand)
            return f"({OPERATORS[type(node.op)]}{operand})"
        if isinstance(node, ast.Compare):
            (how,), (right,) = node.ops, node.comparators
            return self.spelling.compare(
                self.text(node.left), OPERATORS[type(how)], self.text(right)
            )
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._call(node.func.id, node.args)
        raise NotImplementedError(f"a function of loop bodies cannot say {ast.unparse(node)}")

    def value(self, node: ast.expr) -> float | None:
        """The number that an expression is, if it is one."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return float(node.value)
        if isinstance(node, ast.Name):
            found = self.tables.get(node.id)
            return found if isinstance(found, float) else None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.value(node.operand)
            return None if inner is None else -inner
        return None

    def _call(self, name: str, arguments: list[ast.expr]) -> str:
        if name in ("horner", "nested"):
            *variables, table = arguments
            assert isinstance(table, ast.Name)
            texts = [self.text(v) for v in variables]
            return self._horner(self.tables[table.id], *texts)
        numbers = [self.value(a) for a in arguments]
        return self.spelling.call(name, [self.text(a) for a in arguments], numbers)

    def _horner(self, powers: Sequence[Any], x: str, *inner: str) -> str:
        """A polynomial, from its highest power down"""

        def coefficient(power: Any) -> str:
            if inner:
                return self._horner(power, *inner)
            return self.spelling.number(power)

        text = coefficient(powers[-1])
        for power in reversed(powers[:-1]):
            text = f"({text} * {x} + {coefficient(power)})"
        return text


def turns(loop: ast.For) -> int:
    """How often a loop over a range of a known length runs. Raises NotImplementedError for any
    other loop."""
    over = loop.iter
    if isinstance(over, ast.Call) and ast.unparse(over.func) == "range" and len(over.args) == 1:
        (count,) = over.args
        if isinstance(count, ast.Constant) and isinstance(count.value, int):
            return count.value
    raise NotImplementedError(f"a function of loop bodies cannot loop over {ast.unparse(over)}")
