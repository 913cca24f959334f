"""The loops of attention with a function of its scores: what kernels compute for each score, and
which keys a query can see at all, as far as the function tells by their positions alone.

A score that is -inf has no share. Where it is so by a comparison of positions, as in causal
attention or with a window, whole blocks of scores need not be computed, and in other blocks the
comparison need not be made. A score to which so large a number is added that it vanishes beside it
has no share either, if its row has another one: that is known where every query sees a key, and
nothing but the score itself and its position is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dovetail_inductor.loop_ir.expr import Apply, Builder, Constant, Expr, Load, walk
from dovetail_inductor.loop_ir.handlers import Printer, interpret
from dovetail_inductor.loop_ir.index import Index, Var
from dovetail_inductor.loop_ir.simpler import place_of

# Beside so much any score vanishes in float32.
_VANISHING = -1e30


@dataclass(frozen=True)
class Bound:
    """`place <= slope * other + offset` (`upper`) or `place >= slope * other + offset`."""

    upper: bool
    slope: int
    offset: int


@dataclass(frozen=True)
class Seen:
    """Bounds of keys by the query, and of queries by the key: all of them hold for what is seen.
    `truths` are the conditions that they stand for, by their uids: what they are where the bounds
    hold."""

    of_keys: tuple[Bound, ...] = ()
    of_queries: tuple[Bound, ...] = ()
    truths: dict[int, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class _Condition:
    """A part of a mask, and whether it must be true or false where scores are seen."""

    expr: Expr
    truth: bool
    infinite: bool  # what does not see is -inf; else it vanishes


def seen_within(score: Expr, variables: tuple[Var, Var, Var, Var], scores: str) -> Seen:
    """The bounds that a function of scores (of the batch, the head, the query, the key) tells;
    `scores` is where it loads them from."""
    _, _, query, key = variables
    pairs: list[tuple[Bound, Bound]] = []
    truths: dict[int, bool] = {}
    finite: list[tuple[Bound, Bound]] = []
    finite_truths: dict[int, bool] = {}
    others = False  # is there a finite mask of another kind?
    for condition in _needed(score):
        found = [_bounds(index, query, key) for index in _not_negative(condition)]
        known = [pair for pair in found if pair is not None]
        whole = bool(found) and len(known) == len(found)
        if condition.infinite and whole:
            pairs += known
            truths[condition.expr.uid] = condition.truth
        elif not condition.infinite and whole:
            finite += known
            finite_truths[condition.expr.uid] = condition.truth
        else:
            others = True
    alone = all(n.buffer == scores for n in walk([score]) if isinstance(n, Load))
    if finite and alone and not others:
        if _always_seen([keys for keys, _ in pairs + finite], query.size, key.size):
            pairs, truths = pairs + finite, truths | finite_truths
    return Seen(tuple(k for k, _ in pairs), tuple(q for _, q in pairs), truths)


def mask_within(builder: Builder, score: Expr, seen: Seen, head: Var, scores: str) -> Expr | None:
    """What must hold for a score to be seen, as far as it follows from places and from what is read
    whatever the head; None if that is what the bounds that are `seen` say."""
    parts = []
    more = False
    for condition in _needed(score):
        expr = condition.expr
        reads = (n.buffer for n in walk([expr]) if isinstance(n, Load))
        if not condition.infinite or expr.free >> head.id & 1 or scores in reads:
            continue
        more |= expr.uid not in seen.truths
        parts.append(expr if condition.truth else builder.apply("bitwise_not", [expr]))
    if not more:
        return None
    mask = parts[0]
    for part in parts[1:]:
        mask = builder.apply("bitwise_and", [mask, part])
    return mask


def _always_seen(bounds: Sequence[Bound], queries: int, keys: int) -> bool:
    """Whether each query sees a key: at both ends of each bound, and so in between."""
    turns = {0, queries - 1}
    for a in bounds:  # where bounds cross one another, or the ends of the keys
        for b in (*bounds, Bound(True, 0, keys - 1), Bound(False, 0, 0)):
            if a.slope != b.slope:
                at = (b.offset - a.offset) // (a.slope - b.slope)
                turns |= {q for q in (at, at + 1) if 0 <= q < queries}
    for q in turns:
        lower = max([0, *(b.slope * q + b.offset for b in bounds if not b.upper)])
        upper = min([keys - 1, *(b.slope * q + b.offset for b in bounds if b.upper)])
        if lower > upper:
            return False
    return True


def _bounds(index: Index, query: Var, key: Var) -> tuple[Bound, Bound] | None:
    """What `index >= 0` says of keys and of queries, if it is of these two with factors 1 or -1."""
    if {atom for atom, _ in index.terms} - {query, key} or not isinstance(index.const, int):
        return None
    i, j = (index.coefficient(v) if v in index.variables() else 0 for v in (query, key))
    if i not in (1, -1) or j not in (1, -1):
        return None
    return _bound(j, i, index.const), _bound(i, j, index.const)


def _bound(own: int, other: int, const: int) -> Bound:
    """Of `own * place + other * x + const >= 0`."""
    return Bound(True, other, const) if own < 0 else Bound(False, -other, -const)


def _needed(score: Expr) -> Iterator[_Condition]:
    """Conditions that hold wherever a score may have a share."""
    if not isinstance(score, Apply):
        return
    if score.op == "where":
        condition, kept, other = score.args
        if _is_nothing(other):
            yield from _parts(condition, True, _is_infinite(other))
            yield from _needed(kept)
        elif _is_nothing(kept):
            yield from _parts(condition, False, _is_infinite(kept))
            yield from _needed(other)
    elif score.op == "add":
        for arg in score.args:
            yield from _needed(arg)


def _is_nothing(expr: Expr) -> bool:
    return isinstance(expr, Constant) and expr.value <= _VANISHING


def _is_infinite(expr: Expr) -> bool:
    return isinstance(expr, Constant) and expr.value == -math.inf


def _parts(expr: Expr, truth: bool, infinite: bool) -> Iterator[_Condition]:
    """What all holds (or does not) if a condition does (or does not)."""
    if isinstance(expr, Apply) and expr.op == ("bitwise_and" if truth else "bitwise_or"):
        for arg in expr.args:
            yield from _parts(arg, truth, infinite)
    elif isinstance(expr, Apply) and expr.op == "bitwise_not":
        yield from _parts(expr.args[0], not truth, infinite)
    else:
        yield _Condition(expr, truth, infinite)


_INVERSE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


def _not_negative(condition: _Condition) -> Iterator[Index]:
    """What is at least 0 if, and only if, a comparison of places is as it must be."""
    expr = condition.expr
    if not isinstance(expr, Apply) or len(expr.args) != 2:
        return
    op = expr.op if condition.truth else _INVERSE.get(expr.op, "")
    if op == "eq":
        left, right = (place_of(arg) for arg in expr.args)
        if left is not None and right is not None:
            yield from (left - right, right - left)
        return
    if op not in _INVERSE:
        return
    greater, less = expr.args if op in ("gt", "ge") else expr.args[::-1]
    strict = 1 if op in ("gt", "lt") else 0
    far = place_of(greater)
    if far is None:
        return
    if isinstance(less, Apply) and less.op == "abs":  # |a| <= b: both a <= b and -a <= b
        near = place_of(less.args[0])
        if near is not None:
            yield from (far - near + -strict, far + near + -strict)
        return
    near = place_of(less)
    if near is not None:
        yield far - near + -strict


# The least side of a tile.
LEAST_SIDE = 32


@dataclass(frozen=True)
class AttentionTiles:
    """A program works on `queries` x `keys` scores at a time. With `parts`, `queries` are all that
    read one head of keys, and so many programs share its keys."""

    queries: int
    keys: int
    warps: int
    stages: int
    parts: int = 0

    def as_text(self) -> str:
        """Short: `128x64 4 warps 3 stages`."""
        return f"{self.queries}x{self.keys} {self.warps} warps {self.stages} stages"


@dataclass(frozen=True)
class ScoreBody:
    """What is made of a score; and, for a backward, the score's gradient, made of that."""

    score: Expr
    gradient: Expr | None = None

    @property
    def roots(self) -> tuple[Expr, ...]:
        """Both, or what there is."""
        return (self.score,) if self.gradient is None else (self.score, self.gradient)


@dataclass(frozen=True)
class AttentionLoops:
    """What is computed at `vars` (the batch, the head, the query, the key): `body`, and `inside`
    the bounds that are `seen`, where parts of masks are known.

    The score is loaded from `scores`, a name and no memory, and the gradient of what is made of it
    from `slopes`. `tiles` has one entry for each of the call's kernels. Where masks tell more than
    the bounds, `mask` is what must hold (whatever the head) for a score to be seen: a kernel finds
    out before each other one in which tiles it does, and leaves that in the last results of the
    call, one for each kernel.
    """

    vars: tuple[Var, Var, Var, Var]
    body: ScoreBody
    inside: ScoreBody
    seen: Seen
    mask: Expr | None
    scores: str
    slopes: str
    tiles: tuple[AttentionTiles, ...]

    def as_text(self) -> str:
        """Readable form."""
        printer = Printer()
        names = interpret(self.body.roots, printer)
        return "\n".join([*printer.lines, f"gives {', '.join(names)}"])
