"""torch.compile's symbolic sizes as ours: what its front end hands to a backend, made to stand over
a `ShapeEnv` of Dovetail, and the decisions of our compiler as guards of torch's.

torch's SymInts answer arithmetic and comparisons, and a comparison whose truth is asked for becomes
a guard of the frame that torch.compile is capturing. Nothing else of torch's shape environment is
used but the names, hints and ranges that its symbols tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from dovetail_guards import expr as e
from dovetail_guards.clauses import ShapeRelation
from dovetail_guards.ranges import Range
from dovetail_guards.shape_env import Dim, ShapeEnv
from dovetail_guards.source import LocalSource
from dovetail_prims.fake.from_real import from_real
from torch import Tensor
from torch.fx import GraphModule, Node

_INF = float("inf")
# torch's own functions of whole numbers, and sympy's, by the names of their classes.
_FUNCTIONS: Mapping[str, Callable[..., e.Expr]] = {
    "Add": lambda *args: sum(args, e.ZERO),
    "Mul": lambda first, *others: _product(first, others),
    "FloorDiv": e.floordiv,
    "CleanDiv": e.floordiv,
    "CeilDiv": lambda a, b: -e.floordiv(-a, b),
    "Mod": e.mod,
    "PythonMod": e.mod,
    "ModularIndexing": lambda base, divisor, modulus: e.mod(e.floordiv(base, divisor), modulus),
    "Min": e.min_,
    "Max": e.max_,
}


def _product(first: e.Expr, others: Sequence[e.Expr]) -> e.Expr:
    for other in others:
        first = first * other
    return first


@dataclass(frozen=True)
class ForeignSizes:
    """The symbols of a graph that torch.compile captured, here (`env`) and there (`theirs`, by the
    names that they have here)."""

    env: ShapeEnv = field(default_factory=ShapeEnv)
    theirs: dict[str, Any] = field(default_factory=dict)
    _ours: dict[str, e.Expr] = field(default_factory=dict)  # by torch's names

    def tell_guards(self) -> None:
        """Let torch.compile guard what was decided about sizes here; nothing new may be decided
        from then on."""
        for clause in self.env.clauses():
            if isinstance(clause, ShapeRelation) and not clause.expr.evaluate(self.theirs):
                raise RuntimeError(f"{clause.expr} does not hold for torch.compile's sizes")
        self.env.freeze()

    def add(self, size: torch.SymInt) -> None:
        """Make a symbol for one of torch's, unless there is one or `size` is more than that."""
        name = str(size.node.expr)
        if not size.node.expr.is_Symbol or name in self._ours:
            return
        bounds = _range_of(size)
        source = LocalSource(name)
        hint = size.node.hint
        if hint is None:
            made = self.env.create_unbacked(bounds)
        elif bounds.lower >= 0:
            made = self.env.create_size(int(hint), source, Dim.DYNAMIC, bounds)
        else:
            made = self.env.create_int(int(hint), source)
        if made.value is not None:
            int(size)  # torch's symbol becomes a constant, too
        else:
            assert made.symbol_name is not None
            self.theirs[made.symbol_name] = size
        self._ours[name] = made

    def size(self, size: Any) -> Any:
        """A size of torch's as a number or a SymInt of ours. What cannot be written in our
        expressions becomes a constant, there too."""
        if not isinstance(size, torch.SymInt):
            return size
        try:
            return self.env.symint(self._expression(size.node.expr))
        except _Unknown:
            return int(size)

    def _expression(self, value: Any) -> e.Expr:
        """A sympy expression of torch's as one of ours."""
        if value.is_Integer:
            return e.constant(int(value))
        if value.is_Symbol:
            if value.name not in self._ours:
                raise _Unknown(value.name)
            return self._ours[value.name]
        kind = type(value).__name__
        if kind in ("Pow", "PowByNatural") and value.args[1].is_Integer and value.args[1] >= 0:
            return e.power_of(self._expression(value.args[0]), int(value.args[1]))
        if kind not in _FUNCTIONS:
            raise _Unknown(kind)
        return _FUNCTIONS[kind](*map(self._expression, value.args))


class _Unknown(Exception):
    """No expression of ours says this."""


def adopt_sizes(gm: GraphModule, examples: Sequence[Any]) -> tuple[ForeignSizes, list[Any]] | None:
    """Give a graph of torch.compile's the values that stand for its symbolic inputs here, in
    `meta["val"]`, and return them with examples of one size; None if no input is symbolic.

    `examples` are the inputs of the call: tensors with their sizes, and torch's symbolic numbers.
    """
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    found = [_symbolic_value(node, example) for node, example in zip(inputs, examples, strict=True)]
    if all(value is None for value in found):
        return None
    sizes = ForeignSizes()
    for value in found:
        for size in _sizes_in(value):
            sizes.add(size)
    plain = list(examples)
    for position, (node, value) in enumerate(zip(inputs, found, strict=True)):
        if isinstance(value, torch.SymInt):
            node.meta["val"] = sizes.size(value)
            if value.node.hint is not None:
                plain[position] = int(value.node.hint)
        elif isinstance(value, Tensor):
            shape = [sizes.size(size) for size in value.shape]
            strides = tuple(sizes.size(stride) for stride in value.stride())
            node.meta["val"] = from_real(examples[position], sizes=shape, strides=strides)
    return sizes, plain


def _symbolic_value(node: Node, example: Any) -> Any:
    """What torch.compile knows of an input, if it holds a symbolic size."""
    value = node.meta.get("example_value") if isinstance(example, Tensor) else example
    return value if any(True for _ in _sizes_in(value)) else None


def _sizes_in(value: Any) -> Iterator[torch.SymInt]:
    """The symbolic sizes and strides of a tensor, or the symbolic number."""
    if isinstance(value, torch.SymInt):
        yield value
    elif isinstance(value, Tensor) and value.layout is torch.strided:
        yield from (s for s in (*value.shape, *value.stride()) if isinstance(s, torch.SymInt))


def _range_of(size: torch.SymInt) -> Range:
    theirs: Any = size.node.shape_env
    known = theirs.var_to_range.get(size.node.expr)
    if known is None:
        return Range()
    lower = int(known.lower) if known.lower.is_Integer else -_INF
    upper = int(known.upper) if known.upper.is_Integer else _INF
    return Range(lower, upper)
