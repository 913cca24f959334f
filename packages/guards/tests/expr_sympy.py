"""Expressions to and from sympy, which ours are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
from dovetail_guards import expr as e
from dovetail_guards import relations as rel


def to_sympy(expr: e.Expr | rel.BoolExpr) -> Any:
    """The expression in sympy: integer symbols, `floor`, `Mod`, `Min`, `Max`."""
    if isinstance(expr, rel.BoolExpr):
        args = [to_sympy(arg) for arg in expr.args]
        match expr.kind:
            case "eq":
                return sympy.Eq(args[0], 0)
            case "le":
                return sympy.Le(args[0], 0)
            case "and":
                return sympy.And(*args)
            case "or":
                return sympy.Or(*args)
            case "not":
                return sympy.Not(args[0])
        return sympy.true if expr.kind == "true" else sympy.false
    total = sympy.Integer(0)
    for monomial, coefficient in expr.terms:
        product = sympy.Integer(coefficient)
        for atom, power in monomial:
            product *= _atom_to_sympy(atom) ** power
        total += product
    return total


def _atom_to_sympy(atom: e.Atom) -> Any:
    args = [to_sympy(arg) for arg in atom.args]
    match atom.kind:
        case "sym":
            return sympy.Symbol(atom.name, integer=True)
        case "floordiv":
            return sympy.floor(args[0] / args[1])
        case "mod":
            return sympy.Mod(args[0], args[1])
        case "min":
            return sympy.Min(*args)
    return sympy.Max(*args)


def from_sympy(value: Any) -> Any:
    """An `Expr` or `BoolExpr` from sympy; ValueError for what is no integer expression."""
    if value is sympy.true or value is sympy.false:
        return rel.TRUE if value is sympy.true else rel.FALSE
    if value.is_Integer:
        return e.constant(int(value))
    if value.is_Symbol:
        return e.symbol(value.name)
    if isinstance(value, sympy.floor):
        numerator, denominator = sympy.fraction(sympy.together(value.args[0]))
        return from_sympy(numerator) // from_sympy(denominator)
    if value.is_Pow and value.exp.is_Integer and int(value.exp) >= 0:
        return e.power_of(from_sympy(value.base), int(value.exp))
    if value.is_Pow:
        raise ValueError(f"no integer expression: {value}")
    make = _operations().get(value.func)
    if make is None:
        raise ValueError(f"no integer expression: {value}")
    return make(*(from_sympy(arg) for arg in value.args))


def _operations() -> dict[Any, Callable[..., Any]]:
    def add(*args: e.Expr) -> e.Expr:
        return sum(args, e.ZERO)

    def mul(*args: e.Expr) -> e.Expr:
        product = e.ONE
        for arg in args:
            product = product * arg
        return product

    return {
        sympy.Add: add,
        sympy.Mul: mul,
        sympy.Mod: e.mod,
        sympy.Min: e.min_,
        sympy.Max: e.max_,
        sympy.Eq: rel.eq,
        sympy.Ne: rel.ne,
        sympy.Le: rel.le,
        sympy.Lt: rel.lt,
        sympy.Ge: rel.ge,
        sympy.Gt: rel.gt,
        sympy.And: rel.and_,
        sympy.Or: rel.or_,
        sympy.Not: rel.not_,
    }
