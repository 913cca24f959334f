"""The pass `split_reductions`: reductions to few results in two stages.

A sum of a million elements to one would run on one core, and its rounding errors would pile up in
a few accumulators. So: first each of `parts` pieces of the reduced range to a result of its own,
then the pieces' results. What a variance sums, squares of distances from a mean, is cut so that the
elements are read once: each piece sums squares of distances from its own mean, which is known when
its elements have just been read (Chan, Golub and LeVeque, "Algorithms for Computing the Sample
Variance", 1983). So is what a softmax sums: each piece sums powers of distances from its own
largest element (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import torch

from dovetail_inductor.loop_ir.expr import Apply, Builder, Expr, Load, walk
from dovetail_inductor.loop_ir.index import Var, variable
from dovetail_inductor.loop_ir.loops import Buffer, LoopGraph, LoopNest, Node
from dovetail_inductor.loop_ir.sizes import hint_of
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.scheduler.loops import piece_index, replace_vars
from dovetail_inductor.scheduler.two_stages import (
    Cut,
    cut_unevenly,
    divisor,
    split_position,
    two_stages,
)
from dovetail_inductor.targets.target import SplitRule

# Of one result: the second stage is to be short.
MAX_PARTS = 256
MAX_ROWS = 1 << 16  # the same where pieces are rows that are in registers anyway


def split_reductions(graph: LoopGraph, options: InductorOptions) -> LoopGraph:
    """Split where it gives parallel work. Needs affine loops (after `split_divisions`)."""
    if not options.split_reductions:
        return graph
    buffers = dict(graph.buffers)
    nodes: list[Node] = []
    sums: dict[Expr, Cut] = {}  # sums that were cut, by what they add up in the first stage
    maxima: dict[str, tuple[LoopNest, Cut]] = {}  # reductions that were cut, by their buffers
    twice = _read_twice(graph)
    reduced: set[str] = set()  # one result a row, and what is computed of such alone
    for node in graph.nodes:
        if not isinstance(node, LoopNest):
            nodes.append(node)
            continue
        scheduling = options.target_of(buffers[node.buffer].device).scheduling
        rule = scheduling.split
        by_rows = _whole_rows(node, rule, reduced)
        if by_rows is not None:
            nodes += two_stages(graph.builder, node, by_rows, buffers)
            continue
        if node.reduction is not None or _of_rows(node, reduced, buffers):
            reduced.add(node.buffer)
        if node.is_sum:
            node = _as_its_maximum(graph.builder, node, maxima)
        pieces_to_keep = node.body in twice and _exceeds_cache(node, rule, buffers)
        short = _short_loop(node, rule, buffers)
        wants = pieces_to_keep or short is not None or _wants_split(node, rule)
        if node.is_symbolic and (node.with_index or not scheduling.splits_symbolic):
            wants = False  # positions would need the pieces' sizes
        if wants and node.with_index:
            nodes += split_position(graph.builder, node, _wanted_parts(node, rule), buffers)
            continue
        cut = _cut(graph.builder, node, rule, pieces_to_keep, short) if wants else None
        if cut is None:
            nodes.append(node)
            continue
        pieces = two_stages(graph.builder, node, cut, buffers)
        nodes += (
            _about_own_means(graph.builder, cut, sums, *pieces)
            or _about_own_maxima(graph.builder, cut, maxima, *pieces, node.body)
            or pieces
        )
        if node.is_maximum:
            maxima[node.buffer] = node, cut
        if node.is_sum:
            sums.setdefault(cut.whole.body, cut)
    return replace(graph, nodes=tuple(nodes), buffers=buffers)


def _of_rows(nest: LoopNest, reduced: set[str], buffers: Mapping[str, Buffer]) -> bool:
    """True for a pointwise nest over results of rows."""
    found = [buffers[name].nbytes for name in nest.reads() & reduced]
    return bool(found) and buffers[nest.buffer].nbytes <= 2 * max(found)


def _whole_rows(nest: LoopNest, rule: SplitRule, reduced: set[str]) -> Cut | None:
    """A reduction over all elements of some rows, of each of which it needs a result, as a loss
    that is made of a softmax is: cut into its rows, so that it is computed where the row's results
    are."""
    if nest.with_index or nest.is_symbolic or not _wants_split(nest, rule):
        return None
    outer: set[Var] | None = None
    for load in nest.loads:
        if load.buffer in reduced:
            own = load.index.variables() & set(nest.reduce_vars)
            if load.index.indirects() or outer not in (None, own):
                return None
            outer = own
    if not outer:
        return None
    rows, rest = (
        tuple(v for v in nest.reduce_vars if (v in outer) is chosen) for chosen in (True, False)
    )
    many = rule.enough_tasks <= prod(v.size for v in rows) <= MAX_ROWS
    along = any(load.index.coefficient(v) == 1 for load in nest.loads for v in rest)
    return Cut(nest, rows, rest) if rest and many and along else None


def _wants_split(nest: LoopNest, rule: SplitRule) -> bool:
    if nest.reduction is None:
        return False
    if nest.iterations < rule.elements or _tasks(nest, rule) >= rule.enough_tasks:
        return False
    least = rule.pieces(contiguous_in_rows(nest)).result
    return nest.iterations // max(nest.points, 1) >= least


def _short_loop(nest: LoopNest, rule: SplitRule, buffers: Mapping[str, Buffer]) -> Var | None:
    """A short loop to be cut off whole, if there is one."""
    short_bytes, most_held = rule.short
    if not nest.is_sum or nest.is_symbolic or not short_bytes:
        return None
    if nest.iterations <= nest.points * most_held or nest.iterations < rule.elements:
        return None
    for v in nest.reduce_vars:
        for load in nest.loads:
            short = v.size * buffers[load.buffer].dtype.itemsize < short_bytes
            goes_on = any(load.index.coefficient(w) == v.size for w in nest.vars)
            if short and goes_on and load.index.coefficient(v) == 1:
                return v
    return None


def _read_twice(graph: LoopGraph) -> set[Expr]:
    """The bodies of sums of x and of sums of its squared distances from a mean."""
    nests = [node for node in graph.nodes if isinstance(node, LoopNest)]
    found: set[Expr] = set()
    for nest in nests:
        pair = _distance(nest)
        if pair is not None:
            found |= {pair[0], nest.body}
    return found


def _exceeds_cache(nest: LoopNest, rule: SplitRule, buffers: Mapping[str, Buffer]) -> bool:
    """True if the second time the elements of a sum are read, they are not in the cache."""
    across, (tasks, cache_bytes) = contiguous_in_rows(nest), rule.cache
    kept = rule.pieces(across).kept
    if not nest.is_sum or nest.is_symbolic or kept is None:
        return False
    elements = nest.iterations // max(nest.points, 1)
    read = {ld.buffer for ld in nest.loads if ld.index.variables() & set(nest.reduce_vars)}
    nbytes = elements * sum(buffers[name].dtype.itemsize for name in read)
    nbytes *= rule.side_by_side if across else 1
    return elements > 2 * kept and min(_tasks(nest, rule), tasks) * nbytes > cache_bytes


def _tasks(nest: LoopNest, rule: SplitRule) -> int:
    return -(-nest.points // rule.side_by_side) if contiguous_in_rows(nest) else nest.points


def contiguous_in_rows(nest: LoopNest) -> bool:
    """True if neighbours in memory belong to different results (a sum over rows of a matrix)."""
    whole = [load for load in nest.loads if load.index.variables() & set(nest.columns)]
    if any(load.index.coefficient(v) == 1 for load in whole for v in nest.rows):
        return True
    along = any(load.index.coefficient(v) in (1, -1) for load in whole for v in nest.columns)
    return bool(nest.rows) and not along


def _wanted_parts(nest: LoopNest, rule: SplitRule) -> int:
    """How many pieces of each result give enough parallel work."""
    piece = rule.pieces(contiguous_in_rows(nest)).piece
    return min(rule.aim // _tasks(nest, rule), nest.iterations // nest.points // piece, MAX_PARTS)


def _cut(
    builder: Builder, nest: LoopNest, rule: SplitRule, keep: bool, short: Var | None
) -> Cut | None:
    """With `keep`, into pieces of as many elements as are kept; `short` is a loop to be cut off
    whole."""
    per_result = nest.iterations // nest.points
    pieces_of = rule.pieces(contiguous_in_rows(nest))
    wanted = _wanted_parts(nest, rule)
    if keep and pieces_of.kept is not None:
        wanted = max(wanted, min(-(-per_result // pieces_of.kept), 4 * MAX_PARTS))
    if nest.is_symbolic:  # into as many pieces as this call wants, of whatever size
        longest = max(nest.reduce_vars, key=lambda v: hint_of(v.size))
        long = hint_of(longest.size) >= 2 * wanted > 2
        return cut_unevenly(builder, nest, longest, wanted) if long else None
    # Cut the reduced variables, outermost in memory first, into parts and the rest.
    order = sorted(nest.reduce_vars, key=lambda v: -_largest_stride(nest, v))
    parts = 1
    pieces: dict[Var, tuple[Var, ...]] = {v: (v,) for v in (*nest.vars, *nest.reduce_vars)}
    next_id = 1 + max(v.id for v in pieces)
    outer: list[Var] = []
    if short is not None:
        outer.append(short)
        order.remove(short)
        parts, wanted = short.size, max(wanted, rule.aim * rule.side_by_side // nest.points)
        wanted = min(wanted, MAX_PARTS)
    for v in order:
        if parts >= wanted:
            break
        share = divisor(v.size, -(-wanted // parts))
        if share == 1:
            if rule.outermost and parts == 1 and v.size >= 2 * wanted:
                break  # unevenly, rather than a loop inside of it
            continue
        big, small = Var(next_id, share), Var(next_id + 1, v.size // share)
        next_id += 2
        pieces[v] = (big, small) if small.size > 1 else (big,)
        outer.append(big)
        parts *= share
    far = 2 * parts <= wanted and not keep and short is None
    uneven = _cut_unevenly(builder, nest, order, wanted, rule) if far else None
    if parts == 1 or uneven is not None:
        return uneven
    indices = {v: piece_index(p) for v, p in pieces.items()}
    whole = replace_vars(builder, nest, pieces, indices)
    rest = tuple(v for v in whole.reduce_vars if v not in outer)
    return Cut(whole, tuple(outer), rest)


def _cut_unevenly(
    builder: Builder, nest: LoopNest, order: Sequence[Var], wanted: int, rule: SplitRule
) -> Cut | None:
    """Into pieces of equal size but for the last. `order` has the reduced variables, outermost in
    memory first."""
    long = [v for v in order if v.size >= 2 * wanted]
    if not long:
        return None
    v = long[0] if rule.outermost else max(nest.reduce_vars, key=lambda v: v.size)
    return cut_unevenly(builder, nest, v, wanted)


def _about_own_means(
    builder: Builder, cut: Cut, sums: Mapping[Expr, Cut], first: LoopNest, second: LoopNest
) -> tuple[LoopNest, LoopNest] | None:
    """The stages of a sum of `(x - mean) ** 2` whose pieces do not wait for the mean, if the sums
    of x are cut in the same way: of n elements of a piece that add up to `s`,
    `sum((x - mean) ** 2) == sum((x - s / n) ** 2) + n * (s / n - mean) ** 2`."""
    found = _distance(first)
    if found is None:
        return None
    x, mean = found
    known = sums.get(x)
    if known is None or not (known.even and cut.even and cut.rest):
        return None
    if (known.outer, known.rest, known.whole.vars) != (cut.outer, cut.rest, cut.whole.vars):
        return None
    count = builder.constant(prod(v.size for v in cut.rest), x.dtype)
    total = builder.load(known.parts, first.index, x.dtype)
    own = builder.apply("div", [total, count])
    distance = builder.apply("sub", [x, own])
    away = builder.apply("sub", [own, mean])
    square = builder.apply("mul", [builder.apply("mul", [away, away]), count])
    return (
        replace(first, body=builder.apply("mul", [distance, distance])),
        replace(second, body=builder.apply("add", [second.body, square])),
    )


def _as_its_maximum(
    builder: Builder, nest: LoopNest, maxima: Mapping[str, tuple[LoopNest, Cut]]
) -> LoopNest:
    """A sum in the variables of the maximum that it reads, if it goes through as many elements."""
    for name in sorted(nest.reads() & maxima.keys()):
        other, _ = maxima[name]
        own, others = (*nest.vars, *nest.reduce_vars), (*other.vars, *other.reduce_vars)
        if nest.points == other.points and [v.size for v in own] == [v.size for v in others]:
            to = dict(zip(own, others, strict=True))
            indices = {v: variable(w) for v, w in to.items()}
            return replace_vars(builder, nest, {v: (w,) for v, w in to.items()}, indices)
    return nest


def _about_own_maxima(
    builder: Builder,
    cut: Cut,
    maxima: Mapping[str, tuple[LoopNest, Cut]],
    first: LoopNest,
    second: LoopNest,
    body: Expr,
) -> tuple[LoopNest, LoopNest] | None:
    """The stages of a sum of `exp(x - largest)` (`body`) whose pieces do not wait for the largest
    of all, if the maxima of x are cut in the same way: of a piece whose largest element is c,
    `sum(exp(x - largest)) == sum(exp(x - c)) * exp(c - largest)`. Where `largest` is 0 in place of
    an infinity, as in a log-sum-exp, c is.

    Of a piece of -inf alone both factors are 0, unless `largest` is -inf, too, which gives NaN.
    """
    shifted = body.args[0] if isinstance(body, Apply) and body.op == "exp" else None
    if not (cut.whole.is_sum and isinstance(shifted, Apply) and shifted.op == "sub"):
        return None
    x, largest = shifted.args
    loads = [node for node in walk([largest]) if isinstance(node, Load)]
    if len(loads) != 1 or loads[0].buffer not in maxima:
        return None
    maximum, known = maxima[loads[0].buffer]
    if x is not maximum.body or (known.outer, known.rest) != (cut.outer, cut.rest):
        return None
    own = builder.load(known.parts, first.index, x.dtype)
    if largest is loads[0]:
        shift = builder.apply("maximum", [own, builder.constant(torch.finfo(x.dtype).min, x.dtype)])
    elif largest is _or_zero(builder, loads[0]):
        shift = _or_zero(builder, own)
    else:
        return None
    # (What lies beyond the end of an uneven last piece is -inf there.)
    powers = builder.apply("exp", [builder.apply("sub", [known.whole.body, shift])])
    factor = builder.apply("exp", [builder.apply("sub", [own, largest])])
    rescaled = builder.apply("mul", [second.body, factor])
    return replace(first, body=powers), replace(second, body=rescaled)


def _or_zero(builder: Builder, value: Expr) -> Expr:
    """A value, or 0 in place of an infinity."""
    zero = builder.constant(0.0, value.dtype)
    return builder.apply("where", [builder.apply("isinf", [value]), zero, value])


def _distance(nest: LoopNest) -> tuple[Expr, Expr] | None:
    """The x and the mean of a reduction of `(x - mean) ** 2`, if the mean is one of each result."""
    body = nest.body
    if not nest.is_sum or not (isinstance(body, Apply) and body.op == "mul"):
        return None
    distance, again = body.args
    if distance is not again or not (isinstance(distance, Apply) and distance.op == "sub"):
        return None
    x, mean = distance.args
    pieces = sum(1 << v.id for v in (*nest.reduce_vars, *nest.vars)) & mean.free
    rows = sum(1 << v.id for v in nest.vars)
    return (x, mean) if pieces & ~rows == 0 and x.dtype.is_floating_point else None


def _largest_stride(nest: LoopNest, var: Var) -> int:
    found = [load.index.coefficient(var) or 0 for load in nest.loads]
    return max((abs(s) for s in found), default=0)
