"""What numbers a value may be, as far as that follows from how it is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, inf, isfinite

import torch

from dovetail_inductor.loop_ir.expr import Apply, Builder, Constant, Expr, IndexValue, walk
from dovetail_inductor.loop_ir.index import FloorDiv, Index, Mod
from dovetail_inductor.loop_ir.loops import LoopNest, Node
from dovetail_inductor.loop_ir.sizes import any_symbolic

Range = tuple[float, float]  # the least and the greatest number that a value may be
ANY: Range = (-(2**64), 2**64)  # of an integer
UNKNOWN: Range = (-inf, inf)  # of a float, which may be a NaN, too
MOST_WRITERS = 50  # of values made of one another that are looked through
_ERROR = 2.0**-22  # more than what an operation rounds by, of its result


def _product(x: Range, y: Range) -> Range:
    ends = [a * b for a in x for b in y]
    return min(ends), max(ends)


_RANGES: Mapping[str, Callable[..., Range]] = {
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "mul": _product,
    "minimum": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "maximum": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "relu": lambda x: (max(x[0], 0), max(x[1], 0)),
    "neg": lambda x: (-x[1], -x[0]),
    "abs": lambda x: (max(x[0], -x[1], 0), max(-x[0], x[1])),
    "floor": lambda x: (x[0] - 1, x[1]),
    "where": lambda holds, x, y: (min(x[0], y[0]), max(x[1], y[1])),
    "remainder": lambda x, y: (0, y[1] - 1) if y[0] > 0 else ANY,
    "floordiv": lambda x, y: (x[0] // y[0], x[1] // y[0]) if 0 < y[0] == y[1] else ANY,
    "shift_right": lambda x, y: (x[0] >> y[0], x[1] >> y[0]) if 0 <= y[0] == y[1] else ANY,
    "cast": lambda x: x,
}


def value_range(
    builder: Builder, expr: Expr, nodes: Sequence[Node] = (), writers: int = 0
) -> Range:
    """What numbers a value may be, in memory, too, as far as `nodes` write it: it is that of
    `writers` others already."""
    for node in walk([expr], builder.ranges):
        low, high = _range_of(builder, node, nodes, writers)
        if node.dtype.is_floating_point:
            found = (low - abs(low) * _ERROR, high + abs(high) * _ERROR)
            most = torch.finfo(node.dtype).max
            found = found if -most < found[0] <= found[1] < most else UNKNOWN
        elif node.dtype is torch.bool:
            found = (0, 1)
        else:
            info = torch.iinfo(node.dtype)
            fits = info.min <= low <= high <= info.max  # (else it wraps around)
            found = (floor(low), ceil(high)) if fits else (info.min, info.max)
        builder.ranges[node.uid] = found
    return builder.ranges[expr.uid]


def _range_of(builder: Builder, node: Expr, nodes: Sequence[Node], writers: int) -> Range:
    unknown = UNKNOWN if node.dtype.is_floating_point else ANY
    if isinstance(node, Constant):
        return (node.value, node.value) if isfinite(node.value) else unknown
    if isinstance(node, IndexValue):
        return ANY if any_symbolic(node.index.bounds) else node.index.bounds
    if isinstance(node, Apply):
        if node.check is not None:
            return ANY if any_symbolic((node.check.size,)) else (0, node.check.size - 1)
        known, own = _RANGES.get(node.op), [builder.ranges[a.uid] for a in node.args]
        return unknown if known is None or UNKNOWN in own else known(*own)
    nests = (n for n in reversed(nodes) if isinstance(n, LoopNest) and n.buffer == node.buffer)
    nest = next(nests, None)
    if nest is None or nest.scan or nest.scatter or nest.reduction or writers == MOST_WRITERS:
        return unknown
    low, high = value_range(builder, nest.body, nodes, writers + 1)
    return (low, high) if node.mask is None else (min(low, 0), max(high, 0))


def fits_int32(index: Index) -> bool:
    """Whether an index, and all that it is a sum of, lies within 32 bits."""
    numbers = (n for atom, step in index.terms for n in (step, *atom.bounds))
    if any_symbolic((index.const, *numbers)):
        return False
    inner = (atom.inner for atom, _ in index.terms if isinstance(atom, FloorDiv | Mod))
    far = sum(abs(step) * max(map(abs, atom.bounds)) for atom, step in index.terms)
    return abs(index.const) + far < 2**31 and all(map(fits_int32, inner))
