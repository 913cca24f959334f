"""Matching the loops of two groups of nests: which variable of one is which of the other.

Two nests that step through the same buffer have the same loops, up to splitting: the strides of the
access say how. Variables that no common access names are matched in order, by size. A match is only
a proposal; `fuse` checks that every value one group reads from the other is read at the very point
where it was computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dovetail_inductor.loop_ir.expr import Builder
from dovetail_inductor.loop_ir.index import Index, Var, variable
from dovetail_inductor.loop_ir.loops import LoopNest
from dovetail_inductor.loop_ir.sizes import hint_of, is_multiple, known_le


@dataclass(frozen=True)
class Group:
    """Nests to be computed together, over `rows` x `columns` (see `FusedKernel`)."""

    rows: tuple[Var, ...]
    columns: tuple[Var, ...]
    nests: tuple[LoopNest, ...]


@dataclass(frozen=True)
class Match:
    """The common loops, and for each group the pieces that replace each of its variables."""

    rows: tuple[Var, ...]
    columns: tuple[Var, ...]
    pieces_a: dict[Var, tuple[Var, ...]]
    pieces_b: dict[Var, tuple[Var, ...]]


@dataclass(eq=False)
class _Piece:
    size: int
    is_column: bool
    partner: _Piece | None = None
    new: Var | None = None


@dataclass
class _Side:
    """One group's variables, each a list of pieces (outermost first)."""

    group: Group
    pieces: dict[Var, list[_Piece]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for v in self.group.rows:
            self.pieces[v] = [_Piece(v.size, False)]
        for v in self.group.columns:
            self.pieces[v] = [_Piece(v.size, True)]

    def split(self, piece: _Piece, inner: int) -> tuple[_Piece, _Piece]:
        """Replace `piece` by an outer one and one of size `inner`."""
        for mine in self.pieces.values():
            for at, p in enumerate(mine):
                if p is piece:
                    outer = _Piece(piece.size // inner, piece.is_column)
                    small = _Piece(inner, piece.is_column)
                    mine[at : at + 1] = [outer, small]
                    return outer, small
        raise AssertionError("a piece of another side")

    def steps(self, index: Index) -> list[tuple[int, _Piece]] | None:
        """The strides of an access, innermost first; None unless it is plain and affine."""
        result = []
        for atom, c in index.terms:
            if not isinstance(atom, Var) or len(self.pieces[atom]) != 1:
                return None
            if known_le(c, 0) is None:
                return None
            result.append((c, self.pieces[atom][0]))
        return sorted(result, key=lambda t: abs(hint_of(t[0])))

    def unmatched(self) -> list[_Piece]:
        """Pieces without a partner, innermost first."""
        rows = [p for v in self.group.rows for p in self.pieces[v]]
        columns = [p for v in self.group.columns for p in self.pieces[v]]
        return [p for p in reversed(rows + columns) if p.partner is None]


def match(a: Group, b: Group, access_a: Index, access_b: Index) -> Match | None:
    """Match by one common access (given in each group's variables), the rest by order."""
    left, right = _Side(a), _Side(b)
    steps_a, steps_b = left.steps(access_a), right.steps(access_b)
    if steps_a is None or steps_b is None:
        return None
    if access_a.const != access_b.const or not _by_stride(left, right, steps_a, steps_b):
        return None
    free_a, free_b = left.unmatched(), right.unmatched()
    if free_a and free_b and not _by_order(left, right, free_a, free_b):
        return None
    return _roles(left, right)


def turned(builder: Builder, group: Group, towards: Index, access: Index) -> Group | None:
    """The group with its loops running the other way that `access` steps through against
    `towards`, an access of another group; None if there is none, or its order counts."""
    steps = {abs(hint_of(c)): c for atom, c in towards.terms if isinstance(atom, Var)}
    against = {
        atom
        for atom, c in access.terms
        if isinstance(atom, Var) and steps.get(abs(hint_of(c))) == -c
    }
    counted = {v for nest in group.nests if _in_order(nest) for v in nest.columns}
    if not against or against & counted or any(nest.scatter for nest in group.nests):
        return None

    def index(v: Var) -> Index:
        return variable(v) * -1 + (v.size - 1) if v in against else variable(v)

    return replace(group, nests=tuple(nest.renamed(builder, index) for nest in group.nests))


def _in_order(nest: LoopNest) -> bool:
    """True if it makes a difference in which order the columns are counted."""
    return nest.scan is not None or (nest.reduction is not None and nest.reduction.in_order)


def columns_in_order(nests: Sequence[LoopNest], columns: tuple[Var, ...]) -> tuple[Var, ...] | None:
    """The columns as scans among the nests go through them; None where these disagree."""
    orders = {nest.scan.vars for nest in nests if nest.scan is not None}
    if not orders:
        return columns
    order = orders.pop()
    return order if not orders and set(order) == set(columns) else None


def _by_stride(
    left: _Side, right: _Side, steps_a: list[tuple[int, _Piece]], steps_b: list[tuple[int, _Piece]]
) -> bool:
    while steps_a and steps_b:
        (stride_a, p), (stride_b, q) = steps_a.pop(0), steps_b.pop(0)
        if stride_a != stride_b:
            return False
        if p.size != q.size and is_multiple(p.size, q.size):
            outer, p = left.split(p, q.size)
            steps_a.append((stride_a * q.size, outer))
            steps_a.sort(key=lambda t: abs(hint_of(t[0])))
        elif p.size != q.size:
            if not is_multiple(q.size, p.size):
                return False
            outer, q = right.split(q, p.size)
            steps_b.append((stride_b * p.size, outer))
            steps_b.sort(key=lambda t: abs(hint_of(t[0])))
        p.partner, q.partner = q, p
    return not steps_a and not steps_b


def _by_order(left: _Side, right: _Side, free_a: list[_Piece], free_b: list[_Piece]) -> bool:
    while free_a and free_b:
        p, q = free_a.pop(0), free_b.pop(0)
        if p.size != q.size and is_multiple(p.size, q.size):
            outer, p = left.split(p, q.size)
            free_a.insert(0, outer)
        elif p.size != q.size:
            if not is_multiple(q.size, p.size):
                return False
            outer, q = right.split(q, p.size)
            free_b.insert(0, outer)
        p.partner, q.partner = q, p
    return not free_a and not free_b


def _roles(left: _Side, right: _Side) -> Match | None:
    """Decide which common loops are rows and which columns, and name them.

    A group with columns fixes its pieces' roles; a group without is then either over all of them
    or over the rows alone. Of two groups without, one may lack loops of the other: those become
    columns, and the smaller group is computed once a row.
    """
    fixed_a, fixed_b = bool(left.group.columns), bool(right.group.columns)
    free_a, free_b = left.unmatched(), right.unmatched()
    if free_a and free_b:
        return None
    if fixed_a and fixed_b:
        if free_a or free_b:
            return None
        lead = left
    elif fixed_a or fixed_b:
        lead, free, other = (left, free_a, free_b) if fixed_a else (right, free_b, free_a)
        columns = [p for mine in lead.pieces.values() for p in mine if p.is_column]
        if other or (free and set(map(id, free)) != set(map(id, columns))):
            return None
    else:
        lead = right if free_b else left
        for p in free_a + free_b:
            p.is_column = True
    rows: list[Var] = []
    new_columns: list[Var] = []
    for mine in lead.pieces.values():
        for p in mine:
            p.new = Var(len(rows) + len(new_columns), p.size)
            if p.partner is not None:
                p.partner.new = p.new
                if fixed_a and fixed_b and p.partner.is_column != p.is_column:
                    return None
            (new_columns if p.is_column else rows).append(p.new)

    def pieces(side: _Side) -> dict[Var, tuple[Var, ...]]:
        return {
            v: tuple(p.new for p in mine if p.new is not None) for v, mine in side.pieces.items()
        }

    return Match(tuple(rows), tuple(new_columns), pieces(left), pieces(right))
