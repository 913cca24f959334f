"""The emitter of functions of scores: as of the bodies of loops, in fewer instructions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dovetail_inductor.loop_ir.expr import Apply, Expr, IndexValue
from dovetail_inductor.loop_ir.index import Index, Var
from dovetail_inductor.targets.cuda.body import BodyEmitter

_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


@dataclass
class ScoreEmitter(BodyEmitter):
    """Emits what is made of a score: variables have names of their own. Places are compared and
    converted in 32 bits (`short` has them by their names in 64), and what goes into an exponent
    needs no last digit."""

    names: Mapping[int, str] = field(default_factory=dict)
    short: dict[str, str] = field(default_factory=dict)

    def index_value(self, index: Index, dtype: torch.dtype, read: Callable[[Expr], str]) -> str:
        if self.wide or dtype is not torch.int64 or index.indirects():
            return super().index_value(index, dtype, read)
        low, high = index.bounds
        if not -(2**31) <= low <= high < 2**31:
            return super().index_value(index, dtype, read)
        place = self.lines.define(f"({self.index(index, read)})", "place")
        name = self.lines.define(f"{place}.to(tl.int64)")
        self.short[name] = place
        return name

    def apply(self, op: str, args: Sequence[str], expr: Apply) -> str:
        cast = op == "cast" and expr.dtype.is_floating_point
        if (op in _COMPARISONS or cast) and any(isinstance(a, IndexValue) for a in expr.args):
            args = [self.short.get(arg, arg) for arg in args]
        if op in ("div", "reciprocal") and expr.dtype is torch.float32:
            return self.lines.define(
                f"({args[0]} / {args[1]})" if op == "div" else f"(1.0 / {args[0]})"
            )
        if op == "tanh" and expr.dtype is torch.float32:
            self.use("dv_tanh_rough")
            return self.lines.define(f"dv_tanh_rough({args[0]})")
        return super().apply(op, args, expr)

    def _atom(self, atom: Any, read: Callable[[Expr], str]) -> str:
        return self.names[atom.id] if isinstance(atom, Var) else super()._atom(atom, read)


__all__ = ["ScoreEmitter"]
