"""`GuardSet`: everything a compiled frame relied on, sorted, checkable and explainable."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from types import CodeType
from typing import TYPE_CHECKING, Any

from dovetail_guards import clauses as c
from dovetail_guards import source as s
from dovetail_guards.check_clauses import check
from dovetail_guards.evaluate import FrameView, constant_key
from dovetail_guards.explain import GuardFailure, clause_text, explain, in_short

if TYPE_CHECKING:
    from dovetail_guards.native import NativeGuard

# Cheap and likely to fail first. Within one rank, shallow sources first.
_RANKS: tuple[tuple[type[c.Clause], ...], ...] = (
    (c.TensorIs,),
    (c.ConstantIs, c.TypeIs),
    (c.TorchState, c.AbstractAnswers),
    (c.IdIs, c.LengthIs, c.GlobalPresent),
    (c.HasKey, c.HasInstanceAttr, c.SlotIsEmpty, c.NoAccumulatorHooks, c.ClassAttrsAre,
     c.FunctionIs),
    (c.DictKeysAre,),
    (c.SameObject, c.DistinctObjects, c.DistinctStorage, c.ShapeRelation),
)  # fmt: skip
_RANK = {kind: rank for rank, kinds in enumerate(_RANKS) for kind in kinds}


def source_depth(source: s.Source) -> int:
    """How many steps lie between a source and its root; counted once for each source."""
    known: int | None = source.__dict__.get("_depth")
    if known is None:
        base = getattr(source, "base", None)
        known = source.__dict__["_depth"] = 0 if base is None else source_depth(base) + 1
    return known


def _order(clause: c.Clause) -> tuple[bool, int, int]:
    source = getattr(clause, "source", None)
    depth = 0 if source is None else source_depth(source)
    rank = _RANK[type(clause)]
    # Relations between values are decided last: they need the values to be tensors at all.
    return rank == 6, depth, rank


def _identity(clause: c.Clause) -> Any:
    """What makes two clauses one. Plain `==` would merge `ConstantIs` of 1, 1.0 and True."""
    match clause:
        case c.ConstantIs():
            return (c.ConstantIs, clause.source, constant_key(clause.value))
        case c.DictKeysAre():
            return (c.DictKeysAre, clause.source, constant_key(clause.keys))
        case c.HasKey():
            return (c.HasKey, clause.source, constant_key(clause.key), clause.present)
        case c.TorchState():
            return (c.TorchState, clause.name, constant_key(clause.value))
    return clause


class GuardSet:
    """An immutable, deduplicated, sorted set of clauses; a frame is reusable when all hold."""

    def __init__(self, clauses: Iterable[c.Clause] = ()) -> None:
        unique = {_identity(clause): clause for clause in clauses}
        self._clauses = tuple(sorted(unique.values(), key=_order))

    @property
    def clauses(self) -> tuple[c.Clause, ...]:
        """The clauses, in the order they are checked."""
        return self._clauses

    def __len__(self) -> int:
        return len(self._clauses)

    def __add__(self, other: GuardSet) -> GuardSet:
        return GuardSet((*self._clauses, *other._clauses))

    def merge(self, *others: GuardSet) -> GuardSet:
        """All clauses of this set and of `others`."""
        return GuardSet(clause for guards in (self, *others) for clause in guards._clauses)

    @cached_property
    def _keys(self) -> frozenset[Any]:
        return frozenset(_identity(clause) for clause in self._clauses)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GuardSet) and self._keys == other._keys

    def __hash__(self) -> int:
        return hash(self._keys)

    def __repr__(self) -> str:
        return f"GuardSet({len(self._clauses)} clauses)"

    def as_text(self) -> str:
        """One clause a line."""
        lines = [f"guards ({len(self._clauses)}):"]
        lines += [f"  {clause_text(clause)}" for clause in self._clauses]
        return "\n".join(lines)

    def in_short(self) -> str:
        """The values that are looked at, a line each; all others together."""
        lines = [f"guards ({len(self._clauses)}):"]
        return "\n".join([*lines, *(f"  {line}" for line in in_short(self._clauses))])

    def check_slow(self, frame: FrameView) -> bool:
        """Do all clauses hold? Clause by clause in Python: the oracle of the native check."""
        return all(check(clause, frame) for clause in self._clauses)

    def explain_failure(self, frame: FrameView) -> GuardFailure | None:
        """The first clause that fails in this frame, in words; None when all hold."""
        for clause in self._clauses:
            if not check(clause, frame):
                return explain(clause, frame)
        return None

    def compile(self, code: CodeType) -> NativeGuard:
        """One native check of all clauses, for frames of functions that run `code`."""
        from dovetail_guards.native import compile_guards

        return compile_guards(self._clauses, code)
