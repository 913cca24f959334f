"""One load instead of several of which one counts.

An element of a concatenation is `where(i < 256, a[i], where(i < 288, b[i - 256], ...))`: a load and
a choice for every part. Where all lanes of a vector lie in the same part, what is chosen is the
pointer instead, once for all elements of that part, and there is one load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dovetail_inductor.loop_ir.expr import Apply, Expr, Load, index_free, walk
from dovetail_inductor.loop_ir.handlers import interpret
from dovetail_inductor.loop_ir.index import Atom, Index, Var
from dovetail_inductor.loop_ir.loops import Buffer
from dovetail_inductor.targets.cpu.syntax import index_text
from dovetail_inductor.targets.cpu.writer import Name, Place, Writer


@dataclass(frozen=True)
class Pick:
    """The load of the first condition that holds; of the last if none does."""

    conditions: tuple[Expr, ...]
    loads: tuple[Load, ...]


def find_picks(
    roots: Iterable[Expr], vector: Var, buffers: Mapping[str, Buffer]
) -> dict[int, Pick]:
    """The outermost chains of choices among loads from `buffers`, by their uid."""
    found: dict[int, Pick] = {}
    within: set[int] = set()
    for node in reversed(list(walk(roots))):
        if isinstance(node, Apply) and node.op == "where" and node.uid not in within:
            pick = _pick(node, vector, buffers)
            if pick is not None:
                found[node.uid] = pick
                rest: Expr = node
                while isinstance(rest, Apply):
                    within.add(rest.uid)
                    rest = rest.args[2]
    return found


def _pick(node: Apply, vector: Var, buffers: Mapping[str, Buffer]) -> Pick | None:
    conditions: list[Expr] = []
    loads: list[Expr] = []
    rest: Expr = node
    while isinstance(rest, Apply) and rest.op == "where":
        conditions.append(rest.args[0])
        loads.append(rest.args[1])
        rest = rest.args[2]
    loads.append(rest)
    plain = tuple(load for load in loads if isinstance(load, Load))
    if len(plain) < len(loads) or any(c.free >> vector.id & 1 for c in conditions):
        return None
    if any(load.index.indirects() or load.buffer not in buffers for load in plain):
        return None
    if len({buffers[load.buffer].dtype for load in plain}) != 1:
        return None
    strides = {load.index.coefficient(vector) for load in plain}
    if len(strides) != 1 or None in strides:
        return None
    for position, load in enumerate(plain):
        own = conditions[position : position + 1]
        if not _follows(load.mask, own, conditions[:position]):
            return None
    return Pick(tuple(conditions), plain)


_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


def _follows(mask: Expr | None, true: Sequence[Expr], false: Sequence[Expr]) -> bool:
    """Whether a mask holds wherever these are true and those are false."""
    if mask is None or mask in true:
        return True
    if not isinstance(mask, Apply):
        return False
    if mask.op == "bitwise_and":
        return all(_follows(part, true, false) for part in mask.args)
    return any(
        isinstance(other, Apply)
        and not other.args[0].dtype.is_floating_point  # (of which a NaN is neither)
        and _OPPOSITE.get(other.op) == mask.op
        and other.args == mask.args
        for other in false
    )


def emit_pick(pick: Pick, writer: Writer) -> Name | None:
    """The load of what is picked; None if the lanes have conditions of their own after all, or if
    a tile holds some of the values, transposed."""
    if any(load.uid in writer.tiles for load in pick.loads):
        return None
    conditions = interpret(pick.conditions, writer, writer.memo)
    if any(condition.vector for condition in conditions):
        return None
    bound = writer.scopes[max(c.depth for c in conditions)].bound
    if writer.vector is not None:  # lanes are apart by its stride, wherever its loop is
        bound &= ~(1 << writer.vector.id)
    fixed = [_terms(load.index, bound, True) for load in pick.loads]
    moving = [_terms(load.index, bound, False) for load in pick.loads]

    def chosen(texts: Sequence[str]) -> str:
        rest = texts[-1]
        for condition, text in zip(reversed(conditions), reversed(texts[:-1]), strict=True):
            if text != rest:
                rest = f"{condition.text} ? {text} : {rest}"
        return writer.shared(rest, _free(fixed), conditions).text

    pointers = [writer.place(load.buffer).pointer for load in pick.loads]
    pointer = chosen([f"{p} + {_text(index)}" for p, index in zip(pointers, fixed, strict=True)])
    common: list[tuple[Atom, int]] = []
    for atom in dict.fromkeys(atom for index in moving for atom, _ in index.terms):
        strides = [dict(index.terms).get(atom, 0) for index in moving]
        if len(set(strides)) == 1:  # as along the vector
            common.append((atom, strides[0]))
        else:
            stride = chosen([f"int64_t({n})" for n in strides])
            pointer += f" + {stride} * {_text(Index(0, ((atom, 1),)))}"
    place, index = Place(pointer), Index(0, tuple(common))
    text, vector = writer.load_text(place, index, None, lambda e: writer.memo[e.uid])
    return writer.define(text, _free([*fixed, *moving]), vector, conditions)


def _terms(index: Index, bound: int, within: bool) -> Index:
    """The terms whose variables are all in the bit set `bound`, with the constant; or the rest."""
    terms = tuple(t for t in index.terms if (index_free(Index(0, (t,))) & ~bound == 0) is within)
    return Index(index.const if within else 0, terms)


def _free(indices: Iterable[Index]) -> int:
    free = 0
    for index in indices:
        free |= index_free(index)
    return free


def _text(index: Index) -> str:
    return index_text(index, lambda v: f"i{v.id}", lambda e: "")
