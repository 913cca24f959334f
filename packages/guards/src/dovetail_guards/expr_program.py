"""Compiles expressions to the small stack program that the native check runs."""

from __future__ import annotations

from dovetail_guards.expr import Atom, Expr
from dovetail_guards.relations import BoolExpr

# The numbers of `Op` in csrc/relation.h.
PUSH, SYMBOL, ADD, MUL, FLOORDIV, MOD, MIN, MAX, EQ, NE, LT, LE, AND, OR, NOT = range(15)
_ATOMS = {"floordiv": FLOORDIV, "mod": MOD, "min": MIN, "max": MAX}
_EFFECT = {PUSH: 1, SYMBOL: 1, NOT: 0}  # all others take two and give one

Code = list[tuple[int, int]]


def compile_program(
    expr: Expr | BoolExpr, names: tuple[str, ...]
) -> tuple[tuple[tuple[int, int], ...], int]:
    """(instructions, deepest stack); KeyError-free: every free symbol must be in `names`."""
    missing = expr.free_symbols() - set(names)
    if missing:
        raise ValueError(f"symbols without a source: {', '.join(sorted(missing))}")
    code: Code = []
    if isinstance(expr, Expr):
        _integer(expr, names, code)
    else:
        _boolean(expr, names, code)
    if any(not -(2**63) < argument < 2**63 for _, argument in code):
        raise OverflowError(f"a number in {expr} does not fit 64 bits")
    depth = deepest = 0
    for op, _ in code:
        depth += _EFFECT.get(op, -1)
        deepest = max(deepest, depth)
    return tuple(code), deepest


def _atom(atom: Atom, names: tuple[str, ...], code: Code) -> None:
    if atom.kind == "sym":
        code.append((SYMBOL, names.index(atom.name)))
        return
    for i, arg in enumerate(atom.args):
        _integer(arg, names, code)
        if i:
            code.append((_ATOMS[atom.kind], 0))


def _integer(expr: Expr, names: tuple[str, ...], code: Code) -> None:
    if not expr.terms:
        code.append((PUSH, 0))
    for i, (monomial, coefficient) in enumerate(expr.terms):
        pushed = coefficient != 1 or not monomial
        if pushed:
            code.append((PUSH, coefficient))
        for atom, power in monomial:
            for _ in range(power):
                _atom(atom, names, code)
                if pushed:
                    code.append((MUL, 0))
                pushed = True
        if i:
            code.append((ADD, 0))


def _boolean(expr: BoolExpr, names: tuple[str, ...], code: Code) -> None:
    match expr.kind:
        case "true" | "false":
            code.append((PUSH, int(expr.kind == "true")))
        case "eq" | "le":
            _integer(expr.args[0], names, code)
            code.append((PUSH, 0))
            code.append((EQ if expr.kind == "eq" else LE, 0))
        case "not":
            _boolean(expr.args[0], names, code)
            code.append((NOT, 0))
        case _:
            for i, arg in enumerate(expr.args):
                _boolean(arg, names, code)
                if i:
                    code.append((AND if expr.kind == "and" else OR, 0))
