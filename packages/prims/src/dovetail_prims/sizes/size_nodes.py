"""Graph nodes for symbolic sizes.

A symbolic size is an expression over symbols. Its node is found (an input's size, or a node made
before) or built: arithmetic over the nodes of its symbols.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, LiteralString, get_args

import torch
from dovetail_guards.expr import Atom, Expr, symbol
from dovetail_guards.float_expr import INPUT, FloatExpr
from dovetail_guards.relations import BoolExpr
from dovetail_guards.shape_env import ShapeEnv
from dovetail_guards.sym_node import SymNode
from torch.fx import Graph, Node
from torch.fx.node import has_side_effect

from dovetail_prims.node_facts import CHECKED


@has_side_effect
def check(condition: Any, message: str = "") -> None:
    """`torch._check`: raises RuntimeError with `message` where `condition` does not hold."""
    torch._check(condition, (lambda: message) if message else None)


def _takes_text() -> bool:
    """By its annotations: a call would import sympy, a second of each process's start."""
    kinds = get_args(torch._check.__annotations__.get("message"))
    return LiteralString in kinds or str in kinds


STATE = torch._check if _takes_text() else check
"""The target of the node that states a condition."""

STATES = (torch._check, check)
"""The targets that state one, in graphs that others made, too."""


_NAMES = ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "exp",
          "log", "log2")  # fmt: skip


def _of_numbers(name: str) -> Callable[[Any], Any]:
    plain: Callable[[float], float] = getattr(math, name)

    def function(value: Any) -> Any:
        if isinstance(value, torch.SymInt):
            value = torch.sym_float(value)
        if not isinstance(value, torch.SymFloat):
            return plain(value)
        node: Any = value.node
        return torch.SymFloat(getattr(node, f"sym_{name}")())

    function.__name__ = function.__qualname__ = f"number_{name}"
    function.__doc__ = f"`math.{name}`, also of a symbolic number."
    return function


NUMBER_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {name: _of_numbers(name) for name in _NAMES}
"""By the name that the function has in `math`."""

globals().update({f"number_{name}": function for name, function in NUMBER_FUNCTIONS.items()})


aten = torch.ops.aten

_FLOAT_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "float": torch.sym_float, "truediv": operator.truediv, "add": operator.add,
    "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod,
    "pow": operator.pow, "neg": operator.neg, "pos": operator.pos, "abs": operator.abs,
    "min": torch.sym_min, "max": torch.sym_max,
    **NUMBER_FUNCTIONS,
}  # fmt: skip
_ATOM_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": torch.sym_min,
    "max": torch.sym_max,
}


@dataclass(frozen=True)
class _Place:
    """Where a size can be read: the dimension `dim` of a tensor `node`, whose fake `val` had these
    `sizes` when it was made."""

    node: Node
    dim: int
    val: Any
    sizes: tuple[Any, ...]

    def before_changes(self, graph: Graph) -> AbstractContextManager[Any]:
        """Insert nodes where the tensor has these sizes: at the end, or, if something that was
        called has changed them in place (`t_`), at the beginning."""
        if self.val._sizes is self.sizes:
            return nullcontext()
        last = self.node
        while last.next.op == "placeholder":
            last = last.next
        return graph.inserting_after(last)


