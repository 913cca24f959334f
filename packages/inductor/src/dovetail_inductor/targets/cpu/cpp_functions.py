"""Scalar functions that loop, as C++ over one number or over the lanes of a vector."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence
from functools import cache

from dovetail_inductor.loop_ir.function_text import Expressions, turns
from dovetail_inductor.loop_ir.functions import FUNCTIONS, with_callees
from dovetail_inductor.loop_ir.functions.function import Function
from dovetail_inductor.targets.cpu.syntax import literal

_CALLS = {"pow": "float_pow", "some": "some"}  # others as their op with `_` behind


class _Cpp:
    def number(self, value: float) -> str:
        import torch

        return literal(value, torch.float64)

    def compare(self, left: str, operator: str, right: str) -> str:
        return f"({left} {operator} {right})"

    def invert(self, operand: str) -> str:
        return f"({operand} == 0)"

    def call(self, name: str, arguments: Sequence[str], numbers: Sequence[float | None]) -> str:
        if name == "like":
            return f"full<X>({arguments[1]})"
        if name == "where":
            condition, *choices = arguments
            given = zip(choices, numbers[1:], strict=True)
            choices = [c if n is None else f"full<X>({c})" for c, n in given]
            return f"({condition} ? {' : '.join(choices)})"
        if name in FUNCTIONS:
            return f"dv_{name}({', '.join(arguments)})"
        return f"{_CALLS.get(name, f'{name}_')}({', '.join(arguments)})"


@cache
def source_of(names: frozenset[str]) -> str:
    """These functions, with what they call."""
    return "\n".join([_SOME, *(_definition(f) for f in with_callees(set(names)))])


# Truths are what comparisons of float64 give: a bool (or an int), or -1 and 0 in lanes.
_SOME = """\
template <class M> DV bool some(M m) {
  if constexpr (sizeof(M) <= 4) return m;
  else {
#ifdef __AVX512DQ__
    if constexpr (sizeof(M) == 64)
      return __builtin_ia32_cvtq2mask512(bits<V<long long, 8>>(m)) != 0;
#endif
#ifdef __AVX__
    if constexpr (sizeof(M) == 32) {
      const auto v = bits<V<long long, 4>>(m);
      return !__builtin_ia32_ptestz256(v, v);
    }
#endif
    int64_t r = 0;
    for (int i = 0; i < lanes<M>; ++i) r |= m[i];
    return r != 0;
  }
}"""


def _definition(function: Function) -> str:
    tree = function.tree()
    names = [a.arg for a in tree.args.args]
    kinds = ["double" if n == "limit" else "X" for n in names]
    head = ", ".join(f"{kind} {name}" for kind, name in zip(kinds, names, strict=True))
    lines = _Statements(Expressions(function, _Cpp())).block(tree.body, set(names))
    body = textwrap.indent("\n".join(lines), "  ")
    return (
        "template <class X> __attribute__((noinline, unused))\n"
        f"static X dv_{function.name}({head}) {{\n{body}\n}}"
    )


class _Statements:
    def __init__(self, expressions: Expressions) -> None:
        self.expressions = expressions

    def block(self, body: Sequence[ast.stmt], known: set[str]) -> list[str]:
        """Statements where these names have values; it is told of new ones."""
        lines: list[str] = []
        for statement in body:
            lines += self._statement(statement, known)
        return lines

    def _statement(self, statement: ast.stmt, known: set[str]) -> list[str]:
        text = self.expressions.text
        if isinstance(statement, ast.Assign):
            (target,) = statement.targets
            assert isinstance(target, ast.Name)
            declared = "" if target.id in known else "auto "
            known.add(target.id)
            value = text(statement.value)
            return [f"{declared}{target.id} = {value};"]
        if isinstance(statement, ast.Return):
            assert statement.value is not None
            return [f"return {text(statement.value)};"]
        if isinstance(statement, ast.While | ast.If):
            word = "while" if isinstance(statement, ast.While) else "if"
            inner = self.block(statement.body, set(known))
            lines = [f"{word} ({text(statement.test)}) {{", *(f"  {n}" for n in inner), "}"]
            return lines
        if isinstance(statement, ast.For):
            inner = self.block(statement.body, set(known))
            head = f"for (int turn = 0; turn < {turns(statement)}; ++turn) {{"
            return [head, *(f"  {n}" for n in inner), "}"]
        if isinstance(statement, ast.Expr):
            return []  # a docstring
        raise NotImplementedError(f"a function of loop bodies cannot say {ast.unparse(statement)}")
