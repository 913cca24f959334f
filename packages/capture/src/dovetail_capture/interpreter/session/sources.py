"""Interned sources: the same path gives the same `Source` object, so that guards can be told apart
by `id` (hashing a long path for each guard is what would cost time)."""

from __future__ import annotations

from typing import Any

from dovetail_guards.source import (
    AttrSource,
    BuiltinSource,
    CellContentsSource,
    ClosureSource,
    DictKeySource,
    FlattenSource,
    GlobalSource,
    InstanceAttrSource,
    ItemSource,
    IteratorSource,
    LocalSource,
    ObjectSource,
    Source,
)


class SourceTable:
    """Makes sources, each once."""

    def __init__(self) -> None:
        self._known: dict[Any, Source] = {}
        self._types: dict[str, type[Any]] = {
            "local": LocalSource,
            "closure": ClosureSource,
            "global": GlobalSource,
            "builtin": BuiltinSource,
        }

    def _get(self, key: Any, cls: Any, *args: Any) -> Source:
        source = self._known.get(key)
        if source is None:
            source = self._known[key] = cls(*args)
        return source

    def root(self, kind: str, name: str) -> Source:
        """A local, closure, global or builtin name."""
        return self._get((kind, name), self._types[kind], name)

    def attr(self, base: Source, name: str) -> Source:
        """`base.name`."""
        return self._get((1, id(base), name), AttrSource, base, name)

    def attrs(self, base: Source, path: str) -> Source:
        """`base.a.b`, for the path "a.b"."""
        for name in path.split("."):
            base = self.attr(base, name)
        return base

    def flattened(self, base: Source) -> Source:
        return self._get((6, id(base)), FlattenSource, base)

    def instance_attr(self, base: Source, name: str) -> Source:
        """`base.__dict__[name]`."""
        return self._get((2, id(base), name), InstanceAttrSource, base, name)

    def item(self, base: Source, key: Any) -> Source:
        """`base[key]`."""
        return self._get((3, id(base), type(key), key), ItemSource, base, key)

    def key(self, base: Source, index: int) -> Source:
        """The key of a dict at a place in its order."""
        return self._get((4, id(base), index), DictKeySource, base, index)

    def iterator_part(self, base: Source, part: str) -> Source:
        """What an iterator holds: `part` names a reader of `dovetail_guards.iterators`."""
        return self._get((7, id(base), part), IteratorSource, base, part)

    def cell(self, base: Source) -> Source:
        """The contents of a closure cell."""
        return self._get((5, id(base)), CellContentsSource, base)

    def held(self, obj: Any, label: str | None = None) -> Source:
        """An object that the compiler itself holds."""
        known = self._known.get((6, id(obj)))
        if known is None:
            text = label or getattr(obj, "__qualname__", None) or type(obj).__name__
            known = self._known[(6, id(obj))] = ObjectSource(obj, str(text))
        return known
