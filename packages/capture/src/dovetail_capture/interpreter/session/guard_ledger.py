"""The guards that one capture attempt gathers, and their sources, which are interned: the same path
gives the same `Source` object, so that guards can be told apart by `id` (hashing a long path for
each guard is what would cost time)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from dovetail_guards import clauses as c
from dovetail_guards import source as s

from dovetail_capture.interpreter.values.base import Constant, Unread, Value
from dovetail_capture.interpreter.values.computed_sources import DrawSource


class SourceTable:
    """Makes sources, each once."""

    def __init__(self) -> None:
        self._known: dict[Any, s.Source] = {}
        self._types: dict[str, type[Any]] = {
            "local": s.LocalSource,
            "closure": s.ClosureSource,
            "global": s.GlobalSource,
            "builtin": s.BuiltinSource,
        }

    def _get(self, key: Any, cls: Any, *args: Any) -> s.Source:
        source = self._known.get(key)
        if source is None:
            source = self._known[key] = cls(*args)
        return source

    def root(self, kind: str, name: str) -> s.Source:
        """A local, closure, global or builtin name."""
        return self._get((kind, name), self._types[kind], name)

    def attr(self, base: s.Source, name: str) -> s.Source:
        """`base.name`."""
        return self._get((1, id(base), name), s.AttrSource, base, name)

    def attrs(self, base: s.Source, path: str) -> s.Source:
        """`base.a.b`, for the path "a.b"."""
        for name in path.split("."):
            base = self.attr(base, name)
        return base

    def flattened(self, base: s.Source) -> s.Source:
        return self._get((6, id(base)), s.FlattenSource, base)

    def instance_attr(self, base: s.Source, name: str) -> s.Source:
        """`base.__dict__[name]`."""
        return self._get((2, id(base), name), s.InstanceAttrSource, base, name)

    def item(self, base: s.Source, key: Any) -> s.Source:
        """`base[key]`."""
        return self._get((3, id(base), type(key), key), s.ItemSource, base, key)

    def key(self, base: s.Source, index: int) -> s.Source:
        """The key of a dict at a place in its order."""
        return self._get((4, id(base), index), s.DictKeySource, base, index)

    def iterator_part(self, base: s.Source, part: str) -> s.Source:
        """What an iterator holds: `part` names a reader of `dovetail_guards.iterators`."""
        return self._get((7, id(base), part), s.IteratorSource, base, part)

    def cell(self, base: s.Source) -> s.Source:
        """The contents of a closure cell."""
        return self._get((5, id(base)), s.CellContentsSource, base)

    def held(self, obj: Any, label: str | None = None) -> s.Source:
        """An object that the compiler itself holds."""
        known = self._known.get((6, id(obj)))
        if known is None:
            text = label or getattr(obj, "__qualname__", None) or type(obj).__name__
            known = self._known[(6, id(obj))] = s.ObjectSource(obj, str(text))
        return known


class GuardLedger:
    """Clauses, each once, in the order in which the interpreter came to rely on them."""

    def __init__(self) -> None:
        self.clauses: list[c.Clause] = []
        self.sealed = False  # have the guards been made?
        self.global_hooks = False  # is it guarded that there are no hooks of all modules?
        self._known: set[Any] = set()
        self._constants: dict[int, Constant] = {}  # by the ids of their sources
        self._types: dict[int, int] = {}  # by source: where in `clauses` the type is guarded

    def add(self, kind: type[Any], source: s.Source, *args: Any) -> None:
        """Add the clause `kind(source, *args)` once."""
        key = (kind, id(source), *args)
        try:
            if key in self._known:
                return
            self._known.add(key)
        except TypeError:  # an unhashable expected value
            pass
        self.clauses.append(kind(source, *args))

    def append(self, *clauses: c.Clause) -> None:
        """Add clauses that cannot be there yet."""
        self.clauses.extend(clauses)

    def seal(self) -> None:
        """The guards are made: what is asked for from now on would not be guarded."""
        self.sealed = True

    def constant(
        self, real: Any, source: s.Source, as_number: Callable[[], Value | None]
    ) -> Constant:
        """The value of a pre-existing object that is known by its value: its type is guarded now,
        and its value once something asks for it, unless it is a symbolic number by then."""
        found = self._constants.get(id(source))
        if found is None:
            unread = Unread(real, self._guard_value, as_number)
            found = self._constants[id(source)] = Constant.guarded_when_read(source, unread)
            self._types[id(source)] = len(self.clauses)
            self.clauses.append(c.TypeIs(source, type(real)))
        return found

    def _guard_value(self, real: Any, source: s.Source) -> None:
        """Guard the value in place of the type, which it tells, too."""
        if self.sealed:
            raise RuntimeError(f"{source} is asked for when the guards are made")
        self.clauses[self._types[id(source)]] = c.ConstantIs(source, real)

    def ints(self) -> dict[int, int]:
        """The ints that existed before and whose value is guarded, by the ids of their sources."""
        found = {}
        for place, constant in self._constants.items():
            if constant.unread is None and type(constant.value) is int:
                found[place] = constant.value
        return found

    def forget_constants(self) -> None:
        """Let go of the values of pre-existing objects."""
        self._constants.clear()

    def pin(self, source: s.Source, obj: Any, by_address: bool = False) -> None:
        """Guard that `source` gives this very object (`by_address`: see `IdIs`)."""
        if type(source) is not s.ObjectSource:
            self._once((c.IdIs, id(source)), partial(c.IdIs, source, obj, by_address))

    def state(self, name: str, value: Any) -> None:
        """Guard a global setting (a reader of `torch_state`)."""
        self._once((c.TorchState, name), partial(c.TorchState, name, value))

    def can_relate(self, first: s.Source | None, second: s.Source | None) -> bool:
        """Can guards speak of both objects?"""
        made = (type(None), s.ClosureCellSource, DrawSource)
        return not isinstance(first, made) and not isinstance(second, made)

    def distinct(self, first: s.Source | None, second: s.Source | None) -> None:
        """Guard that two sources give different objects. An object without a source is made in
        the frame: it is no other."""
        if first is None or second is None or first is second:
            return
        if self.can_relate(first, second):
            clause = partial(c.DistinctObjects, (first, second))
            self._once((c.DistinctObjects, id(first), id(second)), clause)

    def same(self, first: s.Source, second: s.Source) -> None:
        """Guard that two sources give one object."""
        if first is not second:
            clause = partial(c.SameObject, (first, second))
            self._once((c.SameObject, id(first), id(second)), clause)

    def _once(self, key: tuple[Any, ...], clause: Callable[[], c.Clause]) -> None:
        if key not in self._known:
            self._known.add(key)
            self.clauses.append(clause())