class SizeNodes:
    """Finds or makes the node that computes a symbolic size from the graph's inputs."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._nodes: dict[Any, Node] = {}  # by expression
        self._inputs: dict[Any, _Place] = {}  # by expression

    def bind(self, size: Any, node: Node) -> None:
        """`node` computes `size`."""
        self._nodes.setdefault(_node_of(size).expr, node)

    def bind_sizes(self, placeholder: Node, val: Any) -> None:
        """Remember where each symbolic size of a tensor input can be read."""
        for dim, size in enumerate(val._sizes):
            if isinstance(size, torch.SymInt):
                place = _Place(placeholder, dim, val, val._sizes)
                self._inputs.setdefault(_node_of(size).expr, place)

    def can_compute(self, size: Any) -> bool:
        """Whether every symbol of a number can be read off what the graph holds."""
        symbolic = _node_of(size)
        expr = symbolic.expr
        if not isinstance(expr, (Expr, BoolExpr, FloatExpr)) or expr in self._nodes:
            return True
        for name in expr.free_symbols() & symbolic.env.unbacked:
            known = symbol(name)
            leaf = FloatExpr(INPUT, (known,))
            if known not in self._nodes and known not in self._inputs and leaf not in self._nodes:
                return False
        return True

    def mark_checked(self, env: ShapeEnv) -> None:
        """Keep the nodes that the symbols of stated relations come from (`meta["checked"]`)."""
        names = {name for check in env.checks for name in check.relation.free_symbols()}
        for name in names & env.unbacked:
            known = symbol(name)
            node = self._nodes.get(known, self._nodes.get(FloatExpr(INPUT, (known,))))
            if known in self._inputs:
                node = self._inputs[known].node
            if node is not None:
                CHECKED.tell(node, True)

    def node(self, size: Any) -> Any:
        """The node for a SymInt or SymFloat; a plain number if it has become one."""
        symbolic = _node_of(size)
        expr = symbolic.expr
        if isinstance(expr, Expr):
            return self._integer(symbolic, symbolic.env.replace(expr))
        if isinstance(expr, FloatExpr):
            return self._float(symbolic, expr.replace(symbolic.env.replace))
        if not isinstance(expr, BoolExpr):
            return expr
        return self._truth(symbolic, expr)

    def _truth(self, like: SymNode, expr: BoolExpr) -> Any:
        """The node for a relation between sizes."""
        if expr.value is not None:
            return expr.value
        known = self._nodes.get(expr)
        if known is not None:
            return known
        if expr.kind in ("eq", "le"):
            side = self._integer(like, like.env.replace(expr.args[0]))
            made = self._call(operator.eq if expr.kind == "eq" else operator.le, side, 0)
        elif expr.kind == "not":
            made = self._call(torch.sym_not, self._truth(like, expr.args[0]))
        else:
            function = operator.and_ if expr.kind == "and" else operator.or_
            made = self._truth(like, expr.args[0])
            for part in expr.args[1:]:
                made = self._call(function, made, self._truth(like, part))
        self._nodes[expr] = made
        return made

    def _integer(self, like: SymNode, expr: Expr) -> Any:
        if expr.value is not None:
            return expr.value
        known = self._find(like, expr)
        if known is not None:
            return known
        total: Any = None
        for monomial, coefficient in expr.terms:
            product: Any = None if coefficient == 1 and monomial else coefficient
            for atom, power in monomial:
                factor = self._atom(like, atom)
                for _ in range(power):
                    product = (
                        factor if product is None else self._call(operator.mul, product, factor)
                    )
            total = product if total is None else self._call(operator.add, total, product)
        self._nodes[expr] = total
        return total

    def _find(self, like: SymNode, expr: Expr) -> Node | None:
        known = self._nodes.get(expr)
        if known is not None:
            return known
        where = self._inputs.get(expr)
        if where is None:
            # An input's size may have been found equal to another expression since.
            for bound, node in self._nodes.items():
                if isinstance(bound, Expr) and like.env.replace(bound) is expr:
                    self._nodes[expr] = node
                    return node
            for bound, place in self._inputs.items():
                if like.env.replace(bound) is expr:
                    where = place
        if where is None:
            return None
        with where.before_changes(self.graph):
            node = self.graph.call_function(aten.sym_size.int, (where.node, where.dim))
        node.meta["val"] = where.sizes[where.dim]
        self._nodes[expr] = node
        return node

    def _atom(self, like: SymNode, atom: Atom) -> Any:
        if atom.kind == "sym":
            node = self._find(like, symbol(atom.name))
            if node is None:
                raise RuntimeError(f"no input of the graph has the size {atom.name}")
            return node
        args = [self._integer(like, arg) for arg in atom.args]
        function = _ATOM_FUNCTIONS[atom.kind]
        result = args[0]
        for arg in args[1:]:
            result = self._call(function, result, arg)
        return result

    def _float(self, like: SymNode, expr: Any) -> Any:
        if isinstance(expr, (int, float)):
            return expr
        if isinstance(expr, Expr):
            return self._integer(like, like.env.replace(expr))
        known = self._nodes.get(expr)
        if known is None:
            function = _FLOAT_FUNCTIONS.get(expr.op)
            if function is None:
                raise NotImplementedError(f"the symbolic number {expr} as an operator's argument")
            known = self._call(function, *[self._float(like, arg) for arg in expr.args])
            self._nodes[expr] = known
        return known

    def _call(self, function: Callable[..., Any], *args: Any) -> Node:
        node = self.graph.call_function(function, args)
        run = power_of_floats if function is operator.pow else function
        node.meta["val"] = run(*[a.meta["val"] if isinstance(a, Node) else a for a in args])
        return node


def power_of_floats(left: Any, right: Any) -> Any:
    """`left ** right` where one is a symbolic float, for `left >= 0`: torch's own operator would
    check that once more, by what loads half of torch.fx."""
    if isinstance(left, (int, float)):
        return right.__rfloat_pow__(left)
    return torch.sym_float(left).__float_pow__(right)


def _node_of(size: Any) -> SymNode:
    node = size.node
    if not isinstance(node, SymNode):
        raise TypeError(f"a symbolic size of another system: {type(node).__name__}")
    return node
